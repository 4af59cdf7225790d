"""Ollama's endpoints, answered by the engine's OpenAI endpoints. Here events are read and written anew."""

import asyncio
import logging
import time
from datetime import UTC, datetime

from aiohttp import web

from terazi.gateway.backend import READY, Backend
from terazi.gateway.desk import Desk, Tab, json_response, stream_response
from terazi.gateway.upstream import EngineLostError, Reply
from terazi.gateway.wire import ollama
from terazi.gateway.wire.errors import (
    Api,
    Fault,
    WireError,
    bad_request,
    engine_cut,
    engine_fault,
    ndjson_line,
    shutting_down,
)
from terazi.gateway.wire.ollama_answer import Translator, embed_answer, embeddings
from terazi.gateway.wire.ollama_request import (
    EMBED_PATH,
    ChatBody,
    EmbedBody,
    EmbeddingsBody,
    EngineCall,
    GenerateBody,
    ShowBody,
    chat_call,
    embed_call,
    generate_call,
    read_body,
)
from terazi.gateway.wire.sse import EventReader

_log = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"
#: They change the model store, which isn't this service's.
NOT_OFFERED = ("pull", "push", "create", "copy", "delete")


class OllamaRoutes:
    """Handlers of ``/api`` and ``/``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        route, router = self._desk.route, app.router
        router.add_get("/", route(Api.OLLAMA, self.banner, public=True))
        router.add_get("/api/version", route(Api.OLLAMA, self.version))
        router.add_get("/api/tags", route(Api.OLLAMA, self.tags))
        router.add_get("/api/ps", route(Api.OLLAMA, self.ps))
        router.add_post("/api/show", route(Api.OLLAMA, self.show))
        router.add_post("/api/chat", route(Api.OLLAMA, self.chat))
        router.add_post("/api/generate", route(Api.OLLAMA, self.generate))
        router.add_post("/api/embed", route(Api.OLLAMA, self.embed))
        router.add_post("/api/embeddings", route(Api.OLLAMA, self.embeddings))
        for name in NOT_OFFERED:
            router.add_route("*", f"/api/{name}", route(Api.OLLAMA, self.refuse))

    async def banner(self, _request: web.Request, _tab: Tab) -> web.Response:
        """What clients look at to see if somebody is there."""
        return web.Response(text=ollama.BANNER)

    async def version(self, _request: web.Request, _tab: Tab) -> web.Response:
        """The API's version, not Terazi's."""
        return json_response({"version": ollama.API_VERSION})

    async def tags(self, _request: web.Request, _tab: Tab) -> web.Response:
        """What is there."""
        return json_response(ollama.tags([model.card for model in self._desk.directory.served()]))

    async def ps(self, _request: web.Request, _tab: Tab) -> web.Response:
        """What is loaded."""
        return json_response(
            ollama.ps([e for model in self._desk.directory.served() for e in model.engines if e.state == READY])
        )

    async def show(self, request: web.Request, tab: Tab) -> web.Response:
        """Everything about one model."""
        body = read_body(ShowBody, await self._desk.read_body(request))
        name = body.model or body.name
        if not name:
            raise WireError(bad_request("'model' is missing"))
        return json_response(ollama.show(self._desk.find(name, tab).card))

    async def refuse(self, request: web.Request, _tab: Tab) -> web.Response:
        """Say what isn't offered."""
        raise WireError(ollama.not_offered(request.path))

    async def chat(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /api/chat``."""
        body = read_body(ChatBody, await self._desk.read_body(request))
        backend = self._desk.find(body.model, tab).engines[0]
        call = chat_call(body, model=backend.card.id)
        return await self._converse(request, tab, backend, call, body.model)

    async def generate(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /api/generate``."""
        body = read_body(GenerateBody, await self._desk.read_body(request))
        backend = self._desk.find(body.model, tab).engines[0]
        call = generate_call(body, model=backend.card.id)
        return await self._converse(request, tab, backend, call, body.model)

    async def embed(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /api/embed``."""
        body = read_body(EmbedBody, await self._desk.read_body(request))
        backend = self._desk.find(body.model, tab).engines[0]
        started = time.perf_counter_ns()
        call = embed_call(body.input, model=backend.card.id, dimensions=body.dimensions)
        answer, load_ns = await self._embed(backend, call, tab)
        vectors = embeddings(answer) if answer else []
        total_ns = time.perf_counter_ns() - started
        return json_response(embed_answer(vectors, answer, model=body.model, total_ns=total_ns, load_ns=load_ns))

    async def embeddings(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /api/embeddings``."""
        body = read_body(EmbeddingsBody, await self._desk.read_body(request))
        backend = self._desk.find(body.model, tab).engines[0]
        answer, _ = await self._embed(backend, embed_call(body.prompt, model=backend.card.id), tab)
        vectors = embeddings(answer) if answer else []
        return json_response({"embedding": vectors[0] if vectors else []})

    async def _embed(self, backend: Backend, call: bytes | None, tab: Tab) -> tuple[bytes, int]:
        """The engine's answer and how long it was waited for; nothing to embed only waits."""
        desk = self._desk
        if call is None:
            return b"", await desk.upstream.wait_ready(backend)
        with desk.traffic.entering(), backend.tracking():
            async with desk.upstream.exchange(backend, EMBED_PATH, call, stream=False) as reply:
                desk.first_byte(Api.OLLAMA, tab)
                if reply.status != 200:
                    raise WireError(engine_fault(reply.status, reply.first))
                return reply.first, reply.waited_ns

    async def _converse(
        self, request: web.Request, tab: Tab, backend: Backend, call: EngineCall, name: str
    ) -> web.StreamResponse:
        desk = self._desk
        started = time.perf_counter_ns()
        translator = Translator(shape=call.shape, model=name)
        if call.body is None:
            await desk.upstream.wait_ready(backend)
            return json_response(translator.loaded(created_at=_now()))
        with desk.traffic.entering(), backend.tracking():
            async with desk.upstream.exchange(backend, call.path, call.body, stream=call.stream) as reply:
                desk.first_byte(Api.OLLAMA, tab)
                if reply.status != 200:
                    raise WireError(engine_fault(reply.status, reply.first))
                if reply.is_stream:
                    return await self._translate(request, reply, translator, tab, started)
                total_ns = time.perf_counter_ns() - started
                return json_response(
                    translator.whole(reply.first, created_at=_now(), total_ns=total_ns, load_ns=reply.waited_ns)
                )

    async def _translate(
        self, request: web.Request, reply: Reply, translator: Translator, tab: Tab, started: int
    ) -> web.StreamResponse:
        """Turn events into lines as they come. What goes wrong on the way is the last line."""
        response = stream_response(200, NDJSON)
        events, chunk, sent = EventReader(), reply.first, 0
        fault: Fault | None = None
        try:
            while chunk:
                now = _now()
                lines = b"".join([translator.feed(event, created_at=now) for event in events.feed(chunk)])
                if not tab.prepared:  # an error in the first event can still be a status
                    await response.prepare(request)
                    tab.prepared = True
                if lines:
                    await response.write(lines)
                    sent += len(lines)
                chunk = await reply.more()
            total_ns = time.perf_counter_ns() - started
            last = translator.end(created_at=_now(), total_ns=total_ns, load_ns=reply.waited_ns)
            await response.write(last)
        except EngineLostError:
            fault = engine_cut()
        except WireError as error:
            if not tab.prepared:
                raise
            fault = error.fault
        except asyncio.CancelledError:
            if not self._desk.traffic.cutting:
                raise
            fault = shutting_down()
        finally:
            self._desk.metrics.stream_bytes.labels(tab.model).inc(sent)
        if fault is not None:
            _log.warning("a stream of %s was cut after %d bytes: %s", tab.model, sent, fault.code)
            await response.write(ndjson_line(fault))
        await response.write_eof()
        return response


def _now() -> str:
    return datetime.now(UTC).isoformat()

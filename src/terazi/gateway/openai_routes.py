"""OpenAI's endpoints. A request's bytes go to the engine as they came, and so do the answer's to the client."""

import asyncio
import logging

from aiohttp import web

from terazi.gateway.desk import Desk, Tab, fault_response, json_response, stream_response
from terazi.gateway.upstream import EngineLostError, Reply
from terazi.gateway.wire import anthropic_answer
from terazi.gateway.wire.errors import (
    RETRY_AFTER_S,
    Api,
    Fault,
    WireError,
    engine_cut,
    shutting_down,
    sse_event,
    unknown_model,
)
from terazi.gateway.wire.openai import TAIL_BYTES, is_complete, model_entry, model_list, read_envelope

_log = logging.getLogger(__name__)

#: Passed through to the engine under the same path.
FORWARDED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


class OpenAiRoutes:
    """Handlers of ``/v1``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        route = self._desk.route
        app.router.add_get("/v1/models", route(Api.OPENAI, self.models))
        app.router.add_get("/v1/models/{id:.+}", route(Api.OPENAI, self.model))
        for path in FORWARDED:
            app.router.add_post(path, route(Api.OPENAI, self.forward))

    async def models(self, request: web.Request, _tab: Tab) -> web.Response:
        """What is served."""
        cards = [model.card for model in self._desk.directory.served()]
        return json_response(anthropic_answer.model_list(cards) if _is_anthropic(request) else model_list(cards))

    async def model(self, request: web.Request, _tab: Tab) -> web.Response:
        """One of them; ids hold slashes."""
        name = request.match_info["id"]
        found = self._desk.directory.find(name)
        if found is None:
            fault = unknown_model(name, [m.card.id for m in self._desk.directory.served()])
            if _is_anthropic(request):
                return fault_response(Api.ANTHROPIC, fault)
            raise WireError(fault)
        entry = anthropic_answer.model_entry if _is_anthropic(request) else model_entry
        return json_response(entry(found.card))

    async def forward(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """Send the request on and pass the answer back."""
        desk = self._desk
        body = await desk.read_body(request)
        envelope = read_envelope(body)
        backend = desk.find(envelope.model, tab).engines[0]
        kind = request.headers.get("Content-Type", "application/json")
        with desk.traffic.entering(), backend.tracking():
            exchange = desk.upstream.exchange(
                backend, request.path, body, stream=envelope.stream, content_type=kind
            )
            async with exchange as reply:
                desk.first_byte(Api.OPENAI, tab)
                if reply.is_stream:
                    return await self._relay(request, reply, tab)
                headers = {"Content-Type": reply.content_type}
                if reply.status == 503:
                    headers["Retry-After"] = str(RETRY_AFTER_S)
                return web.Response(body=reply.first, status=reply.status, headers=headers)

    async def _relay(self, request: web.Request, reply: Reply, tab: Tab) -> web.StreamResponse:
        """Pass a stream on as it comes. If it ends before its end, the client is told so in an event."""
        response = stream_response(reply.status, reply.content_type)
        await response.prepare(request)
        tab.prepared = True
        chunk, tail, sent = reply.first, b"", 0
        fault: Fault | None = None
        try:
            while chunk:
                await response.write(chunk)
                sent += len(chunk)
                tail = chunk if len(chunk) >= TAIL_BYTES else (tail + chunk)[-TAIL_BYTES:]
                chunk = await reply.more()
            if not is_complete(tail):
                fault = engine_cut()
        except EngineLostError:
            fault = engine_cut()
        except asyncio.CancelledError:
            if not self._desk.traffic.cutting:
                raise
            fault = shutting_down()
        finally:
            self._desk.metrics.stream_bytes.labels(tab.model).inc(sent)
        if fault is not None:
            _log.warning("a stream of %s was cut after %d bytes: %s", tab.model, sent, fault.code)
            await response.write(sse_event(fault, after=tail))
        await response.write_eof()
        return response


def _is_anthropic(request: web.Request) -> bool:
    """Anthropic's clients ask for models on the same path, and say so in a header that they always send."""
    return "anthropic-version" in request.headers

"""Ollama's endpoints that use models, answered by the engine's OpenAI endpoints."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from aiohttp import web

from terazi.gateway.backend import READY, Served
from terazi.gateway.call import Call
from terazi.gateway.calling import make_call
from terazi.gateway.desk import Desk, Tab, json_response
from terazi.gateway.library import Library, Preset
from terazi.gateway.ollama_relay import Telling, now
from terazi.gateway.operations import register
from terazi.gateway.shown import shown
from terazi.gateway.wire import ollama
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import Api, Fault, WireError, engine_fault
from terazi.gateway.wire.modalities import check_modalities
from terazi.gateway.wire.ollama_answer import Translator, embed_answer, embeddings, shortened
from terazi.gateway.wire.ollama_bodies import (
    ChatBody,
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    Generation,
    NameBody,
    parse_keep_alive,
)
from terazi.gateway.wire.ollama_embed import cut_texts, limit_of, texts_of
from terazi.gateway.wire.ollama_request import (
    EMBED_PATH,
    EngineCall,
    chat_call,
    embed_fields,
    generate_call,
    with_preset,
    without_oldest,
)

_log = logging.getLogger(__name__)

NDJSON: Final = "application/x-ndjson"
#: The cheapest question that an engine answers only once its model is loaded.
_TOKENIZE: Final = "/tokenize"
#: How often a chat that is too long is tried with fewer messages; half of those that are left go each time.
_MOST_CUTS: Final = 6


class OllamaRoutes:
    """Handlers of ``/api`` and ``/``.

    Args:
        library: whose names are models too; None has none.
    """

    def __init__(self, desk: Desk, library: Library | None = None) -> None:
        self._desk = desk
        self._library = library
        self._told: set[tuple[str, int]] = set()

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        handlers = {
            "banner": self.banner,
            "version": self.version,
            "tags": self.tags,
            "loaded": self.ps,
            "show": self.show,
            "ollamaChat": self.chat,
            "ollamaGenerate": self.generate,
            "embed": self.embed,
            "embeddings": self.embeddings,
        }
        register(app, self._desk, handlers)

    # --- the catalogue

    async def banner(self, _request: web.Request, _tab: Tab) -> web.Response:
        """What clients look at to see if somebody is there."""
        return web.Response(text=ollama.BANNER)

    async def version(self, _request: web.Request, _tab: Tab) -> web.Response:
        """The API's version, not Terazi's."""
        return json_response({"version": ollama.API_VERSION})

    async def tags(self, _request: web.Request, tab: Tab) -> web.Response:
        """What is there, pulled, copied and created names too."""
        found = shown(self._desk.listed(tab.caller), self._library, self._desk.directory.find)
        return json_response(
            ollama.tags(
                [one.card for one in found if one.preset is None],
                [(one.preset, one.base) for one in found if one.preset is not None],
            )
        )

    async def ps(self, _request: web.Request, tab: Tab) -> web.Response:
        """What is loaded, and until when."""
        loaded = [e for model in self._desk.listed(tab.caller) for e in model.engines if e.state == READY]
        return json_response(ollama.ps([(engine, self._expires(engine.card.id)) for engine in loaded]))

    async def show(self, request: web.Request, tab: Tab) -> web.Response:
        """Everything about one model."""
        body = read_body(NameBody, await self._desk.read_body(request))
        model, preset = self._find(body.wanted, tab)
        return json_response(ollama.show(model.card, preset))

    # --- the answers

    async def chat(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /api/chat``."""
        body = read_body(ChatBody, await self._desk.read_body(request))
        model, preset = self._find(body.model, tab)
        if preset is not None:
            body = with_preset(body, preset)
        return await self._converse(request, tab, model, body, chat_call(body, model=model.card.id))

    async def generate(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /api/generate``."""
        body = read_body(GenerateBody, await self._desk.read_body(request))
        model, preset = self._find(body.model, tab)
        if preset is not None:
            body = with_preset(body, preset)
        return await self._converse(request, tab, model, body, generate_call(body, model=model.card.id))

    async def embed(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /api/embed``."""
        body = read_body(EmbedBody, await self._desk.read_body(request))
        started = time.perf_counter_ns()
        model, _ = self._find(body.model, tab)
        answer = await self._embed(request, tab, model, body.input, body.keep_alive, truncate=body.truncate)
        vectors = [shortened(vector, body.dimensions) for vector in embeddings(answer)] if answer else []
        total_ns = time.perf_counter_ns() - started
        return json_response(embed_answer(vectors, answer, model=body.model, total_ns=total_ns, load_ns=0))

    async def embeddings(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /api/embeddings``, the older one."""
        body = read_body(EmbeddingsBody, await self._desk.read_body(request))
        model, _ = self._find(body.model, tab)
        answer = await self._embed(request, tab, model, body.prompt, body.keep_alive, truncate=True)
        vectors = embeddings(answer) if answer else []
        return json_response({"embedding": vectors[0] if vectors else []})

    # --- how

    def _find(self, name: str, tab: Tab) -> tuple[Served, Preset | None]:
        preset = self._library.preset(name) if self._library is not None else None
        return self._desk.find(name if preset is None else preset.base, tab), preset

    def _expires(self, model: str) -> str | None:
        seconds = self._library.expires_s(model) if self._library is not None else None
        return None if seconds is None else (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()

    def _call(
        self,
        request: web.Request,
        tab: Tab,
        model: Served,
        path: str,
        fields: Mapping[str, object],
        *,
        stream: bool = False,
    ) -> Call:
        return make_call(
            api=Api.OLLAMA,
            path=path,
            body=json.dumps(fields).encode(),
            fields=fields,
            model=model.card.id,
            stream=stream,
            caller=tab.caller,
            headers=request.headers,
            arrived=asyncio.get_running_loop().time(),
        )

    async def _whole(self, call: Call) -> tuple[int, bytes]:
        """The status and body of an answer that isn't streamed."""
        async with self._desk.converse(call) as answer:
            head = await answer.head()
            return head.status, await answer.body()

    async def _keep(self, model: Served, keep_alive: float | str | None) -> float | None:
        """Do what the request says about how long its model shall stay; -1 stands for nothing said."""
        if keep_alive is None:
            return -1.0
        seconds = parse_keep_alive(keep_alive)
        if self._library is not None:
            await self._library.keep(model.card.id, seconds)
        return seconds

    def _note_context(self, model: Served, wanted: int | None) -> None:
        """Say once that a context is smaller than clients want: they shall not reload the model for that."""
        loaded = model.card.context_length
        if (
            loaded is not None
            and wanted is not None
            and wanted > loaded
            and (model.card.id, loaded) not in self._told
        ):
            self._told.add((model.card.id, loaded))
            _log.info("num_ctx %d for %s is clamped to %d, which it was loaded with", wanted, model.card.id, loaded)

    async def _converse(
        self, request: web.Request, tab: Tab, model: Served, body: Generation, asked: EngineCall
    ) -> web.StreamResponse:
        started = time.perf_counter_ns()
        translator = Translator(shape=asked.shape, model=body.model)
        kept = await self._keep(model, body.keep_alive)
        self._note_context(model, body.options.num_ctx if body.options is not None else None)
        fields = asked.fields
        if fields is None:
            if kept == 0:
                return json_response(translator.loaded(created_at=now(), reason="unload"))
            await self._load(request, tab, model)
            return json_response(translator.loaded(created_at=now()))
        check_modalities(fields, model.card)
        for _ in range(_MOST_CUTS):
            call = self._call(request, tab, model, asked.path, fields, stream=asked.stream)
            async with self._desk.converse(call) as answer:
                head = await answer.head()
                if head.status == 200:
                    self._desk.first_byte(Api.OLLAMA, tab)
                    if head.stream:
                        telling = Telling(
                            request=request, tab=tab, head=head, translator=translator, started=started
                        )
                        return await telling.relay(answer, self._desk.metrics)
                    whole = await answer.body()
                    total_ns = time.perf_counter_ns() - started
                    said = translator.whole(whole, created_at=now(), total_ns=total_ns)
                    return json_response(said, headers=head.headers)
                fault = engine_fault(head.status, await answer.body())
            shorter = _shorter(fields) if body.truncate is not False and _too_long(fault) else None
            if shorter is None:
                raise WireError(fault)
            fields = shorter
        raise WireError(fault)

    async def _load(self, request: web.Request, tab: Tab, model: Served) -> None:
        """Wait until *model* is loaded: a question that costs nothing goes the way of all others.

        Raises:
            WireError: it can't be.
        """
        status, body = await self._whole(self._call(request, tab, model, _TOKENIZE, {"content": ""}))
        if status >= 500:
            raise WireError(engine_fault(status, body))

    async def _embed(
        self,
        request: web.Request,
        tab: Tab,
        model: Served,
        given: str | list[str],
        keep_alive: float | str | None,
        *,
        truncate: bool | None,
    ) -> bytes:
        """The engine's answer; empty when there is nothing to embed, which only loads the model."""
        await self._keep(model, keep_alive)
        fields = embed_fields(given, model=model.card.id)
        if fields is None:
            await self._load(request, tab, model)
            return b""
        status, answer = await self._whole(self._call(request, tab, model, EMBED_PATH, fields))
        limit = limit_of(engine_fault(status, answer)) if status != 200 and truncate is not False else None
        if limit is not None:
            tokens: list[list[int]] = []
            for text in texts_of(given):
                asked = {"content": text, "add_special": True}
                _, said = await self._whole(self._call(request, tab, model, _TOKENIZE, asked))
                tokens.append(json.loads(said).get("tokens", []))
            cut = embed_fields(cut_texts(texts_of(given), tokens, limit), model=model.card.id)
            status, answer = await self._whole(self._call(request, tab, model, EMBED_PATH, cut or fields))
        if status != 200:
            raise WireError(engine_fault(status, answer))
        self._desk.first_byte(Api.OLLAMA, tab)
        return answer


def _too_long(fault: Fault) -> bool:
    return fault.status == 400 and fault.kind == "exceed_context_size_error"


def _shorter(fields: Mapping[str, object]) -> dict[str, object] | None:
    """A chat without the older half of the messages that may go; None if none may."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return None
    free = sum(message.get("role") != "system" for message in messages[:-1])
    return without_oldest(fields, (free + 1) // 2) if free else None

"""llama-server's own endpoints, for clients that know it: tokens, templates, raw completions, its properties.

A ``GET`` never loads a model: it asks an engine that is there, or says what is known without one. What would change
an engine is not offered, since engines belong to this service.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from aiohttp import web

from terazi.gateway.backend import READY, Backend
from terazi.gateway.desk import Desk, Tab, json_response
from terazi.gateway.operations import register
from terazi.gateway.passed import pass_on
from terazi.gateway.translated import raw_call
from terazi.gateway.wire.chat_stream import listed, mapping
from terazi.gateway.wire.errors import Api, Fault, WireError
from terazi.gateway.wire.llama_cpp import props, slot
from terazi.gateway.wire.openai import read_envelope

#: An engine that is busy with a prompt still answers these within a millisecond (b11434).
_PATIENCE_S: Final = 5.0


class LlamaCppRoutes:
    """Handlers of ``/tokenize`` and its neighbours."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._session: aiohttp.ClientSession | None = None

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        app.cleanup_ctx.append(self._life)
        handlers = {
            "engineText": self.forward,
            "engineProps": self.props,
            "engineSlots": self.slots,
            "engineChange": self.refuse,
        }
        register(app, self._desk, handlers)

    async def forward(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """Pass a request on; the model is named in the body, in the query, or the only one."""
        desk = self._desk
        body = await desk.read_body(request)
        envelope = read_envelope(body)
        card = desk.find(envelope.model or request.query.get("model"), tab).card
        call = raw_call(
            request, tab, api=Api.OPENAI, path=request.path, body=body, card=card, stream=envelope.stream
        )
        return await pass_on(desk, request, tab, call, card)

    async def props(self, request: web.Request, tab: Tab) -> web.Response:
        """``GET /props``."""
        served = self._desk.find(request.query.get("model"), tab)
        for engine in served.engines:
            if engine.state == READY and (said := await self._ask(engine, "/props")) is not None:
                return json_response(props(served.card, mapping(said)))
        return json_response(props(served.card, None))

    async def slots(self, request: web.Request, tab: Tab) -> web.Response:
        """``GET /slots``: of all its engines; none while it isn't loaded."""
        served = self._desk.find(request.query.get("model"), tab)
        ready = [engine for engine in served.engines if engine.state == READY]
        said = await asyncio.gather(*(self._ask(engine, "/slots") for engine in ready))
        return json_response([slot(one) for slots in said for one in listed(slots)])

    async def refuse(self, request: web.Request, _tab: Tab) -> web.Response:
        """Say that it isn't offered."""
        message = f"{request.method} {request.path} would change an engine, and engines belong to this service"
        raise WireError(Fault(status=403, message=message, kind="permission_error", code="not_allowed"))

    async def _life(self, _app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            self._session = session
            yield

    async def _ask(self, engine: Backend, path: str) -> object:
        """What an engine says on *path*; None if it doesn't."""
        if self._session is None:
            raise RuntimeError("the application has not started")
        try:
            headers = {"Authorization": f"Bearer {engine.api_key}"}
            async with self._session.get(engine.base_url + path, headers=headers, allow_redirects=False) as reply:
                return await reply.json(content_type=None) if reply.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

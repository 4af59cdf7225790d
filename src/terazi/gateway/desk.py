"""What every handler stands on: the gate, the way in and out of a request, and how errors are answered."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from terazi.gateway.access import LOCAL, Keyring, host_allowed, may_use, model_denied, origin_allowed
from terazi.gateway.account import CLIENT_GONE
from terazi.gateway.answer import Answer
from terazi.gateway.backend import Directory, Served
from terazi.gateway.broker import Broker
from terazi.gateway.call import Call, Caller
from terazi.gateway.library import Library, Preset
from terazi.gateway.metrics import NO_MODEL, Metrics
from terazi.gateway.traffic import Traffic
from terazi.gateway.wire.errors import (
    Api,
    Fault,
    WireError,
    bad_request,
    render,
    render_headers,
    server_error,
    shutting_down,
    status_of,
    too_large,
    unauthorised,
    unknown_model,
)

_log = logging.getLogger(__name__)

#: How long a client may take nothing of a stream that waits for it.
STALL_S = 300.0


@dataclass(slots=True)
class Tab:
    """What one request turned out to be, for the metrics."""

    started: float = field(default_factory=time.perf_counter)
    model: str = NO_MODEL
    prepared: bool = False
    caller: Caller = LOCAL


Handler = Callable[[web.Request, Tab], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The gateway's own objects. One per application."""

    directory: Directory
    broker: Broker
    traffic: Traffic
    metrics: Metrics
    keyring: Keyring
    allowed_origins: frozenset[str]
    max_body_bytes: int
    library: Library | None = None

    def route(
        self, api: Api, handler: Handler, *, public: bool = False
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """*handler* behind the gate, with errors in *api*'s shape. *public* needs no key.

        This is all that stands around a handler: there is no middleware.
        """

        async def answer(request: web.Request) -> web.StreamResponse:
            tab = Tab()
            try:
                tab.caller = self.admit(request.headers, public=public)
                response = await handler(request, tab)
            except WireError as error:
                response = fault_response(api, error.fault)
            except web.HTTPRequestEntityTooLarge:
                response = fault_response(api, too_large(self.max_body_bytes))
            except asyncio.CancelledError:
                if self.traffic.cutting and not tab.prepared:
                    response = fault_response(api, shutting_down())
                else:
                    self._client_left(api, tab)
                    raise
            except ConnectionError:
                self._client_left(api, tab)
                raise
            except Exception:
                _log.exception("a request to %s failed", request.path)
                if tab.prepared:
                    raise
                response = fault_response(api, server_error())
            self.metrics.requests.labels(api, tab.model, response.status).inc()
            return response

        return answer

    def admit(self, headers: Mapping[str, str], *, public: bool = False) -> Caller:
        """Who asks; the gate of every request, on both servers.

        Args:
            headers: case-insensitive, or with names in lower case.
            public: it needs no key.

        Raises:
            WireError: 401, no key; 403, a keyless service is asked under another name, or by a foreign page.
        """
        caller = self.keyring.caller(headers)
        if not self.keyring.open:
            if caller is not None:
                return caller
            if public:
                return LOCAL
            raise WireError(unauthorised())
        host = headers.get("host")
        if not host_allowed(host):
            message = (
                f"this service answers to localhost only, not to '{host}'; start it with an API key to open it"
            )
            raise WireError(Fault(status=403, message=message, kind="permission_error"))
        origin = headers.get("origin")
        if origin is not None and not origin_allowed(origin, self.allowed_origins):
            message = f"pages of '{origin}' may not use this service"
            raise WireError(Fault(status=403, message=message, kind="permission_error"))
        return caller or LOCAL

    @asynccontextmanager
    async def converse(self, call: Call) -> AsyncIterator[Answer]:
        """The answer to *call*, for handlers that translate it. To leave early is to drop it, unless the reader
        said that it had ``enough``: the engine is freed.

        Whatever goes wrong is raised by the answer, as ``WireError``.
        """
        answer, over = Answer(), asyncio.Event()
        run = self.broker.begin(call, answer, over.set)
        try:
            yield answer
        finally:
            if answer.sated or not answer.ended:  # else the broker has only its books to close
                run.cancel()
            await over.wait()

    def _client_left(self, api: Api, tab: Tab) -> None:
        self.metrics.disconnects.inc()
        self.metrics.requests.labels(api, tab.model, CLIENT_GONE).inc()

    async def read_body(self, request: web.Request) -> bytes:
        """The whole body.

        Raises:
            WireError: 413, before it is read if its length says so.
            HTTPRequestEntityTooLarge: it was larger than it said.
        """
        if request.content_length is not None and request.content_length > self.max_body_bytes:
            raise WireError(too_large(self.max_body_bytes))
        try:
            return await request.read()
        except web.RequestPayloadError as problem:
            raise WireError(bad_request("the body can't be decoded as its headers say")) from problem

    def listed(self, caller: Caller) -> tuple[Served, ...]:
        """The models that *caller* may use."""
        return tuple(m for m in self.directory.served() if may_use(caller, m.card.id, self.directory))

    def find(self, name: str | None, tab: Tab) -> Served:
        """The model for *name*; without a name the only one there is, for this caller.

        Raises:
            WireError: 404, 403 if the caller's key isn't for it, or 400 if a name is needed.
        """
        if name:
            found = self.directory.find(name)
        else:
            known = self.listed(tab.caller)
            if len(known) > 1:
                raise WireError(bad_request("'model' is missing"))
            found = known[0] if known else None
        if found is None:
            raise WireError(unknown_model(name or "", [m.card.id for m in self.listed(tab.caller)]))
        if not may_use(tab.caller, found.card.id, self.directory):
            raise model_denied(tab.caller, found.card.id)
        tab.model = found.card.id
        return found

    def defaults(self, name: str | None) -> Preset | None:
        """What a created *name* adds to requests; None if it is none, or adds nothing."""
        preset = None if self.library is None or not name else self.library.preset(name)
        return None if preset is None or preset.empty else preset

    def first_byte(self, api: Api, tab: Tab) -> None:
        """Note that the answer begins now."""
        self.metrics.first_byte.labels(api, tab.model).observe(time.perf_counter() - tab.started)


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """*body* as JSON."""
    return web.Response(
        body=json.dumps(body).encode(), status=status, content_type="application/json", headers=headers
    )


def fault_response(api: Api, fault: Fault) -> web.Response:
    """*fault* in the shape of *api*."""
    return web.Response(
        body=render(api, fault),
        status=status_of(api, fault),
        content_type="application/json",
        headers=render_headers(fault),
    )


class _Stream(web.StreamResponse):
    """A stream whose client must take something now and then: meanwhile an engine waits for it."""

    async def prepare(self, request: web.BaseRequest) -> Any:
        self._transport = request.transport
        return await super().prepare(request)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            async with asyncio.timeout(STALL_S):
                await super().write(data)
        except TimeoutError as problem:
            if self._transport is not None:
                self._transport.abort()  # to close would be to wait for it again
            raise ConnectionResetError("the client takes nothing of its answer") from problem


def stream_response(status: int, content_type: str) -> web.StreamResponse:
    """The head of a stream, which no proxy in between may hold back, and no client for ever."""
    return _Stream(
        status=status,
        headers={"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )

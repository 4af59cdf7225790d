"""What stands behind all connections: the gate, the hot paths, and the way to aiohttp for all else."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from terazi.gateway.access import origin_allowed
from terazi.gateway.account import CLIENT_GONE
from terazi.gateway.call import Call, Flow
from terazi.gateway.calling import make_call
from terazi.gateway.desk import Desk, Tab
from terazi.gateway.front.connection import Connection, Pending
from terazi.gateway.front.head import RequestHead
from terazi.gateway.front.limits import Limits
from terazi.gateway.front.sink import HttpSink
from terazi.gateway.library import Preset
from terazi.gateway.metrics import NO_MODEL
from terazi.gateway.wire.errors import Api, Fault, WireError, bad_request, server_error
from terazi.gateway.wire.modalities import check_modalities
from terazi.gateway.wire.ollama_request import with_defaults
from terazi.gateway.wire.openai import read_envelope

_log = logging.getLogger(__name__)

#: POSTs whose body goes to the engine as it came, under the same path.
HOT_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
#: Those of them for which a created name has defaults.
_WITH_DEFAULTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
#: Late connections are closed so much later at most.
_LOOK_S: Final = 1.0


class Front:
    """All connections of one service.

    Args:
        desk: the gateway's own objects.
        server: makes aiohttp's protocol, for what isn't hot.
        limits: of each connection.
    """

    def __init__(self, desk: Desk, server: Callable[[], asyncio.Protocol], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.max_body_bytes = desk.max_body_bytes
        self._desk = desk
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._connections: set[Connection] = set()
        bounds = (self.limits.head_s, self.limits.body_s, self.limits.idle_s, self.limits.linger_s)
        self._every_s = min(_LOOK_S, min(bounds) / 4)
        self._look_at = inf
        self._looking: asyncio.TimerHandle | None = None

    def __call__(self) -> Connection:
        """The protocol for a new connection."""
        return Connection(self)

    def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
        for connection in tuple(self._connections):
            connection.close()

    def due(self, at: float) -> None:
        """As ``House`` has it. A service that has nothing to look after sleeps."""
        if at >= self._look_at:
            return
        if self._looking is not None:
            self._looking.cancel()
        self._look_at = at + self._every_s  # together with those that are due soon after
        self._looking = self._loop.call_at(self._look_at, self._look)

    def _look(self) -> None:
        self._look_at, self._looking = inf, None
        now = self.now()
        for connection in [c for c in self._connections if now >= c.deadline and c.late(now)]:
            connection.time_is_up()
        self.due(min((c.deadline for c in self._connections), default=inf))

    # --- what connections ask ---------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """As ``House`` has it."""
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """As ``House`` has it."""
        self._connections.discard(connection)

    def refuses(self, head: RequestHead) -> Fault | None:
        """As ``House`` has it: on a hot path the gate stands before the body. aiohttp has its own."""
        pattern, edition = head.pattern, self._desk.keyring.edition
        if pattern is not None and pattern.edition is edition:  # one like it was let in, by the keys that there are
            head.caller = pattern.caller
            return None
        if head.method != "POST" or head.path not in HOT_PATHS:
            return None
        try:
            head.caller = self._desk.admit(head.fields)
        except WireError as error:
            self._desk.metrics.requests.labels(Api.OPENAI, NO_MODEL, error.fault.status).inc()
            return error.fault
        encoding = head.fields.get("content-encoding")
        if encoding is not None and encoding.lower() != "identity":
            message = "the body must not be compressed here"
            return Fault(status=415, message=message, code="unsupported_encoding")
        if pattern is not None:
            pattern.caller, pattern.edition = head.caller, edition
        return None

    def fields_for(self, head: RequestHead) -> tuple[tuple[str, str], ...]:
        """As ``House`` has it: a page that may use the service may also read the answers."""
        origin = head.fields.get("origin")
        if origin is None or not origin_allowed(origin, self._desk.allowed_origins):
            return ()
        return (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))

    def take(self, connection: Connection, head: RequestHead, body: bytes) -> Pending | None:
        """As ``House`` has it: what the gate has let in becomes a ``Call``."""
        caller = head.caller
        if caller is None:
            self._give_away(connection, head, body)
            return None
        desk, headers, path, tab = self._desk, head.fields, head.path, Tab(caller=caller)
        try:
            envelope = read_envelope(body)
            card = desk.find(envelope.model, tab).card
            fields = envelope.fields
            preset = desk.defaults(envelope.model) if path in _WITH_DEFAULTS else None
            if preset is not None:
                fields, body = _with_defaults(fields, preset)
            check_modalities(fields, card)
            call = make_call(
                api=Api.OPENAI,
                path=path,
                body=body,
                fields=fields,
                model=card.id,
                stream=envelope.stream,
                caller=caller,
                headers=headers,
                arrived=self.now(),
                content_type=headers.get("content-type", "application/json"),
            )
        except WireError as error:
            desk.metrics.requests.labels(Api.OPENAI, tab.model, error.fault.status).inc()
            raise
        answer = HotAnswer(desk, connection, head, call, tab, self.fields_for(head) if "origin" in headers else ())
        return None if answer.over else answer

    def _give_away(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        """To aiohttp, for this request and no other."""
        transport = connection.give()
        if transport is not None and not transport.is_closing():
            protocol = self._server()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(head.forwarded(body))


class HotAnswer:
    """One answer on a hot path: its sink, and what is counted of it."""

    __slots__ = ("_connection", "_desk", "_first_byte_s", "_run", "_sink", "_tab")

    def __init__(  # noqa: PLR0917 - called once, a few lines above
        self,
        desk: Desk,
        connection: Connection,
        head: RequestHead,
        call: Call,
        tab: Tab,
        fields: tuple[tuple[str, str], ...],
    ) -> None:
        self._desk = desk
        self._connection = connection
        self._tab = tab
        self._first_byte_s: float | None = None
        transport = connection.transport
        if transport is None:
            raise RuntimeError("a request is answered without a connection")
        self._sink = HttpSink(
            transport,
            self,
            fields=(("X-Request-Id", call.id), *fields),
            keep_alive=head.keep_alive,
            old=head.old,
            house=desk.traffic,
        )
        self._run = desk.broker.begin(call, self._sink, self._over)

    @property
    def flow(self) -> Flow | None:
        """As ``Pending`` has it."""
        return self._sink.flow

    @property
    def over(self) -> bool:
        """Nothing more is written; so soon only if the request was turned away at once."""
        return self._sink.over

    def gone(self) -> None:
        """As ``Pending`` has it."""
        self._sink.drop()
        self._run.cancel()
        self._desk.metrics.disconnects.inc()
        self._desk.metrics.answered(Api.OPENAI, self._tab.model, CLIENT_GONE, first_byte_s=self._first_byte_s)

    def began(self) -> None:
        """As the sink's ``Listener`` has it."""
        self._first_byte_s = time.perf_counter() - self._tab.started

    def ended(self, status: int, sent_bytes: int, *, keep_alive: bool) -> None:
        """As the sink's ``Listener`` has it."""
        self._desk.metrics.answered(
            Api.OPENAI, self._tab.model, status, first_byte_s=self._first_byte_s, stream_bytes=sent_bytes
        )
        self._connection.answered(keep_alive=keep_alive)

    def _over(self) -> None:
        """The broker has closed its books; if it never said so to the sink, something is wrong with it."""
        if not self._sink.over:
            self._sink.fail(server_error())


def _with_defaults(fields: Mapping[str, object], preset: Preset) -> tuple[dict[str, object], bytes]:
    """A request to a created name as the engine gets it: its fields, and the same as a body."""
    whole = with_defaults(fields, preset)
    try:
        return whole, json.dumps(whole).encode()
    except RecursionError as problem:  # which may come a level or two before that of reading it
        raise WireError(bad_request("the body is nested too deeply")) from problem

"""One client's connection: requests are read whole, one after the other, and given to who answers them.

``HEAD → BODY → BUSY → HEAD …`` for hot paths; ``→ GIVEN`` when aiohttp has it, ``→ LINGER`` when a request was
refused before it was read. A client that closes its side, even one half of it, is gone.
"""

import asyncio
import logging
from enum import Enum, auto
from typing import Final, Protocol, cast

from terazi.gateway.call import Flow
from terazi.gateway.front.head import BadHeadError, ChunkedBody, Pattern, RequestHead, find_end, read_head
from terazi.gateway.front.limits import Limits
from terazi.gateway.front.replies import CONTINUE, fault_bytes
from terazi.gateway.wire.errors import Api, Fault, WireError, api_of, too_large

_log = logging.getLogger(__name__)
_NEVER: Final = float("inf")
_A: Final = ord("A")
_Z: Final = ord("Z")


class State(Enum):
    """What is expected of the client next."""

    HEAD = auto()
    BODY = auto()
    BUSY = auto()
    LINGER = auto()
    GIVEN = auto()


class Pending(Protocol):
    """An answer under way."""

    @property
    def flow(self) -> Flow | None:
        """Its tap, once it has begun."""
        ...

    def gone(self) -> None:
        """The client has left."""
        ...


class House(Protocol):
    """Who stands behind all connections."""

    limits: Limits
    max_body_bytes: int

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def opened(self, connection: "Connection") -> None:
        """A client has connected."""
        ...

    def due(self, at: float) -> None:
        """A connection has a deadline, *at* which it wants to be looked at, or soon after."""
        ...

    def closed(self, connection: "Connection") -> None:
        """It has left, or is somebody else's now."""
        ...

    def refuses(self, head: RequestHead) -> Fault | None:
        """Why a request is turned away before its body is read, if it is."""
        ...

    def fields_for(self, head: RequestHead) -> tuple[tuple[str, str], ...]:
        """Header fields that each answer to it has."""
        ...

    def take(self, connection: "Connection", head: RequestHead, body: bytes) -> Pending | None:
        """Answer a request; None if its connection was given away, or it is answered already."""
        ...


class Connection(asyncio.Protocol):
    """The protocol of one connection; its house looks at ``deadline`` when one is due."""

    __slots__ = (
        "_again", "_ahead", "_body_began", "_buffer", "_chunks", "_head", "_house", "_pattern", "_pending",
        "_pieces", "_raw_bytes", "_scanned", "_size", "_stuck", "deadline", "state", "transport",
    )  # fmt: skip

    def __init__(self, house: House) -> None:
        self._house = house
        self._buffer = b""
        self._scanned = 0
        self._head: RequestHead | None = None
        self._chunks: ChunkedBody | None = None
        self._pieces: list[bytes] = []
        self._size = self._raw_bytes = 0
        self._body_began = 0.0
        self._pending: Pending | None = None
        self._pattern: Pattern | None = None
        self._ahead = self._stuck = self._again = False
        self.state = State.HEAD
        #: When it is closed unless something happens; monotonic seconds.
        self.deadline = _NEVER
        self.transport: asyncio.Transport | None = None

    # --- the event loop's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio has it; both loops set TCP_NODELAY by themselves."""
        self.transport = cast("asyncio.Transport", transport)
        self._house.opened(self)
        self.deadline = self._house.now() + self._house.limits.head_s
        self._house.due(self.deadline)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it went is all the same
        """The client has gone."""
        self._house.closed(self)
        self.transport = None
        pending, self._pending = self._pending, None
        self._forget_head()
        if pending is not None:
            pending.gone()

    def eof_received(self) -> None:
        """Half gone is gone: returning nothing closes the other half, and ``connection_lost`` follows."""

    def data_received(self, data: bytes) -> None:
        """More of a request, in whatever state the one before it is."""
        state = self.state
        if state is State.HEAD:
            self._buffer = self._buffer + data if self._buffer else data
            self._read_head()
        elif state is State.BODY:
            self._read_body(data)
        elif state is State.BUSY:
            self._buffer += data
            if len(self._buffer) > self._house.limits.ahead_bytes and not self._ahead and self.transport:
                self._ahead = True
                self.transport.pause_reading()
        # LINGER: it is read so that the answer isn't lost in a reset, and for a moment only

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._stuck = True
        self.deadline = self._house.now() + self._house.limits.stall_s
        self._house.due(self.deadline)
        if self._pending is not None and self._pending.flow is not None:
            self._pending.flow.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._stuck = False
        if self.state is State.BUSY:
            self.deadline = _NEVER
        if self._pending is not None and self._pending.flow is not None:
            self._pending.flow.go_on()

    # --- reading ----------------------------------------------------------------------------------------

    def _read_head(self) -> None:
        house, buffer, scanned = self._house, self._buffer, self._scanned
        if not scanned and not _A <= buffer[0] <= _Z:  # empty lines may come before, and nothing else
            buffer = buffer.lstrip(b"\r\n")
            if not buffer[:1].isalpha():
                self._buffer = buffer
                if buffer:
                    self._refuse_bad(BadHeadError(400, "this is no HTTP request"))
                return
        try:
            end = find_end(buffer, scanned=scanned, most_bytes=house.limits.head_bytes)
            if end is None:
                self._buffer, self._scanned = buffer, len(buffer)
                if not scanned:
                    self.deadline = min(self.deadline, house.now() + house.limits.head_s)
                    self._house.due(self.deadline)
                return
            head = self._head_in(buffer[:end])
        except BadHeadError as problem:
            self._refuse_bad(problem)
            return
        self._scanned, length = 0, head.length
        fault = house.refuses(head)
        if fault is None and length is not None and length > house.max_body_bytes:
            fault = too_large(house.max_body_bytes)
        if fault is not None:
            self._head = head
            self.refuse(fault)
            return
        if length is not None and len(buffer) - end >= length:  # it came in one piece with its head, as most do
            self._buffer = buffer[end + length :]
            self._complete(head, buffer[end : end + length])
            return
        rest, self._buffer = buffer[end:], b""
        self.state, self._head = State.BODY, head
        self._pieces, self._size, self._raw_bytes = [], 0, 0
        if length is None:
            self._chunks = ChunkedBody(head)
        self._body_began = house.now()
        self.deadline = self._body_began + house.limits.body_s
        self._house.due(self.deadline)
        if rest:
            self._read_body(rest)
        elif head.expects and not head.old and self.transport is not None:
            self.transport.write(CONTINUE)

    def _head_in(self, raw: bytes) -> RequestHead:
        """As the last one was, if it is like it; a client that comes again may come often."""
        head = None if self._pattern is None else self._pattern.read(raw)
        if head is None:
            head = read_head(raw, most_headers=self._house.limits.headers)
            if self._again:
                self._pattern = Pattern.of(raw, head)
        return head

    def _read_body(self, data: bytes) -> None:
        head = self._head
        if head is None:
            return
        limit = self._house.max_body_bytes
        if head.length is not None:
            missing = head.length - self._size
            if len(data) > missing:
                self._buffer = data[missing:]
                data = data[:missing]
            self._pieces.append(data)
            self._size += len(data)
            if self._size == head.length:
                self._complete(head, self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
        elif (body := self._chunks) is not None:
            self._raw_bytes += len(data)
            try:
                body.feed(data)
            except BadHeadError as problem:
                self._refuse_bad(problem)
                return
            self._size = body.size
            # chunks of one byte and endless extensions: framing may be as large again, not more
            if body.size > limit or self._raw_bytes > 2 * limit + self._house.limits.head_bytes:
                self.refuse(too_large(limit))
                return
            if body.complete:
                # where the next request begins in what came is not known, so it is not answered
                head.keep_alive = head.keep_alive and not body.excess
                self._complete(head, b"".join(body.pieces))

    def _forget_head(self) -> RequestHead | None:
        head, self._head = self._head, None
        if self._chunks is not None:
            self._chunks.release()
            self._chunks = None
        return head

    def late(self, now: float) -> bool:
        """Whether its time is up; a body gets more of it as long as it keeps its pace."""
        if now < self.deadline:
            return False
        if self.state is State.BODY:
            limits = self._house.limits
            self.deadline = self._body_began + limits.body_s + self._size / limits.body_bytes_per_s
        return now >= self.deadline

    def time_is_up(self) -> None:
        """Close; a client that had begun a request is told why."""
        waiting = self.state is State.BODY or (self.state is State.HEAD and self._buffer)
        if waiting and not self._stuck:
            self.refuse(Fault(status=408, message="the request took too long to arrive", code="request_timeout"))
        else:
            self.abort()

    # --- answering --------------------------------------------------------------------------------------

    def _complete(self, head: RequestHead, body: bytes) -> None:
        if self._head is not None:  # it was waited for
            self._forget_head()
            self._pieces = []
        self.state = State.BUSY
        self.deadline = _NEVER
        try:
            self._pending = self._house.take(self, head, body)
        except WireError as error:
            self.answer(head, error.fault)

    def answer(self, head: RequestHead, fault: Fault) -> None:
        """Tell the client that its request, which was read, is turned away."""
        if self.transport is None:
            return
        raw = fault_bytes(
            api_of(head.path), fault, self._house.fields_for(head), keep_alive=head.keep_alive, old=head.old
        )
        self.transport.write(raw)
        self.answered(keep_alive=head.keep_alive)

    def answered(self, *, keep_alive: bool) -> None:
        """The last byte of an answer is on its way; the next request may be read."""
        self._pending = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not keep_alive:
            transport.close()
            return
        self.state, self._again = State.HEAD, True
        limits = self._house.limits
        self.deadline = self._house.now() + (limits.stall_s if self._stuck else limits.idle_s)
        self._house.due(self.deadline)
        if self._ahead:
            self._ahead = False
            transport.resume_reading()
        if self._buffer:
            # not at once: the answer that ends may be one of many that came in one read
            asyncio.get_running_loop().call_soon(self._read_ahead)

    def _read_ahead(self) -> None:
        if self.state is State.HEAD and self._buffer and self.transport is not None:
            self._read_head()

    def refuse(self, fault: Fault) -> None:
        """Answer a request that wasn't read to its end, and close once the client has seen that."""
        head = self._forget_head()
        transport = self.transport
        if transport is None:
            return
        api, old = Api.OPENAI, False
        fields: tuple[tuple[str, str], ...] = ()
        if head is not None:
            api, fields, old = api_of(head.path), self._house.fields_for(head), head.old
        self.state = State.LINGER
        self._size, self._pieces, self._buffer = 0, [], b""
        self.deadline = self._house.now() + self._house.limits.linger_s
        self._house.due(self.deadline)
        transport.write(fault_bytes(api, fault, fields, keep_alive=False, old=old))
        if transport.can_write_eof():
            transport.write_eof()

    def _refuse_bad(self, problem: BadHeadError) -> None:
        self.refuse(Fault(status=problem.status, message=problem.message, code="bad_request"))

    # --- the house's side -------------------------------------------------------------------------------

    def give(self) -> asyncio.Transport | None:
        """Part with the connection: another protocol has it from now on."""
        transport, self.transport = self.transport, None
        self.state = State.GIVEN
        self._house.closed(self)
        return transport

    def close(self) -> None:
        """The service ends."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close, whatever is still to be sent."""
        if self.transport is not None:
            self.transport.abort()

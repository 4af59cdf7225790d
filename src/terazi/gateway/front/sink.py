"""A ``Sink`` that writes straight to a client's connection: one write for each part, and nothing waits."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from terazi.gateway.call import Flow, Head
from terazi.gateway.front.replies import LAST_CHUNK, fault_bytes, head_bytes, stream_head
from terazi.gateway.wire.errors import Api, Fault, sse_event

#: A stream's last event: it waits for the end of its answer, which comes in the same read.
_DONE: Final = b"data: [DONE]\n\n"
#: Copying a part of more bytes costs more than a second buffer in one system call.
_JOIN_BYTES: Final = 16 * 1024


class Wire(Protocol):
    """What a sink needs of a transport."""

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent."""
        ...

    def writelines(self, list_of_data: list[bytes]) -> None:
        """Send several at once."""
        ...


class Listener(Protocol):
    """Who wants to know what became of an answer."""

    def began(self) -> None:
        """Its first byte is on its way."""
        ...

    def ended(self, status: int, sent_bytes: int, *, keep_alive: bool) -> None:
        """Its last byte is on its way; *sent_bytes* of a stream's body."""
        ...


class HttpSink:
    """The answer to one request.

    Args:
        wire: where it goes.
        listener: told of its beginning and its end.
        fields: header fields that each answer to this client has.
        keep_alive, old: as the request's head has them.
        leaving: says whether the service ends, so that the connection should too.
    """

    __slots__ = (
        "_body", "_chunked", "_fields", "_head", "_held", "_keep_alive", "_leaving", "_listener", "_old", "_sent",
        "_stream", "_unsent", "_wire", "flow", "over",
    )  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        listener: Listener,
        *,
        fields: tuple[tuple[str, str], ...],
        keep_alive: bool,
        old: bool,
        leaving: Callable[[], bool],
    ) -> None:
        self._wire: Wire | None = wire
        self._listener: Listener | None = listener
        self._fields = fields
        self._keep_alive = keep_alive
        self._old = old
        self._leaving = leaving
        self._head: Head | None = None
        #: The same of a stream, until it goes out.
        self._unsent: Head | None = None
        self._stream = self._chunked = False
        self._body: list[bytes] = []
        self._held = b""
        self._sent = 0
        #: The engine's tap, once the answer has begun.
        self.flow: Flow | None = None
        #: Nothing more will be written.
        self.over = False

    # --- the broker's side

    def begin(self, head: Head, flow: Flow) -> None:
        """As ``Sink`` has it. Nothing goes out yet: a stream's head goes with the first of its body, which follows
        at once, and a whole answer's at its end, when its length is known.
        """
        if self._wire is None or self._head is not None:
            return
        self._head, self.flow = head, flow
        if head.stream:
            self._stream, self._unsent = True, head
            self._chunked = not self._old
            self._keep_alive = self._keep_alive and self._chunked and not self._leaving()

    def write(self, data: bytes) -> None:
        """As ``Sink`` has it."""
        wire = self._wire
        if wire is None or not data:
            return
        if not self._stream:
            self._body.append(data)
            return
        first = self._unsent is not None
        before = self._before() if first else self._held
        size = len(data)
        self._sent += size
        if size >= _JOIN_BYTES:
            self._held = b""
            wire.writelines([before + b"%x\r\n" % size, data, b"\r\n"] if self._chunked else [before, data])
        else:
            ends = data.endswith(_DONE)
            data = b"%b%x\r\n%b\r\n" % (before, size, data) if self._chunked else before + data
            if ends:
                self._hold(data)
            else:
                self._held = b""
                wire.write(data)
        if first and self._listener is not None:
            self._listener.began()

    def bypass(self) -> Callable[[bytes], None] | None:
        """As ``Sink`` has it."""
        wire = self._wire
        ready = wire is not None and self._chunked and self._sent and not self._held and self._unsent is None
        return wire.write if wire is not None and ready else None

    def bypassed(self, size: int) -> None:
        """As ``Sink`` has it."""
        self._sent += size

    def _before(self) -> bytes:
        """What waits to go out with what comes now: a stream's head, or an event that was held back."""
        head, self._unsent = self._unsent, None
        if head is None:
            held, self._held = self._held, b""
            return held
        return stream_head(head, self._fields, keep_alive=self._keep_alive, old=self._old)

    def _hold(self, data: bytes) -> None:
        """Write it with what follows at once, or at the end of this turn of the loop: a system call less."""
        self._held = data
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._held and self._wire is not None:
            held, self._held = self._held, b""
            self._wire.write(held)

    def end(self) -> None:
        """As ``Sink`` has it."""
        wire, head = self._wire, self._head
        if wire is None or head is None:
            return
        if self._stream:
            rest = self._before() + LAST_CHUNK if self._chunked else self._before()
            if rest:
                wire.write(rest)
        else:
            body = self._body
            self._keep_alive = self._keep_alive and not self._leaving()
            length = ("Content-Length", str(sum(map(len, body))))
            usual, fields = (("Content-Type", head.content_type),), (length, *_own(head), *self._fields)
            first = head_bytes(head.status, usual, fields, keep_alive=self._keep_alive, old=self._old)
            if len(body) == 1 and len(body[0]) < _JOIN_BYTES:
                wire.write(first + body[0])
            else:
                wire.writelines([first, *body])
            if self._listener is not None:
                self._listener.began()
        self._finish(head.status)

    def fail(self, fault: Fault) -> None:
        """As ``Sink`` has it."""
        wire = self._wire
        if wire is None:
            return
        if self._stream:
            self.write(sse_event(fault))
            if self._chunked:
                wire.write(LAST_CHUNK)
            self._finish(200 if self._head is None else self._head.status)
            return
        self._keep_alive = self._keep_alive and not self._leaving()
        wire.write(fault_bytes(Api.OPENAI, fault, self._fields, keep_alive=self._keep_alive, old=self._old))
        self._finish(fault.status)

    # --- the connection's side

    def drop(self) -> None:
        """The client has gone: from now on nothing happens here."""
        self.over = True
        self._wire = self.flow = self._listener = None
        self._body.clear()

    def _finish(self, status: int) -> None:
        listener = self._listener
        self.over = True
        self._wire = self.flow = self._listener = None
        if listener is not None:
            listener.ended(status, self._sent, keep_alive=self._keep_alive)


def _own(head: Head) -> list[tuple[str, str]]:
    """The broker's fields, without the request's id, which every answer has anyway."""
    return [field for field in head.headers.items() if field[0] != "x-request-id"]

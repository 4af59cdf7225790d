"""One connection to an engine: bytes in, the parts of an answer out; ``gateway.links`` makes the rest of it."""

import asyncio
import re
import socket
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

_HEAD_BYTES: Final = 64 << 10
#: Whole chunks that were seen, of 16 to 65,535 bytes: from their first bytes, which are the size, the end of its
#: line and what follows, to the bytes of all of it. Looking it up takes less than reading it.
_WHOLE: Final[dict[bytes, int]] = {}
_MOST_WHOLE: Final = 8192
_CHUNK_HEAD: Final = re.compile(rb"([1-9a-f][0-9a-f]{1,3})\r\n")
_HEAD_OF_CHUNK: Final = 6
#: A chunk of whole events ends so.
_EVENT_END: Final = b"\n\n\r\n"
#: What somebody must look at before it goes on: an engine's error, and "tool_calls" or "function_call".
_ERROR, _CALL = b'"error"', b"_call"
_HEADERS: Final = 200
#: Why an answer broke off that was none.
NO_HTTP: Final = "its answer is no HTTP"
#: Stands where a parser was, so that no cycle is left for the garbage collector.
_NOBODYS: Final = httptools.HttpResponseParser(object())


class Listener(Protocol):
    """Who has sent a request over a link; told of one answer, after which the link forgets it."""

    over: bool

    def began(self, status: int, content_type: str) -> None:
        """The head is there."""
        ...

    def came(self, data: bytes) -> None:
        """A part of the body is there."""
        ...

    def completed(self, *, reusable: bool) -> None:
        """The answer is complete; *reusable*: another request may follow on the same connection."""
        ...

    def broke(self, reason: str, *, silent: bool) -> None:
        """The connection is of no use any more; *silent*: no byte of an answer has come."""
        ...


class Link(asyncio.Protocol):
    """A connection. What one read brings is told in at most one ``came``, and outside of the parser's callbacks.

    Args:
        unsent: what is left of a request that was begun before the loop knew the socket.
        sock: that socket, if the loop takes its descriptor instead of itself, as uvloop does. uvloop (0.23,
            ``loop.pyx:create_connection``) lets go of the object a turn of the loop after the descriptor has begun
            to be read; a connection that ends in between would be closed twice, the second time under a number that
            may be another connection's by then.
    """

    __slots__ = (
        "_between", "_complete", "_content_type", "_dead", "_excess", "_framed", "_head_bytes", "_headers",
        "_keep", "_left", "_on_end", "_parser", "_pass", "_paused", "_pieces", "_reusable", "_sock",
        "_status", "_told", "_transport", "_unsent", "_wrong", "listener", "until",
    )  # fmt: skip

    def __init__(self, *, unsent: bytes = b"", sock: socket.socket | None = None) -> None:
        self.listener: Listener | None = None
        self._pass: Callable[[bytes], None] = _nothing
        self._keep: Callable[[bytes], None] = _nothing
        self._left = 0
        self._transport: asyncio.Transport | None = None
        self._unsent = unsent
        self._sock = sock
        self._paused = self._dead = False
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        #: When it has been idle for long enough.
        self.until = 0.0
        self._on_end: Callable[[], None] | None = None
        self._wrong = ""
        self._excess = False
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._content_type = "application/json"
        self._framed = self._told = self._complete = self._reusable = False
        self._between = False  # the last chunk is complete, and nothing of the next has come
        self._head_bytes = self._headers = 0

    # --- the owner's side -------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether a request may be written: nobody has heard of an end."""
        return self._transport is not None and not self._transport.is_closing() and not self._excess

    @property
    def ending(self) -> bool:
        """The listener will be told, once the read that is being told is, that the answer is complete."""
        return self._complete and not self._wrong

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None:
            self._transport.write(data)
        else:
            self._unsent += data

    def pause(self) -> None:
        """Read no more for now."""
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read on."""
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def bypass(self, to: Callable[[bytes], None], keep: Callable[[bytes], None], most_bytes: int) -> None:
        """Give reads that are one chunk of whole events to *to* and *keep*, as they are, instead of the listener.

        It ends with *most_bytes*, and with the first read that is anything else, or speaks of an error or a call of
        a tool: that read is told the listener, who may ask for it again.
        """
        if self._between:
            self._pass, self._keep, self._left = to, keep, most_bytes

    def end_bypass(self) -> None:
        """All is told the listener from now on."""
        self._left = 0
        self._pass = self._keep = _nothing

    def wait(self, until: float, on_end: Callable[[], None]) -> None:
        """Be idle; *on_end* is called if it ends meanwhile. Its owner closes it when it is *until* (monotonic)."""
        self._on_end = on_end
        self.until = until
        if self._paused:  # its last reader may have left it so; and an end must be heard
            self.go_on()

    def stop_waiting(self) -> None:
        """It is taken out of the pool."""
        self._on_end = None

    def close(self) -> None:
        """End it after what was written."""
        self._dead = True
        if self._on_end is not None:
            self._ended()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it now."""
        self._dead = True
        if self._on_end is not None:
            self._ended()
        if self._transport is not None:
            self._transport.abort()

    def _ended(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    # --- the event loop's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio has it; both loops set TCP_NODELAY by themselves."""
        self._transport = cast("asyncio.Transport", transport)
        if self._sock is not None:
            self._sock.detach()
            self._sock = None
        if self._dead:
            self._transport.abort()
            return
        if self._unsent:
            self._transport.write(self._unsent)
            self._unsent = b""
        if self._paused:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Pass it on as it is, if that was asked for and may be; else read it.

        Most reads of a stream are one event in one chunk. Such a read leaves the parser where it was, between two
        chunks, so it needs none. This is all that a gateway does for such an event.
        """
        size = len(data)
        left = self._left - size
        if (
            left > 0
            and _WHOLE.get(data[:_HEAD_OF_CHUNK]) == size
            and data.endswith(_EVENT_END)
            and _ERROR not in data
            and _CALL not in data
        ):
            self._left = left
            self._keep(data)
            self._pass(data)
        else:
            self._left = 0
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Parse it, then tell."""
        between = self._between
        self._between = False
        listener = self.listener
        if listener is None:  # nobody asked for anything
            self._excess = True
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # after a complete answer it is no matter of that answer
            self._wrong = "" if self._complete else self._wrong or NO_HTTP
            self._reusable = False
        if not self._told:
            self._head_bytes += len(data)
            self._tell_head(listener)
        if self._between:
            if data[-2:] != b"\r\n":  # some of the next chunk's head has come
                self._between = False
            elif between and _WHOLE.get(data[:_HEAD_OF_CHUNK]) != len(data):
                _learn(data)
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            if self._told and not listener.over:
                listener.came(data)
        if self._complete or self._wrong:
            self._tell_end(listener)

    def _tell_head(self, listener: Listener) -> None:
        if self._status and not self._wrong:
            self._told = True
            listener.began(self._status, self._content_type)
        elif self._head_bytes > _HEAD_BYTES:
            self._wrong = self._wrong or "the head of its answer is too large"

    def _tell_end(self, listener: Listener) -> None:
        if listener.over:
            return
        if self._wrong:
            listener.broke(self._wrong, silent=False)
        else:
            reusable = self._reusable and not self._excess
            self._reset()
            listener.completed(reusable=reusable)

    def eof_received(self) -> None:
        """The engine has ended its side; returning nothing closes ours, and ``connection_lost`` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The end: of an answer too, if that is how it is framed."""
        listener, self.listener = self.listener, None
        self._transport = None
        self._parser = _NOBODYS
        if self._left:
            self.end_bypass()
        if self._on_end is not None:
            self._ended()
        if listener is None or listener.over:
            return
        if self._told and not self._framed and exc is None:
            listener.completed(reusable=False)
            return
        reason = str(exc) if exc else "the connection was closed"
        listener.broke(reason, silent=self._head_bytes == 0)

    # --- the parser's side ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second answer to one request makes the connection useless."""
        if self._complete:
            self._excess = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what matters."""
        self._headers += 1
        if self._headers > _HEADERS:
            self._wrong = "the head of its answer is too large"
            return
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value.decode("latin-1")
        elif lower in {b"content-length", b"transfer-encoding"}:
            self._framed = True

    def on_headers_complete(self) -> None:
        """A final head, or one of those that come before it."""
        status = self._parser.get_status_code()
        if status >= 200 and not self._excess:
            self._status = status
            self._framed = self._framed or status in {204, 304}

    def on_body(self, body: bytes) -> None:
        """A part of a chunk."""
        if not self._excess:
            self._pieces.append(body)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._between = False

    def on_chunk_complete(self) -> None:
        """It has come with its last line's end."""
        self._between = not self._excess and not self._complete

    def on_message_complete(self) -> None:
        """The framing says that this was all."""
        if self._status and not self._excess:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()
        else:
            self._framed = False
            self._headers = 0


def _learn(data: bytes) -> None:
    """Know the size of *data*, which came between two chunks, if it is one chunk with an event in it."""
    head = _CHUNK_HEAD.match(data)
    if head is None or len(_WHOLE) >= _MOST_WHOLE:
        return
    if data.startswith(b"data", head.end()) and head.end() + int(head[1], 16) + 2 == len(data):
        _WHOLE[data[:_HEAD_OF_CHUNK]] = len(data)


def _nothing(data: bytes) -> None:
    """Where nothing is to be passed."""

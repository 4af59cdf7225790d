"""Between an engine and a client's sink: whole events only, written down as they pass; one relay for each call.

An answer may need several engines. The relay outlives them: each attempt is ``arm``ed, sent, and comes to a
``Result``. Once an answer is under way, and nothing has to be looked for or added in it, its events bypass the
relay: the link gives them to the client's connection and to a list here, which is read (``settle``) when somebody
wants to know.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from terazi.gateway.account import END_BYTES
from terazi.gateway.call import Call, Head, Sink, Tap
from terazi.gateway.exchange import Exchange
from terazi.gateway.in_flight import InFlight  # noqa: TC001 - as all others are imported
from terazi.gateway.journal import Entry
from terazi.gateway.wire.errors import RETRY_AFTER_S, Fault
from terazi.gateway.wire.stitch import DivergedError, Stitcher
from terazi.policy.resume import Hold

STREAM_TYPE: Final = "text/event-stream"
#: How long a stream may be silent before a comment says that it is alive.
HEARTBEAT_S: Final = 5.0
#: So much may bypass before it is told: some 60 tokens.
_BYPASS_BYTES: Final = 16 << 10
#: Held back at most; beyond it the answer goes out as it comes, and can't be resumed any more.
_HELD_BYTES: Final = 4 << 20
#: A tool call begins: a list with something in it.
_CALLS: Final = re.compile(rb'"tool_calls":\s*\[\s*\{|"function_call":\s*\{')
_ERROR: Final = re.compile(rb'^data: ?\{\s*"error"|\n\ndata: ?\{\s*"error"')
#: The end of a stream as nearly all have it.
_LAST_EVENT: Final = b"\n\ndata: [DONE]\n\n"
#: The end of a stream, as OpenAI's paths have it, and llama.cpp's own.
_END: Final = re.compile(rb"(?:^|\n)data: ?\[DONE\]\s*$")
_NATIVE_END: Final = re.compile(rb'"stop":\s*true')
_TOTAL: Final = re.compile(rb'"total_tokens":\s*(\d+)')
#: llama-server's timings, in the last event of every stream (``server-task.cpp``, b11434).
_PARTS: Final = re.compile(rb'"(cache_n|prompt_n|predicted_n)":\s*(\d+)')


class Ending(StrEnum):
    """How an attempt came out."""

    DONE = "done"  # the client has its answer
    BROKE = "broke"  # the engine had the request
    UNREACHED = "unreached"  # it never had it
    REFUSED = "refused"  # the engine said no, with a body, to a request that had to be continued or repeated
    STARTING = "starting"  # the engine isn't ready yet, against expectation
    DIVERGED = "diverged"  # a replay came out differently


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt came out. ``reason`` is for people, or the engine's own body."""

    ending: Ending
    reason: str = ""
    status: int = 0


_DONE: Final = Result(Ending.DONE)


class Relay(Tap):
    """One call's answer on its way to its client; a ``Receiver`` of each attempt, and the sink's ``Tap``.

    Attributes:
        begun: the client has the answer's head.
        got_on: this attempt has brought something of an answer.
        status: HTTP's, that of the fault if it failed; None as long as the client has nothing.
        code: the fault's.
        tokens: prompt and answer together, by the engine's word; None if it said none.
        first_at: when the first of the answer itself went out, in the loop's seconds.
        words: says what a heartbeat says.
        seams: how often the answer was taken up in its middle.
        flight: counts the bytes of answers for whoever watches the engine.
    """

    __slots__ = (
        "_armed", "_body", "_bypassed", "_bypassing", "_call", "_content_type", "_entry", "_exchange",
        "_headers", "_held", "_held_size", "_hold", "_on_first", "_over", "_paused", "_quiet", "_rest", "_seam",
        "_sink", "_status", "_stitcher", "_stream", "_told", "_trouble", "_whole", "begun", "code",
        "first_at", "flight", "got_on", "seams", "status", "tokens", "words",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        sink: Sink,
        entry: Entry,
        *,
        headers: Callable[[], Mapping[str, str]],
        words: Callable[[], str] = lambda: "waiting",
    ) -> None:
        self._call = call
        self._sink = sink
        self._entry = entry
        self._headers = headers
        self._exchange: Exchange | None = None
        self._told: Callable[[Result], None] | None = None
        self._bypassed: list[bytes] = []
        self._armed = self._bypassing = False
        self._paused = self._over = self._quiet = False
        self._hold = Hold.NOTHING
        self._body = b""
        self.begun = self.got_on = False
        self.status: int | None = None
        self.code: str | None = None
        self.tokens: int | None = None
        self.first_at: float | None = None
        self.words = words
        self.flight: InFlight | None = None
        self.seams = 0
        self._reset()

    def _reset(self) -> None:
        self._stream = False
        self._status = 0
        self._content_type = ""
        self._rest = b""
        self._whole: list[bytes] = []
        self._held: list[bytes] | None = None
        self._held_size = 0
        self._trouble = b""
        self._seam = b""
        self._stitcher: Stitcher | None = None
        self._on_first: Callable[[], None] | None = None
        self.got_on = False

    # --- the broker's side ------------------------------------------------------------------------------

    def arm(
        self,
        told: Callable[[Result], None],
        *,
        hold: Hold = Hold.NOTHING,
        stitcher: Stitcher | None = None,
        seam: bytes = b"",
        on_first: Callable[[], None] | None = None,
    ) -> None:
        """Be ready for an attempt. Not before the one before it was told, or detached.

        Args:
            told: called once, with how it came out; never from within a call of the broker's side here.
            hold: what is kept back until it is complete.
            stitcher: makes the events fit behind what was sent.
            seam: goes out before the first of them.
            on_first: called once when the attempt brings anything of an answer.
        """
        if self._armed:  # there was one before
            self._reset()
        self._armed = True
        self._hold = hold
        self._stitcher = stitcher
        self._seam = seam
        self._on_first = on_first
        self._told = told
        if hold is Hold.ALL:
            self._held = []

    def attach(self, exchange: Exchange) -> None:
        """The attempt runs over *exchange*."""
        self._exchange = exchange
        if self._paused:
            exchange.pause()

    def let_go(self) -> None:
        """All is over: it holds nobody any more who holds it, and no garbage collector has to find that out."""
        self.detach()
        self._headers, self.words = dict, str

    def detach(self) -> None:
        """The attempt is over; nothing more of it is heard."""
        self._told = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()
        if self._bypassing:
            self._end_bypass()

    def finish(self, rest: bytes = b"") -> None:
        """End the answer after *rest*."""
        if rest:
            self._out(rest)
        if not self._over:
            self._over = True
            self._sink.end()

    def fail(self, fault: Fault) -> None:
        """End the answer with *fault*."""
        if not self._over:
            self.detach()
            self._over = True
            self.status, self.code = fault.status, fault.code
            self._sink.fail(fault)

    def beat(self) -> None:
        """If the stream was silent since the last time, let the client hear something."""
        if self._bypassed:
            self.settle()
        if self._quiet and not self._paused and not self._over:
            self._write(f": {self.words()}\n\n".encode())
        self._quiet = True

    @property
    def first_bytes(self) -> bytes:
        """How an answer that wasn't streamed began."""
        return self._body[:END_BYTES]

    def last_bytes(self) -> bytes:
        """How the answer ended."""
        return self._body[-END_BYTES:] or self._entry.tail()

    # --- the sink's side --------------------------------------------------------------------------------

    def pause(self) -> None:
        """As ``Flow`` says; it holds for the next attempt, too."""
        self._paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def go_on(self) -> None:
        """As ``Flow`` says."""
        self._paused = False
        if self._exchange is not None:
            self._exchange.go_on()

    def enough(self) -> None:
        """As ``Tap`` says."""
        if not self._over:
            if self._bypassing:
                self._end_bypass()
            self._count(self._entry.tail())
            self.finish()
            self._tell(Result(Ending.DONE))

    @property
    def ending(self) -> bool:
        """As ``Tap`` says."""
        return self._exchange is not None and self._exchange.ending

    @property
    def over(self) -> bool:
        """The client has its end or its fault."""
        return self._over

    # --- the engine's side ------------------------------------------------------------------------------

    def head(self, status: int, content_type: str, stream: bool) -> None:  # noqa: FBT001 - as Receiver has it
        """As ``Receiver`` says. The client's own head waits for the first event: until then all can be undone."""
        self._status = status
        self._content_type = content_type
        self._stream = stream and status == 200

    def data(self, data: bytes) -> None:
        """As ``Receiver`` says."""
        if self._bypassed:
            self.settle()
        if self.flight is not None:
            self.flight.saw(len(data))
        if not self._stream:
            self._whole.append(data)
            return
        if self._rest or data[-2:] != b"\n\n":
            data, self._rest = _whole_events(self._rest + data)
            if not data:
                return
        if not self.got_on:
            if data[:1] == b":":  # a ping of the engine: it lives, and nothing has come yet
                self._write(data)
                return
            self._got_on()
        if self._trouble or b'"error"' in data:
            data = self._without_error(data)
        if self._stitcher is not None:
            try:
                data = self._stitcher.feed(data)
            except DivergedError:
                self._tell(Result(Ending.DIVERGED))
                return
        if self._hold is not Hold.NOTHING:
            data = self._held_back(data)
        if data:
            self._out(data)
            if self._plain() and not data.endswith(_LAST_EVENT[2:]):
                self._begin_bypass()

    def done(self) -> None:
        """As ``Receiver`` says."""
        if not self._stream:
            self._answered(b"".join(self._whole))
            return
        if self._bypassing:
            self._end_bypass()
        if self._rest:
            rest, self._rest = self._rest.rstrip(b"\r\n"), b""
            if _is_event(rest):  # some servers leave out the last empty line
                self.data(rest + b"\n\n")
        if self._trouble:
            self._out(b"".join(self._held or ()) + self._trouble)
            self.finish()
            self._tell(Result(Ending.DONE))
            return
        held = b"".join(self._held) if self._held else b""
        tail = held or self._entry.tail()
        if not self._complete(tail):
            self._tell(Result(Ending.BROKE, "its stream ended before the answer did"))
            return
        if held:
            self._out(held)
            tail = self._entry.tail()
        self.finish()
        self._count(tail)
        self._tell(_DONE)

    def lost(self, reason: str, begun: bool) -> None:  # noqa: FBT001 - as Receiver has it
        """As ``Receiver`` says."""
        reached = begun or self._exchange is None or self._exchange.reached
        self._tell(Result(Ending.BROKE if reached else Ending.UNREACHED, reason))

    # --- what goes past it ------------------------------------------------------------------------------

    def _plain(self) -> bool:
        """Whether nothing is looked for in what comes but what the link looks for: errors and calls of tools."""
        held = self._hold is not Hold.NOTHING and (self._hold is not Hold.CALLS or self._held is not None)
        return self._stitcher is None and not held and not self._trouble and not self._rest

    def _begin_bypass(self) -> None:
        to = self._sink.bypass()
        if to is None or self._exchange is None or self._over or not self._entry.reserve(_BYPASS_BYTES):
            return
        if not self._bypassing:
            self._bypassing = True
            if self.flight is not None:
                self.flight.tells_late(self.settle)
        self._exchange.bypass(to, self._bypassed.append, _BYPASS_BYTES)

    def settle(self) -> None:
        """Take down what has gone past, as if it had come this way."""
        if not self._bypassed:
            return
        events = [chunk[chunk.index(b"\n") + 1 : -2] for chunk in self._bypassed]  # without the framing
        self._bypassed.clear()
        size = sum(map(len, events))
        self._entry.sent_all(events, size)
        self._quiet = False
        self._sink.bypassed(size)
        if self.flight is not None:
            self.flight.saw(size)

    def _end_bypass(self) -> None:
        self._bypassing = False
        self.settle()
        self._entry.release()
        if self.flight is not None:
            self.flight.tells_no_more(self.settle)

    # --- what becomes of it -----------------------------------------------------------------------------

    def _got_on(self) -> None:
        self.got_on = True
        if self._on_first is not None:
            self._on_first()
            self._on_first = None

    def _without_error(self, data: bytes) -> bytes:
        """What comes before an error event. That and what follows is passed on if the engine lives on: then it is
        its word.
        """
        if self._trouble:
            self._trouble += data
            return b""
        found = _ERROR.search(data)
        if found is None:
            return data
        at = found.start() + (2 if data[found.start() : found.start() + 1] == b"\n" else 0)
        self._trouble += data[at:]
        return data[:at]

    def _held_back(self, data: bytes) -> bytes:
        if self._held is None:
            found = _CALLS.search(data)
            if found is None:
                return data
            cut = data.rfind(b"\n\n", 0, found.start()) + 2 if b"\n\n" in data[: found.start()] else 0
            self._held = []
            data, now = data[cut:], data[:cut]
        else:
            now = b""
        self._held.append(data)
        self._held_size += len(data)
        if self._held_size > _HELD_BYTES:
            now += b"".join(self._held)
            self._held, self._hold = None, Hold.NOTHING
        return now

    def _answered(self, body: bytes) -> None:
        """An answer that isn't streamed, or an engine's refusal."""
        if self._status == 503 and b"unavailable_error" in body:  # llama-server, before it is ready
            self._tell(Result(Ending.STARTING, "the engine is still loading", self._status))
            return
        self._got_on()
        if self.begun:
            self._tell(Result(Ending.REFUSED, body[:2000].decode("utf-8", "replace"), self._status))
            return
        self._body = body
        self._begin(self._status, self._content_type, stream=False)
        self.first_at = asyncio.get_running_loop().time()
        self._count(body[-END_BYTES:])
        if body:
            self._sink.write(body)
        self.finish()
        self._tell(Result(Ending.DONE, status=self._status))

    def _complete(self, tail: bytes) -> bool:
        if tail.endswith(_LAST_EVENT) or _END.search(tail):
            return True
        if self._call.path.startswith("/v1/"):
            return False
        return _NATIVE_END.search(tail[tail.rfind(b"\n\ndata:", 0, -2) + 1 :]) is not None

    def _count(self, tail: bytes) -> None:
        found = _TOTAL.search(tail)
        if found:
            self.tokens = int(found[1])
        elif len(parts := dict(_PARTS.findall(tail))) == 3:
            self.tokens = sum(map(int, parts.values()))

    def _out(self, data: bytes) -> None:
        if self._seam:
            data, self._seam = self._seam + data, b""
            self.seams += 1
        if self.first_at is None:
            self.first_at = asyncio.get_running_loop().time()
        self._write(data)
        self._entry.sent(data)

    def _write(self, data: bytes) -> None:
        if not self.begun:
            self._begin(200, self._content_type or STREAM_TYPE, stream=True)
        self._quiet = False
        self._sink.write(data)

    def _begin(self, status: int, content_type: str, *, stream: bool) -> None:
        headers = self._headers()
        if status == 503:
            headers = {**headers, "retry-after": str(RETRY_AFTER_S)}
        self.begun, self.status = True, status
        self._sink.begin(Head(status=status, content_type=content_type, stream=stream, headers=headers), self)

    def _tell(self, result: Result) -> None:
        told, self._told = self._told, None
        if told is not None:
            self.detach()
            told(result)


def _is_event(rest: bytes) -> bool:
    """Whether an event is complete but for its empty line: a half one must not reach the client."""
    said = rest[rest.rfind(b"\n") + 1 :].removeprefix(b"data:").strip()
    try:
        return said == b"[DONE]" or isinstance(json.loads(said), dict)
    except (ValueError, RecursionError):
        return False


def _whole_events(data: bytes) -> tuple[bytes, bytes]:
    """The events that are complete, and the beginning of the next."""
    end = data.rfind(b"\n\n")
    other = data.rfind(b"\r\n\r\n")
    cut = max(end + 2 if end >= 0 else 0, other + 4 if other >= 0 else 0)
    return data[:cut], data[cut:]

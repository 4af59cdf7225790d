"""What is told of a call when it is over: once, by the broker, to whoever counts, logs, traces and bills.

Nothing here is on the way of a streamed event, and on that of a request only one thing: its end is noted down.
An ``Outcome`` holds moments and a few bytes of both ends of the answer; the ``Bookkeeper`` reads the tokens out of
those bytes, once, a moment after the client was served, and shows the finished ``Entry`` to each of its readers.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from terazi.gateway.call import Call
from terazi.gateway.wire.usage import Usage, read_usage
from terazi.policy.dispatch_messages import Why

_log = logging.getLogger(__name__)

#: The status of a call whose client left before its answer was complete, as nginx writes it.
CLIENT_GONE: Final = 499
#: How much of an answer's two ends an ``Outcome`` holds at least, where there is so much: the last event with text,
#: the one with the usage and ``[DONE]`` are some 1,300 bytes of llama-server's (b11434).
END_BYTES: Final = 4096
#: How long an end may wait to be accounted for, together with others.
WAIT_S: Final = 0.25
#: So many wait at most.
_MOST: Final = 64
#: So many are worked off in one turn of the loop: it is held up for a fraction of a millisecond, or for two if
#: there are traces to be made.
_AT_ONCE: Final = 16
#: Of a request whose body isn't kept waiting, if there are others to be accounted for.
_LARGE_BYTES: Final = 64 << 10


# Not frozen, as one of each is made for each request, and a frozen one takes three times as long to make.
@dataclass(slots=True, kw_only=True)
class Attempt:
    """One engine's part in an answer. Not to be changed.

    Args:
        replica: which engine.
        began, ended: monotonic seconds of the event loop: from when it was sent until nothing more came.
        lost: why it broke off; None if it didn't.
    """

    replica: str
    began: float
    ended: float
    lost: str | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a call ended. Not to be changed.

    Args:
        status: HTTP's, as the client got it; ``CLIENT_GONE`` if it left. A stream that failed half-way has the
            fault's status, although its head said 200.
        code: the fault's code, if it failed.
        why: the dispatcher's reason, if it was turned away.
        began: when the first byte of the answer went to the client; None if none did. Heartbeats don't count.
        ended: when all was over. Both are monotonic seconds of the event loop, as ``Call.arrived``.
        attempts: the engines that worked on it, first to last; none if it never left its queue.
        resumed: how it went on after each lost attempt, in the words of ``policy.resume``.
        head, tail: the first and last bytes of the engines' answer (``END_BYTES`` or more, unless it was shorter);
            a whole answer may be in both.
    """

    status: int
    code: str | None = None
    why: Why | None = None
    began: float | None = None
    ended: float
    attempts: tuple[Attempt, ...] = ()
    resumed: tuple[str, ...] = ()
    head: bytes = b""
    tail: bytes = b""


class Account(Protocol):
    """Is told of each call's end. It returns at once and raises nothing."""

    def closed(self, call: Call, outcome: Outcome) -> None:
        """*call* is over."""
        ...


class Entry:
    """All that is known of one call that is over. Not to be changed.

    Attributes:
        client_gone: the client left before the end.
        replica: the engine that had it last; None if it never had one.
        queued_s: from its arrival until an engine got it, or until it was over.
        ttft_s: from its arrival to the first byte of its answer; None if there was none.
        total_s: from its arrival until it was over.
        time_per_output_token_s: the mean time between its tokens as the client saw them; None if it wasn't
            streamed, or had one only.
    """

    __slots__ = (
        "call", "client_gone", "outcome", "queued_s", "replica", "time_per_output_token_s", "total_s", "ttft_s",
        "usage",
    )  # fmt: skip

    def __init__(self, call: Call, outcome: Outcome, usage: Usage) -> None:
        self.call = call
        self.outcome = outcome
        self.usage = usage
        self.client_gone = outcome.status == CLIENT_GONE
        arrived, began, ended, attempts = call.arrived, outcome.began, outcome.ended, outcome.attempts
        self.replica: str | None = attempts[-1].replica if attempts else None
        self.queued_s = max(0.0, (attempts[0].began if attempts else ended) - arrived)
        self.total_s = max(0.0, ended - arrived)
        self.ttft_s: float | None = None
        self.time_per_output_token_s: float | None = None
        if began is not None:
            self.ttft_s = max(0.0, began - arrived)
            tokens = usage.output_tokens
            if tokens is not None and tokens > 1 and call.stream:
                self.time_per_output_token_s = max(0.0, ended - began) / (tokens - 1)


class Reader(Protocol):
    """Is shown each entry."""

    def noted(self, entry: Entry) -> None:
        """*entry* was closed."""
        ...


class Bookkeeper:
    """The ``Account`` of a service. A reader that fails is logged, and costs nobody else anything.

    Args:
        readers: shown each entry, one after another.
        wait_s: how long ends are collected before they are worked off together; with 0 each is at once.
    """

    def __init__(self, readers: Iterable[Reader], *, wait_s: float = WAIT_S) -> None:
        self._readers = tuple(readers)
        self._wait_s = wait_s
        self._waiting: list[tuple[Call, Outcome]] = []
        self._timer: asyncio.Handle | None = None

    def closed(self, call: Call, outcome: Outcome) -> None:
        """Note it down, to be worked off before long."""
        waiting = self._waiting
        waiting.append((call, outcome))
        if self._timer is None:
            self._begin()
        elif len(waiting) >= _MOST:
            self._work_off(_AT_ONCE)
        elif len(call.body) > _LARGE_BYTES:
            self.flush()

    def _begin(self) -> None:
        if self._wait_s:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._due)
        else:
            self.flush()

    def flush(self) -> None:
        """Read the tokens of all that wait, and show them to each reader. Before accounts are looked at."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._work_off(len(self._waiting))

    def _due(self) -> None:
        self._timer = None
        self._work_off(_AT_ONCE)
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_soon(self._due)

    def _work_off(self, count: int) -> None:
        """The oldest *count*; together, since one by one each would find the caches cold."""
        taken = self._waiting[:count]
        del self._waiting[:count]
        entries = [Entry(call, outcome, read_usage(outcome.head, outcome.tail)) for call, outcome in taken]
        for reader in self._readers:
            noted = reader.noted
            for entry in entries:
                try:
                    noted(entry)
                except Exception:
                    _log.exception("an account of request %s failed", entry.call.id)

    def close(self) -> None:
        """The service ends: work off what waits, and at once whatever comes after all."""
        self._wait_s = 0.0
        self.flush()

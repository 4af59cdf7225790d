"""What is told of a call when it is over: once, by the broker, to whoever counts, logs, traces and bills.

Nothing here is on the way of a streamed event. An ``Outcome`` holds moments and a few bytes of both ends of the
answer; the ``Bookkeeper`` reads the tokens out of those bytes, once, after the client has been served, and shows
the finished ``Entry`` to each of its readers.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One engine's part in an answer.

    Args:
        replica: which engine.
        began, ended: monotonic seconds of the event loop: from when it was sent until nothing more came.
        lost: why it broke off; None if it didn't.
    """

    replica: str
    began: float
    ended: float
    lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call ended.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """All that is known of one call that is over; what each figure is, stands at its property."""

    call: Call
    outcome: Outcome
    usage: Usage

    @property
    def client_gone(self) -> bool:
        """Whether the client left before the end."""
        return self.outcome.status == CLIENT_GONE

    @property
    def replica(self) -> str | None:
        """The engine that had it last; None if it never had one."""
        attempts = self.outcome.attempts
        return attempts[-1].replica if attempts else None

    @property
    def queued_s(self) -> float:
        """From its arrival until an engine got it, or until it was over."""
        attempts = self.outcome.attempts
        return max(0.0, (attempts[0].began if attempts else self.outcome.ended) - self.call.arrived)

    @property
    def ttft_s(self) -> float | None:
        """From its arrival to the first byte of its answer; None if there was none."""
        began = self.outcome.began
        return None if began is None else max(0.0, began - self.call.arrived)

    @property
    def total_s(self) -> float:
        """From its arrival until it was over."""
        return max(0.0, self.outcome.ended - self.call.arrived)

    @property
    def time_per_output_token_s(self) -> float | None:
        """The mean time between its tokens as the client saw them; None if it wasn't streamed, or had one only."""
        began, tokens = self.outcome.began, self.usage.output_tokens
        if began is None or not self.call.stream or tokens is None or tokens < 2:
            return None
        return max(0.0, self.outcome.ended - began) / (tokens - 1)


class Reader(Protocol):
    """Is shown each entry."""

    def noted(self, entry: Entry) -> None:
        """*entry* was closed."""
        ...


class Bookkeeper:
    """The ``Account`` of a service. A reader that fails is logged, and costs nobody else anything."""

    def __init__(self, readers: Iterable[Reader]) -> None:
        self._readers = tuple(readers)

    def closed(self, call: Call, outcome: Outcome) -> None:
        """Read its tokens and show it to each reader."""
        entry = Entry(call=call, outcome=outcome, usage=read_usage(outcome.head, outcome.tail))
        for reader in self._readers:
            try:
                reader.noted(entry)
            except Exception:
                _log.exception("an account of request %s failed", call.id)

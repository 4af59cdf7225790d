"""What is told of a call when it is over: once, by the broker, to whoever counts, logs, traces and bills.

Nothing here is on the way of a streamed event. An ``Outcome`` holds moments and a few bytes of both ends of the
answer; whoever wants tokens reads them out of those bytes, once, after the client has been served.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from terazi.gateway.call import Call
from terazi.policy.dispatch_messages import Why

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

    @property
    def client_gone(self) -> bool:
        """Whether the client left before the end."""
        return self.status == CLIENT_GONE


class Account(Protocol):
    """Is told of each call's end. It returns at once and raises nothing."""

    def closed(self, call: Call, outcome: Outcome) -> None:
        """*call* is over."""
        ...


class Accounts:
    """Several as one."""

    def __init__(self, accounts: Iterable[Account] = ()) -> None:
        self._accounts = tuple(accounts)

    def closed(self, call: Call, outcome: Outcome) -> None:
        """Tell each of them."""
        for account in self._accounts:
            account.closed(call, outcome)

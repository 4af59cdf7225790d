"""One call's place in a queue and then in an engine, and what its client is told when it gets none."""

import asyncio
import math
from collections.abc import Mapping
from typing import Final, Protocol

from terazi.gateway.backend import Backend
from terazi.gateway.call import Call
from terazi.gateway.wire.errors import Fault, WireError
from terazi.policy.dispatch_messages import AttemptLost, RequestCancelled, RequestFinished, TurnAway, Why

POSITION_HEADER: Final = "x-terazi-queue-position"
EXPECTED_WAIT_HEADER: Final = "x-terazi-expected-wait"
WAITED_HEADER: Final = "x-terazi-waited"
#: Said when nothing has been measured yet, or can be.
_RETRY_S: Final[Mapping[Why, int]] = {Why.PRESSURE: 5, Why.DRAINING: 5, Why.NO_ENGINE: 10}
_RETRY_ELSE_S: Final = 2

_FAULTS: Final[Mapping[Why, tuple[int, str, str]]] = {
    Why.QUEUE_FULL: (503, "service_unavailable", "queue_full"),
    Why.KEY_QUEUE_FULL: (429, "rate_limit_error", "key_queue_full"),
    Why.RATE: (429, "rate_limit_error", "rate_limit_exceeded"),
    Why.TOO_LARGE: (400, "invalid_request_error", "context_length_exceeded"),
    Why.DEADLINE: (504, "timeout_error", "deadline_exceeded"),
    Why.NO_ENGINE: (503, "service_unavailable", "engine_unavailable"),
    Why.PRESSURE: (503, "service_unavailable", "under_pressure"),
    Why.DRAINING: (503, "service_unavailable", "shutting_down"),
}
#: Coming again later doesn't help.
_FINAL: Final = frozenset({Why.TOO_LARGE, Why.DEADLINE})


class Host(Protocol):
    """The queues that a ticket belongs to."""

    def position(self, ticket: "Ticket") -> int:
        """As the ticket has it."""
        ...

    def expected_wait_s(self, ticket: "Ticket") -> float | None:
        """As the ticket has it."""
        ...

    def tell_of(self, ticket: "Ticket", event: AttemptLost | RequestFinished | RequestCancelled) -> None:
        """Something has happened to it."""
        ...


class Ticket:
    """One call's place: in a queue, then in an engine, until it leaves."""

    __slots__ = ("_future", "_left", "_seats", "_waited_since", "backend", "call", "fault", "position_on_arrival",
                 "waited_s")  # fmt: skip

    def __init__(self, seats: Host, call: Call) -> None:
        self.call = call
        #: Its place in the queue when it came; 0 if it didn't wait.
        self.position_on_arrival = 0
        #: Seconds that it has waited for engines, all attempts together.
        self.waited_s = 0.0
        #: The replica that has it now; None while it waits.
        self.backend: Backend | None = None
        #: Why it has been turned away, if it has.
        self.fault: Fault | None = None
        self._seats = seats
        self._future: asyncio.Future[Backend] | None = None
        self._waited_since: float | None = None
        self._left = False

    @property
    def position(self) -> int:
        """Its place among those that wait for its model, from 1; 0 when it doesn't wait."""
        return self._seats.position(self)

    @property
    def expected_wait_s(self) -> float | None:
        """Seconds until an engine takes it, from what has been measured; None if nothing has."""
        return self._seats.expected_wait_s(self)

    async def seat(self) -> Backend:
        """Wait for a replica. Cancelling this gives up the place in the queue only by ``leave``.

        Raises:
            WireError: it is turned away after all: the deadline, a model that can't be loaded, the end of the
                service. The ticket has left then.
        """
        if self.backend is not None:
            return self.backend
        if self.fault is not None:
            raise WireError(self.fault)
        if self._left:
            raise RuntimeError("a ticket that has left is seated again")
        self._future = asyncio.get_running_loop().create_future()
        try:
            return await self._future
        finally:
            self._future = None

    def lost(self) -> None:
        """The replica that had it is gone, or stuck: it goes to the head of its queue, and ``seat`` waits again."""
        if self.backend is not None and not self._left:
            self.backend = None
            self._seats.tell_of(self, AttemptLost(id=self.call.id))

    def leave(self, tokens: int | None = None) -> None:
        """It is answered, given up, or its client has gone. Once is enough, more often does no harm.

        Args:
            tokens: prompt and output together that the engine really worked on; None if it didn't say.
        """
        if self._left:
            return
        self._left = True
        if self.backend is not None:
            self.backend = None
            self._seats.tell_of(self, RequestFinished(id=self.call.id, tokens=tokens))
        elif self.fault is None:
            self._seats.tell_of(self, RequestCancelled(id=self.call.id))

    def words(self) -> str:
        """What a heartbeat says while it waits: ``waiting, position 3, about 12 s``."""
        position = self.position
        if not position:
            return "working"
        wait = self.expected_wait_s
        return f"waiting, position {position}" + (f", about {math.ceil(wait)} s" if wait is not None else "")

    def headers(self) -> dict[str, str]:
        """What the client is told about its wait; nothing if there was none. Names in lower case."""
        if not self.position_on_arrival:
            return {}
        if self.backend is not None:
            return {POSITION_HEADER: str(self.position_on_arrival), WAITED_HEADER: f"{self.waited_s:.3f}"}
        wait = self.expected_wait_s
        headers = {POSITION_HEADER: str(self.position)}
        return headers if wait is None else headers | {EXPECTED_WAIT_HEADER: f"{wait:.1f}"}

    # --- called by Seats

    def queued(self, now: float) -> None:
        """It waits from now on."""
        self._waited_since = now

    def seated(self, backend: Backend, now: float) -> None:
        """*backend* takes it."""
        self.backend = backend
        if self._waited_since is not None:
            self.waited_s += now - self._waited_since
            self._waited_since = None
        if self._future is not None and not self._future.done():
            self._future.set_result(backend)

    def turned_away(self, fault: Fault) -> None:
        """It gets no engine."""
        self.fault = fault
        if self._future is not None and not self._future.done():
            self._future.set_exception(WireError(fault))


def fault_of(away: TurnAway) -> Fault:
    """What the client of a request that was turned away is told."""
    status, kind, code = _FAULTS[away.why]
    retry = None
    if away.why not in _FINAL:
        known = away.retry_after_s
        retry = _RETRY_S.get(away.why, _RETRY_ELSE_S) if known is None else max(1, math.ceil(known))
    return Fault(
        status=status, message=away.message, kind=kind, code=code, retry_after_s=retry, final=away.why in _FINAL
    )

"""When the dispatcher has to be woken: deadlines of those who wait, and callers' tokens per minute."""

import heapq
from collections.abc import Callable

from terazi.policy.dispatch_messages import Command, WakeAt


class Alarms:
    """All moments at which something must happen although nothing else does.

    Args:
        is_waiting: whether the request of that id waits; an alarm for one that doesn't is void.
    """

    def __init__(self, is_waiting: Callable[[str], bool]) -> None:
        self._is_waiting = is_waiting
        self._deadlines: list[tuple[float, str]] = []
        self._rates: dict[str, float] = {}
        self._asked: float | None = None

    def set_deadline(self, id_: str, at: float) -> None:
        """This request waits until then at most."""
        heapq.heappush(self._deadlines, (at, id_))

    def set_rate(self, model: str, at: float | None) -> None:
        """Then one who waits for *model* may run by its tokens per minute; None if nobody waits for that."""
        if at is not None:
            self._rates[model] = at
        elif self._rates:
            self._rates.pop(model, None)

    def expired(self, now: float) -> list[str]:
        """Waiting requests whose deadlines have passed."""
        ids: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            id_ = heapq.heappop(self._deadlines)[1]
            if self._is_waiting(id_):
                ids.append(id_)
        return ids

    def rang(self) -> None:
        """The moment that was asked for has come."""
        self._asked = None

    def next(self, now: float) -> list[Command]:
        """``WakeAt``, if it has to be asked for anew."""
        if not self._deadlines and not self._rates:
            return []
        while self._deadlines and not self._is_waiting(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        at = min(self._rates.values(), default=None)
        if self._deadlines and (at is None or self._deadlines[0][0] < at):
            at = self._deadlines[0][0]
        if at is None or (self._asked is not None and now < self._asked <= at):
            return []
        self._asked = at
        return [WakeAt(at=at)]

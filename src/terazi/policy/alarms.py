"""When the dispatcher has to be woken: for those who have waited long enough, and callers' tokens per minute."""

import heapq
from collections.abc import Callable
from typing import Final

from terazi.policy.dispatch_messages import Command, WakeAt

#: So many void alarms are not worth looking for.
_FEW: Final = 1024


class Alarms:
    """All moments at which something must happen although nothing else does.

    Args:
        is_meant: whether the request of that id waits, and until that moment; if not, its alarm is void.
    """

    def __init__(self, is_meant: Callable[[str, float], bool]) -> None:
        self._is_meant = is_meant
        self._untils: list[tuple[float, str]] = []
        self._rates: dict[str, float] = {}
        self._asked: float | None = None
        self._most = _FEW
        #: There are none.
        self.idle = True

    def set_until(self, id_: str, at: float) -> None:
        """This request waits until then at most."""
        self.idle = False
        heapq.heappush(self._untils, (at, id_))
        if len(self._untils) > self._most:  # most of them are void by now
            self._untils = [(at, id_) for at, id_ in self._untils if self._is_meant(id_, at)]
            heapq.heapify(self._untils)
            self._most = max(_FEW, 2 * len(self._untils))

    def set_rate(self, model: str, at: float | None) -> None:
        """Then one who waits for *model* may run by its tokens per minute; None if nobody waits for that."""
        if at is not None:
            self.idle = False
            self._rates[model] = at
        elif self._rates:
            self._rates.pop(model, None)

    def expired(self, now: float) -> list[str]:
        """Those who have waited long enough."""
        ids: list[str] = []
        while self._untils and self._untils[0][0] <= now:
            at, id_ = heapq.heappop(self._untils)
            # one that has lost its engine may have set the same alarm twice
            if self._is_meant(id_, at) and id_ not in ids[-1:]:
                ids.append(id_)
        return ids

    def rang(self) -> None:
        """The moment that was asked for has come."""
        self._asked = None

    def next(self, now: float) -> list[Command]:
        """``WakeAt``, if it has to be asked for anew."""
        if not self._untils and not self._rates:
            self.idle = True
            return []
        while self._untils and not self._is_meant(self._untils[0][1], self._untils[0][0]):
            heapq.heappop(self._untils)
        at = min(self._rates.values(), default=None)
        if self._untils and (at is None or self._untils[0][0] < at):
            at = self._untils[0][0]
        if at is None or (self._asked is not None and now < self._asked <= at):
            return []
        self._asked = at
        return [WakeAt(at=at)]

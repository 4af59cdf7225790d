"""How fast each model's requests go through, as measured, and what that says to those who wait.

A model that answers ``c`` requests at once, each in ``s`` seconds on average, frees a slot every ``s / c`` seconds
(Little's law), so the one at place ``k`` waits about ``k s / c`` if nobody passes it (see ``Band.stretch``). What
hasn't been measured is unknown.
"""

from dataclasses import dataclass
from typing import Final

#: The weight of the newest measurement. Answers differ more among each other than loads do, and are more.
_NEWEST_SERVICE: Final = 0.1
_NEWEST_OPENING: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Pace:
    """One model.

    Args:
        service_s: that a request has its slot, exponentially weighted, however it ends; None if none has ended yet.
        opening_s: from the first request for it to an engine that takes it, likewise.
        wanted_at: since when requests have waited without an engine.
    """

    service_s: float | None = None
    opening_s: float | None = None
    wanted_at: float | None = None

    def served(self, took_s: float) -> None:
        """A request has left its engine after *took_s*."""
        old = self.service_s
        self.service_s = took_s if old is None else old + _NEWEST_SERVICE * (took_s - old)

    def opened(self, now: float) -> None:
        """An engine takes requests."""
        if self.wanted_at is not None:
            old, took_s = self.opening_s, now - self.wanted_at
            self.opening_s = took_s if old is None else old + _NEWEST_OPENING * (took_s - old)
            self.wanted_at = None

    def between_s(self, at_once: int) -> float | None:
        """Seconds between two that leave an engine, when *at_once* are in one."""
        return None if self.service_s is None else self.service_s / max(1, at_once)

    def opens_in_s(self, now: float) -> float | None:
        """Seconds until an engine takes requests; None if that has never been seen, or takes longer this time."""
        if self.opening_s is None or self.wanted_at is None:
            return None
        left = self.wanted_at + self.opening_s - now
        return left if left > 0 else None

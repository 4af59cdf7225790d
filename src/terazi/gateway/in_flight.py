"""The requests that one engine is working on: how many, which, and how much of their answers has come.

A stop waits until there are none; the watchdog takes bytes that come for a sign of life; and what is kept of a
crash names them.
"""

import time
from collections import deque
from collections.abc import Callable

#: A connection breaks some moments before its engine is known to be gone: who left just now was still there then.
JUST_LEFT_S = 0.5
_MOST_LEFT = 256


class InFlight:
    """One for each backend. *on_change* is called when there are more or fewer."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._bytes = 0
        self._late: set[Callable[[], None]] = set()
        self._count = 0
        self._ids: dict[str, int] = {}
        self._left: deque[tuple[float, str]] = deque(maxlen=_MOST_LEFT)

    @property
    def count(self) -> int:
        """How many."""
        return self._count

    @property
    def bytes_seen(self) -> int:
        """Of answers, since it was made."""
        for say in tuple(self._late):
            say()
        return self._bytes

    def saw(self, size: int) -> None:
        """*size* bytes more of an answer have come."""
        self._bytes += size

    def tells_late(self, say: Callable[[], None]) -> None:
        """Whoever passes an answer on without a word for each part of it says ``saw`` when it is asked to."""
        self._late.add(say)

    def tells_no_more(self, say: Callable[[], None]) -> None:
        """It has said all."""
        self._late.discard(say)

    def entered(self, request: str) -> None:
        """The engine gets one; *request* is its id, by which it is named if the engine dies."""
        self._count += 1
        self._ids[request] = self._ids.get(request, 0) + 1
        self._on_change()

    def left(self, request: str) -> None:
        """One that had entered is not with the engine any more."""
        self._count -= 1
        self._left.append((time.monotonic(), request))
        more = self._ids[request] - 1
        if more:
            self._ids[request] = more
        else:
            del self._ids[request]
        self._on_change()

    def recent(self) -> tuple[str, ...]:
        """The ids of those that are here, or left within the last half second."""
        since = time.monotonic() - JUST_LEFT_S
        gone = [request for moment, request in self._left if moment >= since]
        return tuple(dict.fromkeys((*self._ids, *gone)))

"""The requests that one engine is working on: how many, which, and how much of their answers has come.

A stop waits until there are none; the watchdog takes bytes that come for a sign of life; and what is kept of a
crash names them.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: A connection breaks some moments before its engine is known to be gone: who left just now was still there then.
JUST_LEFT_S = 0.5
_MOST_LEFT = 256


class InFlight:
    """One for each backend. *on_change* is called when there are more or fewer."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        #: Of answers, since it was made. Whoever passes them on adds to it.
        self.bytes_seen = 0
        self._count = 0
        self._ids: dict[str, int] = {}
        self._left: deque[tuple[float, str]] = deque(maxlen=_MOST_LEFT)

    @property
    def count(self) -> int:
        """How many."""
        return self._count

    @contextmanager
    def tracking(self, request: str = "") -> Iterator["InFlight"]:
        """Count one while it is with the engine; *request* is its id, if it is to be named."""
        self._count += 1
        if request:
            self._ids[request] = self._ids.get(request, 0) + 1
        self._on_change()
        try:
            yield self
        finally:
            self._count -= 1
            if request:
                self._left.append((time.monotonic(), request))
                self._ids[request] -= 1
                if not self._ids[request]:
                    del self._ids[request]
            self._on_change()

    def recent(self) -> tuple[str, ...]:
        """The ids of those that are here, or left within the last half second."""
        since = time.monotonic() - JUST_LEFT_S
        gone = [request for moment, request in self._left if moment >= since]
        return tuple(dict.fromkeys((*self._ids, *gone)))

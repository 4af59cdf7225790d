"""Adds up what each API key used, and writes it to the store now and then, off the way of requests."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

from terazi.gateway.account import Entry
from terazi.service.records import store_file
from terazi.telemetry.store.sqlite import Store, StoreError
from terazi.telemetry.store.usage import Used, add_usage, usage_since

_log = logging.getLogger(__name__)

#: At most so much is lost when the process is killed.
WRITE_EVERY_S: Final = 20.0
#: Different keys and models that are counted between two writes; on an open service clients name themselves.
_MOST_ROWS: Final = 2000
OTHERS: Final = "others"
_DAY_S: Final = 86400


@lru_cache(maxsize=2)
def _iso(day: int) -> str:
    """The date so many days after 1970 began, UTC."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


class Tally:
    """A ``Reader`` of the bookkeeper's entries.

    Args:
        store: where it goes.
        today: the date now.
    """

    def __init__(self, store: Store, today: Callable[[], str] = lambda: _iso(int(time.time() // _DAY_S))) -> None:
        self._store = store
        self._today = today
        self._open: dict[tuple[str, str, str], Used] = {}

    def noted(self, entry: Entry) -> None:
        """Add one request. One that got no engine counts too: it failed."""
        day, key, model = self._today(), entry.call.caller.name, entry.call.model
        place = (day, key, model)
        if place not in self._open and len(self._open) >= _MOST_ROWS:
            place = (day, OTHERS, model)
        so_far = self._open.get(place) or Used(*place)
        usage, seconds = entry.usage, so_far.seconds
        for attempt in entry.outcome.attempts:
            seconds += attempt.ended - attempt.began
        self._open[place] = Used(
            *place,
            so_far.requests + 1,
            so_far.failed + (entry.outcome.status >= 400),
            so_far.prompt_tokens + (usage.prompt_tokens or 0),
            so_far.cached_tokens + (usage.cached_tokens or 0),
            so_far.output_tokens + (usage.output_tokens or 0),
            seconds,
        )

    async def write(self) -> None:
        """Write what came since the last time; it is kept for the next one if the store can't take it."""
        held, self._open = self._open, {}
        try:
            await asyncio.to_thread(add_usage, self._store, tuple(held.values()))
        except StoreError as problem:
            _log.warning("usage isn't written now: %s (%s)", problem.message, problem.hint)
            for place, used in self._open.items():
                held[place] = _sum(held[place], used) if place in held else used
            self._open = held

    async def run(self) -> None:
        """Write again and again, without end."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self.write()


def _sum(one: Used, other: Used) -> Used:
    return one._replace(**{name: getattr(one, name) + getattr(other, name) for name in Used._fields[3:]})


def _today() -> date:
    return datetime.now(UTC).date()


def usage_of_days(days: int, *, by_day: bool) -> tuple[Used, ...]:
    """What was used in the last *days* (today is one of them): a row for each key and model, and day if *by_day*.

    Raises:
        StoreError: the store can't be read.
    """
    first = (_today() - timedelta(days=days - 1)).isoformat()
    rows: dict[tuple[str, str, str], Used] = {}
    for used in usage_since(Store(store_file()), first):
        place = (used.day if by_day else "", used.key, used.model)
        whole = used._replace(day=place[0])
        rows[place] = _sum(rows[place], whole) if place in rows else whole
    return tuple(rows[place] for place in sorted(rows))

"""What a changed ``terazi.toml`` means for the models that are served, and how a change of it is noticed."""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from terazi.service.wish import Wish

#: The file is looked at so often; a change counts once the file has been the same for one look.
EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Models by name: new, served no more, with engines that start anew, with other terms only."""

    added: tuple[Wish, ...]
    removed: tuple[str, ...]
    restarted: tuple[tuple[str, Wish], ...]
    retermed: tuple[tuple[str, Wish], ...]

    @property
    def empty(self) -> bool:
        """Nothing about models."""
        return not (self.added or self.removed or self.restarted or self.retermed)


def change_of(served: Mapping[str, Wish], wanted: tuple[Wish, ...]) -> Change:
    """From what is *served*, by name, to what is *wanted*. A wish without a name is the one with its source."""
    left = dict(served)
    added, restarted, retermed = [], [], []
    for wish in wanted:
        name = next((n for n, w in left.items() if (n == wish.name if wish.name else _nameless(w, wish))), None)
        if name is None:
            added.append(wish)
            continue
        was = left.pop(name)
        if not was.same_engine(wish) or was.replicas[1] != wish.replicas[1]:
            restarted.append((name, wish))
        elif was != wish:
            retermed.append((name, wish))
    return Change(added=tuple(added), removed=tuple(left), restarted=tuple(restarted), retermed=tuple(retermed))


def _nameless(was: Wish, wish: Wish) -> bool:
    return was.name is None and was.source == wish.source


def fingerprint(path: Path) -> tuple[int, str] | None:
    """When *path* was written, and a digest of what it says; None if it can't be read."""
    try:
        stat, data = path.stat(), path.read_bytes()
    except OSError:
        return None
    return stat.st_mtime_ns, hashlib.sha256(data).hexdigest()


async def watch_file(path: Path, changed: Callable[[], Awaitable[None]], *, every_s: float = EVERY_S) -> None:
    """Call *changed* after *path* says something else and has been left alone for one look; until cancelled.

    Several writes in a row are one change. A file that is gone for a moment, as editors do, is none.
    """
    taken = seen = await asyncio.to_thread(fingerprint, path)
    stamp = _stamp(path)
    while True:
        await asyncio.sleep(every_s)
        now_stamp = _stamp(path)
        if now_stamp == stamp and seen == taken:
            continue
        now = await asyncio.to_thread(fingerprint, path)
        settled, stamp, seen = now == seen and now_stamp == stamp, now_stamp, now
        if not settled or now is None:
            continue
        was, taken = taken, now
        if was is None or was[1] != now[1]:
            await changed()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - twice a second for a year
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size

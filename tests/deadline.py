"""Waiting in tests: until something holds, never for a fixed time."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path


def until(what: Callable[[], object], within_s: float = 10.0) -> None:
    """Return as soon as *what* holds.

    Raises:
        TimeoutError: if it doesn't within *within_s*.
    """
    end = time.monotonic() + within_s
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s} s")
        time.sleep(0.01)


async def until_async(what: Callable[[], object], within_s: float = 10.0) -> None:
    """The same on an event loop."""
    async with asyncio.timeout(within_s):
        while not what():  # noqa: ASYNC110 - conditions of the outside world have no event
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether *pid* runs (a zombie doesn't)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def proc(pid: int, name: str) -> bytes:
    """One of the kernel's files about *pid*."""
    return Path(f"/proc/{pid}/{name}").read_bytes()

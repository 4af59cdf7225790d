"""What the service itself takes of its machine, for ``terazi ps --json`` and the metrics: it should stay level."""

import asyncio
import contextlib
from collections.abc import Iterator

import psutil

from terazi.gateway.figures import Family, Figure


def own_process() -> dict[str, int | None]:
    """Bytes resident, open files and connections, threads, asyncio tasks; None for what this system doesn't say."""
    process, open_files = psutil.Process(), None
    with contextlib.suppress(AttributeError, psutil.Error):  # num_fds is Unix's
        open_files = process.num_fds()
    return {
        "rss_bytes": process.memory_info().rss,
        "open_files": open_files,
        "threads": process.num_threads(),
        "tasks": len(asyncio.all_tasks()),
    }


def own_figures() -> Iterator[Figure]:
    """What Prometheus's own collector of the process has no word for."""
    yield Figure(Family.TASKS, (), len(asyncio.all_tasks()))

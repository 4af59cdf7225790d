"""Runs one piece of asynchronous work so that being told to stop, in any way, cleans up behind it."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    """Run *work* to its end; SIGTERM and SIGHUP cancel it as Ctrl-C does.

    Raises:
        KeyboardInterrupt, SystemExit: told to stop; what *work* does when cancelled is done.
    """
    told: list[int] = []

    async def guarded() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def stop(number: int) -> None:
            told.append(number)
            if task is not None:
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        try:
            return await work
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if told:
            sys.exit(128 + told[0])
        raise

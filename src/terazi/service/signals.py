"""What signals mean to a service: told to stop, told to hurry, told to read its configuration again."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals(*, stopping: asyncio.Event, hurry: Callable[[], None], reload: Callable[[], bool]) -> Iterator[None]:
    """The first signal sets *stopping*, for a drained stop, each later one calls *hurry*.

    SIGHUP calls *reload*, unless there is a terminal: then that was closed, and it is a stop. It is one, too, if
    *reload* says that there is nothing to read again.
    """
    loop = asyncio.get_running_loop()
    terminal = _has_terminal()

    def asked() -> None:
        if stopping.is_set():
            hurry()
        stopping.set()

    def hung_up() -> None:
        if terminal or not reload():
            asked()

    for number in _STOPS:
        loop.add_signal_handler(number, asked)
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    try:
        yield
    finally:
        for number in (*_STOPS, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

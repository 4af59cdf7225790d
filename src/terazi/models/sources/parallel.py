"""Does a few waits at once, and can be interrupted at any moment.

The threads are daemons: an interrupted program ends at once, and doesn't wait for servers that still think.
"""

import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

WORKERS: Final = 8
T = TypeVar("T")


def each(do: Callable[[int], T], count: int, *, say: Callable[[int], None]) -> list[T]:
    """``[do(0), do(1), …]``, at most ``WORKERS`` at a time; *say* hears how many are done.

    Raises:
        Exception: the first that a *do* raised; what hasn't begun by then is left out.
    """
    if count <= 1:
        return [do(i) for i in range(count)]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()
    stopped = threading.Event()
    for i in range(count):
        waiting.put(i)

    def work() -> None:
        while not stopped.is_set():
            try:
                i = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((i, do(i), None))
            except BaseException as error:  # handed on to the caller's thread
                done.put((i, None, error))

    for _ in range(min(WORKERS, count)):
        threading.Thread(target=work, daemon=True, name="terazi-header").start()
    results: dict[int, T] = {}
    try:
        while len(results) < count:
            i, result, error = done.get()
            if error is not None:
                raise error
            results[i] = result  # type: ignore[assignment]  # no error, so do's own result, whatever T allows
            say(len(results))
    finally:
        stopped.set()
    return [results[i] for i in range(count)]

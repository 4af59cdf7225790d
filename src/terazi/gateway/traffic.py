"""Which requests are being answered now, so that a shutdown can wait for them, and then end them politely."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from terazi.gateway.wire.errors import WireError, shutting_down


class Traffic:
    """The requests in flight. One per service.

    ``draining`` turns new requests away. ``cutting`` says that a cancelled handler was cancelled by ``cut``
    and not because its client left.

    Args:
        on_drain: called when draining begins.
    """

    def __init__(self, on_drain: Callable[[], None] | None = None) -> None:
        self._on_drain = on_drain
        self.draining = False
        self.cutting = False
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def drain(self) -> None:
        """Let nothing new in from now on."""
        if not self.draining:
            self.draining = True
            if self._on_drain is not None:
                self._on_drain()

    @property
    def count(self) -> int:
        """Requests in flight."""
        return len(self._tasks)

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Count the current task as a request in flight.

        Raises:
            WireError: 503 while draining.
        """
        if self.draining:
            raise WireError(shutting_down())
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is answered outside of a task")
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False if that took longer than *timeout_s*."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def cut(self) -> int:
        """Cancel what is still in flight, so that each client is told; how many there were."""
        self.cutting = True
        for task in self._tasks:
            task.cancel()
        return len(self._tasks)

"""Which requests are being answered now, so that a shutdown can wait for them, and then end them politely."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol

from terazi.gateway.wire.errors import WireError, shutting_down


class Leaver(Hashable, Protocol):
    """A request that can be ended: a task, say."""

    def cancel(self) -> object:
        """End it."""
        ...


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
        self._inside: set[Leaver] = set()
        self._waits: asyncio.Future[None] | None = None

    def drain(self) -> None:
        """Let nothing new in from now on."""
        if not self.draining:
            self.draining = True
            if self._on_drain is not None:
                self._on_drain()

    @property
    def count(self) -> int:
        """Requests in flight."""
        return len(self._inside)

    def enter(self, request: Leaver) -> None:
        """Count *request* as one in flight until it leaves.

        Raises:
            WireError: 503 while draining.
        """
        if self.draining:
            raise WireError(shutting_down())
        self._inside.add(request)

    def leave(self, request: Leaver) -> None:
        """It is over, if it ever entered."""
        self._inside.discard(request)
        if self._waits is not None and not self._inside and not self._waits.done():
            self._waits.set_result(None)

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False if that took longer than *timeout_s*."""
        if not self._inside:
            return True
        if self._waits is None or self._waits.done():
            self._waits = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._waits)
        except TimeoutError:
            return False
        return True

    def cut(self) -> int:
        """Cancel what is still in flight, so that each client is told; how many there were."""
        self.cutting = True
        cut = tuple(self._inside)
        for request in cut:
            request.cancel()
        return len(cut)

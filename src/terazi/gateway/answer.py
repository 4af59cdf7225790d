"""A sink that is read from: for handlers that translate an answer into another API's shape."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from terazi.gateway.call import Head, Tap
from terazi.gateway.wire.errors import Fault, WireError

#: Above so many unread bytes the engine is paused, below so many it goes on.
_HIGH_BYTES: Final = 64 * 1024
_LOW_BYTES: Final = 16 * 1024


class Answer:
    """A ``Sink`` whose reader awaits ``head`` and then iterates over the chunks; one reader.

    A chunk of a stream holds whole server-sent events and comments. A fault is raised as ``WireError`` where it
    falls: by ``head`` if nothing had begun, else by the iteration, after all that came before it.

    Attributes:
        sated: its reader had enough before its end.
    """

    def __init__(self) -> None:
        self.sated = False
        self._head: Head | None = None
        self._flow: Tap | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._fault: Fault | None = None
        self._paused = False
        self._news = asyncio.Event()

    # --- the broker's side

    def begin(self, head: Head, flow: Tap) -> None:
        """As ``Sink`` has it."""
        self._head, self._flow = head, flow
        self._news.set()

    def write(self, data: bytes) -> None:
        """As ``Sink`` has it."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > _HIGH_BYTES and not self._paused and self._flow is not None:
            self._paused = True
            self._flow.pause()
        self._news.set()

    def bypass(self) -> None:
        """As ``Sink`` has it: there is no way around."""

    def bypassed(self, size: int) -> None:
        """As ``Sink`` has it."""

    def end(self) -> None:
        """As ``Sink`` has it."""
        self._ended = True
        self._news.set()

    def fail(self, fault: Fault) -> None:
        """As ``Sink`` has it. The first fault counts, and none after the end."""
        if not self._ended:
            self._ended, self._fault = True, fault
            self._news.set()

    # --- the handler's side

    async def head(self) -> Head:
        """How the answer begins.

        Raises:
            WireError: it never will.
        """
        while self._head is None:
            if self._fault is not None:
                raise WireError(self._fault)
            self._news.clear()
            await self._news.wait()
        return self._head

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            WireError: it breaks off here.
        """
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk)
                if self._paused and self._size <= _LOW_BYTES and self._flow is not None:
                    self._paused = False
                    self._flow.go_on()
                yield chunk
            if self._fault is not None:
                raise WireError(self._fault)
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()

    def enough(self) -> None:
        """Nothing more is wanted of it: it counts as complete, and its engine is freed."""
        if self._flow is not None and not self._ended:
            self.sated = True
            self._flow.enough()

    @property
    def ended(self) -> bool:
        """It has its end or its fault, read or not."""
        return self._ended

    @property
    def unread_bytes(self) -> int:
        """What has come and was not read yet."""
        return self._size

    async def body(self) -> bytes:
        """All that is left of it, for answers that aren't streamed.

        Raises:
            WireError: it breaks off.
        """
        return b"".join([chunk async for chunk in self])

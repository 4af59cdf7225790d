"""The benchmark's clients: raw, to read streams as cheaply as can be, and note when the first event came."""

import asyncio
import time
from typing import cast

from gateway_engine import EVENT
from gateway_targets import Target

_END = b"0\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection; one stream at a time."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.first_at = 0.0
        self.bytes = 0
        self.ended: asyncio.Future[bool] | None = None
        self.begun: asyncio.Future[None] | None = None
        self._tail = b""
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.transport = None
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(False)

    def data_received(self, data: bytes) -> None:
        if not self.first_at:
            self._head += data
            if b"data: " not in self._head:
                return
            self.first_at = time.perf_counter()
            if self.begun is not None and not self.begun.done():
                self.begun.set_result(None)
        self.bytes += len(data)
        self._tail = data[-5:] if len(data) >= 5 else (self._tail + data)[-5:]
        if self._tail == _END and self.ended is not None and not self.ended.done():
            self.ended.set_result(True)

    def ask(self, request: bytes) -> "asyncio.Future[bool]":
        """Send it; the future says whether the stream came to its end."""
        assert self.transport is not None
        self.first_at, self.bytes, self._tail, self._head = 0.0, 0, b"", b""
        self.begun = self.loop.create_future()
        self.ended = self.loop.create_future()
        self.transport.write(request)
        return self.ended


class Caller:
    """One client of all targets; it keeps its connections where it may."""

    def __init__(self) -> None:
        self._kept: dict[int, Client] = {}

    async def call(self, target: Target, request: bytes) -> tuple[float, int]:
        """One stream over an open connection: seconds to its first event, and its events.

        Raises:
            RuntimeError: it broke off.
        """
        client = self._kept.pop(target.port, None)
        if client is None or client.transport is None or client.transport.is_closing():
            client = await connect(target)
        began = time.perf_counter()
        if not await client.ask(request):
            raise RuntimeError(f"{target.name} broke a stream off after {client.bytes} bytes")
        if target.reuse:
            self._kept[target.port] = client
        elif client.transport is not None:
            client.transport.close()
        return client.first_at - began, client.bytes // len(EVENT)

    def close(self) -> None:
        """Let go of all connections."""
        for client in self._kept.values():
            if client.transport is not None:
                client.transport.close()


async def connect(target: Target) -> Client:
    """A connection to *target*."""
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", target.port)
    return client

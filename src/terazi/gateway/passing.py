"""The plainest seats and links: no queue, and aiohttp for a client. For a gateway that is given no better ones."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import aiohttp

from terazi.errors import EngineError
from terazi.gateway.backend import READY, Backend, Directory
from terazi.gateway.call import Call
from terazi.gateway.ports import Exchange, Receiver, Ticket
from terazi.gateway.wire.errors import WireError, engine_down, unknown_model


class PassingSeats:
    """Everybody has a seat in the first engine as soon as it is ready."""

    def __init__(self, directory: Directory, *, ready_wait_s: float = 60.0) -> None:
        self._directory = directory
        self._ready_wait_s = ready_wait_s

    def enter(self, call: Call, *, tokens: int, prefix: tuple[int, ...] = ()) -> Ticket:  # noqa: ARG002
        """As ``Seats`` has it."""
        found = self._directory.find(call.model)
        if found is None:
            raise WireError(unknown_model(call.model, [m.card.id for m in self._directory.served()]))
        return _Ticket(found.engines[0], self._ready_wait_s)


class _Ticket:
    position: int | None = None
    expected_wait_s: float | None = None

    def __init__(self, backend: Backend, ready_wait_s: float) -> None:
        self._backend = backend
        self._ready_wait_s = ready_wait_s

    async def seat(self) -> Backend:
        backend = self._backend
        if backend.state != READY:
            try:
                async with asyncio.timeout(self._ready_wait_s):
                    await backend.ready()
            except TimeoutError as problem:
                reason = f"'{backend.card.id}' is not ready yet ({backend.state})"
                raise WireError(engine_down(reason, retry_after_s=5)) from problem
            except EngineError as problem:
                reason = f"'{backend.card.id}' can't answer: {problem.message}"
                raise WireError(engine_down(reason, retry_after_s=10)) from problem
        return backend

    def lost(self) -> None:
        """Nobody to tell."""

    def leave(self, tokens: int | None) -> None:
        """Nobody to tell."""

    def headers(self) -> Mapping[str, str]:
        return {}


class PlainLinks:
    """A connection for each request."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def send(self, backend: Backend, path: str, body: bytes, content_type: str, receiver: Receiver) -> Exchange:
        """As ``Links`` has it."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        headers = {"Authorization": f"Bearer {backend.api_key}", "Content-Type": content_type}
        url = backend.base_url + path
        return _Exchange(self._session.post(url, data=body, headers=headers, allow_redirects=False), receiver)


class _Exchange:
    def __init__(self, request: AbstractAsyncContextManager[aiohttp.ClientResponse], receiver: Receiver) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._task = asyncio.create_task(self._run(request, receiver))

    async def _run(self, request: AbstractAsyncContextManager[aiohttp.ClientResponse], receiver: Receiver) -> None:
        begun = False
        try:
            async with request as reply:
                kind = reply.headers.get("Content-Type", "application/json")
                begun = True
                receiver.head(reply.status, kind, kind.startswith("text/event-stream"))
                async for piece in reply.content.iter_any():
                    receiver.data(piece)
                    await self._open.wait()
        except (aiohttp.ClientError, OSError) as problem:
            receiver.lost(str(problem) or type(problem).__name__, begun)
        else:
            receiver.done()

    def pause(self) -> None:
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    def abort(self) -> None:
        self._task.cancel()

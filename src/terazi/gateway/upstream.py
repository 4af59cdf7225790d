"""The way to the engines: one exchange is one request sent and its answer begun, retries included.

What llama-server does (b11434, on the wire) sets the rules here. It closes the connection after every stream
although it announces keep-alive, and closes an idle one after 5 s, so a pooled connection may be dead without
anybody having said so. A killed engine's stream ends with a plain FIN. Hence:

- a stream gets a connection of its own, which is never used again; whole answers share a pool;
- when the connection broke and no byte has gone to the client, the request is sent once more, on a fresh
  connection; generating has no side effect, so sending twice is safe;
- a refused connection means that nothing was sent, and is tried again until the engine is back or time is up.
"""

import asyncio
import io
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from terazi.errors import EngineError
from terazi.gateway.backend import READY, Backend
from terazi.gateway.wire.errors import WireError, engine_down

_log = logging.getLogger(__name__)

#: The engine closes idle connections after 5 s; ours go first.
_KEEP_S: Final = 4.0
#: How long a refused connection is tried again while the supervisor still believes the engine to be ready.
_GRACE_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.025
_LONGEST_PAUSE_S: Final = 0.5
#: aiohttp warns about larger bodies given as bytes.
_LARGE_BYTES: Final = 1 << 20
#: Nothing was sent: no connection came about.
_UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class EngineLostError(Exception):
    """The connection broke in the middle of an answer."""


@dataclass(slots=True, kw_only=True)
class Reply:
    """An answer that has begun. ``first`` is its first piece if it streams, and else all of it.

    ``waited_ns`` is how long the request waited for the engine to be ready.
    """

    status: int
    content_type: str
    is_stream: bool
    first: bytes
    waited_ns: int = 0
    response: aiohttp.ClientResponse

    async def more(self) -> bytes:
        """The next bytes of a stream as they came; empty at its end.

        Raises:
            EngineLostError: it broke off.
        """
        try:
            return await self.response.content.readany()
        except (aiohttp.ClientError, OSError) as problem:
            raise EngineLostError from problem


class Upstream:
    """Connections to all engines. ``open`` and ``close`` belong to the application's life.

    Args:
        on_retry: called for each request that is sent a second time.
        ready_wait_s: how long a request may wait for an engine that is loading or restarting.
    """

    def __init__(self, *, on_retry: Callable[[], None], ready_wait_s: float = 60.0) -> None:
        self._on_retry = on_retry
        self._ready_wait_s = ready_wait_s
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make the sessions; needs the running loop."""
        self._pooled = _session(aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S))
        self._fresh = _session(aiohttp.TCPConnector(limit=0, force_close=True))

    async def close(self) -> None:
        """Close all connections."""
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()

    @asynccontextmanager
    async def exchange(
        self, backend: Backend, path: str, body: bytes, *, stream: bool, content_type: str = "application/json"
    ) -> AsyncIterator[Reply]:
        """Send *body* and wait for the answer to begin. Leaving early drops the connection, which frees the slot.

        *stream* says what the request asks for; how the answer comes is the engine's word.

        Raises:
            WireError: 503, the engine can't answer now.
        """
        reply = await self._begin(backend, path, body, content_type, pooled=not stream)
        try:
            yield reply
        finally:
            # After a whole answer the connection is back in the pool already and this does nothing.
            reply.response.close()

    async def wait_ready(self, backend: Backend) -> int:
        """Wait until *backend* is ready; for how many nanoseconds that was.

        Raises:
            WireError: 503, it failed or took too long.
        """
        started = time.perf_counter_ns()
        await self._wait_ready(backend, asyncio.get_running_loop().time() + self._ready_wait_s)
        return time.perf_counter_ns() - started

    async def _wait_ready(self, backend: Backend, deadline: float) -> None:
        if backend.state == READY:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await backend.ready()
        except TimeoutError as problem:
            raise WireError(
                engine_down(f"'{backend.card.id}' is not ready yet ({backend.state})", retry_after_s=5)
            ) from problem
        except EngineError as problem:
            reason = f"'{backend.card.id}' can't answer: {problem.message}"
            raise WireError(engine_down(reason, retry_after_s=10)) from problem

    async def _begin(self, backend: Backend, path: str, body: bytes, content_type: str, *, pooled: bool) -> Reply:
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline, gone_since, pause, lost, waited_ns = started + self._ready_wait_s, 0.0, _FIRST_PAUSE_S, 0, 0
        while True:
            if backend.state != READY:
                began = time.perf_counter_ns()
                await self._wait_ready(backend, deadline)
                waited_ns += time.perf_counter_ns() - began
            session = self._pooled if pooled and not lost and not gone_since else self._fresh
            if session is None:
                raise RuntimeError("the upstream is not open")
            try:
                reply = await _send(session, backend, path, body, content_type)
            except _UNREACHED as problem:
                now = loop.time()
                gone_since = gone_since or now
                if now >= deadline or (backend.state == READY and now - gone_since >= _GRACE_S):
                    raise WireError(engine_down(f"the engine of '{backend.card.id}' can't be reached")) from problem
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
            except (aiohttp.ClientError, OSError) as problem:
                lost += 1
                level = logging.INFO if lost == 1 else logging.WARNING
                _log.log(level, "engine %s broke off before it answered %s (%d of 2)", backend.card.id, path, lost)
                if lost == 2:
                    # It may be this very request that kills the engine: clients shall not send it again.
                    reason = f"the engine of '{backend.card.id}' broke off twice before it answered"
                    raise WireError(engine_down(reason, final=True)) from problem
                self._on_retry()
                # A killed engine's sockets don't close at the same instant: for a moment its port still accepts.
                await asyncio.sleep(_FIRST_PAUSE_S)
            else:
                reply.waited_ns = waited_ns
                return reply


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
    )


async def _send(
    session: aiohttp.ClientSession, backend: Backend, path: str, body: bytes, content_type: str
) -> Reply:
    # No other header of the client goes on: X-Conversation-Id, for one, would keep a generation alive that
    # nobody listens to any more (llama-server's replay buffer).
    response = await session.post(
        backend.base_url + path,
        data=body if len(body) < _LARGE_BYTES else io.BytesIO(body),
        headers={"Authorization": f"Bearer {backend.api_key}", "Content-Type": content_type},
        allow_redirects=False,
    )
    kind = response.headers.get("Content-Type", "application/json")
    is_stream = kind.startswith("text/event-stream")
    try:
        first = await _first_piece(response) if is_stream else await response.read()
    except BaseException:
        response.close()
        raise
    return Reply(status=response.status, content_type=kind, is_stream=is_stream, first=first, response=response)


async def _first_piece(response: aiohttp.ClientResponse) -> bytes:
    """What a stream begins with; one that ends without a byte counts as a broken connection."""
    first = await response.content.readany()
    if not first:
        raise aiohttp.ServerDisconnectedError
    return first

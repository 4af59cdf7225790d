"""Asks an engine how it is: the health endpoint, and a request that makes it generate one token.

Every question gets a connection of its own: llama-server closes kept ones after an answer without saying so.
"""

import json

import aiohttp

#: An answer to the probe is some hundred bytes.
MAX_ANSWER = 256 * 1024


class ProbeError(Exception):
    """The engine gave no token; the text says what it gave."""


class EngineClient:
    """Questions to one engine. Use it on one event loop and close it.

    Args:
        base_url: such as ``http://127.0.0.1:41234``.
        api_key: the key that it was started with.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        self._base = base_url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        )

    async def healthy(self, path: str, *, timeout_s: float = 5.0) -> bool:
        """Whether *path* answers 200; a refused connection and 503 (loading) are both no."""
        try:
            async with self._session.get(
                self._base + path, timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def read(self, path: str, *, limit_bytes: int, timeout_s: float = 2.0) -> str | None:
        """The body of a 200 answer to ``GET path``, or None: not there, too long, too slow, or nobody home."""
        try:
            async with self._session.get(
                self._base + path, timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as answer:
                body = await _body(answer, limit_bytes + 1)
                if answer.status != 200 or len(body) > limit_bytes:
                    return None
                return body.decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def question(self, path: str, *, limit_bytes: int, timeout_s: float) -> tuple[bool, str | None]:
        """Whether ``GET path`` is answered at all, with whatever status, and the body of a 200."""
        try:
            async with self._session.get(
                self._base + path, timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as answer:
                body = await _body(answer, limit_bytes)
                return True, body.decode("utf-8", "replace") if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False, None

    async def post(self, path: str, body: str, *, limit_bytes: int, timeout_s: float) -> str | None:
        """The body of a 200 answer to ``POST path`` with this JSON, or None: refused, too long, too slow."""
        try:
            async with self._session.post(
                self._base + path,
                data=body.encode(),
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                found = await _body(answer, limit_bytes + 1)
                if answer.status != 200 or len(found) > limit_bytes:
                    return None
                return found.decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def generate(self, path: str, body: str) -> None:
        """Ask for a token and look for it in the answer. Waits as long as the engine does; cancel it to give up.

        Raises:
            ProbeError: if the answer holds none.
        """
        try:
            async with self._session.post(
                self._base + path, data=body.encode(), headers={"Content-Type": "application/json"}
            ) as answer:
                text = (await _body(answer, MAX_ANSWER)).decode("utf-8", "replace")
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise ProbeError(f"{type(problem).__name__}: {problem}") from problem
        if status != 200:
            raise ProbeError(f"HTTP {status}: {text[:200]}")
        if not _generated(text):
            raise ProbeError(f"an answer without a token: {text[:200]}")

    async def close(self) -> None:
        """Let go of the connections."""
        await self._session.close()


async def _body(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """The first *limit_bytes* of it; a single read gives what has arrived, which may be less than all."""
    body = b""
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) >= limit_bytes:
            break
    return body[:limit_bytes]


def _generated(text: str) -> bool:
    """Whether the answer counts a completion token, or is a vector (llama-server's own shape or OpenAI's)."""
    try:
        answer = json.loads(text)
        vectors = answer if isinstance(answer, list) else answer.get("data") or [{}]
        usage = {} if isinstance(answer, list) else answer.get("usage") or {}
        return int(usage.get("completion_tokens", 0)) > 0 or bool(vectors[0].get("embedding"))
    except (ValueError, AttributeError, TypeError, IndexError, KeyError):
        return False

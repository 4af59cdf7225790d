"""How the other commands talk to the running service: its control API and its chat endpoint."""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import aiohttp

from terazi.errors import ServiceError
from terazi.gateway.control_routes import TOKEN_HEADER
from terazi.service.beacon import Beacon

KEY_VARIABLE = "TERAZI_API_KEY"
_RESTART_HINT = "see: terazi ps"
_KEY_HINT = f"set {KEY_VARIABLE} to one of the service's keys"
#: One event of a stream is small; a longer line is not from our gateway.
_LINE_LIMIT = 4 * 1024 * 1024


class ServiceClient:
    """A connection to the service that *beacon* names; use as an async context manager."""

    def __init__(self, beacon: Beacon) -> None:
        self._beacon = beacon

    async def __aenter__(self) -> Self:
        headers = {TOKEN_HEADER: self._beacon.control_token}
        key = self._beacon.api_key or os.environ.get(KEY_VARIABLE)  # it keeps no key of [[keys]]
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5), read_bufsize=_LINE_LIMIT
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def snapshot(self) -> dict[str, Any]:
        """What is running, as ``terazi ps --json`` prints it."""
        return await self._json("GET", "/terazi/v1/ps")

    async def stop(self, model: str | None) -> dict[str, Any]:
        """Drain and stop one model, or the whole service."""
        return await self._json("POST", "/terazi/v1/stop", {"model": model})

    async def load(self, model: str) -> dict[str, Any]:
        """Bring one model into memory."""
        return await self._json("POST", "/terazi/v1/load", {"model": model})

    async def reload(self) -> list[str]:
        """Have the configuration read again; what has changed."""
        answer = await self._json("POST", "/terazi/v1/reload", {})
        return [str(change) for change in answer["changes"]]

    async def logs(self, model: str | None, lines: int, *, follow: bool) -> AsyncIterator[str]:
        """The last *lines* of an engine's log, and with *follow* what comes after."""
        params = {"lines": str(lines), "follow": "1" if follow else "0"}
        if model is not None:
            params["model"] = model
        with self._reaching():
            async with self._request("GET", "/terazi/v1/logs", params=params) as response:
                await _raise_for(response)
                async for line in response.content:
                    yield line.decode(errors="replace").rstrip("\n")

    async def chat(self, model: str, messages: list[dict[str, str]], **options: Any) -> AsyncIterator[str]:
        """Pieces of the answer, as they come.

        Raises:
            ServiceError: if the service refuses, or the engine fails under the answer.
        """
        body = {"model": model, "messages": messages, "stream": True, **options}
        with self._reaching():
            async with self._request("POST", "/v1/chat/completions", json=body) as response:
                await _raise_for(response)
                async for line in response.content:
                    if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                        continue
                    event = json.loads(line[5:])
                    if event.get("error"):
                        raise ServiceError(_message(event), hint="see: terazi logs")
                    for choice in event.get("choices", ()):
                        yield choice.get("delta", {}).get("content") or ""

    async def models(self) -> list[str]:
        """Ids of the models that are served."""
        answer = await self._json("GET", "/v1/models")
        return [entry["id"] for entry in answer["data"]]

    def _request(self, method: str, path: str, **options: Any) -> aiohttp.client._RequestContextManager:
        if self._beacon.fingerprint:
            options["ssl"] = aiohttp.Fingerprint(bytes.fromhex(self._beacon.fingerprint))
        return self._session.request(method, self._beacon.url + path, **options)

    async def _json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        with self._reaching():
            async with self._request(method, path, json=body) as response:
                await _raise_for(response)
                answer: dict[str, Any] = await response.json()
                return answer

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn a connection that doesn't come about, or breaks, into one sentence."""
        try:
            yield
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServiceError(
                f"the service at {self._beacon.url} does not answer: {_why(error)}", hint=_RESTART_HINT
            ) from error


def _why(error: Exception) -> str:
    """The system's reason where there is one; aiohttp's own texts are about hosts and TLS contexts."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        try:
            message = _message(json.loads(await response.content.read(_LINE_LIMIT)))
        except ValueError:
            message = f"HTTP {response.status}"
        raise ServiceError(message, hint=_KEY_HINT if response.status == 401 else _RESTART_HINT)


def _message(document: object) -> str:
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error)

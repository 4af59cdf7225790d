"""Listens, drains and stops."""

import asyncio
import errno
import logging
import os
import socket
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from terazi.errors import ServiceError
from terazi.gateway.access import check_exposure
from terazi.gateway.app import DESK

_http_log = logging.getLogger(f"{__name__}.http")


def _is_ours(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that aiohttp logs for clients that don't speak HTTP: a 400 has told them."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, HttpProcessingError | web.RequestPayloadError)


_http_log.addFilter(_is_ours)

#: How long a cancelled request has to tell its client.
_FAREWELL_S: Final = 2.0


class Gateway:
    """The application on one address.

    Args:
        app: from ``create_app``.
        host: a loopback address, unless the application asks for a key.
        port: 0 takes any free one.
    """

    def __init__(self, app: web.Application, host: str = "127.0.0.1", port: int = 8484) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        """Where it listens, as a URL without a trailing slash."""
        host = f"[{self._host}]" if ":" in self._host else self._host or "0.0.0.0"  # noqa: S104 - only shown
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: other machines could reach it, and it asks for no key.
            ServiceError: the address can't be had; the hint names the port.
        """
        check_exposure(self._host, self._app[DESK].api_key)
        # handler_cancellation: a client that leaves cancels its handler, which drops the engine's connection.
        runner = web.AppRunner(
            self._app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0, logger=_http_log
        )
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port, backlog=1024)
        try:
            await site.start()
        except BaseException as problem:
            await runner.cleanup()
            if isinstance(problem, OSError):
                raise _no_address(self._host, self._port, problem) from problem
            if isinstance(problem, ValueError):  # a host with a null byte, or one that no name can be
                raise _no_address(self._host, self._port, OSError(str(problem))) from problem
            raise
        self._runner = runner
        # Several addresses (localhost is two) share the port unless it was 0; the first one is shown.
        self._port = runner.addresses[0][1]

    async def drain(self, timeout_s: float) -> int:
        """Turn new requests away, let what is in flight finish, then end it; how many were cut.

        It goes on listening meanwhile, so that late clients are told so, and the control API can be asked. A
        request that is cut gets an error in its API's shape, as an event or a line if it streams.
        """
        traffic = self._app[DESK].traffic
        traffic.draining = True
        if await traffic.idle(timeout_s):
            return 0
        cut = traffic.cut()
        await traffic.idle(_FAREWELL_S)
        return cut

    async def stop(self) -> None:
        """Close all connections and free the port. Calling it again does nothing."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await asyncio.shield(runner.cleanup())


def _no_address(host: str, port: int, problem: OSError) -> ServiceError:
    if problem.errno == errno.EADDRINUSE:
        return ServiceError(
            f"port {port} on {host} is already in use",
            hint=f"stop what uses port {port} (terazi ps shows a running service), or choose another with --port",
        )
    if problem.errno == errno.EACCES:
        return ServiceError(
            f"port {port} on {host} needs special rights", hint="choose a port above 1023 with --port"
        )
    # asyncio wraps the system's reason into a sentence of its own; a resolver's errors have numbers of their own
    resolver = isinstance(problem, socket.gaierror) or not problem.errno
    why = (problem.strerror or str(problem)) if resolver else os.strerror(problem.errno or 0)
    return ServiceError(
        f"can't listen on {host} port {port}: {why}",
        hint="give an address of this machine with --host, and another port than this with --port if it is taken",
    )

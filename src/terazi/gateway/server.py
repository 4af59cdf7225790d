"""Listens, drains and stops."""

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import resource
import socket
import ssl
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from terazi.errors import ServiceError, UsageError
from terazi.gateway.access import check_exposure
from terazi.gateway.app import DESK
from terazi.gateway.front.front import Front
from terazi.gateway.front.limits import Limits

_http_log = logging.getLogger(f"{__name__}.http")


def _is_ours(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that aiohttp logs for clients that don't speak HTTP: a 400 has told them."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, HttpProcessingError | web.RequestPayloadError)


_http_log.addFilter(_is_ours)

#: How long a cancelled request has to tell its client.
_FAREWELL_S: Final = 2.0
_BACKLOG: Final = 1024
_HANDSHAKE_S: Final = 10.0


class Gateway:
    """The application on one address, behind the front.

    Args:
        app: from ``create_app``.
        host: a loopback address, unless the application asks for a key.
        port: 0 takes any free one.
        tls: from ``tls_context``; None serves plain HTTP.
        limits: of each connection.
    """

    def __init__(
        self,
        app: web.Application,
        host: str = "127.0.0.1",
        port: int = 8484,
        *,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits
        self._runner: web.AppRunner | None = None
        self._front: Front | None = None
        self._listening: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens, as a URL without a trailing slash."""
        host = f"[{self._host}]" if ":" in self._host else self._host or "0.0.0.0"  # noqa: S104 - only shown
        return f"{'http' if self._tls is None else 'https'}://{host}:{self._port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: other machines could reach it, and it asks for no key.
            ServiceError: the address can't be had; the hint names the port.
        """
        desk = self._app[DESK]
        check_exposure(self._host, not desk.keyring.open)
        _raise_file_limit()
        # handler_cancellation: a client that leaves cancels its handler, which drops the engine's connection.
        runner = web.AppRunner(
            self._app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0, logger=_http_log
        )
        await runner.setup()
        if runner.server is None:
            raise RuntimeError("the application has no server")
        front = Front(desk, runner.server, self._limits)
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                front,
                self._host,
                self._port,
                backlog=_BACKLOG,
                reuse_address=True,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_S,
            )
        except BaseException as problem:
            front.close()
            await runner.cleanup()
            if isinstance(problem, OSError):
                raise _no_address(self._host, self._port, problem) from problem
            if isinstance(problem, ValueError):  # a host with a null byte, or one that no name can be
                raise _no_address(self._host, self._port, OSError(str(problem))) from problem
            raise
        self._runner, self._front = runner, front
        # Several addresses (localhost is two) share the port unless it was 0; the first one is shown.
        self._port = self._listening.sockets[0].getsockname()[1]

    async def drain(self, timeout_s: float) -> int:
        """Turn away who comes and who waits for an engine, let engines finish, then cut them; how many were cut.

        It goes on listening meanwhile, so that late clients are told so, and the control API can be asked. A
        request that is cut gets an error in its API's shape, as an event or a line if it streams.
        """
        traffic = self._app[DESK].traffic
        traffic.drain()
        if await traffic.idle(timeout_s):
            return 0
        cut = traffic.cut()
        await traffic.idle(_FAREWELL_S)
        return cut

    def cut(self) -> None:
        """Drain no longer: who is still being answered is told that it ends here."""
        traffic = self._app[DESK].traffic
        traffic.drain()
        traffic.cut()

    async def stop(self) -> None:
        """Close all connections and free the port. Calling it again does nothing."""
        runner, self._runner = self._runner, None
        if self._listening is not None:
            self._listening.close()
        if self._front is not None:
            self._front.close()
        if runner is not None:
            await asyncio.shield(runner.cleanup())


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """What to serve HTTPS with: TLS 1.2 or later, HTTP/1.1.

    Raises:
        UsageError: the files can't be read, or don't belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # a key with a passphrase would ask for it on the terminal: refuse it instead
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        reason = problem.strerror if isinstance(problem, OSError) and problem.filename else str(problem)
        raise UsageError(
            f"the certificate {certificate} with the key {key} can't be used: {reason}",
            hint="tls_cert is a PEM file with the certificate and its chain, tls_key its key without a passphrase",
        ) from problem
    return context


def fingerprint(certificate: str) -> str:
    """The SHA-256 of the first certificate in a PEM file, in hexadecimal.

    Raises:
        OSError, ValueError: there is none.
    """
    text = Path(certificate).read_text()
    begin, end = text.index("-----BEGIN CERTIFICATE-----"), text.index("-----END CERTIFICATE-----")
    pem = text[begin:end] + "-----END CERTIFICATE-----"
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def _raise_file_limit() -> None:
    """Each stream takes two descriptors; many systems start with 1,024 and allow far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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

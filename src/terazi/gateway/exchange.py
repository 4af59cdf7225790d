"""One request to an engine: the way there, and its answer as it comes. ``gateway.links`` has the rules."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

from terazi.gateway.backend import READY, Backend
from terazi.gateway.call import Flow
from terazi.gateway.link import NO_HTTP, Link

_log = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.025
_LONGEST_PAUSE_S: Final = 0.5


class Receiver(Protocol):
    """Whom an answer is pushed to: ``head``, any number of ``data``, then ``done`` or ``lost``; or ``lost`` only.

    All are called on the event loop, never from within ``Links.send``, and nothing after ``Exchange.abort``.
    """

    def head(self, status: int, content_type: str, stream: bool) -> None:  # noqa: FBT001 - called once, by place
        """The answer's head. *stream*: server-sent events follow."""
        ...

    def data(self, data: bytes) -> None:
        """More of the body, as it came, without the framing; never empty."""
        ...

    def done(self) -> None:
        """The answer is complete by its own framing. Whether a stream said all is another question."""
        ...

    def lost(self, reason: str, begun: bool) -> None:  # noqa: FBT001 - called once, by place
        """It won't be completed. *begun*: ``head`` was called. *reason* is for people."""
        ...


class Exchange(Flow, Protocol):
    """One request and its answer under way."""

    def bypass(self, to: Callable[[bytes], None], keep: Callable[[bytes], None], most_bytes: int) -> None:
        """Give whole chunks of a stream's plain events to *to* and *keep*, as they come, instead of the receiver.

        It ends with the first read that is anything else, which goes to the receiver, and after *most_bytes*.
        """
        ...

    @property
    def ending(self) -> bool:
        """The answer is complete, and its receiver will be told so in this turn of the loop."""
        ...

    @property
    def reached(self) -> bool:
        """Whether the request was written to a connection, so that the engine may have worked on it."""
        ...

    def abort(self) -> None:
        """Nobody wants it any more: the connection closes at once, which frees the engine's slot."""
        ...


class Address:
    """Where an engine is.

    Args:
        base_url: as its backend says it.

    Attributes:
        host, port, prefix, tls: its parts; *prefix* is its path without a slash at the end.
        authority: for the ``Host`` field.
        here: plain HTTP over the loopback device.
    """

    __slots__ = ("authority", "here", "host", "port", "prefix", "tls")

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.authority = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self.here = not self.tls and self.host.startswith("127.")


class Owner(Protocol):
    """Who has all connections."""

    on_retry: Callable[[], None]
    grace_s: float
    max_whole_bytes: int

    def address(self, base_url: str) -> Address:
        """The parts of *base_url*."""
        ...

    def tls_for(self, address: Address) -> ssl.SSLContext | None:
        """What to encrypt with; None for plain HTTP."""
        ...

    def take_socket(self) -> socket.socket:
        """A socket that isn't connected."""
        ...

    def bring_in(self, sock: socket.socket, unsent: bytes = b"") -> Link:
        """The link over *sock*, which the loop gets to know meanwhile; *unsent* is written then."""
        ...

    def keep(self, base_url: str, link: Link) -> None:
        """Pool *link* for another request."""
        ...

    def provide(self, base_url: str) -> None:
        """Open a connection for the next stream, unless there is one."""
        ...

    def ended(self, exchange: "RunningExchange") -> None:
        """*exchange* is over, one way or another."""
        ...


class RunningExchange:
    """An ``Exchange``; also what a ``Link`` reports to."""

    __slots__ = (
        "_backend", "_base_url", "_begun", "_body", "_connecting", "_content_type", "_link", "_links", "_path",
        "_paused", "_pooled", "_provided", "_receiver", "_spare", "_traceparent", "_whole_bytes", "over", "reached",
    )  # fmt: skip

    def __init__(
        self,
        links: Owner,
        backend: Backend,
        *,
        receiver: Receiver,
        path: str,
        body: bytes,
        content_type: str,
        traceparent: str | None = None,
    ) -> None:
        self._links = links
        self._backend = backend
        self._base_url = backend.base_url
        self._path = path
        self._body = body
        self._content_type = content_type
        self._traceparent = traceparent
        self._receiver = receiver
        self._link: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._pooled = self._spare = self._begun = self._paused = self._provided = False
        self.over = self.reached = False
        self._whole_bytes: int | None = 0

    # --- the way there ----------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open a connection of its own and send the request over it."""
        self._pooled = False
        self._base_url = self._backend.base_url
        address = self._links.address(self._base_url)
        if not (address.here and self._connect_here(address)):
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def write_to(self, link: Link, *, spare: bool = False) -> None:
        """Send the request over a pooled connection, or over the *spare* one."""
        self._pooled, self._spare = True, spare
        self._write(link)

    def _connect_here(self, address: Address) -> bool:
        """Connect and send at once, before the loop knows the socket; False if that can't be.

        Over the loopback device a connection is there when ``connect`` returns. Through the loop it would take
        three turns of it, which is most of what a gateway adds to a first token.
        """
        request = self._request(address)
        try:
            sock = self._links.take_socket()
        except OSError:  # no descriptors left; there may be some soon
            return False
        try:
            if sock.connect_ex((address.host, address.port)) not in {0, errno.EINPROGRESS}:
                raise ConnectionRefusedError
            sent = sock.send(request)  # fails unless it is connected
        except OSError:
            sock.close()
            return False
        self._attach(self._links.bring_in(sock, request[sent:]))
        return True

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        gone_since, pause = 0.0, _FIRST_PAUSE_S
        while True:
            self._base_url = self._backend.base_url  # it may have been started again elsewhere
            address = self._links.address(self._base_url)
            try:
                async with asyncio.timeout(_CONNECT_S):
                    _, link = await loop.create_connection(
                        Link, address.host, address.port, ssl=self._links.tls_for(address)
                    )
            except (OSError, ValueError) as problem:
                now = loop.time()
                gone_since = gone_since or now
                if self._backend.state != READY or now - gone_since >= self._links.grace_s:
                    self._connecting = None
                    self._lose(f"the engine of '{self._backend.card.id}' can't be reached: {_why(problem)}")
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
            else:
                self._connecting = None
                if self.over:
                    link.close()
                else:
                    self._write(link)
                return

    def _request(self, address: Address) -> bytes:
        trace = "" if self._traceparent is None else f"traceparent: {self._traceparent}\r\n"
        head = (
            f"POST {address.prefix}{self._path} HTTP/1.1\r\nHost: {address.authority}\r\n"
            f"Authorization: Bearer {self._backend.api_key}\r\nContent-Type: {self._content_type}\r\n"
            f"Content-Length: {len(self._body)}\r\n{trace}\r\n"
        )
        return head.encode("utf-8", "surrogateescape") + self._body

    def _write(self, link: Link) -> None:
        self._attach(link)
        link.write(self._request(self._links.address(self._base_url)))

    def _attach(self, link: Link) -> None:
        self._link = link
        self.reached = True
        link.listener = self
        if self._paused:
            link.pause()

    # --- what the link reports --------------------------------------------------------------------------

    def began(self, status: int, content_type: str) -> None:
        """The head of the answer is there."""
        self._begun = True
        self._body = b""  # it won't be sent again from here
        stream = content_type.startswith("text/event-stream")
        if stream:
            self._whole_bytes = None
        self._receiver.head(status, content_type, stream)

    def came(self, data: bytes) -> None:
        """A part of its body."""
        if self._whole_bytes is not None:
            self._whole_bytes += len(data)
            if self._whole_bytes > self._links.max_whole_bytes:
                self._lose(f"the engine's answer is larger than {self._links.max_whole_bytes} bytes")
                return
            self._receiver.data(data)
            return
        self._receiver.data(data)
        if not self._provided:
            self._provided = True
            self._links.provide(self._base_url)

    @property
    def ending(self) -> bool:
        """As ``Exchange`` says."""
        return self._link is not None and self._link.ending

    def completed(self, *, reusable: bool) -> None:
        """All of it has come."""
        link = self._link
        self._finish()
        if link is not None:
            if reusable and self._whole_bytes is not None:
                self._links.keep(self._base_url, link)
            else:
                link.close()
        try:
            self._receiver.done()
        except Exception as problem:  # a fault of ours: nothing else comes that could end it
            _log.exception("an answer of %s could not be ended", self._backend.replica)
            self._receiver.lost(f"its answer could not be ended: {problem}", self._begun)

    def broke(self, reason: str, *, silent: bool) -> None:
        """The connection has ended before the answer had; *silent*: not a byte of it came."""
        if self._pooled and silent and not self._spare:
            self._link = None
            self.reached = False
            self._links.on_retry()
            self.connect()
        elif self._pooled and silent and self._again():
            self._links.on_retry()
        else:
            if reason == NO_HTTP and not self._begun:
                self.reached = False  # whatever is there, it is no engine
            self._lose(f"the engine of '{self._backend.card.id}' broke off: {reason}")

    def _again(self) -> bool:
        """Send a stream's request anew where its spare connection has ended; False if the engine is gone.

        Then the request may be why, which is to be counted: so nobody waits here for another engine.
        """
        self._link, self._pooled = None, False
        address = self._links.address(self._base_url)
        return address.here and self._base_url == self._backend.base_url and self._connect_here(address)

    # --- ends -------------------------------------------------------------------------------------------

    def _lose(self, reason: str) -> None:
        self.abort()
        self._receiver.lost(reason, self._begun)

    def _finish(self) -> None:
        self.over = True
        if self._link is not None:
            self._link.listener = None
            self._link.end_bypass()
            self._link = None
        self._links.ended(self)

    def abort(self) -> None:
        """As the Protocol says."""
        if self.over:
            return
        link = self._link
        self._finish()
        if link is not None:
            link.abort()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None

    def bypass(self, to: Callable[[bytes], None], keep: Callable[[bytes], None], most_bytes: int) -> None:
        """As the Protocol says."""
        if self._link is not None and self._whole_bytes is None:
            self._link.bypass(to, keep, most_bytes)

    def pause(self) -> None:
        """As ``Flow`` says."""
        self._paused = True
        if self._link is not None:
            self._link.pause()

    def go_on(self) -> None:
        """As ``Flow`` says."""
        self._paused = False
        if self._link is not None:
            self._link.go_on()


def _why(problem: Exception) -> str:
    return "it does not answer" if isinstance(problem, TimeoutError) else str(problem) or type(problem).__name__

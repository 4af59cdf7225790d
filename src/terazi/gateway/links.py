"""The connections to engines: one ``send`` is one request, and its answer pushed to a ``Receiver`` as it comes.

What llama-server does (b11434, on the wire) sets the rules here. It closes the connection after every stream
although it announces keep-alive, and closes an idle one after 5 s, so a pooled connection may be dead without
anybody having said so. A killed engine's stream ends with a plain FIN, without its last chunk. Hence:

- a stream gets a connection of its own, which is never used again; whole answers share a pool per engine;
- an engine that is sent streams over the loopback device has one spare connection open for the next, since making
  one is a good part of what a gateway adds to a first token. Not two: each holds one of llama-server's HTTP
  threads, of which there are four more than slots (``server-http.cpp:server_http_context::init``, b11434);
- a pooled connection is looked at for its end before it is written to, and when it breaks before a byte of an
  answer came, the request is sent once more, on a fresh one; generating has no side effect, so that is safe;
- a refused connection means that nothing was sent, and is tried again until the engine answers or time is up;
- an answer is complete when its own framing says so, and lost when the connection ends before.

No header of the client goes on but ``Content-Type``: ``X-Conversation-Id``, for one, would keep a generation alive
that nobody listens to any more (llama-server's replay buffer).
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

from terazi.gateway.backend import READY, Backend
from terazi.gateway.call import Flow
from terazi.gateway.link import NO_HTTP, Link

_log = logging.getLogger(__name__)

#: The engine closes idle connections after 5 s; ours go first.
KEEP_S: Final = 4.0
#: How long a refused connection is tried again while the supervisor still believes the engine to be ready.
GRACE_S: Final = 2.0
#: Of a whole answer. A batch of 2,048 embeddings of 8,192 numbers has about 200 MB.
MAX_WHOLE_BYTES: Final = 512 << 20
#: Idle connections are closed so much later at most, as a share of the time for which they are kept.
_LATE: Final = 0.1
_CONNECT_S: Final = 5.0
_ADDRESSES_KEPT: Final = 256
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


class Links:
    """The connections to all engines. It needs a running loop once ``send`` is called.

    Args:
        on_retry: called for each request that is sent a second time.
        grace_s, keep_s, max_whole_bytes: see the constants.
    """

    def __init__(
        self,
        *,
        on_retry: Callable[[], None] = lambda: None,
        grace_s: float = GRACE_S,
        keep_s: float = KEEP_S,
        max_whole_bytes: int = MAX_WHOLE_BYTES,
    ) -> None:
        self.on_retry = on_retry
        self.grace_s = grace_s
        self.max_whole_bytes = max_whole_bytes
        self._keep_s = keep_s
        self._late_s = keep_s * _LATE
        self._idle: dict[str, deque[Link]] = {}
        self._spares: dict[str, Link] = {}
        self._addresses: dict[str, Address] = {}
        self._open: set[RunningExchange] = set()
        self._adopting: set[asyncio.Task[object]] = set()
        self._tls: ssl.SSLContext | None = None
        self._spare: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def send(
        self,
        backend: Backend,
        path: str,
        body: bytes,
        content_type: str,
        receiver: Receiver,
        *,
        stream: bool = False,
        traceparent: str | None = None,
    ) -> Exchange:
        """Send *body* to *backend* and push the answer into *receiver*.

        *stream* says what the request asks for, which is to get a fresh connection; how the answer comes is the
        engine's word. *traceparent* (W3C Trace Context) goes with it as it is.
        """
        exchange = RunningExchange(
            self,
            backend,
            receiver=receiver,
            path=path,
            body=body,
            content_type=content_type,
            traceparent=traceparent,
        )
        self._open.add(exchange)
        base_url = backend.base_url
        link = self._take_spare(base_url) if stream else self._take(base_url)
        if link is None:
            exchange.connect()
        else:
            exchange.write_to(link, spare=stream)
        return exchange

    def close(self) -> None:
        """Drop all connections; nobody is told."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        for exchange in tuple(self._open):
            exchange.abort()
        for idle in tuple(self._idle.values()):
            for link in tuple(idle):
                link.close()
        self._idle.clear()
        for link in tuple(self._spares.values()):
            link.close()
        self._spares.clear()

    def address(self, base_url: str) -> Address:
        """The parts of *base_url*."""
        known = self._addresses.get(base_url)
        if known is None:
            known = Address(base_url)
            if len(self._addresses) >= _ADDRESSES_KEPT:  # each start of an engine brings another port
                self._addresses.clear()
            self._addresses[base_url] = known
        return known

    def tls_for(self, address: Address) -> ssl.SSLContext | None:
        """What to encrypt with; None for plain HTTP."""
        if not address.tls:
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _take(self, base_url: str) -> Link | None:
        """A pooled connection that is alive as far as anybody has heard; the one used last is the likeliest."""
        idle = self._idle.get(base_url)
        while idle:
            link = idle.pop()
            link.stop_waiting()
            if link.usable:
                return link
            link.close()
        return None

    def keep(self, base_url: str, link: Link) -> None:
        """Pool *link* until it is used again, ends, or is idle too long."""
        idle = self._idle.setdefault(base_url, deque())
        idle.append(link)

        def forget() -> None:
            if link in idle:
                idle.remove(link)
            if not idle and self._idle.get(base_url) is idle:
                del self._idle[base_url]  # a restarted engine has another port: don't keep one entry for each

        self._rest(link, forget)

    def _take_spare(self, base_url: str) -> Link | None:
        """The connection that was opened ahead, if it is there and alive as far as anybody has heard."""
        link = self._spares.get(base_url)
        if link is None or not link.usable:
            return None
        link.stop_waiting()
        del self._spares[base_url]
        return link

    def provide(self, base_url: str) -> None:
        """Open a connection for the next stream, unless there is one. No request depends on it.

        The time for it is after a stream's first event: before, it would keep that event waiting.
        """
        if base_url in self._spares or self._closed or not self.address(base_url).here:
            return
        address = self.address(base_url)
        loop, link = asyncio.get_running_loop(), Link()
        self._spares[base_url] = link
        self._adopt(loop.create_task(loop.create_connection(lambda: link, address.host, address.port)), link)

        def forget() -> None:
            if self._spares.get(base_url) is link:
                del self._spares[base_url]

        self._rest(link, forget)

    def _rest(self, link: Link, on_end: Callable[[], None]) -> None:
        """Nobody uses *link* for now, and not for longer than it is kept."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._keep_s
        link.wait(until, on_end)
        if self._timer is None:
            self._timer = loop.call_at(until + self._late_s, self._look)

    def _look(self) -> None:
        """One timer for all of them: each of its own would be set and cancelled for each request."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        resting = [*self._spares.values(), *(link for idle in self._idle.values() for link in idle)]
        stay = [link.until for link in resting if link.until > now]
        self._timer = loop.call_at(min(stay) + self._late_s, self._look) if stay else None
        for link in resting:
            if link.until <= now:
                link.close()

    def bring_in(self, sock: socket.socket, unsent: bytes = b"") -> Link:
        """The link over *sock*, which the loop gets to know meanwhile; *unsent* is written then."""
        loop = asyncio.get_running_loop()
        link = Link(unsent=unsent, sock=None if isinstance(loop, asyncio.BaseEventLoop) else sock)
        self._adopt(loop.create_task(loop.create_connection(lambda: link, sock=sock)), link)
        return link

    def take_socket(self) -> socket.socket:
        """A socket that isn't connected; the one for the next time is made when this one's request has gone."""
        sock, self._spare = self._spare or _new_socket(), None
        return sock

    def _adopt(self, adopting: "asyncio.Task[object]", link: Link) -> None:
        """Keep the task that connects *link*, or brings its socket into the loop, and tell it if that fails."""
        self._adopting.add(adopting)

        def over(task: "asyncio.Task[object]") -> None:
            self._adopting.discard(task)
            if self._spare is None and not self._closed:
                with contextlib.suppress(OSError):
                    self._spare = _new_socket()
            problem = None if task.cancelled() else task.exception()
            if task.cancelled() or problem is not None:
                link.connection_lost(problem if isinstance(problem, Exception) else ConnectionAbortedError())

        adopting.add_done_callback(over)

    def ended(self, exchange: "RunningExchange") -> None:
        """*exchange* is over, one way or another."""
        self._open.discard(exchange)


class RunningExchange:
    """An ``Exchange``; also what a ``Link`` reports to."""

    __slots__ = (
        "_backend", "_base_url", "_begun", "_body", "_connecting", "_content_type", "_link", "_links", "_path",
        "_paused", "_pooled", "_provided", "_receiver", "_spare", "_traceparent", "_whole_bytes", "over", "reached",
    )  # fmt: skip

    def __init__(
        self,
        links: Links,
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


def _new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)  # noqa: FBT003 - its only form
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _why(problem: Exception) -> str:
    return "it does not answer" if isinstance(problem, TimeoutError) else str(problem) or type(problem).__name__

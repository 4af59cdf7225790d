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
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

from terazi.gateway.backend import Backend
from terazi.gateway.exchange import Address, Exchange, Receiver, RunningExchange
from terazi.gateway.link import Link

#: The engine closes idle connections after 5 s; ours go first.
KEEP_S: Final = 4.0
#: How long a refused connection is tried again while the supervisor still believes the engine to be ready.
GRACE_S: Final = 2.0
#: Of a whole answer. A batch of 2,048 embeddings of 8,192 numbers has about 200 MB.
MAX_WHOLE_BYTES: Final = 512 << 20
#: Idle connections are closed so much later at most, as a share of the time for which they are kept.
_LATE: Final = 0.1
_ADDRESSES_KEPT: Final = 256


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

    def ended(self, exchange: RunningExchange) -> None:
        """*exchange* is over, one way or another."""
        self._open.discard(exchange)


def _new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)  # noqa: FBT003 - its only form
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock

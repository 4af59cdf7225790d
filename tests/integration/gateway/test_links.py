"""Connections to engines that end, stall, refuse, and say odd things."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from serving import StubBackend, until
from terazi.gateway.exchange import Exchange, RunningExchange
from terazi.gateway.links import Links
from terazi.supervisor.process import free_port

pytestmark = pytest.mark.timeout(30)

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Heard:
    """A receiver that remembers."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.body = b""
        self.over = asyncio.Event()

    def head(self, status: int, content_type: str, stream: bool) -> None:
        self.said.append((status, content_type, stream))

    def data(self, data: bytes) -> None:
        assert data
        self.body += data

    def done(self) -> None:
        self.said.append("done")
        self.over.set()

    def lost(self, reason: str, begun: bool) -> None:
        self.said.append(("lost", begun))
        self.reason = reason
        self.over.set()

    async def all(self) -> list[object]:
        """Everything that was said, once it is over."""
        await asyncio.wait_for(self.over.wait(), 10)
        return self.said


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))


@asynccontextmanager
async def engine(script: Script) -> AsyncIterator[StubBackend]:
    """A server that runs *script* on each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield StubBackend(server.sockets[0].getsockname()[1])
    finally:
        server.close()


@asynccontextmanager
async def links(**settings: float) -> AsyncIterator[Links]:
    """Links that are closed."""
    made = Links(**settings)  # type: ignore[arg-type] # all of its numbers
    try:
        yield made
    finally:
        made.close()


def ask(links: Links, backend: StubBackend, *, stream: bool = False, body: bytes = b"{}") -> tuple[Heard, Exchange]:
    """One request."""
    heard = Heard()
    return heard, links.send(backend, "/v1/x", body, "application/json", heard, stream=stream)


def answers(*written: bytes) -> Script:
    """Read one request, write *written* piece by piece, close."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in written:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)

    return script


JSON = (200, "application/json", False)
SSE = (200, "text/event-stream", True)


@pytest.mark.parametrize(
    ("written", "said", "body"),
    [
        ([WHOLE], [JSON, "done"], b"{}"),
        ([WHOLE[:20], WHOLE[20:-1], WHOLE[-1:]], [JSON, "done"], b"{}"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE], [JSON, "done"], b"{}"),
        ([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\nContent-Length: 7\r\n\r\n", WHOLE], [JSON, "done"], b"{}"),
        ([STREAM_HEAD, b"3\r\na\n\n\r\n", b"2\r\nb", b"\n\r\n0\r\n\r\n"], [SSE, "done"], b"a\n\nb\n"),
        ([b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{", b"}"], [JSON, "done"], b"{}"),
        ([b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"], [(503, "application/json", False), "done"], b""),
        ([b"HTTP/1.1 204 X\r\n\r\n"], [(204, "application/json", False), "done"], b""),
        ([WHOLE + WHOLE], [JSON, "done"], b"{}"),
        ([STREAM_HEAD, b"3\r\na\n\n\r\n"], [SSE, ("lost", True)], b"a\n\n"),
        ([STREAM_HEAD, b"9\r\na\n\n"], [SSE, ("lost", True)], b"a\n\n"),
        ([STREAM_HEAD, b"x\r\na\n\n"], [SSE, ("lost", True)], b""),
        ([WHOLE[:-1]], [JSON, ("lost", True)], b"{"),
        ([WHOLE[:-4]], [("lost", False)], b""),
        ([b""], [("lost", False)], b""),
        ([b"hello there\r\n\r\n"], [("lost", False)], b""),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000], [("lost", False)], b""),
        ([b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 300 + b"\r\n"], [("lost", False)], b""),
        ([b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"], [("lost", False)], b""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_answer_is(written: list[bytes], said: list[object], body: bytes, stream: bool) -> None:
    async with engine(answers(*written)) as backend, links() as made:
        heard, _ = ask(made, backend, stream=stream)
        assert heard.said == []  # nothing is told from within send
        assert await heard.all() == said
        assert heard.body == body


async def test_whole_answers_share_a_connection_and_streams_do_not() -> None:
    served: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = len(served)
        served.append(0)
        while True:
            raw = await read_request(reader)
            served[me] += 1
            writer.write(STREAM_HEAD + b"3\r\na\n\n\r\n0\r\n\r\n" if raw.endswith(b"stream") else WHOLE)

    async with engine(script) as backend, links() as made:
        for stream in (False, False, True, True, False):
            heard, _ = ask(made, backend, stream=stream, body=b"stream" if stream else b"whole")
            assert (await heard.all())[-1] == "done"
    assert sorted(filter(None, served)) == [1, 1, 3]  # and one waits for the next stream


async def test_a_spare_connection_that_the_engine_closes_before_it_is_used_costs_no_stream() -> None:
    opened = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        if opened % 2:  # the others are the spare ones
            await read_request(reader)
            writer.write(STREAM_HEAD + b"3\r\na\n\n\r\n0\r\n\r\n")

    async with engine(script) as backend, links() as made:
        for number in range(1, 7):
            heard, _ = ask(made, backend, stream=True)
            assert await heard.all() == [SSE, "done"]
            await until(lambda: opened == 2 * number)  # noqa: B023 - it is called in this turn only
            await asyncio.sleep(0.02)  # its end is heard


async def test_a_spare_connection_that_the_engine_closes_when_it_is_used_costs_no_stream() -> None:
    opened = asked = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened, asked
        opened += 1
        await read_request(reader)
        asked += 1
        if asked % 2:  # the first stream has no spare one, and each after it has one, and then another
            writer.write(STREAM_HEAD + b"3\r\na\n\n\r\n0\r\n\r\n")

    async with engine(script) as backend, links() as made:
        for number in range(1, 7):
            heard, _ = ask(made, backend, stream=True)
            assert await heard.all() == [SSE, "done"]
            await until(lambda: opened == 2 * number)  # noqa: B023 - it is called in this turn only
            await asyncio.sleep(0.02)
    assert asked == 11


async def test_an_engine_that_dies_of_a_request_over_a_spare_connection_was_reached() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (await read_request(reader)).endswith(b"poison"):
                server.close()
                ended.set()
            else:
                writer.write(STREAM_HEAD + b"3\r\na\n\n\r\n0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    backend = StubBackend(server.sockets[0].getsockname()[1])
    async with links() as made:
        heard, _ = ask(made, backend, stream=True)
        await heard.all()
        await asyncio.sleep(0.05)
        heard, exchange = ask(made, backend, stream=True, body=b"poison")
        assert await heard.all() == [("lost", False)]
        assert ended.is_set()
        assert exchange.reached, "or its part in the engine's end would not be counted"


async def test_a_spare_connection_is_not_kept_for_long_nor_over_the_end() -> None:
    held: set[asyncio.StreamWriter] = set()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.add(writer)
        try:
            await read_request(reader)
            writer.write(STREAM_HEAD + b"3\r\na\n\n\r\n0\r\n\r\n")
        finally:
            held.discard(writer)

    async with engine(script) as backend:
        async with links(keep_s=0.1) as made:
            heard, _ = ask(made, backend, stream=True)
            await heard.all()
            await until(lambda: len(held) == 1)
            await until(lambda: not held)
            heard, _ = ask(made, backend, stream=True)
            await heard.all()
            await until(lambda: len(held) == 1)
        await until(lambda: not held)


async def test_idle_connections_go_before_the_engine_closes_them() -> None:
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(WHOLE)
        assert await reader.read() == b""
        gone.set()

    async with engine(script) as backend, links(keep_s=0.05) as made:
        heard, _ = ask(made, backend)
        await heard.all()
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_pooled_connection_that_ends_when_it_is_used_again_is_not_felt(reset: bool) -> None:
    retries: list[None] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(WHOLE)
        await read_request(reader)
        if reset:
            writer.transport.abort()

    async with engine(script) as backend:
        made = Links(on_retry=lambda: retries.append(None))
        for _ in range(6):
            heard, _ = ask(made, backend)
            assert await heard.all() == [JSON, "done"]
        made.close()
    assert len(retries) >= 3  # else the race didn't take place


async def test_a_fresh_connection_that_ends_without_a_byte_is_told() -> None:
    """Only the broker may decide to send a request again that may have killed an engine."""
    count = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        await read_request(reader)
        count += 1

    async with engine(script) as backend, links() as made:
        heard, _ = ask(made, backend)
        assert await heard.all() == [("lost", False)]
    assert count == 1


async def test_a_refused_connection_is_tried_again_for_a_while() -> None:
    backend = StubBackend(free_port())
    async with links(grace_s=0.1) as made:
        loop = asyncio.get_running_loop()
        began = loop.time()
        heard, _ = ask(made, backend)
        assert await heard.all() == [("lost", False)]
        assert 0.1 <= loop.time() - began < 2
        backend.set_state("starting")
        began = loop.time()
        heard, _ = ask(made, backend)
        assert await heard.all() == [("lost", False)]
        assert loop.time() - began < 0.1
    backend.set_state("ready")
    async with links(grace_s=5) as made, engine(answers(WHOLE)) as other:
        heard, _ = ask(made, backend)
        await asyncio.sleep(0.05)
        assert heard.said == []
        backend.base_url = other.base_url  # it was started again, elsewhere
        assert await heard.all() == [JSON, "done"]


@pytest.mark.parametrize("when", ["connecting", "waiting", "streaming"])
async def test_abort_closes_at_once_and_nothing_is_told_after_it(when: str) -> None:
    gone, arrived = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        if when == "streaming":
            writer.write(STREAM_HEAD + b"3\r\na\n\n\r\n")
        try:
            assert await reader.read() == b""
        finally:
            gone.set()

    async with engine(script) as backend, links() as made:
        heard, exchange = ask(made, backend)
        if when != "connecting":
            await arrived.wait()
        if when == "streaming":
            await until(lambda: heard.body)
        said = list(heard.said)
        exchange.abort()
        exchange.abort()
        if when != "connecting":
            await asyncio.wait_for(gone.wait(), 1)
        await asyncio.sleep(0.05)
        assert heard.said == said


async def test_a_paused_answer_stays_in_the_engine() -> None:
    """What is written while nobody reads is bounded by the system's buffers, not by the answer."""
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    written = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(STREAM_HEAD)
        for _ in range(256):
            writer.write(piece)
            await writer.drain()
            written += 1
        writer.write(b"0\r\n\r\n")

    async with engine(script) as backend, links() as made:
        heard, exchange = ask(made, backend, stream=True)
        await until(lambda: heard.body)
        exchange.pause()
        before = len(heard.body)
        await asyncio.sleep(0.2)
        assert len(heard.body) == before
        assert written < 256
        exchange.go_on()
        assert (await heard.all())[-1] == "done"
        assert len(heard.body) == 256 * 65536


async def test_a_whole_answer_has_a_bound() -> None:
    big = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 300000\r\n\r\n" + b" " * 300_000
    async with engine(answers(big)) as backend, links(max_whole_bytes=100_000) as made:
        heard, _ = ask(made, backend)
        assert await heard.all() == [JSON, ("lost", True)]


async def test_the_request_on_the_wire() -> None:
    got: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await read_request(reader))
        writer.write(WHOLE)

    body = b"--b\r\n" + b"x" * 3_000_000
    async with engine(script) as backend, links() as made:
        backend.base_url += "/sub"
        heard = Heard()
        made.send(backend, "/v1/audio", body, "multipart/form-data; boundary=b", heard)
        await heard.all()
    head, _, sent = got[0].partition(b"\r\n\r\n")
    assert sent == body
    first, *headers = head.split(b"\r\n")
    assert first == b"POST /sub/v1/audio HTTP/1.1"
    assert {h.partition(b":")[0].lower() for h in headers} == {
        b"host", b"authorization", b"content-type", b"content-length",
    }  # fmt: skip
    assert b"Authorization: Bearer engine-secret" in headers


async def test_small_writes_leave_at_once() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with engine(script) as backend, links() as made:
        _, exchange = ask(made, backend)
        assert isinstance(exchange, RunningExchange)
        await until(lambda: exchange._link and exchange._link._transport)
        assert exchange._link is not None
        assert exchange._link._transport is not None
        sock = exchange._link._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_nothing_is_left() -> None:
    """A thousand exchanges, each way to end, leave no link and no task."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while raw := await read_request(reader):
            if raw.endswith(b"whole"):
                writer.write(WHOLE)
            elif raw.endswith(b"cut"):
                return
            else:
                writer.write(STREAM_HEAD + b"3\r\na\n\n\r\n0\r\n\r\n")

    async with engine(script) as backend, links() as made:
        tasks = len(asyncio.all_tasks())
        for number in range(100):
            asked = [ask(made, backend, body=b) for b in (b"whole", b"cut", b"stream")]
            asked[number % 3][1].abort()
            await asyncio.gather(*(h.all() for n, (h, _) in enumerate(asked) if n != number % 3))
        made.close()
        await asyncio.sleep(0.1)
        gc.collect()
        assert len(asyncio.all_tasks()) <= tasks
        assert not made._open
        assert not made._idle

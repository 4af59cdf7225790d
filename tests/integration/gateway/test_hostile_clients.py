"""Clients that are slow, large, ambiguous, impatient or gone; after each of them the service answers as before."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from serving import (
    CARD,
    StubBackend,
    StubDirectory,
    client_of,
    fake_engine,
    gateway_over,
    ledger,
    running,
    until,
)
from terazi.gateway import desk
from terazi.gateway.access import Keyring
from terazi.gateway.app import create_app
from terazi.gateway.call import Caller
from terazi.gateway.front.limits import Limits
from terazi.gateway.server import Gateway

pytestmark = pytest.mark.timeout(60)

BODY = json.dumps({"model": CARD.id, "input": "x"}).encode()
HOT = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
SHORT = Limits(head_s=0.3, body_s=0.3, idle_s=0.3, linger_s=0.2, body_bytes_per_s=1000, stall_s=0.3)


def whole(body: bytes = b'{"prompt": "a", "max_tokens": 2}', *lines: bytes) -> bytes:
    """A request with its length."""
    return HOT + b"".join(lines) + b"Content-Length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def small_gateway(backend: StubBackend, limits: Limits | None = None) -> AsyncIterator[Gateway]:
    """A gateway with close limits."""
    app = create_app(StubDirectory([backend]), max_body_bytes=100_000)
    gateway = Gateway(app, "127.0.0.1", 0, limits=limits)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


class Client:
    """Bytes there, bytes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """One answer: status, fields, body."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            if first.split()[1] == "100":
                body = b""
            elif fields.get("transfer-encoding") == "chunked":
                body = b""
                while size := int(await self.reader.readline(), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readline()
            elif "content-length" in fields:
                body = await self.reader.readexactly(int(fields["content-length"]))
            else:
                body = await self.reader.read()
        return int(first.split()[1]), fields, body

    async def ended(self) -> bool:
        """Whether the service closes, and says nothing more."""
        async with asyncio.timeout(10):
            return await self.reader.read() == b""


@asynccontextmanager
async def raw(gateway: Gateway) -> AsyncIterator[Client]:
    """A bare connection."""
    host, port = gateway.address.removeprefix("http://").split(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    try:
        yield client
    finally:
        client.writer.close()


async def usable(gateway: Gateway) -> None:
    """A decent client is answered."""
    async with client_of(gateway) as client:
        async with client.get("/v1/models") as reply:
            assert reply.status == 200
        async with client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}) as reply:
            assert reply.status == 200, await reply.text()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"\r\n\r\n", None),
        (b"POST /v1/completions HT", 408),
        (HOT + b"X: a\r\n", 408),
        (HOT + b"Content-Length: 5\r\n\r\n{", 408),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", 408),
        (b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{", 408),
    ],
)
async def test_who_stops_in_a_request_is_shown_the_door(sent: bytes, status: int | None) -> None:
    async with small_gateway(StubBackend(1), SHORT) as gateway, raw(gateway) as client:
        client.writer.write(sent)
        if status is not None:
            assert (await client.answer())[0] == status
        assert await client.ended()


async def test_dripping_does_not_help() -> None:
    """A head has a time of its own, however lively it is; a body has to keep a pace."""
    async with running(fake_engine()) as engine, small_gateway(StubBackend(engine.port), SHORT) as gateway:

        async def drip(request: bytes) -> int:
            loop = asyncio.get_running_loop()
            async with raw(gateway) as client:
                answering = asyncio.create_task(client.answer())
                began = loop.time()
                for n in range(len(request)):
                    if answering.done():
                        break
                    client.writer.write(request[n : n + 1])
                    await asyncio.sleep(0.01)
                status, _, _ = await answering
                assert loop.time() - began < 2
                return status

        statuses = await asyncio.gather(
            drip(HOT + b"X: a\r\n" * 1000),
            drip(HOT + b"Content-Length: 5000\r\n\r\n" + b" " * 5000),
            drip(HOT + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 1000),
        )
        assert list(statuses) == [408, 408, 408]
        async with raw(gateway) as client:  # slow, but not too slow
            body = b" " * 400 + BODY.replace(b"input", b"prompt")
            client.writer.write(HOT + b"Content-Length: %d\r\n\r\n" % len(body))
            for n in range(0, len(body), 50):
                client.writer.write(body[n : n + 50])
                await asyncio.sleep(0.05)
            assert (await client.answer())[0] == 200
        await usable(gateway)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HOT + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (HOT + b"X: " + b"a" * 40_000, 431),
        (HOT + b"X: a\r\n" * 200 + b"\r\n", 431),
        (HOT + b"Content-Length: 100001\r\n\r\n", 413),
        (HOT + b"Content-Length: 999999999999999\r\n\r\n" + b" " * 5_000_000, 413),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\n" + (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 7, 413),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 300_000, 413),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 50_000, 413),
        (b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n", 413),
        (HOT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HOT + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ", 400),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n", 400),
        (HOT + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
        (HOT + b"X: a\r\n b\r\n\r\n", 400),
        (HOT.replace(b"\r\n", b"\n") + b"\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\xfc", 400),
        (b"\0" * 1000, 400),
        (b"GET " + b"/" * 40_000, 431),
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n", 405),
        (HOT + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd", 415),
        (HOT + b"Expect: more\r\n\r\n", 417),
        (HOT.replace(b"localhost", b"rebound.example") + b"Content-Length: 99\r\n\r\n", 403),
        (HOT + b"Origin: https://evil.example\r\nContent-Length: 99\r\n\r\n", 403),
        (
            HOT.replace(b" /", b" http://rebound.example/") + b"Content-Length: 2\r\n\r\n{}",
            403,
        ),
    ],
)
async def test_what_is_refused_is_refused_in_words(sent: bytes, status: int) -> None:
    async with small_gateway(StubBackend(1), SHORT) as gateway, raw(gateway) as client:
        client.writer.write(sent)
        got, fields, body = await client.answer()
        assert (got, fields["connection"]) == (status, "close")
        assert json.loads(body)["error"]
        assert await client.ended()


@pytest.mark.parametrize("expects", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_come_whole_however_they_are_cut(chunked: bool, expects: bool) -> None:
    body = b'{"prompt": "a", "max_tokens": 2}'
    lines = b"Expect: 100-continue\r\n" if expects else b""
    if chunked:
        request = [HOT + lines + b"Transfer-Encoding: chunked\r\n\r\n", b"5;x=y\r\n" + body[:5] + b"\r\n"]
        request += [f"{len(body) - 5:X}\r\n".encode(), body[5:], b"\r\n0\r\nX-Trailer: 1\r\n", b"\r\n"]
    else:
        request = [HOT + lines + b"Content-Length: %d\r\n\r\n" % len(body), body[:5], body[5:]]
    async with (
        running(fake_engine()) as engine,
        small_gateway(StubBackend(engine.port)) as gateway,
        raw(gateway) as client,
    ):
        for step in (1000, 1):
            head, *rest = request
            client.writer.write(head)
            if expects:
                assert (await client.answer())[0] == 100
            for piece in rest:
                for n in range(0, len(piece), step):
                    client.writer.write(piece[n : n + step])
                    await asyncio.sleep(0)
            assert (await client.answer())[0] == 200  # twice over one connection


async def test_requests_that_come_ahead_are_answered_in_order() -> None:
    async with running(fake_engine()) as engine, small_gateway(StubBackend(engine.port)) as gateway:
        async with raw(gateway) as client:
            asked = [whole(json.dumps({"prompt": "a", "max_tokens": n}).encode()) for n in (3, 1, 2)]
            bad = whole(b"{")
            client.writer.write(
                b"".join([asked[0], bad, *asked[1:]]) + b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            said = [await client.answer() for _ in range(5)]
            assert [status for status, _, _ in said] == [200, 400, 200, 200, 200]
            tokens = [json.loads(said[n][2])["usage"]["completion_tokens"] for n in (0, 2, 3)]
            assert tokens == [3, 1, 2]
            assert json.loads(said[4][2])["object"] == "list"
            assert await client.ended()
        async with raw(gateway) as client:  # what follows a chunked body isn't taken for a request of its own
            client.writer.write(
                HOT
                + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
                + b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            assert (await client.answer())[0] == 200
            assert await client.ended()
        async with raw(gateway) as client:  # nor is it kept without a bound
            client.writer.write(whole() + b"GET " + b"a" * 5_000_000)
            assert (await client.answer())[0] == 200
            assert (await client.answer())[0] == 431
        await usable(gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0(stream: bool) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": stream}).encode()
    request = whole(body).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with running(fake_engine()) as engine, small_gateway(StubBackend(engine.port)) as gateway:
        async with raw(gateway) as client:
            client.writer.write(request)
            status, fields, answer = await client.answer()
            assert (status, fields["connection"]) == (200, "close")
            assert "transfer-encoding" not in fields
            assert answer.endswith(b"data: [DONE]\n\n") if stream else json.loads(answer)
            assert await client.ended()
        async with raw(gateway) as client:
            client.writer.write(request.replace(b"localhost\r\n", b"localhost\r\nConnection: keep-alive\r\n"))
            _, fields, _ = await client.answer()
            assert fields["connection"] == ("close" if stream else "keep-alive")
        async with raw(gateway) as client:  # without a Host, which old clients don't know, nobody gets in
            client.writer.write(request.replace(b"Host: localhost\r\n", b""))
            assert (await client.answer())[0] == 403


@pytest.mark.parametrize("half", [False, True], ids=["gone", "half gone"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_is_gone_frees_the_engine(stream: bool, half: bool, tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    flags = ("--fake-ledger", str(book), "--fake-token-delay-s", "0.02", "--fake-tokens", "10000")
    async with (
        running(fake_engine(*flags)) as engine,
        small_gateway(StubBackend(engine.port)) as gateway,
        raw(gateway) as client,
    ):
        client.writer.write(whole(json.dumps({"prompt": "a", "stream": stream}).encode()))
        await until(lambda: ledger(book)[-1:] and ledger(book)[-1]["event"] == "accepted")
        if half:
            client.writer.write_eof()
        else:
            client.writer.close()
        await until(lambda: ledger(book)[-1]["event"] == "abandoned", within_s=1)


async def test_a_client_that_takes_nothing_holds_its_engine_only_so_long() -> None:
    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"8000\r\ndata: " + b"x" * (0x8000 - 8) + b"\n\n\r\n")
                await writer.drain()
        except ConnectionError:
            closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    backend = StubBackend(server.sockets[0].getsockname()[1])
    async with small_gateway(backend, SHORT) as gateway, raw(gateway) as client:
        client.writer.write(whole(b'{"prompt": "a", "stream": true}'))
        await asyncio.wait_for(closed.wait(), 5)
    server.close()


async def test_nor_does_one_whose_answer_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp waits for such a client for ever; the system's buffers take some megabytes first."""
    monkeypatch.setattr(desk, "STALL_S", 0.3)
    endless = ("--fake-token-delay-s", "0", "--fake-tokens", "10000000")
    async with running(fake_engine(*endless)) as engine, AsyncExitStack() as stack:
        backend = StubBackend(engine.port)
        gateway = await stack.enter_async_context(gateway_over(backend))
        for path in ("/api/chat", "/v1/messages"):
            client = await stack.enter_async_context(raw(gateway))
            asked = {"model": CARD.id, "messages": [{"role": "user", "content": "x"}], "stream": True}
            body = json.dumps({**asked, "max_tokens": 10_000_000}).encode()
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            client.writer.write(b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + length + body)
            await until(lambda: backend.in_flight == 1)
            await until(lambda: backend.in_flight == 0, within_s=30)


async def test_keys_are_asked_for_before_a_body_is_read() -> None:
    async with gateway_over(StubBackend(1), api_key="s3cret") as gateway, raw(gateway) as client:
        client.writer.write(HOT + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
        status, _, body = await client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")


async def test_a_head_that_was_let_in_once_is_not_let_in_for_ever() -> None:
    """Heads that a connection repeats aren't read again, but keys may be taken back meanwhile."""
    async with running(fake_engine()) as engine:
        ring = Keyring({"s3cret": Caller(name="anna")})
        app = create_app(StubDirectory([StubBackend(engine.port)]), keyring=ring)
        gateway = Gateway(app, "127.0.0.1", 0)
        await gateway.start()
        try:
            async with raw(gateway) as client:

                async def status(key: bytes, body: bytes = b'{"prompt": "a", "max_tokens": 1}') -> int:
                    client.writer.write(whole(body, b"Authorization: Bearer " + key + b"\r\n"))
                    return (await client.answer())[0]

                assert [await status(b"s3cret") for _ in range(4)] == [200] * 4
                assert await status(b"s3cret", b'{"prompt": "abc", "max_tokens": 1}') == 200
                ring.replace({"an0ther": Caller(name="ben")})
                assert await status(b"s3cret") == 401
            async with raw(gateway) as client:
                assert [await status(b"an0ther") for _ in range(4)] == [200] * 4
                assert await status(b"s3cret") == 401
        finally:
            await gateway.stop()


async def test_a_thousand_odd_clients_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    oddities = [b"", b"GET / HT", b"\0\1\2", HOT, whole()[:-3], whole(), HOT + b"Content-Length: x\r\n\r\n"]
    async with running(fake_engine()) as engine:
        backend = StubBackend(engine.port)
        async with small_gateway(backend) as gateway:
            for _ in range(20):
                async with asyncio.TaskGroup() as tasks:
                    for n in range(50):
                        tasks.create_task(touch(gateway, oddities[n % len(oddities)], reset=n % 2 == 0))
            await usable(gateway)
            await until(lambda: backend.in_flight == 0)
            assert gateway._front is not None
            front = gateway._front
            await until(lambda: not front._connections)
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


async def touch(gateway: Gateway, sent: bytes, *, reset: bool) -> None:
    """Connect, say something, go."""
    async with raw(gateway) as client:
        client.writer.write(sent)
        await asyncio.sleep(0.001)
        if reset:
            client.writer.transport.abort()

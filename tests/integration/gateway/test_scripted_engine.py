"""Against an engine that writes exactly what a test says, when it says it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from serving import CARD, CHAT, StubBackend, client_of, gateway_over

pytestmark = pytest.mark.timeout(60)

Script = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[int]:
    """A server that reads one request after the other and lets *script* answer; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                await script(writer, head + await reader.readexactly(length))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_bytes_pass_untouched_and_as_soon_as_an_event_is_whole() -> None:
    pieces = [
        b": ping\n\n",
        b'data: {"choices"',
        b":[]}\n\n",
        b"event: x\ndata: \xc3",
        b"\xa9\n\n",
        EVENT * 3000,
        DONE,
    ]
    seen: asyncio.Queue[None] = asyncio.Queue()

    async def script(writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(STREAM_HEAD)
        for piece in pieces:
            writer.write(chunk(piece))
            await writer.drain()
            if piece.endswith(b"\n\n"):
                await seen.get()  # the next one only when this one has arrived
        writer.write(b"0\r\n\r\n")

    async with (
        scripted(script) as port,
        gateway_over(StubBackend(port)) as gateway,
        client_of(gateway) as client,
        client.post("/v1/chat/completions", json=CHAT) as reply,
    ):
        waiting = b""
        for piece in pieces:
            waiting += piece
            if piece.endswith(b"\n\n"):
                assert await reply.content.readexactly(len(waiting)) == waiting
                waiting = b""
                seen.put_nowait(None)
        assert await reply.content.read() == b""


async def test_the_request_passes_untouched_with_the_engines_key() -> None:
    got: list[bytes] = []

    async def script(writer: asyncio.StreamWriter, request: bytes) -> None:
        got.append(request)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    raw = b'{ "model":"demo",  "messages" : [], "x": 1.50, "stream":false}'
    headers = {"Authorization": "Bearer client-key", "X-Conversation-Id": "7", "Cookie": "a=b"}
    async with (
        scripted(script) as port,
        gateway_over(StubBackend(port), api_key="client-key") as gateway,
        client_of(gateway) as client,
        client.post("/v1/chat/completions", data=raw, headers=headers) as reply,
    ):
        assert await reply.read() == b"{}"
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert body == raw
    assert b"Bearer engine-secret" in head
    for foreign in (b"client-key", b"conversation", b"cookie"):
        assert foreign not in head.lower()


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"], ids=["cut", "ended without DONE"])
@pytest.mark.parametrize("half", [b"", b'data: {"choi'], ids=["between events", "in an event"])
async def test_a_stream_that_stops_short_is_taken_up_a_few_times_and_then_says_so(end: bytes, half: bytes) -> None:
    """Each of these engines brings one event and breaks off: the client gets whole events, and then an error."""
    asked = 0

    async def script(writer: asyncio.StreamWriter, request: bytes) -> None:
        nonlocal asked
        if b"/tokenize" in request:
            writer.write(b"HTTP/1.1 404 X\r\nContent-Length: 2\r\n\r\n{}")
            return
        asked += 1
        writer.write(STREAM_HEAD + chunk(EVENT) + (chunk(half) if half else b"") + end)
        await writer.drain()
        writer.close()

    async with scripted(script) as port, gateway_over(StubBackend(port)) as gateway, client_of(gateway) as client:
        async with client.post("/v1/chat/completions", json={**CHAT, "stream": True}) as reply:
            *told, last, rest = (await reply.read()).split(b"\n\n")
        assert rest == b""
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_cut"
        texts = [json.loads(e.removeprefix(b"data: "))["choices"] for e in told if not e.startswith(b":")]
        assert [choices[0]["delta"]["content"] for choices in texts] == ["x"] * asked
        assert 2 <= asked <= 20, "taken up, and not for ever"
        asked = 0
        off = {"X-Terazi-Resume": "off"}
        async with client.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=off) as reply:
            event, last, rest = (await reply.read()).split(b"\n\n")
        assert (event + b"\n\n", asked, rest) == (EVENT, 1, b"")
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_cut"
        async with client.post("/api/chat", json=CHAT, headers=off) as reply:
            lines = [json.loads(line) for line in (await reply.read()).splitlines()]
        assert lines[0]["message"]["content"] == "x"
        assert "before the answer was complete" in lines[-1]["error"]


async def test_an_error_of_the_engine_in_a_stream_is_not_doubled() -> None:
    failed = EVENT + b'data: {"error":{"code":500,"message":"context is full","type":"server_error"}}\n\n'

    async def script(writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(STREAM_HEAD + chunk(failed) + b"0\r\n\r\n")

    async with scripted(script) as port, gateway_over(StubBackend(port)) as gateway, client_of(gateway) as client:
        async with client.post("/v1/chat/completions", json=CHAT) as reply:
            assert await reply.read() == failed
        async with client.post("/api/generate", json={"model": CARD.id, "prompt": "x"}) as reply:
            assert json.loads((await reply.read()).splitlines()[-1]) == {"error": "context is full"}


async def test_connections_that_close_as_the_next_request_arrives() -> None:
    """The race that plain pools lose: a request is on its way when the engine's FIN is, all over the pool."""
    answered: set[asyncio.StreamWriter] = set()

    async def script(writer: asyncio.StreamWriter, _request: bytes) -> None:
        if writer in answered:
            raise ConnectionResetError
        answered.add(writer)
        await asyncio.sleep(0.01)  # so that requests of one round don't share a connection
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    async with scripted(script) as port, gateway_over(StubBackend(port)) as gateway, client_of(gateway) as client:
        for at_once in (4, 1) * 8:
            asked = [client.post("/v1/embeddings", json={"model": CARD.id, "input": "x"}) for _ in range(at_once)]
            for reply in await asyncio.gather(*asked):
                assert (reply.status, await reply.read()) == (200, b"{}")
        async with client.get("/metrics") as reply:
            retried = (await reply.text()).partition("\nterazi_upstream_retries_total ")[2].split()[0]
        assert float(retried) >= 10  # else the race didn't take place


async def test_a_stream_never_goes_over_a_used_connection_nor_leaves_one() -> None:
    answered: dict[asyncio.StreamWriter, bool] = {}
    wrong: list[bool] = []

    async def script(writer: asyncio.StreamWriter, request: bytes) -> None:
        stream = b'"stream": true' in request
        if writer in answered and (stream or answered[writer]):
            wrong.append(stream)
        answered[writer] = stream
        if stream:
            writer.write(STREAM_HEAD + chunk(EVENT + DONE) + b"0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    async with scripted(script) as port, gateway_over(StubBackend(port)) as gateway, client_of(gateway) as client:
        for stream in (False, True, False, True, True, False):
            async with client.post("/v1/chat/completions", json={**CHAT, "stream": stream}) as reply:
                assert reply.status == 200
                await reply.read()
    assert wrong == []
    assert sum(answered.values()) == 3
    assert len(answered) < 6  # whole answers share


async def test_a_whole_answer_that_is_cut_is_asked_for_again() -> None:
    count = 0

    async def script(writer: asyncio.StreamWriter, _request: bytes) -> None:
        nonlocal count
        count += 1
        length = b"Content-Length: 5\r\n" if count == 1 else b"Content-Length: 2\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + length + b"\r\n{}")
        if count == 1:
            await writer.drain()
            raise ConnectionResetError

    async with (
        scripted(script) as port,
        gateway_over(StubBackend(port)) as gateway,
        client_of(gateway) as client,
        client.post("/v1/chat/completions", json=CHAT) as reply,
    ):
        assert (reply.status, await reply.read()) == (200, b"{}")
    assert count == 2


async def test_an_engine_that_speaks_no_http_is_a_clean_503() -> None:
    async def script(writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"hello there\r\n\r\n")

    async with (
        scripted(script) as port,
        gateway_over(StubBackend(port), unreached_s=0.3) as gateway,
        client_of(gateway) as client,
        client.post("/v1/chat/completions", json=CHAT) as reply,
    ):
        assert reply.status == 503
        assert (await reply.json())["error"]["code"] == "engine_unavailable"


async def test_an_engine_that_is_loading_says_when_to_come_back() -> None:
    body = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'

    async def script(writer: asyncio.StreamWriter, _request: bytes) -> None:
        head = f"HTTP/1.1 503 X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async with (
        scripted(script) as port,
        gateway_over(StubBackend(port), unreached_s=0.3) as gateway,
        client_of(gateway) as client,
    ):
        for path in ("/v1/chat/completions", "/api/chat"):
            async with client.post(path, json=CHAT) as reply:
                assert reply.status == 503
                assert int(reply.headers["Retry-After"]) > 0
                assert "still loading" in await reply.text()

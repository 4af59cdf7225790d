"""The broker against the fake engine process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serving import CARD, CHAT, StubBackend, StubDirectory, fake_engine, ledger, running, until
from terazi.gateway.app import DESK, create_app
from terazi.gateway.call import Call
from terazi.gateway.desk import Desk
from terazi.gateway.wire.errors import Api, WireError


@asynccontextmanager
async def desk_over(backend: StubBackend) -> AsyncIterator[Desk]:
    """The gateway's objects without its server."""
    app = create_app(StubDirectory([backend]), api_key=None)
    app.freeze()
    await app.startup()
    try:
        yield app[DESK]
    finally:
        await app.cleanup()


def call_of(fields: dict[str, object], path: str = "/v1/chat/completions") -> Call:
    """A call with this body."""
    return Call(
        id="req-1",
        api=Api.OPENAI,
        path=path,
        body=json.dumps(fields).encode(),
        fields=fields,
        model=CARD.id,
        stream=fields.get("stream") is True,
        arrived=asyncio.get_running_loop().time(),
    )


async def test_a_stream_comes_in_whole_events() -> None:
    async with (
        running(fake_engine()) as engine,
        desk_over(StubBackend(engine.port)) as desk,
        desk.converse(call_of({**CHAT, "stream": True})) as answer,
    ):
        head = await answer.head()
        assert (head.status, head.stream) == (200, True)
        assert head.headers["x-request-id"] == "req-1"
        chunks = [chunk async for chunk in answer]
    assert all(chunk.endswith(b"\n\n") for chunk in chunks)
    assert chunks[-1].endswith(b"data: [DONE]\n\n")


async def test_a_whole_answer_is_the_engines() -> None:
    async with (
        running(fake_engine()) as engine,
        desk_over(StubBackend(engine.port)) as desk,
        desk.converse(call_of(CHAT)) as answer,
    ):
        assert (await answer.head()).stream is False
        assert json.loads(await answer.body())["usage"]["completion_tokens"] == 16


async def test_leaving_frees_the_engine(tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    flags = ("--fake-ledger", str(book), "--fake-token-delay-s", "0.02", "--fake-tokens", "10000")
    async with running(fake_engine(*flags)) as engine:
        backend = StubBackend(engine.port)
        async with desk_over(backend) as desk:
            async with desk.converse(call_of({**CHAT, "stream": True})) as answer:
                await answer.head()
                assert backend.in_flight == 1
            await until(lambda: ledger(book)[-1]["event"] == "abandoned", within_s=1)
            assert (backend.in_flight, desk.traffic.count) == (0, 0)


async def test_no_engine_is_a_fault_at_the_head() -> None:
    async with desk_over(StubBackend(1, state="failed")) as desk, desk.converse(call_of(CHAT)) as answer:
        with pytest.raises(WireError, match="can't answer"):
            await answer.head()


async def test_a_slow_reader_pauses_the_engine() -> None:
    flags = ("--fake-token-delay-s", "0", "--fake-tokens", "15000")
    n = 0
    async with (
        running(fake_engine(*flags)) as engine,
        desk_over(StubBackend(engine.port)) as desk,
        desk.converse(call_of({**CHAT, "stream": True})) as answer,
    ):
        await answer.head()
        await asyncio.sleep(0.5)
        assert answer.unread_bytes < 1_000_000
        async for chunk in answer:
            n += chunk.count(b'"content": " ')
    assert n == 15000

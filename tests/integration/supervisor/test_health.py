"""What counts as a generated token, asked of a server that answers what the test says."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from terazi.supervisor.health import EngineClient, ProbeError
from terazi.supervisor.process import free_port


class Server:
    """Answers every request with the same status and text, and keeps the headers it was sent."""

    status = 200
    text = "{}"
    base = ""

    def __init__(self) -> None:
        self.keys: list[str | None] = []

    async def answer(self, request: web.Request) -> web.Response:
        """The set answer."""
        self.keys.append(request.headers.get("Authorization"))
        return web.Response(status=self.status, text=self.text)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A running server."""
    told = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", told.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    told.base = f"http://127.0.0.1:{port}"
    yield told
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[EngineClient]:
    """A client of it."""
    made = EngineClient(server.base, "key")
    yield made
    await made.close()


GOOD = [
    '{"choices": [{"text": "-"}], "usage": {"completion_tokens": 1}}',
    '{"data": [{"embedding": [0.1, 0.2]}]}',
    '[{"index": 0, "embedding": [[0.1, 0.2]]}]',
]
BAD = [
    '{"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}',
    '{"data": []}',
    '{"data": [{"embedding": []}]}',
    "[]",
    "{}",
    "null",
    "3",
    "ok",
    "",
    '{"usage": "many"}',
]


@pytest.mark.parametrize("text", GOOD)
async def test_token_or_vector_is_an_answer(server: Server, client: EngineClient, text: str) -> None:
    server.text = text
    await client.generate("/v1/completions", "{}")
    assert server.keys == ["Bearer key"]


@pytest.mark.parametrize("text", BAD)
async def test_anything_else_is_not(server: Server, client: EngineClient, text: str) -> None:
    server.text = text
    with pytest.raises(ProbeError, match="without a token"):
        await client.generate("/v1/completions", "{}")


async def test_error_status_is_told_with_its_text(server: Server, client: EngineClient) -> None:
    server.status, server.text = 500, "broken " + "x" * 10_000
    with pytest.raises(ProbeError, match="HTTP 500: broken") as caught:
        await client.generate("/v1/completions", "{}")
    assert len(str(caught.value)) < 300
    assert not await client.healthy("/health")


async def test_nobody_there_is_not_healthy() -> None:
    client = EngineClient(f"http://127.0.0.1:{free_port()}", "")
    assert not await client.healthy("/health")
    with pytest.raises(ProbeError):
        await client.generate("/v1/completions", "{}")
    await client.close()

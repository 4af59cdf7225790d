"""Everything around the proxying: access, errors, lists, health, metrics, control, listening."""

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import aiohttp
import pytest

from serving import CARD, CHAT, StubBackend, StubDirectory, client_of, fake_engine, gateway_over, running, until
from terazi.errors import ServiceError, UsageError
from terazi.gateway.app import create_app
from terazi.gateway.call import Caller
from terazi.gateway.control_routes import TOKEN_HEADER
from terazi.gateway.server import Gateway

pytestmark = pytest.mark.timeout(60)
TOKEN = "t0ken"  # noqa: S105 - a test's


async def test_models_are_listed_and_found() -> None:
    other = replace(CARD, id="b:8b", aliases=())
    async with gateway_over(StubBackend(1), StubBackend(1, card=other)) as gateway, client_of(gateway) as client:
        async with client.get("/v1/models") as reply:
            assert [entry["id"] for entry in (await reply.json())["data"]] == [CARD.id, "b:8b"]
        for name in (CARD.id, f"{CARD.id}:latest", "demo"):
            async with client.get(f"/v1/models/{name}") as reply:
                assert (await reply.json())["id"] == CARD.id
        async with client.get("/v1/models/org/none") as reply:
            assert reply.status == 404
            assert (await reply.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/v1/chat/completions", b'{"model": "none"}', 404, "served here: acme/scale-135m"),
        ("/v1/chat/completions", b"{", 400, "not valid JSON"),
        ("/v1/embeddings", b"[1]", 400, "JSON object"),
        ("/v1/chat/completions", b" " * (1 << 20) + b"{}", 413, "1048576"),
        ("/api/chat", b'{"model": "none"}', 404, "served here"),
        ("/api/chat", b"{", 400, "JSON"),
        ("/api/generate", b" " * (1 << 20) + b"{}", 413, "1048576"),
        ("/api/show", b"{}", 400, "'model' is missing"),
        ("/api/pull", b'{"model": "x"}', 501, "not offered"),
        ("/api/nothing", b"{}", 404, "there is no POST /api/nothing"),
        ("/v1/nothing", b"{}", 404, "there is no POST /v1/nothing"),
        ("/nothing", b"{}", 404, "there is no POST /nothing"),
    ],
)
async def test_errors_have_the_shape_of_the_api(path: str, body: bytes, status: int, told: str) -> None:
    async with (
        gateway_over(StubBackend(1)) as gateway,
        client_of(gateway) as client,
        client.post(path, data=io.BytesIO(body)) as reply,
    ):
        assert reply.status == status
        error = (await reply.json())["error"]
        assert told in (error["message"] if path.startswith("/v1/") else error)


async def test_a_body_that_hides_its_size_is_bounded_too() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    async with (
        gateway_over(StubBackend(1)) as gateway,
        client_of(gateway) as client,
        client.post("/v1/chat/completions", data=endless()) as reply,
    ):
        assert reply.status == 413
        assert (await reply.json())["error"]["code"] == "body_too_large"


async def test_what_is_no_http_is_told_to_its_sender_and_to_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    senseless = {
        b"\x16\x03\x01\x02\x00\x01\x00\xfc\r\n\r\n": 400,
        head + b"X: " + b"a" * 100_000 + b"\r\n\r\n": 431,
        head + b"Content-Length: -4\r\n\r\n": 400,
        head + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n": 400,
        head + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd": 400,
    }
    async with gateway_over(StubBackend(1)) as gateway:
        host, port = gateway.address.removeprefix("http://").split(":")
        for request, status in senseless.items():
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            assert f" {status} ".encode() in answer.split(b"\r\n")[0], (request[:80], answer[:200])
    assert [r.getMessage() for r in caplog.records if r.levelname in {"WARNING", "ERROR"}] == []


async def test_a_large_body_reaches_the_engine_whole() -> None:
    body = io.BytesIO(json.dumps({**CHAT, "padding": "x" * (3 << 20)}).encode())
    async with (
        running(fake_engine()) as engine,
        gateway_over(StubBackend(engine.port), max_body_bytes=8 << 20) as gateway,
        client_of(gateway) as client,
        client.post("/v1/chat/completions", data=body) as reply,
    ):
        assert reply.status == 200


async def test_the_key() -> None:
    async with gateway_over(StubBackend(1), api_key="s3cret") as gateway, client_of(gateway) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": ""}):
            for path in ("/v1/models", "/api/tags", "/metrics"):
                async with client.get(path, headers=headers) as reply:
                    assert reply.status == 401, path
        for headers in ({"Authorization": "Bearer s3cret"}, {"x-api-key": "s3cret", "Host": "box.lan"}):
            async with client.get("/v1/models", headers=headers) as reply:
                assert reply.status == 200
        for path in ("/", "/healthz", "/livez"):
            async with client.get(path) as reply:
                assert reply.status == 200
                assert CARD.id not in await reply.text(), "what is served is not for strangers"
        async with client.get("/healthz", headers={"x-api-key": "s3cret"}) as reply:
            assert (await reply.json())["models"] == {CARD.id: "ready"}


async def test_health_is_about_requests_and_life_about_the_service() -> None:
    """One model that takes requests is enough; why the others don't is for those who may know them."""
    broken, cold = (
        StubBackend(1, state="failed"),
        StubBackend(1, card=replace(CARD, id="b:8b", aliases=()), state="cold"),
    )
    broken.closed = "its file is gone"
    async with gateway_over(broken, cold) as gateway, client_of(gateway) as client:
        for closed, status in ((None, 200), ("nor is this one", 503)):
            cold.closed = closed
            async with client.get("/healthz") as reply:
                said = await reply.json()
                assert (reply.status, said["status"]) == (status, "ok" if status == 200 else "unavailable")
                assert said["models"] == {CARD.id: "failed", "b:8b": "cold"}
                assert said["closed"][CARD.id] == "its file is gone"
            async with client.get("/livez") as reply:
                assert reply.status == 200
    async with gateway_over(broken, cold, api_key="s3cret") as gateway, client_of(gateway) as client:
        async with client.get("/healthz") as reply:
            assert await reply.json() == {"status": "unavailable"}
        async with client.get("/livez") as reply:
            assert reply.status == 200


async def test_a_key_for_certain_models_neither_sees_nor_touches_others() -> None:
    """It may name its models by an alias. Unknown keys, and no key, are told no names at all."""
    other = replace(CARD, id="b:8b", aliases=())
    keys = {"key of all": Caller(name="all"), "key of one": Caller(name="one", models=frozenset({"scale"}))}
    hers = {"Authorization": "Bearer key of one"}
    async with (
        gateway_over(StubBackend(1), StubBackend(1, card=other), keys=keys) as gateway,
        client_of(gateway) as client,
    ):
        async with client.get("/healthz") as reply:
            assert await reply.json() == {"status": "ok"}
        for headers, known in (({"x-api-key": "key of all"}, [CARD.id, "b:8b"]), (hers, [CARD.id])):
            async with client.get("/healthz", headers=headers) as reply:
                assert list((await reply.json())["models"]) == known
            async with client.get("/v1/models", headers=headers) as reply:
                assert [entry["id"] for entry in (await reply.json())["data"]] == known
            for path in ("/api/tags", "/api/ps"):
                async with client.get(path, headers=headers) as reply:
                    names = [entry["model"].removesuffix(":latest") for entry in (await reply.json())["models"]]
                    assert names == known
        for path in (
            "/v1/chat/completions",
            "/v1/messages",
            "/api/chat",
            "/api/generate",
            "/api/show",
            "/tokenize",
        ):
            body = {**CHAT, "model": "b:8b", "max_tokens": 1, "keep_alive": 0}
            async with client.post(path, headers=hers, json=body) as reply:
                assert (reply.status, "may not use" in await reply.text()) == (403, True), path
        for path in ("/v1/models/b:8b", "/props?model=b:8b", "/slots?model=b:8b"):
            async with client.get(path, headers=hers) as reply:
                assert reply.status == 403, path
        async with client.post("/v1/chat/completions", headers=hers, json={**CHAT, "model": "none"}) as reply:
            assert "b:8b" not in await reply.text()


async def test_a_rebound_name_is_refused() -> None:
    async with (
        gateway_over(StubBackend(1)) as gateway,
        client_of(gateway) as client,
        client.get("/v1/models", headers={"Host": "rebound.example"}) as reply,
    ):
        assert reply.status == 403


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("http://localhost:3000", True), ("https://ok.example", True), ("https://x.example", False), ("null", False)],
)
async def test_pages_of_other_origins_are_refused(origin: str, allowed: bool) -> None:
    async with (
        gateway_over(StubBackend(1), allowed_origins=("https://ok.example",)) as gateway,
        client_of(gateway) as client,
    ):
        async with client.get("/v1/models", headers={"Origin": origin}) as reply:
            assert reply.status == (200 if allowed else 403)
            assert reply.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
        for path in ("/v1/chat/completions", "/api/chat", "/healthz"):
            ask = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            async with client.options(path, headers=ask) as reply:
                assert reply.status == (204 if allowed else 403)
                assert ("Access-Control-Allow-Methods" in reply.headers) is allowed
                assert reply.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)


async def test_ollamas_small_answers() -> None:
    loading = StubBackend(1, card=replace(CARD, id="later"), state="loading")
    async with gateway_over(StubBackend(1), loading) as gateway, client_of(gateway) as client:
        async with client.get("/") as reply:
            assert await reply.text() == "Ollama is running"
        async with client.head("/") as reply:
            assert reply.status == 200
        async with client.get("/api/tags") as reply:
            assert [m["name"] for m in (await reply.json())["models"]] == [f"{CARD.id}:latest", "later:latest"]
        async with client.get("/api/ps") as reply:
            assert [m["name"] for m in (await reply.json())["models"]] == [f"{CARD.id}:latest"]
        async with client.post("/api/show", json={"name": "demo"}) as reply:
            assert (await reply.json())["capabilities"] == ["completion", "tools"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_an_empty_request_waits_for_the_model(path: str) -> None:
    async with running(fake_engine()) as engine, AsyncExitStack() as stack:
        backend = StubBackend(engine.port, state="loading")
        gateway = await stack.enter_async_context(gateway_over(backend))
        client = await stack.enter_async_context(client_of(gateway))
        asking = asyncio.create_task(client.post(path, json={"model": "demo", "keep_alive": "1h"}))
        await asyncio.sleep(0.05)
        assert not asking.done()
        backend.set_state("ready")
        async with await asking as reply:
            answer = json.loads(await reply.text())
        assert (answer["done"], answer["done_reason"], answer["model"]) == (True, "load", "demo")


async def test_ollama_streams_lines_and_ends_a_cut_stream_with_an_error() -> None:
    flags = ("--fake-exit-at", "after-tokens:20", "--fake-tokens", "16")
    async with (
        running(fake_engine(*flags)) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):
        async with client.post("/api/chat", json=CHAT) as reply:
            assert reply.content_type == "application/x-ndjson"
            lines = [json.loads(line) for line in (await reply.read()).splitlines()]
        assert "".join(line["message"]["content"] for line in lines).split()
        assert (lines[-1]["done"], lines[-1]["eval_count"]) == (True, 16)
        async with client.post("/api/chat", json=CHAT, headers={"X-Terazi-Resume": "off"}) as reply:
            lines = [json.loads(line) for line in (await reply.read()).splitlines()]
        assert len(lines) == 5
        assert "before the answer was complete" in lines[-1]["error"]


@pytest.mark.parametrize("more", [False, True])
async def test_without_a_model_the_only_one_answers(more: bool) -> None:
    body = {key: value for key, value in CHAT.items() if key != "model"}
    async with running(fake_engine()) as engine:
        backends = [StubBackend(engine.port), StubBackend(1)][: 2 if more else 1]
        async with (
            gateway_over(*backends) as gateway,
            client_of(gateway) as client,
            client.post("/v1/chat/completions", json=body) as reply,
        ):
            assert reply.status == (400 if more else 200)


async def test_the_page_of_metrics_has_this_process() -> None:
    async with (
        gateway_over(StubBackend(1)) as gateway,
        client_of(gateway) as client,
        client.get("/metrics") as reply,
    ):
        assert "process_resident_memory_bytes" in await reply.text()


async def test_metrics_count_what_happened() -> None:
    async with (
        running(fake_engine()) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):
        async with client.post("/v1/chat/completions", json={**CHAT, "stream": True}) as reply:
            sent = len(await reply.read())
        for name in ("made-up-1", "made-up-2"):
            async with client.post("/api/chat", json={**CHAT, "model": name}) as reply:
                assert reply.status == 404
        async with client.get("/metrics") as reply:
            text = await reply.text()
    assert f'terazi_http_requests_total{{api="openai",model="{CARD.id}",status="200"}} 1.0' in text
    assert 'terazi_http_requests_total{api="ollama",model="none",status="404"} 2.0' in text
    of_key = 'key="local"'
    assert f'terazi_requests_total{{api="openai",{of_key},model="{CARD.id}",status="200"}} 1.0' in text
    assert "made-up" not in text
    assert f'terazi_stream_bytes_total{{model="{CARD.id}"}} {float(sent)}' in text
    assert f'terazi_time_to_first_byte_seconds_count{{api="openai",model="{CARD.id}"}} 1.0' in text
    assert f'terazi_engine_state{{model="{CARD.id}",state="ready"}} 1.0' in text
    assert f'terazi_in_flight{{model="{CARD.id}"}} 0.0' in text


class StubControl:
    """Remembers what was asked."""

    def __init__(self) -> None:
        self.stopped: list[str | None] = []
        self.asked = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    async def snapshot(self) -> dict[str, object]:
        return {"models": ["demo"]}

    async def stop(self, model: str | None) -> None:
        self.asked.set()
        await self.may_stop.wait()
        if model == "none":
            raise UsageError("there is no model 'none'", hint="terazi ps")
        self.stopped.append(model)

    async def load(self, model: str) -> None:
        raise UsageError(f"there is no model {model!r}", hint="terazi ps")

    async def reload(self) -> list[str]:
        return []

    def logs(self, model: str | None, lines: int) -> list[str]:
        assert model is None
        return ["one", "two", "three"][-lines:]

    async def follow(self, model: str | None) -> AsyncIterator[str]:
        assert model is None
        for line in ("four", "five"):
            yield line


async def test_control_needs_its_token() -> None:
    control = StubControl()
    async with gateway_over(StubBackend(1), control=control, control_token=TOKEN, api_key="k") as gateway:
        async with client_of(gateway) as client:
            for headers in ({}, {TOKEN_HEADER: "wrong"}, {"Authorization": "Bearer k"}):
                for method, path in (("GET", "ps"), ("POST", "stop"), ("GET", "logs")):
                    async with client.request(method, f"/terazi/v1/{path}", headers=headers) as reply:
                        assert reply.status == 401
        assert control.stopped == []
        async with aiohttp.ClientSession(gateway.address, headers={TOKEN_HEADER: TOKEN}) as client:
            async with client.get("/terazi/v1/ps") as reply:
                assert await reply.json() == {"models": ["demo"]}
            async with client.get("/terazi/v1/logs?lines=2&follow=1") as reply:
                assert (await reply.text()).split() == ["two", "three", "four", "five"]
            async with client.get("/terazi/v1/logs?lines=x") as reply:
                assert reply.status == 400
            async with client.post("/terazi/v1/stop", json={"model": "none"}) as reply:
                assert reply.status == 404
                assert "terazi ps" in (await reply.json())["error"]
            for body in ({"model": "demo"}, {}):
                async with client.post("/terazi/v1/stop", json=body) as reply:
                    assert reply.status == 202
    assert control.stopped == ["demo", None]


async def test_a_stop_goes_on_when_its_client_leaves() -> None:
    control = StubControl()
    control.may_stop.clear()
    async with gateway_over(StubBackend(1), control=control, control_token=TOKEN) as gateway:
        async with aiohttp.ClientSession(gateway.address, headers={TOKEN_HEADER: TOKEN}) as client:
            asking = asyncio.create_task(client.post("/terazi/v1/stop", json={"model": "demo"}))
            await control.asked.wait()
            asking.cancel()
        async with client_of(gateway) as client, client.get("/healthz") as reply:
            assert reply.status == 200  # by now the gateway has seen the first client go
        control.may_stop.set()
        await until(lambda: control.stopped == ["demo"])


async def test_without_control_there_is_none() -> None:
    async with (
        gateway_over(StubBackend(1)) as gateway,
        client_of(gateway) as client,
        client.get("/terazi/v1/ps") as reply,
    ):
        assert reply.status == 404


async def test_listening() -> None:
    app = create_app(StubDirectory([]), api_key=None)
    with pytest.raises(UsageError):
        await Gateway(app, "0.0.0.0", 0).start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=str(port)) as caught:
            await Gateway(create_app(StubDirectory([]), api_key=None), "127.0.0.1", port).start()
        assert str(port) in caught.value.hint
    with pytest.raises(ServiceError):
        await Gateway(create_app(StubDirectory([]), api_key="k"), "203.0.113.7", 8484).start()
    for no_host in ("a\0b", "a" * 70 + ".example"):
        with pytest.raises(ServiceError, match="can't listen"):
            await Gateway(create_app(StubDirectory([]), api_key="k"), no_host, 0).start()


async def test_stopping_frees_the_port_and_may_be_repeated() -> None:
    async with gateway_over(StubBackend(1)) as gateway:
        port = int(gateway.address.rpartition(":")[2])
        assert await gateway.drain(1) == 0
        await gateway.stop()
        with socket.create_server(("127.0.0.1", port)):
            pass

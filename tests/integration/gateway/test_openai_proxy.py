"""The OpenAI endpoints in front of a fake engine process."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from serving import (
    CARD,
    CHAT,
    ENGINE_KEY,
    StubBackend,
    client_of,
    fake_engine,
    gateway_over,
    ledger,
    running,
    until,
)

pytestmark = pytest.mark.timeout(60)


def events(raw: bytes) -> list[bytes]:
    """Data of all events in *raw*."""
    return [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part.startswith(b"data: ")]


def shape_of(raw: bytes) -> list[object]:
    """Events without what differs from answer to answer."""
    shaped: list[object] = []
    for event in events(raw):
        if event == b"[DONE]":
            shaped.append("[DONE]")
            continue
        parsed = json.loads(event)
        shaped.append({k: v for k, v in parsed.items() if k not in {"id", "created"}})
    return shaped


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_is_the_engines_own(path: str, stream: bool) -> None:
    body = {**CHAT, "prompt": "weigh this", "stream": stream}
    async with running(fake_engine()) as engine, gateway_over(StubBackend(engine.port)) as gateway:
        direct_url = f"http://127.0.0.1:{engine.port}{path}"
        async with client_of(gateway) as client, aiohttp.ClientSession() as other:
            key = {"Authorization": f"Bearer {ENGINE_KEY}"}
            async with other.post(direct_url, json=body, headers=key) as reply:
                direct, direct_type = await reply.read(), reply.content_type
            async with client.post(path, json=body) as reply:
                assert reply.status == 200
                proxied = await reply.read()
                assert reply.content_type == direct_type
                assert reply.headers.get("X-Accel-Buffering") == ("no" if stream else None)
        if stream:
            assert shape_of(proxied) == shape_of(direct)
            assert len(shape_of(proxied)) > 16
        else:
            left, right = json.loads(proxied), json.loads(direct)
            assert left["choices"] == right["choices"]


async def test_events_arrive_as_the_engine_writes_them() -> None:
    async with (
        running(fake_engine("--fake-token-delay-s", "0.05", "--fake-tokens", "10")) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
        client.post("/v1/chat/completions", json={**CHAT, "stream": True}) as reply,
    ):
        loop = asyncio.get_running_loop()
        arrivals = [loop.time() async for _ in reply.content.iter_any()]
    assert len(arrivals) >= 10
    assert arrivals[-1] - arrivals[0] > 0.4


async def test_a_client_that_leaves_frees_the_engine(tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    flags = ("--fake-ledger", str(book), "--fake-token-delay-s", "0.02", "--fake-tokens", "10000")
    async with running(fake_engine(*flags)) as engine:
        backend = StubBackend(engine.port)
        async with gateway_over(backend) as gateway, client_of(gateway) as client:
            for path in ("/v1/chat/completions", "/api/chat"):
                reply = await client.post(path, json={**CHAT, "stream": True})
                await reply.content.readany()
                assert backend.in_flight == 1
                reply.close()
                assert await until(lambda: ledger(book)[-1]["event"] == "abandoned", within_s=1) < 1
                await until(lambda: backend.in_flight == 0, within_s=1)
            async with client.get("/metrics") as reply:
                assert "terazi_client_disconnects_total 2.0" in await reply.text()


async def test_a_client_that_leaves_before_the_first_byte_frees_the_engine(tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    async with running(fake_engine("--fake-ledger", str(book), "--fake-no-tokens")) as engine:
        backend = StubBackend(engine.port)
        async with gateway_over(backend) as gateway, client_of(gateway) as client:
            for stream in (True, False):
                asking = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "stream": stream}))
                await until(lambda: ledger(book)[-1:] and ledger(book)[-1]["event"] == "accepted")
                if not asking.cancel():  # a head is no byte of the answer
                    (await asking).close()
                await until(lambda: ledger(book)[-1]["event"] == "abandoned", within_s=1)
            await until(lambda: backend.in_flight == 0, within_s=1)


@pytest.mark.parametrize("stream", [False, True])
async def test_connections_that_the_engine_closed_are_not_felt(stream: bool, tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    flags = ("--fake-close-after-response", "--fake-ledger", str(book), "--fake-tokens", "2")
    async with (
        running(fake_engine(*flags)) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):

        async def ask() -> int:
            async with client.post("/v1/chat/completions", json={**CHAT, "stream": stream}) as reply:
                text = await reply.text()
                assert not stream or text.endswith("data: [DONE]\n\n")
                return int(reply.status)

        for _ in range(15):
            assert await asyncio.gather(*(ask() for _ in range(4))) == [200] * 4
        await until(lambda: sum(entry["event"] == "finished" for entry in ledger(book)) == 60)
        assert sum(entry["event"] == "accepted" for entry in ledger(book)) == 60


async def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event_if_that_is_liked_better() -> None:
    async with (
        running(fake_engine("--fake-exit-at", "after-tokens:5")) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway, **{"X-Terazi-Resume": "off"}) as client,
        client.post("/v1/chat/completions", json={**CHAT, "stream": True}) as reply,
    ):
        assert reply.status == 200
        said = [json.loads(event) for event in events(await reply.read())]
    assert said[-1]["error"]["code"] == "engine_cut"
    assert sum(bool(event["choices"][0]["delta"].get("content")) for event in said[:-1]) == 5


async def test_an_engine_that_dies_before_the_first_byte_is_waited_for(tmp_path: Path) -> None:
    """It is killed by the first request and started again; the client only notices that it took longer."""
    engine = fake_engine("--fake-exit-at", "first-request", "--fake-once", str(tmp_path / "once"))
    async with running(engine):
        backend = StubBackend(engine.port)

        async def restart() -> None:
            assert engine.process is not None
            await engine.process.wait()
            backend.set_state("starting")
            await engine.stop()
            await engine.start()
            backend.set_state("ready")

        async with gateway_over(backend) as gateway, client_of(gateway) as client, asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(restart())
            async with client.post("/v1/chat/completions", json=CHAT) as reply:
                assert reply.status == 200, await reply.text()
            await supervising
            async with client.get("/metrics") as reply:
                text = await reply.text()
                assert f'terazi_requests_resumed_total{{kind="run-again",model="{CARD.id}"}} 1.0' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_killed_before_the_first_byte_is_not_felt(stream: bool, tmp_path: Path) -> None:
    """A stream's head is there at once, its first event only when the prompt is done; that is still in time."""
    book = tmp_path / "ledger"
    engine = fake_engine("--fake-prompt-delay-s", "0.3", "--fake-ledger", str(book))
    async with running(engine):
        backend = StubBackend(engine.port)
        async with gateway_over(backend) as gateway, client_of(gateway) as client, asyncio.TaskGroup() as tasks:
            body = {"model": "demo", "prompt": "x", "stream": stream}
            asking = tasks.create_task(client.post("/v1/completions", json=body))
            await until(lambda: ledger(book))
            backend.set_state("starting")
            await engine.stop()
            await engine.start()
            backend.set_state("ready")
            reply = await asking
            text = await reply.text()
        assert reply.status == 200
        assert not stream or text.endswith("data: [DONE]\n\n")
        assert "error" not in text


async def test_a_request_that_kills_the_engine_twice_is_not_sent_a_third_time(tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    engine = fake_engine("--fake-exit-at", "first-request", "--fake-ledger", str(book))
    async with running(engine):
        backend = StubBackend(engine.port)

        async def restart_twice() -> None:
            for _ in range(2):
                assert engine.process is not None
                await engine.process.wait()
                backend.set_state("starting")
                await engine.stop()
                await engine.start()
                backend.set_state("ready")

        async with gateway_over(backend) as gateway, client_of(gateway) as client, asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(restart_twice())
            async with client.post("/v1/chat/completions", json=CHAT) as reply:
                assert reply.status == 500
                assert reply.headers["x-should-retry"] == "false"
            await supervising
    assert len(ledger(book)) == 2


async def test_an_engine_that_is_gone_gives_503_with_retry_after() -> None:
    engine = fake_engine()
    async with (
        gateway_over(StubBackend(engine.port), unreached_s=0.3, heartbeat_s=0.5) as gateway,
        client_of(gateway) as client,
    ):
        asked = [client.post(path, json=CHAT) for path in ("/v1/chat/completions", "/api/chat")]
        for reply in await asyncio.gather(*asked):
            assert reply.status == 503
            assert int(reply.headers["Retry-After"]) > 0
            assert "can't be reached" in await reply.text()


async def test_a_request_waits_for_a_loading_engine() -> None:
    engine = fake_engine("--fake-load-s", "0.4")
    backend = StubBackend(engine.port, state="loading")
    async with gateway_over(backend) as gateway, client_of(gateway) as client:
        async with client.get("/healthz") as reply:
            assert reply.status == 200, "requests are taken, and wait"
            assert await reply.json() == {"status": "ok", "models": {CARD.id: "loading"}}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        async with running(engine):
            assert not asking.done()
            backend.set_state("ready")
            async with await asking as reply:
                assert reply.status == 200
            async with client.get("/healthz") as reply:
                assert reply.status == 200


async def test_waiting_has_a_bound_and_failure_ends_it() -> None:
    backend = StubBackend(1, state="loading")
    async with gateway_over(backend, ready_wait_s=0.2) as gateway, client_of(gateway) as client:
        async with client.post("/v1/chat/completions", json=CHAT) as reply:
            assert reply.status == 503
            assert "not ready yet" in await reply.text()
        backend.set_state("failed")
        async with client.post("/v1/chat/completions", json=CHAT) as reply:
            assert reply.status == 503
            assert "exited with 1" in await reply.text()
            assert "Retry-After" in reply.headers


async def test_an_engines_own_error_is_passed_on() -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "word " * 5000}]}
    async with (
        running(fake_engine()) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):
        async with client.post("/v1/chat/completions", json=long) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["type"] == "exceed_context_size_error"
        async with client.post("/api/chat", json=long) as reply:
            assert reply.status == 400
            assert "exceeds the available context" in (await reply.json())["error"]


async def test_drain_lets_requests_finish_and_turns_new_ones_away() -> None:
    async with (
        running(fake_engine("--fake-token-delay-s", "0.02", "--fake-tokens", "20")) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):
        reply = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        async with client.get("/v1/models") as other:
            await other.read()  # leaves an idle connection that is open already
        draining = asyncio.create_task(gateway.drain(5))
        await asyncio.sleep(0)
        async with client.post("/v1/chat/completions", json=CHAT) as late:
            assert late.status == 503
        async with client_of(gateway) as stranger, stranger.get("/healthz") as health:
            assert (health.status, (await health.json())["status"]) == (503, "draining")
        assert (await reply.read()).endswith(b"data: [DONE]\n\n")
        assert await draining == 0


async def test_drain_tells_those_that_it_cuts() -> None:
    async with (
        running(fake_engine("--fake-token-delay-s", "0.02", "--fake-tokens", "10000")) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):
        stream = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        lines = await client.post("/api/chat", json={**CHAT, "stream": True})
        whole = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await asyncio.sleep(0.05)
        assert await gateway.drain(0.1) == 3
        assert json.loads(events(await stream.read())[-1])["error"]["code"] == "shutting_down"
        assert json.loads((await lines.read()).splitlines()[-1]) == {"error": "the service is shutting down"}
        async with await whole as reply:
            assert reply.status == 503

"""llama-server's own endpoints, reranking, audio and images, over the fake engine."""

import json
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from canned import answering
from serving import CARD, StubBackend, client_of, fake_engine, gateway_over, running

pytestmark = pytest.mark.timeout(60)


async def test_texts_and_tokens() -> None:
    async with (
        running(fake_engine()) as engine,
        gateway_over(StubBackend(engine.port), StubBackend(1, card=replace(CARD, id="b", aliases=()))) as gateway,
        client_of(gateway) as client,
    ):
        for named in ({"model": "demo"}, {}):
            path = "/tokenize" if named else "/tokenize?model=demo"
            async with client.post(path, json={"content": "a scale", **named}) as reply:
                tokens = (await reply.json())["tokens"]
            async with client.post("/detokenize?model=demo", json={"tokens": tokens}) as reply:
                assert await reply.json() == {"content": "a scale"}
        asked = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        async with client.post("/apply-template", json=asked) as reply:
            assert await reply.json() == {"prompt": "<user> hi\n<assistant> "}
        async with client.post("/completion", json={"model": "demo", "prompt": "one", "n_predict": 3}) as reply:
            assert len((await reply.json())["content"].split()) == 3
        async with client.post("/tokenize", json={"content": "a"}) as reply:
            assert reply.status == 400
            assert "'model' is missing" in (await reply.json())["error"]["message"]
        async with client.post("/infill", json={"model": "demo"}) as reply:
            assert reply.status == 404
            assert "does not offer /infill" in (await reply.json())["error"]["message"]


async def test_a_get_never_loads() -> None:
    able = replace(CARD, capabilities=("completion", "vision"))
    cold = StubBackend(1, card=able, state="cold")
    async with (
        running(fake_engine("-c", "512")) as engine,
        gateway_over(cold) as gateway,
        client_of(gateway) as client,
    ):
        async with client.get("/props") as reply:
            props = await reply.json()
        assert props["is_sleeping"] is True
        assert props["default_generation_settings"]["n_ctx"] == CARD.context_length
        assert props["chat_template"] == CARD.template
        assert props["modalities"] == {"vision": True, "audio": False}
        async with client.get("/slots?model=demo") as reply:
            assert await reply.json() == []
        assert cold.state == "cold"
        cold.base_url = f"http://127.0.0.1:{engine.port}"
        cold.set_state("ready")
        async with client.get("/props") as reply:
            props = await reply.json()
        assert props["is_sleeping"] is False
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert props["model_path"] == CARD.id
        async with client.get("/slots") as reply:
            slots = await reply.json()
        assert [slot["is_processing"] for slot in slots] == [False] * 4


async def test_engines_are_not_changed_by_clients() -> None:
    async with gateway_over(StubBackend(1)) as gateway, client_of(gateway) as client:
        for path in ("/props", "/slots/0?action=erase"):
            async with client.post(path, json={}) as reply:
                assert reply.status == 403
                assert (await reply.json())["error"]["type"] == "permission_error"


async def test_reranking() -> None:
    texts = ["gold", "lead", "feathers"]
    async with (
        running(fake_engine("--reranking")) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):
        async with client.post("/v1/rerank", json={"query": "heavy", "documents": texts}) as reply:
            ranked = await reply.json()
        scores = [row["relevance_score"] for row in ranked["results"]]
        assert scores == sorted(scores, reverse=True)
        assert sorted(row["index"] for row in ranked["results"]) == [0, 1, 2]
        assert ranked["model"] == CARD.id
        assert ranked["usage"]["total_tokens"] == 3
        best = {"query": "heavy", "documents": [{"text": text} for text in texts], "top_n": 1}
        async with client.post("/rerank", json={**best, "return_documents": True}) as reply:
            (first,) = (await reply.json())["results"]
        assert first == {**ranked["results"][0], "document": {"text": texts[first["index"]]}}
        async with client.post("/reranking", json={"query": "heavy", "texts": texts, "return_text": True}) as reply:
            rows = await reply.json()
        assert [row["score"] for row in rows] == scores
        assert rows[0]["text"] == texts[rows[0]["index"]]
        for wrong in ({"query": "heavy"}, {"documents": texts}, {"query": "x", "documents": texts, "top_n": -1}):
            async with client.post("/v1/rerank", json=wrong) as reply:
                assert reply.status == 400
                assert (await reply.json())["error"]["type"] == "invalid_request_error"


async def test_reranking_needs_a_model_for_it() -> None:
    async with (
        running(fake_engine()) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
        client.post("/v1/rerank", json={"query": "heavy", "documents": ["x"]}) as reply,
    ):
        assert reply.status == 404
        error = (await reply.json())["error"]
        assert error["code"] == "not_supported"
        assert "does not support reranking" in error["message"]


async def test_audio_and_images_are_passed_through() -> None:
    got: list[tuple[str, str, bytes]] = []

    async def hear(request: web.Request) -> web.Response:
        got.append((request.path, request.headers["Content-Type"], await request.read()))
        return web.Response(body=b"RIFF", content_type="audio/wav")

    form = aiohttp.FormData()
    form.add_field("file", b"\x00\x01\r\n--not a boundary\r\n" * 1000, filename="a.wav", content_type="audio/wav")
    form.add_field("model", "demo")
    async with (
        answering("/v1/audio/{what}", hear) as port,
        gateway_over(StubBackend(port)) as gateway,
        client_of(gateway) as client,
    ):
        async with client.post("/v1/audio/transcriptions", data=form) as reply:
            assert (reply.status, reply.content_type, await reply.read()) == (200, "audio/wav", b"RIFF")
        said = json.dumps({"model": "demo", "input": "hello", "voice": "a"}).encode()
        async with client.post(
            "/v1/audio/speech", data=said, headers={"Content-Type": "application/json"}
        ) as reply:
            assert await reply.read() == b"RIFF"
        wrong = aiohttp.FormData({"model": "none"}, default_to_multipart=True)
        async with client.post("/v1/audio/transcriptions", data=wrong) as reply:
            assert reply.status == 404
            assert "served here" in (await reply.json())["error"]["message"]
        async with client.post("/v1/images/generations", json={"model": "demo", "prompt": "x"}) as reply:
            assert reply.status == 404
            assert (await reply.json())["error"]["code"] == "not_supported"
    (path, kind, body), (_, _, spoken) = got
    assert path == "/v1/audio/transcriptions"
    assert kind.startswith("multipart/form-data; boundary=")
    assert body.count(b"--not a boundary") == 1000
    assert spoken == said

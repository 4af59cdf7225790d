"""The real ``openai`` and ``ollama`` clients, through the gateway, to the real llama-server and the demo model."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import aiohttp
import ollama
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from serving import (
    CARD,
    ENGINE_KEY,
    EngineProcess,
    StubBackend,
    client_of,
    gateway_over,
    real_engine,
    running,
)
from terazi.gateway.server import Gateway
from terazi.gateway.wire.ollama_bodies import ChatBody
from terazi.gateway.wire.ollama_request import chat_call

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ASK = "Name three things that can be weighed."
TOKENS = 24
SCALE: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weight",
        "description": "Weigh a thing",
        "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
    },
}


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    """One slot and no prompt cache across requests, so that the same question has the same answer."""
    async with running(real_engine("-c", "2048", "-np", "1", "--jinja", "--seed", "1")) as process:
        yield process


@pytest.fixture
async def gateway(engine: EngineProcess) -> AsyncIterator[Gateway]:
    async with gateway_over(StubBackend(engine.port)) as running_gateway:
        yield running_gateway


async def ask_engine(engine: EngineProcess, path: str, body: dict[str, object]) -> dict[str, object]:
    """The engine's own answer, asked directly."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {ENGINE_KEY}"}) as session,
        session.post(f"http://127.0.0.1:{engine.port}{path}", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()
        return cast("dict[str, object]", await reply.json())


async def own_chat(engine: EngineProcess) -> str:
    body = {
        "messages": [{"role": "user", "content": ASK}],
        "temperature": 0,
        "max_tokens": TOKENS,
        "cache_prompt": False,
    }
    answer = await ask_engine(engine, "/v1/chat/completions", body)
    return str(answer["choices"][0]["message"]["content"])  # type: ignore[index]


async def test_openai_streams_the_engines_own_text(engine: EngineProcess, gateway: Gateway) -> None:
    wanted = await own_chat(engine)
    async with openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="any") as client:
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": ASK}],
            temperature=0,
            max_tokens=TOKENS,
            stream=True,
            extra_body={"cache_prompt": False},
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(pieces) == wanted
        assert sum(bool(piece) for piece in pieces) > TOKENS // 2
        whole = await client.completions.create(model=CARD.id, prompt="Once upon", max_tokens=4, temperature=0)
        assert whole.choices[0].text
        assert (await client.models.list()).data[0].id == CARD.id
        assert (await client.models.retrieve(CARD.id)).id == CARD.id
        with pytest.raises(openai.NotFoundError, match="served here"):
            await client.chat.completions.create(model="none", messages=[{"role": "user", "content": ASK}])


async def test_ollama_streams_the_engines_own_text(engine: EngineProcess, gateway: Gateway) -> None:
    wanted = await own_chat(engine)
    async with ollama.AsyncClient(host=gateway.address) as client:
        options = {"temperature": 0, "num_predict": TOKENS, "num_ctx": 512}
        messages = [{"role": "user", "content": ASK}]
        parts = [
            part async for part in await client.chat(model="demo", messages=messages, stream=True, options=options)
        ]
        assert "".join(part.message.content or "" for part in parts) == wanted
        last = parts[-1]
        assert (last.done, last.done_reason, last.eval_count) == (True, "length", TOKENS)
        assert last.prompt_eval_count
        assert last.eval_duration
        assert last.total_duration
        whole = await client.generate(model=f"{CARD.id}:latest", prompt=ASK, options=options)
        assert whole.response == wanted
        raw = await client.generate(model="demo", prompt="One, two, three,", raw=True, options=options)
        assert "four" in (raw.response or "")
        assert (await client.chat(model="demo", messages=[])).done_reason == "load"
        assert (await client.list()).models[0].model == f"{CARD.id}:latest"
        assert (await client.show("demo")).modelinfo
        assert (await client.ps()).models[0].size_vram == 0
        as_json = await client.chat(
            model="demo", messages=messages, format="json", options={"num_predict": 200, "seed": 1}
        )
        if as_json.done_reason == "stop":
            assert isinstance(json.loads(as_json.message.content or ""), dict)
        with pytest.raises(ollama.ResponseError, match="served here"):
            await client.chat(model="none", messages=messages)
        with pytest.raises(ollama.ResponseError, match="not supported by this model"):
            await client.generate(model="demo", prompt="def f(", suffix="return", options=options)


def weighings() -> list[dict[str, object]]:
    """Some rounds of weighing, so that even a very small model knows what to do with the last question."""
    told: list[dict[str, object]] = []
    for thing, kg in {"silver": 3, "copper": 5, "iron": 7, "lead": 9}.items():
        call = {"function": {"name": "get_weight", "arguments": {"thing": thing}}}
        told += [
            {"role": "user", "content": f"Weigh the {thing}."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "get_weight", "content": f"{kg} kg"},
            {"role": "assistant", "content": f"It weighs {kg} kg."},
        ]
    return [*told, {"role": "user", "content": "Weigh the gold."}]


async def test_tools_through_both() -> None:
    """The demo model's own template knows no tools, so it gets one that does."""
    template = str(Path(__file__).with_name("tools.jinja"))
    options = {"temperature": 0, "num_predict": 100}
    flags = ("-c", "2048", "-np", "1", "--jinja", "--chat-template-file", template)
    async with running(real_engine(*flags)) as engine, gateway_over(StubBackend(engine.port)) as gateway:
        async with ollama.AsyncClient(host=gateway.address) as local:
            whole = await local.chat(model="demo", messages=weighings(), tools=[SCALE], options=options)
            parts = await local.chat(
                model="demo", messages=weighings(), tools=[SCALE], options=options, stream=True
            )
            streamed = [call async for part in parts for call in part.message.tool_calls or []]
        for calls in (whole.message.tool_calls or [], streamed):
            assert [(c.function.name, c.function.arguments) for c in calls] == [("get_weight", {"thing": "gold"})]
        asked = chat_call(ChatBody.model_validate({"model": "demo", "messages": weighings()}), model="demo")
        assert asked.body is not None
        messages = cast("list[ChatCompletionMessageParam]", json.loads(asked.body)["messages"])
        async with openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="any") as client:
            answer = await client.chat.completions.create(
                model="demo", messages=messages, tools=[SCALE], temperature=0, max_tokens=100
            )
            call = (answer.choices[0].message.tool_calls or [])[0]
            assert call.type == "function"
            assert (call.function.name, json.loads(call.function.arguments)) == ("get_weight", {"thing": "gold"})
            async with client.chat.completions.stream(
                model="demo", messages=messages, tools=[SCALE], temperature=0, max_tokens=100
            ) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].finish_reason == "tool_calls"


async def test_embeddings_through_both() -> None:
    async with running(real_engine("-c", "512", "-np", "1", "--embeddings", "--pooling", "mean")) as engine:
        texts = ["a pair of scales", "a balance"]
        own = await ask_engine(engine, "/v1/embeddings", {"input": texts})
        wanted = [row["embedding"] for row in own["data"]]  # type: ignore[attr-defined]
        async with gateway_over(StubBackend(engine.port)) as gateway:
            async with openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="any") as client:
                got = await client.embeddings.create(model="demo", input=texts)
                assert [row.embedding for row in got.data] == [pytest.approx(v, abs=1e-5) for v in wanted]
            async with ollama.AsyncClient(host=gateway.address) as local:
                many = await local.embed(model="demo", input=texts)
                assert [list(v) for v in many.embeddings] == [pytest.approx(v, abs=1e-5) for v in wanted]
                assert many.prompt_eval_count
                one = await local.embeddings(model="demo", prompt=texts[0])
                assert list(one.embedding) == pytest.approx(wanted[0], abs=1e-5)


async def test_a_client_that_leaves_frees_the_slot(engine: EngineProcess, gateway: Gateway) -> None:
    async def busy() -> bool:
        async with session.get(f"http://127.0.0.1:{engine.port}/slots") as reply:
            return any(slot["is_processing"] for slot in await reply.json())

    key = {"Authorization": f"Bearer {ENGINE_KEY}"}
    long = {"model": "demo", "messages": [{"role": "user", "content": ASK}], "max_tokens": 1500, "ignore_eos": True}
    async with aiohttp.ClientSession(headers=key) as session, client_of(gateway) as client:
        for path in ("/v1/chat/completions", "/api/chat"):
            reply = await client.post(path, json={**long, "stream": True, "options": {"num_predict": 1500}})
            await reply.content.readany()
            assert await busy()
            reply.close()
            async with asyncio.timeout(1):
                while await busy():  # noqa: ASYNC110 - the engine makes it false
                    await asyncio.sleep(0.02)


async def test_a_killed_engine_is_told_to_openai(engine: EngineProcess, gateway: Gateway) -> None:
    assert engine.process is not None
    async with openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="any") as client:
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": ASK}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers={"X-Terazi-Resume": "off"},
        )
        await anext(stream)
        engine.process.kill()
        with pytest.raises(openai.APIError, match="before the answer was complete"):
            async for _ in stream:
                pass


async def test_a_killed_engine_is_told_to_ollama(engine: EngineProcess, gateway: Gateway) -> None:
    assert engine.process is not None
    async with ollama.AsyncClient(host=gateway.address, headers={"X-Terazi-Resume": "off"}) as client:
        parts = await client.generate(model="demo", prompt="One, two, three,", raw=True, stream=True)
        await anext(parts)
        engine.process.kill()
        with pytest.raises(ollama.ResponseError, match="before the answer was complete"):
            async for _ in parts:
                pass

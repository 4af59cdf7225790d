"""LangChain, ``llm``, and what Ollama's clients rely on beyond a chat, on the real llama-server."""

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import httpx
import ollama
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from serving import CARD, StubBackend, client_of, gateway_over, real_engine, running
from terazi.gateway.server import Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ASK = "Name three things that can be weighed."


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    template = str(Path(__file__).with_name("tools.jinja"))
    flags = ("-c", "1024", "-np", "1", "--jinja", "--seed", "1", "--chat-template-file", template)
    async with running(real_engine(*flags)) as engine, gateway_over(StubBackend(engine.port)) as started:
        yield started


class Weighing(BaseModel):
    """What a pair of scales says."""

    thing: str = Field(max_length=20)
    kg: int = Field(ge=0, le=99)


def get_weight(thing: str) -> int:
    """Weigh a thing.

    Args:
        thing: what to weigh.
    """
    return len(thing)


def weighings() -> list[BaseMessage]:
    """Some rounds of weighing, so that even a very small model knows what to do with the last question."""
    told: list[BaseMessage] = []
    for thing, kg in {"silver": 3, "copper": 5, "iron": 7, "lead": 9}.items():
        told += [
            HumanMessage(f"Weigh the {thing}."),
            AIMessage(content="", tool_calls=[{"name": "get_weight", "args": {"thing": thing}, "id": thing}]),
            ToolMessage(f"{kg} kg", tool_call_id=thing),
            AIMessage(f"It weighs {kg} kg."),
        ]
    return [*told, HumanMessage("Weigh the gold.")]


async def test_langchain(gateway: Gateway) -> None:
    async with httpx.AsyncClient() as http:
        base = f"{gateway.address}/v1"
        chat = ChatOpenAI(
            base_url=base,
            api_key=SecretStr("any"),
            model="demo",
            temperature=0,
            http_async_client=http,
            max_retries=0,
        )
        brief = chat.model_copy(update={"max_tokens": 24, "stream_usage": True})
        whole = await brief.ainvoke(ASK)
        assert whole.content
        assert whole.usage_metadata is not None
        assert whole.usage_metadata["output_tokens"] == 24
        summed, seen = AIMessageChunk(content=""), 0
        async for piece in brief.astream(ASK):
            seen += bool(piece.content)
            summed += piece
        assert seen > 10
        assert summed.usage_metadata is not None
        assert summed.usage_metadata["output_tokens"] == 24
        patient = chat.model_copy(update={"max_tokens": 100})
        shaped = patient.with_structured_output(Weighing, method="json_schema")
        weighed = await shaped.ainvoke("The gold weighs 3 kg. Answer as JSON.")
        assert isinstance(weighed, Weighing)
        told = await patient.bind_tools([get_weight]).ainvoke(weighings())
        (call,) = told.tool_calls
        assert (call["name"], call["args"]) == ("get_weight", {"thing": "gold"})


async def test_llm(gateway: Gateway, tmp_path: Path) -> None:
    """The command as a person would set it up: a model in ``extra-openai-models.yaml``."""
    settings = [f"- model_id: scale\n  model_name: demo\n  api_base: {gateway.address}/v1\n  api_key_name: ours\n"]
    (tmp_path / "extra-openai-models.yaml").write_text("".join(settings))
    (tmp_path / "keys.json").write_text('{"ours": "any"}')
    env = {**os.environ, "LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
    for options in ((), ("--no-stream",)):
        argv = ("-m", "llm", "-m", "scale", *options, "-o", "max_tokens", "12", "-o", "temperature", "0", ASK)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *argv, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert len(out.split()) > 3


async def test_a_chat_that_is_longer_than_the_context_loses_its_oldest_messages(gateway: Gateway) -> None:
    story = "The scales were brought to the market, and everything on it was weighed. " * 12
    messages = [{"role": "system", "content": "You weigh things."}]
    for number in range(8):
        messages += [
            {"role": "user", "content": f"{number}: {story}"},
            {"role": "assistant", "content": "Weighed."},
        ]
    messages.append({"role": "user", "content": ASK})
    body = {"model": "demo", "messages": messages, "options": {"num_predict": 4}}
    async with client_of(gateway) as client:
        for stream in (False, True):
            async with client.post("/api/chat", json={**body, "stream": stream}) as reply:
                assert reply.status == 200, await reply.text()
                last = json.loads((await reply.text()).splitlines()[-1])
                assert 300 < last["prompt_eval_count"] < 1024
        async with client.post("/api/chat", json={**body, "truncate": False}) as reply:
            assert reply.status == 400
            assert "exceeds the available context size" in (await reply.json())["error"]
        alone = {**body, "messages": [{"role": "user", "content": story * 8}]}
        async with client.post("/api/chat", json=alone) as reply:
            assert reply.status == 400


async def test_formats_logprobs_and_images(gateway: Gateway) -> None:
    async with ollama.AsyncClient(host=gateway.address) as client:
        options = {"temperature": 0, "num_predict": 60, "num_ctx": 99_999}
        messages = [{"role": "user", "content": "The gold weighs 3 kg. Answer as JSON."}]
        said = await client.chat("demo", messages, format=Weighing.model_json_schema(), options=options)
        assert Weighing.model_validate_json(said.message.content or "").kg >= 0
        brief = {"num_predict": 3, "temperature": 0}
        for raw in (True, False):
            generated = await client.generate(
                "demo", "One, two,", raw=raw, logprobs=True, top_logprobs=2, options=brief
            )
            assert generated.logprobs is not None
            assert len(generated.logprobs) == 3
            first = generated.logprobs[0]
            assert first.logprob <= 0
            assert len(first.top_logprobs or ()) == 2
        picture = [{"role": "user", "content": "what is this?", "images": ["aGVsbG8="]}]
        with pytest.raises(ollama.ResponseError, match="takes no images") as caught:
            await client.chat("demo", picture)
        assert caught.value.status_code == 400
        assert (await client.generate("demo", keep_alive=0)).done_reason == "unload"
        assert (await client.chat("demo", [])).done_reason == "load"


async def test_texts_that_are_too_long_are_cut_before_they_are_embedded() -> None:
    flags = ("-c", "256", "-b", "256", "-ub", "256", "-np", "1", "--embeddings", "--pooling", "mean")
    async with running(real_engine(*flags)) as engine, gateway_over(StubBackend(engine.port)) as gateway:
        long = "a pair of scales " * 400
        async with ollama.AsyncClient(host=gateway.address) as client:
            both = await client.embed("demo", [long, "a balance"])
            assert len(both.embeddings) == 2
            assert both.prompt_eval_count is not None
            assert both.prompt_eval_count < 270
            short = await client.embed("demo", "a balance", dimensions=16)
            vector = list(short.embeddings[0])
            assert len(vector) == 16
            assert math.isclose(sum(x * x for x in vector), 1.0, rel_tol=1e-6)
            whole = list(both.embeddings[1])
            length = math.sqrt(sum(x * x for x in whole[:16]))
            assert vector == pytest.approx([x / length for x in whole[:16]], abs=1e-4)
            with pytest.raises(ollama.ResponseError, match=r"too large|larger"):
                await client.embed("demo", long, truncate=False)
            old = await client.embeddings("demo", long)
            assert len(old.embedding) == CARD.embedding_length


async def test_a_real_stream_says_its_tokens_at_its_end(gateway: Gateway) -> None:
    """Without being asked for usage: that is what requests are accounted by."""
    from terazi.gateway.wire.usage import read_usage

    body = {"model": "demo", "messages": [{"role": "user", "content": ASK}], "max_tokens": 7, "stream": True}
    async with client_of(gateway) as client:
        for extra, path in (({}, "chat/completions"), ({"prompt": ASK}, "completions")):
            async with client.post(f"/v1/{path}", json={**body, **extra}) as reply:
                tail = (await reply.read())[-4096:]
            found = read_usage(b"", tail)
            assert (found.output_tokens, found.finish) == (7, "length")
            assert cast("int", found.prompt_tokens) > 5

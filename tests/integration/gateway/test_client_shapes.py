"""Coding agents' requests (``tests/coding_agents.py``), through the real gateway, read as their clients read.

What goes to an engine as it came must get there as it came; what is translated must be all there; and nobody's wish
for another context loads a model again.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from canned import USAGE, Canned, canned, chunk
from coding_agents import (
    AIDER_OLLAMA,
    AIDER_OPENAI,
    AIDER_PREFILL,
    CLAUDE_CODE,
    CLINE,
    CLINE_OLLAMA,
    CODEX,
    CONTINUE_GENERATE,
    CONTINUE_LLAMA_CPP,
    CONTINUE_OPENAI,
    OPEN_WEBUI_TITLE,
    ROO,
)
from serving import CARD, StubBackend, client_of, fake_engine, gateway_over, running

pytestmark = pytest.mark.timeout(60)
ROOMY = replace(CARD, context_length=65_536)
SAID = [chunk(role="assistant", content=None), chunk(content="Weighed"), chunk(content="."), chunk("stop"), USAGE]


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[aiohttp.ClientSession, Canned, StubBackend]]:
    """A client of a gateway over an engine that keeps what it was asked."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(canned(*SAID))
        backend = StubBackend(engine.port, card=ROOMY)
        gateway = await stack.enter_async_context(gateway_over(backend))
        yield await stack.enter_async_context(client_of(gateway)), engine, backend


@asynccontextmanager
async def served(*flags: str) -> AsyncIterator[aiohttp.ClientSession]:
    """The same over the fake engine's process."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running(fake_engine("-c", "65536", *flags)))
        gateway = await stack.enter_async_context(gateway_over(StubBackend(engine.port, card=ROOMY)))
        yield await stack.enter_async_context(client_of(gateway))


def events(text: str) -> list[dict[str, Any]]:
    """As OpenAI's clients read a stream: every ``data:`` line up to ``[DONE]``, which must be there."""
    told = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert told[-1] == "[DONE]"
    return [json.loads(data) for data in told[:-1]]


def named(text: str) -> list[tuple[str, dict[str, Any]]]:
    """As clients of named events read one."""
    read = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n", 1)
            read.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return read


@pytest.mark.parametrize("body", [AIDER_OPENAI, AIDER_PREFILL, CONTINUE_OPENAI, CLINE, ROO])
async def test_openai_chats_get_to_the_engine_as_they_came(body: dict[str, Any]) -> None:
    async with recorded() as (client, engine, _):
        headers = {"Authorization": "Bearer sk-none", "User-Agent": "agent/1.0"}
        async with client.post("/v1/chat/completions", json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            said = events(await reply.text())
    assert engine.asked == [body]  # fields that nobody here knows too
    assert "".join(c["delta"].get("content") or "" for e in said for c in e["choices"]) == "Weighed."
    assert said[-1]["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("body", [AIDER_OPENAI, CONTINUE_OPENAI, CLINE, ROO])
async def test_agents_get_their_usage_when_they_ask_for_it(body: dict[str, Any]) -> None:
    async with served() as client, client.post("/v1/chat/completions", json=body) as reply:
        said = events(await reply.text())
    wanted = "stream_options" in body
    assert [bool(event.get("usage")) for event in said].count(True) == wanted
    assert not wanted or said[-1]["choices"] == []
    assert said[-2 if wanted else -1]["choices"][0]["finish_reason"] in {"stop", "length"}


@pytest.mark.parametrize("body", [AIDER_OLLAMA, CLINE_OLLAMA])
async def test_ollama_chats_keep_all_but_the_wish_for_another_context(body: dict[str, Any]) -> None:
    async with recorded() as (client, engine, backend):
        for growth in (0, 512):  # with each turn
            grown = {**body, "options": {**body["options"], "num_ctx": body["options"]["num_ctx"] + growth}}
            async with client.post("/api/chat", json=grown) as reply:
                assert reply.status == 200, await reply.text()
                lines = [json.loads(line) for line in (await reply.text()).splitlines()]
            assert "".join(line["message"]["content"] for line in lines) == "Weighed."
            assert (lines[-1]["done"], lines[-1]["done_reason"]) == (True, "stop")
            assert (lines[-1]["prompt_eval_count"], lines[-1]["eval_count"]) == (20, 7)
    first, second = engine.asked
    assert first == second
    assert [(m["role"], m["content"]) for m in first["messages"]] == [
        (m["role"], m["content"]) for m in body["messages"]
    ]
    assert not {"num_ctx", "n_ctx", "options"} & first.keys()
    for theirs, ours in (("temperature", "temperature"), ("num_predict", "max_tokens")):
        assert first.get(ours) == body["options"].get(theirs)
    assert backend.state == "ready"


async def test_continue_completes_code_three_ways() -> None:
    async with served() as client:
        async with client.post("/completion", json=CONTINUE_LLAMA_CPP) as reply:
            assert reply.status == 200, await reply.text()
            native = [
                json.loads(line[6:]) for line in (await reply.text()).splitlines() if line.startswith("data: ")
            ]
        async with client.post("/api/generate", json=CONTINUE_GENERATE) as reply:
            lines = [json.loads(line) for line in (await reply.text()).splitlines()]
        body = {"model": "demo", "prompt": CONTINUE_GENERATE["prompt"], "max_tokens": 12, "stream": True}
        async with client.post("/v1/completions", json=body) as reply:
            said = events(await reply.text())
    texts = {
        "".join(event["content"] for event in native),
        "".join(line["response"] for line in lines),
        "".join(choice["text"] for event in said for choice in event["choices"]),
    }
    assert len(texts) == 1
    assert len(texts.pop().split()) == 12
    assert (native[-1]["stop"], lines[-1]["done"]) == (True, True)


async def test_continue_embeds_two_ways() -> None:
    async with served("--embeddings") as client:
        async with client.post("/v1/embeddings", json={"model": "demo", "input": ["a", "b"]}) as reply:
            rows = [row["embedding"] for row in (await reply.json())["data"]]
        async with client.post("/api/embed", json={"model": "demo", "input": ["a", "b"]}) as reply:
            assert (await reply.json())["embeddings"] == rows
    assert len(rows) == 2


async def test_open_webuis_own_questions() -> None:
    async with served() as client, client.post("/v1/chat/completions", json=OPEN_WEBUI_TITLE) as reply:
        assert (await reply.json())["choices"][0]["message"]["content"]


async def test_codex() -> None:
    async with recorded() as (client, engine, _):
        headers = {"Authorization": "Bearer none", "Accept": "text/event-stream", "session_id": "0199"}
        async with client.post("/v1/responses", json=CODEX | {"model": "demo"}, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            assert reply.headers["X-Terazi-Left-Out"] == "web_search"
            said = named(await reply.text())
    assert (said[0][0], said[-1][0]) == ("response.created", "response.completed")
    assert all(name == event["type"] for name, event in said)
    assert [event["sequence_number"] for _, event in said] == list(range(len(said)))
    final = said[-1][1]["response"]
    assert final["usage"]["input_tokens_details"]["cached_tokens"] == 12  # it adds its costs up from these
    assert final["output"][0]["content"][0]["text"] == "Weighed."
    assert [tool["function"]["name"] for tool in engine.asked[0]["tools"]] == ["shell", "apply_patch"]


async def test_claude_code() -> None:
    async with recorded() as (client, engine, _):
        headers = {"x-api-key": "none", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
        async with client.post("/v1/messages?beta=true", json=CLAUDE_CODE, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            said = named(await reply.text())
        counted = {name: CLAUDE_CODE[name] for name in ("model", "system", "messages", "tools")}
        async with client.post("/v1/messages/count_tokens?beta=true", json=counted, headers=headers) as reply:
            # this engine has no way to count; it is told, and goes on without
            assert reply.status == 501
            assert (await reply.json())["type"] == "error"
        again = json.loads(json.dumps(CLAUDE_CODE).replace("cch=a5145", "cch=b0000"))
        async with client.post("/v1/messages?beta=true", json=again, headers=headers) as reply:
            await reply.read()
    assert next(name for name, _ in said if name != "ping") == "message_start"
    assert said[-1][0] == "message_stop"
    assert said[0][1]["message"]["model"] == CLAUDE_CODE["model"]  # the name that it asked for
    # the number that it changes each time would cost the whole prompt's cache
    assert engine.asked[0] == engine.asked[1]

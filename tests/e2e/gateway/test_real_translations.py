"""The real ``anthropic`` and ``openai`` clients on the translated endpoints, to the real llama-server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import aiohttp
import anthropic
import openai
import pytest
from anthropic.types import MessageParam, ToolParam
from openai.types.responses import FunctionToolParam, ResponseInputParam

from serving import ENGINE_KEY, EngineProcess, StubBackend, gateway_over, real_engine, running
from terazi.gateway.server import Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ASK = "Name three things that can be weighed."
SCHEMA: dict[str, object] = {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]}
WEIGH: ToolParam = {"name": "get_weight", "description": "Weigh a thing", "input_schema": SCHEMA}
FUNCTION: FunctionToolParam = {"type": "function", "name": "get_weight", "parameters": SCHEMA, "strict": False}


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    """The demo model with a template that knows tools, which its own doesn't."""
    template = str(Path(__file__).with_name("tools.jinja"))
    flags = ("-c", "2048", "-np", "1", "--jinja", "--chat-template-file", template)
    async with running(real_engine(*flags)) as process:
        yield process


@pytest.fixture
async def gateway(engine: EngineProcess) -> AsyncIterator[Gateway]:
    async with gateway_over(StubBackend(engine.port)) as running_gateway:
        yield running_gateway


@pytest.fixture
async def claude(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.address, api_key="any", max_retries=0) as client:
        yield client


async def own_text(engine: EngineProcess, limit: int) -> str:
    """The engine's own answer, asked directly."""
    body = {"messages": [{"role": "user", "content": ASK}], "temperature": 0, "max_tokens": limit}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {ENGINE_KEY}"}) as session,
        session.post(f"http://127.0.0.1:{engine.port}/v1/chat/completions", json=body) as reply,
    ):
        return str((await reply.json())["choices"][0]["message"]["content"])


def weighings() -> list[MessageParam]:
    """Some rounds of weighing, so that even a very small model knows what to do with the last question."""
    told: list[MessageParam] = []
    for thing, kg in {"silver": 3, "copper": 5, "iron": 7, "lead": 9}.items():
        told += [
            {"role": "user", "content": f"Weigh the {thing}."},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": f"c_{thing}", "name": "get_weight", "input": {"thing": thing}}
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"c_{thing}", "content": f"{kg} kg"}],
            },
            {"role": "assistant", "content": f"It weighs {kg} kg."},
        ]
    return [*told, {"role": "user", "content": "Weigh the gold."}]


def as_items() -> ResponseInputParam:
    """The same rounds as items."""
    items: list[object] = []
    for message in weighings():
        content = message["content"]
        if isinstance(content, str):
            items.append({"role": message["role"], "content": content})
            continue
        for block in cast("list[dict[str, object]]", content):
            if block["type"] == "tool_use":
                arguments = json.dumps(block["input"])
                items.append(
                    {"type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": arguments}
                )
            else:
                output = block["content"]
                items.append({"type": "function_call_output", "call_id": block["tool_use_id"], "output": output})
    return cast("ResponseInputParam", items)


async def test_the_engines_own_text_in_both(
    engine: EngineProcess, gateway: Gateway, claude: anthropic.AsyncAnthropic
) -> None:
    wanted = await own_text(engine, 24)
    messages: list[MessageParam] = [{"role": "user", "content": ASK}]
    greedy = {"temperature": 0}
    whole = await claude.messages.create(model="demo", max_tokens=24, messages=messages, extra_body=greedy)
    assert [getattr(block, "text", None) for block in whole.content] == [wanted]
    async with claude.messages.stream(model="demo", max_tokens=24, messages=messages, extra_body=greedy) as stream:
        final = await stream.get_final_message()
    assert [getattr(block, "text", None) for block in final.content] == [wanted]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 24)
    # tokens of the prompt: as counted before, as the answer says, cached ones included
    counted = await claude.messages.count_tokens(model="demo", messages=messages)
    for usage in (whole.usage, final.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert final.usage.cache_read_input_tokens
    async with openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="any") as client:
        response = await client.responses.create(model="demo", input=ASK, max_output_tokens=24, temperature=0)
        assert (response.output_text, response.status) == (wanted, "incomplete")
        assert response.usage is not None
        assert response.usage.input_tokens == counted.input_tokens
        async with client.responses.stream(
            model="demo", input=ASK, max_output_tokens=24, temperature=0
        ) as streaming:
            pieces = [event.delta async for event in streaming if event.type == "response.output_text.delta"]
        assert "".join(pieces) == wanted
        assert len(pieces) > 12


async def test_stops_prefills_and_schemas(engine: EngineProcess, claude: anthropic.AsyncAnthropic) -> None:
    wanted = await own_text(engine, 24)
    stop = wanted.split()[6]
    greedy = {"temperature": 0}
    messages: list[MessageParam] = [{"role": "user", "content": ASK}]
    stopped = await claude.messages.create(
        model="demo", max_tokens=1500, messages=messages, stop_sequences=[stop], extra_body=greedy
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert getattr(stopped.content[0], "text", None) == wanted.partition(stop)[0]
    assert stopped.usage.output_tokens < 24
    begun: list[MessageParam] = [*messages, {"role": "assistant", "content": wanted.partition(stop)[0].rstrip()}]
    continued = await claude.messages.create(model="demo", max_tokens=8, messages=begun, extra_body=greedy)
    text = getattr(continued.content[0], "text", "")
    assert text
    assert wanted.split()[0] not in text.split()[:1]  # it goes on, and doesn't begin again
    shaped = await claude.messages.create(
        model="demo",
        max_tokens=200,
        messages=messages,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    if shaped.stop_reason == "end_turn":
        assert isinstance(json.loads(getattr(shaped.content[0], "text", ""))["thing"], str)


async def test_tools_through_both(gateway: Gateway, claude: anthropic.AsyncAnthropic) -> None:
    greedy = {"temperature": 0}
    whole = await claude.messages.create(
        model="claude-next-1", max_tokens=100, messages=weighings(), tools=[WEIGH], extra_body=greedy
    )
    async with claude.messages.stream(
        model="demo", max_tokens=100, messages=weighings(), tools=[WEIGH], extra_body=greedy
    ) as stream:
        final = await stream.get_final_message()
    for message in (whole, final):
        (call,) = [block for block in message.content if block.type == "tool_use"]
        assert (call.name, call.input, message.stop_reason) == ("get_weight", {"thing": "gold"}, "tool_use")
        assert call.id
    async with openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="any") as client:
        asked = client.responses.stream(model="demo", input=as_items(), tools=[FUNCTION], temperature=0)
        async with asked as streaming:
            response = await streaming.get_final_response()
    (called,) = [item for item in response.output if item.type == "function_call"]
    assert (called.name, json.loads(called.arguments)) == ("get_weight", {"thing": "gold"})


async def test_a_forced_tool(claude: anthropic.AsyncAnthropic) -> None:
    other: ToolParam = {"name": "sing", "input_schema": {"type": "object", "properties": {}}}
    message = await claude.messages.create(
        model="demo",
        max_tokens=200,
        messages=[{"role": "user", "content": "Weigh the gold."}],
        tools=[other, WEIGH],
        tool_choice={"type": "tool", "name": "get_weight"},
    )
    if message.stop_reason == "tool_use":
        assert [block.name for block in message.content if block.type == "tool_use"] == ["get_weight"]


async def test_openai_chat_options(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="any", max_retries=0) as client:
        probed = await client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": ASK}], max_tokens=4, logprobs=True, top_logprobs=2
        )
        assert probed.choices[0].logprobs is not None
        assert [len(one.top_logprobs) for one in probed.choices[0].logprobs.content or []] == [2] * 4
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": ASK}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        last = [event async for event in stream][-1]
        assert last.usage is not None
        assert (last.choices, last.usage.completion_tokens) == ([], 4)
        url = "data:image/png;base64,iVBORw0KGgo="
        with pytest.raises(openai.BadRequestError, match="takes no images"):
            await client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
            )

"""OpenAI's own client, and what of Anthropic's classes needs a queue: each fault is raised as its class.

Nothing is tried again by the clients here (``max_retries=0``), so that what is seen is the gateway's own answer.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest
from aiohttp import web
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from canned import USAGE, answering, call, canned, chunk
from queueing import shared_engine
from serving import CARD, StubBackend, fake_engine, gateway_over, running
from terazi.gateway.backend import Served
from terazi.gateway.call import Caller
from terazi.gateway.server import Gateway

pytestmark = pytest.mark.timeout(60)

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
IMAGE: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ"}}]}
]
WEIGH: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "weigh", "parameters": {"type": "object", "properties": {}}},
}
#: Asked for more than its minute holds, it is turned away with the time that it has to wait.
SLOW = Caller(name="slow", tokens_per_minute=30)
OFF = {"X-Terazi-Resume": "off"}


def client(gateway: Gateway, key: str = "k") -> openai.AsyncOpenAI:
    """OpenAI's client of *gateway*."""
    return openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key=key, max_retries=0)


@asynccontextmanager
async def asking(
    *backends: Served, api_key: str | None = None, key: str = "k"
) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same of a gateway over *backends*."""
    async with gateway_over(*backends, api_key=api_key) as gateway, client(gateway, key) as ask:
        yield ask


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_have_their_classes(*, stream: bool) -> None:
    told: dict[str, object] = {"error": {"message": "the prompt is too long", "type": "exceed_context_size_error"}}
    async with canned(told, status=400) as engine:
        async with asking(StubBackend(engine.port), api_key="k", key="wrong") as ask:
            with pytest.raises(openai.AuthenticationError) as denied:
                await ask.chat.completions.create(model="demo", messages=HELLO, stream=stream)
            assert (denied.value.type, denied.value.code) == ("authentication_error", "invalid_api_key")
        async with asking(StubBackend(engine.port), api_key="k") as ask:
            with pytest.raises(openai.NotFoundError, match=f"served here: {CARD.id}") as missing:
                await ask.chat.completions.create(model="gpt-5", messages=HELLO, stream=stream)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError, match="too long") as long:
                await ask.chat.completions.create(model="demo", messages=HELLO, stream=stream)
            assert long.value.type == "exceed_context_size_error"
            asked = len(engine.asked)
            with pytest.raises(openai.BadRequestError, match="takes no images"):
                await ask.chat.completions.create(model="demo", messages=IMAGE, stream=stream)
            assert len(engine.asked) == asked  # the image never got there
            with pytest.raises(openai.NotFoundError):
                await ask.models.retrieve("gpt-5")


@pytest.mark.parametrize("stream", [False, True])
async def test_no_engine_is_an_internal_server_error_with_the_time_to_come_again(*, stream: bool) -> None:
    async with asking(StubBackend(1, state="failed")) as ask:
        with pytest.raises(openai.InternalServerError) as away:
            await ask.chat.completions.create(model="demo", messages=HELLO, stream=stream)
    assert isinstance(away.value, openai.APIStatusError)
    assert (away.value.status_code, away.value.code) == (503, "engine_unavailable")
    assert int(away.value.response.headers["retry-after"]) >= 1


async def test_a_rate_that_is_spent_is_a_rate_limit_error_in_both() -> None:
    async with shared_engine(1, SLOW) as place:
        async with client(place.gateway, "key-of-slow") as ask:
            await ask.chat.completions.create(model="demo", messages=HELLO, max_tokens=10)
            with pytest.raises(openai.RateLimitError) as limited:
                await ask.chat.completions.create(model="demo", messages=HELLO, max_tokens=400)
        assert limited.value.code == "rate_limit_exceeded"
        assert 1 <= int(limited.value.response.headers["retry-after"]) <= 61
        async with anthropic.AsyncAnthropic(
            base_url=place.gateway.address, api_key="key-of-slow", max_retries=0
        ) as ask:
            with pytest.raises(anthropic.RateLimitError) as held:
                await ask.messages.create(
                    model="demo", max_tokens=400, messages=[{"role": "user", "content": "hello"}]
                )
        assert held.value.type == "rate_limit_error"
        assert 1 <= int(held.value.response.headers["retry-after"]) <= 61


async def test_an_error_in_the_middle_of_a_stream_is_raised_there() -> None:
    flags = ("--fake-tokens", "40", "--fake-exit-at", "after-tokens:5")
    words = []
    async with running(fake_engine(*flags)) as engine, asking(StubBackend(engine.port)) as ask:
        stream = await ask.chat.completions.create(model="demo", messages=HELLO, stream=True, extra_headers=OFF)
        with pytest.raises(openai.APIError, match="before the answer was complete") as cut:  # noqa: PT012 - it is a stream
            async for part in stream:
                words += [choice.delta.content for choice in part.choices if choice.delta.content]
    assert len(words) == 5
    assert not isinstance(cut.value, openai.APIStatusError)  # its status was 200
    assert (cut.value.type, cut.value.code) == ("engine_error", "engine_cut")


SAME = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": CARD.id}
CALLS = [
    chunk(role="assistant", content=None),
    call(0, "call_a", "weigh", '{"thing": "gold"'),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": "}"}}]),
    call(1, "call_b", "weigh", '{"thing": "lead"}'),
    chunk("tool_calls"),
    USAGE,
]


@pytest.mark.parametrize("headers", [{}, OFF])
async def test_parallel_tool_calls_streamed(headers: dict[str, str]) -> None:
    """Held back until they are whole, or as they come: the client adds them up to the same."""
    async with canned(*({**SAME, **event} for event in CALLS)) as engine, asking(StubBackend(engine.port)) as ask:
        indices = []
        async with ask.chat.completions.stream(
            model="demo", messages=HELLO, tools=[WEIGH], parallel_tool_calls=True, extra_headers=headers
        ) as stream:
            async for event in stream:
                if event.type == "chunk":
                    for choice in event.chunk.choices:
                        indices += [one.index for one in choice.delta.tool_calls or () if one.id]
            final = (await stream.get_final_completion()).choices[0]
    assert indices == [0, 1]
    calls = final.message.tool_calls or ()
    assert final.finish_reason == "tool_calls"
    assert [(one.id, json.loads(one.function.arguments)) for one in calls] == [
        ("call_a", {"thing": "gold"}),
        ("call_b", {"thing": "lead"}),
    ]


async def test_parallel_tool_calls_whole_and_their_answers() -> None:
    """Each call keeps its id on the way out, and the answers to both find theirs on the way in."""
    seen: list[dict[str, object]] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        calls = [
            {"id": f"call_{one}", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}
            for one in "ab"
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": CARD.id, "choices": [choice]}
        )

    async with answering("/v1/chat/completions", chat) as port, asking(StubBackend(port)) as ask:
        answer = await ask.chat.completions.create(model="demo", messages=HELLO, tools=[WEIGH])
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [one.id for one in message.tool_calls or ()] == ["call_a", "call_b"]
        weighed: list[ChatCompletionMessageParam] = [
            {"role": "tool", "tool_call_id": one.id, "content": "1 kg"} for one in message.tool_calls or ()
        ]
        # as their own guide sends it back
        history: list[ChatCompletionMessageParam] = [*HELLO, message.to_dict(), *weighed]  # type: ignore[list-item]
        await ask.chat.completions.create(model="demo", messages=history, tools=[WEIGH])
    told = seen[-1]["messages"]
    assert isinstance(told, list)
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "tool"]
    assert [one["id"] for one in told[1]["tool_calls"]] == [one["tool_call_id"] for one in told[2:]]

"""OpenAI's own client on ``/v1/responses`` of the gateway, over engines that say what a test wants."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseInputParam

from canned import USAGE, call, canned, chunk
from serving import StubBackend, fake_engine, gateway_over, running
from terazi.gateway.backend import Served

pytestmark = pytest.mark.timeout(60)
WEIGH: FunctionToolParam = {
    "type": "function",
    "name": "weigh",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
IMAGE: ResponseInputParam = [
    {
        "role": "user",
        "content": [{"type": "input_image", "image_url": "data:image/png;base64,QQ", "detail": "auto"}],
    }
]


@asynccontextmanager
async def asking(*backends: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of a gateway over *backends*; nothing is tried again here."""
    plain = {"X-Terazi-Resume": "off"}
    async with (
        gateway_over(*backends) as gateway,
        openai.AsyncOpenAI(
            base_url=f"{gateway.address}/v1", api_key="any", max_retries=0, default_headers=plain
        ) as client,
    ):
        yield client


async def test_whole_and_streamed_are_the_same() -> None:
    async with running(fake_engine()) as engine, asking(StubBackend(engine.port)) as ask:
        whole = await ask.responses.create(model="demo", input="hello", max_output_tokens=30)
        async with ask.responses.stream(model="demo", input="hello", max_output_tokens=30) as stream:
            streamed = await stream.get_final_response()
    assert whole.output_text == streamed.output_text != ""
    assert (whole.status, whole.usage) == ("completed", streamed.usage)
    assert whole.usage is not None
    assert whole.usage.output_tokens == 16


async def test_a_conversation_goes_on_by_its_id() -> None:
    async with (
        canned(chunk(content="Gold."), chunk("stop"), USAGE) as engine,
        asking(StubBackend(engine.port)) as ask,
    ):
        first = await ask.responses.create(model="demo", input="Heavy?", instructions="Be brief.")
        second = await ask.responses.create(model="demo", input="Why?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert [(message["role"], message["content"]) for message in engine.asked[-1]["messages"]] == [
            ("user", "Heavy?"),
            ("assistant", "Gold."),
            ("user", "Why?"),
        ]
        unkept = await ask.responses.create(model="demo", input="Heavy?", store=False)
        for unknown in (unkept.id, "resp_none"):
            with pytest.raises(openai.BadRequestError) as caught:
                await ask.responses.create(model="demo", input="Why?", previous_response_id=unknown)
            assert caught.value.code == "previous_response_not_found"


async def test_tools_and_thoughts() -> None:
    events = [
        chunk(reasoning_content="Two things."),
        call(0, "call_a", "weigh", '{"thing": "gold"}'),
        call(0, "call_b", "weigh", '{"thing": "lead"}'),  # one index for both, as some engines have it
        chunk("tool_calls"),
        USAGE,
    ]
    async with canned(*events) as engine, asking(StubBackend(engine.port)) as ask:  # noqa: SIM117 - it gets too long
        async with ask.responses.stream(model="demo", input="hello", tools=[WEIGH]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "function_call", "function_call"]
    assert [(item.call_id, item.arguments) for item in final.output if item.type == "function_call"] == [
        ("call_a", '{"thing": "gold"}'),
        ("call_b", '{"thing": "lead"}'),
    ]


async def test_a_stream_that_breaks_off_fails() -> None:
    async with canned(chunk(content="x"), done=False) as engine, asking(StubBackend(engine.port)) as ask:
        events = [event async for event in await ask.responses.create(model="demo", input="a", stream=True)]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert "before the answer was complete" in events[-1].response.error.message
        with pytest.raises(openai.InternalServerError, match="before the answer was complete"):
            await ask.responses.create(model="demo", input="a")


async def test_errors_have_their_classes() -> None:
    async with asking(StubBackend(1)) as ask:
        with pytest.raises(openai.NotFoundError, match="served here"):
            await ask.responses.create(model="none", input="a")
        with pytest.raises(openai.BadRequestError, match="takes no images"):
            await ask.responses.create(model="demo", input=IMAGE)
        with pytest.raises(openai.BadRequestError, match="conversation"):
            await ask.responses.create(model="demo", input="a", conversation="conv_1")

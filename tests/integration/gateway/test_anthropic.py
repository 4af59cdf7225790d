"""Anthropic's own client against the gateway, over engines that say what a test wants."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from canned import USAGE, call, canned, chunk
from serving import CARD, StubBackend, client_of, fake_engine, gateway_over, ledger, running, until
from terazi.gateway.account import Entry, Reader
from terazi.gateway.backend import Served

pytestmark = pytest.mark.timeout(60)

HELLO: list[MessageParam] = [{"role": "user", "content": "hello"}]
SCALE: ToolParam = {"name": "weigh", "input_schema": {"type": "object", "properties": {}}}
IMAGE: list[MessageParam] = [
    {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}}],
    }
]


@asynccontextmanager
async def asking(
    *backends: Served, key: str = "any", api_key: str | None = None, readers: tuple[Reader, ...] = ()
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client of a gateway over *backends*; nothing is tried again here."""
    plain = {"X-Terazi-Resume": "off"}
    async with (
        gateway_over(*backends, api_key=api_key, readers=readers) as gateway,
        anthropic.AsyncAnthropic(
            base_url=gateway.address, api_key=key, max_retries=0, default_headers=plain
        ) as client,
    ):
        yield client


async def say(ask: anthropic.AsyncAnthropic, model: str = "demo") -> anthropic.types.Message:
    """A short answer."""
    return await ask.messages.create(model=model, max_tokens=8, messages=HELLO)


async def stream_out(ask: anthropic.AsyncAnthropic) -> tuple[str, anthropic.types.Message]:
    """The same, streamed: its text, and what it adds up to."""
    async with ask.messages.stream(model="demo", max_tokens=8, messages=HELLO) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        return text, await stream.get_final_message()


async def test_whole_and_streamed_are_the_same() -> None:
    async with running(fake_engine()) as engine, asking(StubBackend(engine.port)) as ask:
        whole, (text, streamed) = await say(ask), await stream_out(ask)
    assert whole.content[0].type == "text"
    assert whole.content[0].text == text
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)
    assert (whole.stop_reason, whole.usage.output_tokens, whole.model) == ("max_tokens", 8, "demo")
    assert whole.usage.input_tokens > 0


async def test_thinking_and_parallel_tools() -> None:
    events = [
        chunk(role="assistant", content=None),
        chunk(reasoning_content="Two things."),
        call(0, "call_a", "weigh", '{"thing": "gold"}'),
        call(1, "call_b", "weigh", '{"thing": "lead"}'),
        chunk("tool_calls"),
        USAGE,
    ]
    async with canned(*events) as engine, asking(StubBackend(engine.port)) as ask:
        async with ask.messages.stream(
            model="demo",
            max_tokens=2000,
            messages=HELLO,
            tools=[SCALE],
            tool_choice={"type": "any", "disable_parallel_tool_use": False},
            thinking={"type": "enabled", "budget_tokens": 1024},
        ) as stream:
            message = await stream.get_final_message()
        assert [block.type for block in message.content] == ["thinking", "tool_use", "tool_use"]
        calls = [block for block in message.content if block.type == "tool_use"]
        assert [(block.id, block.input) for block in calls] == [
            ("call_a", {"thing": "gold"}),
            ("call_b", {"thing": "lead"}),
        ]
        assert message.stop_reason == "tool_use"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (8, 12)
        # and back again, with what came of them
        history: list[MessageParam] = [
            *HELLO,
            {"role": "assistant", "content": message.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": one.id, "content": "1 kg"} for one in calls],
            },
        ]
        await ask.messages.create(model="demo", max_tokens=5, messages=history, tools=[SCALE])
    asked = engine.asked[-1]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "tool"]
    assert asked[1]["reasoning_content"] == "Two things."
    called = [one["id"] for one in asked[1]["tool_calls"]]
    assert called == [message["tool_call_id"] for message in asked[2:]] == ["call_a", "call_b"]


async def test_a_stop_sequence_ends_the_generation() -> None:
    flags = ("--fake-tokens", "10000", "--fake-token-delay-s", "0.002")
    async with running(fake_engine(*flags)) as engine, asking(StubBackend(engine.port)) as ask:
        plain = await say(ask)
        assert plain.content[0].type == "text"
        stop = plain.content[0].text.split()[5]
        stopped = await ask.messages.create(
            model="demo", max_tokens=5000, messages=HELLO, stop_sequences=["never said", stop]
        )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].type == "text"
    assert stopped.content[0].text == plain.content[0].text.partition(stop)[0]
    assert 0 < stopped.usage.output_tokens <= 6


class Book:
    """Keeps the entries that it is shown."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def noted(self, entry: Entry) -> None:
        """As ``Reader`` has it."""
        self.entries.append(entry)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_ends_at_a_stop_sequence_is_accounted_as_complete(
    stream: bool, tmp_path: Path
) -> None:
    flags = ("--fake-tokens", "10000", "--fake-token-delay-s", "0.002", "--fake-ledger", str(tmp_path / "ledger"))
    book = Book()
    async with running(fake_engine(*flags)) as engine:
        backend = StubBackend(engine.port)
        async with asking(backend, readers=(book,)) as ask:
            plain = await say(ask)
            assert plain.content[0].type == "text"
            stop = plain.content[0].text.split()[5]
            answer = await ask.messages.create(
                model="demo", max_tokens=5000, messages=HELLO, stop_sequences=[stop], stream=stream
            )
            if isinstance(answer, anthropic.AsyncStream):
                assert [event.type async for event in answer][-1] == "message_stop"
            await until(lambda: len(book.entries) == 2)
            # the engine is freed all the same
            await until(lambda: [e["event"] for e in ledger(tmp_path / "ledger")].count("abandoned") == 1)
            assert backend.in_flight == 0
    entry = book.entries[-1]
    assert (entry.outcome.status, entry.client_gone, entry.outcome.code) == (200, False, None)
    assert [attempt.lost for attempt in entry.outcome.attempts] == [None]


async def test_tokens_are_counted_by_the_engine() -> None:
    async with running(fake_engine()) as engine, asking(StubBackend(engine.port)) as ask:
        one = await ask.messages.count_tokens(model="claude-next-1", messages=HELLO)
        more = await ask.messages.count_tokens(model="demo", messages=[{"role": "user", "content": "hello!!"}])
        assert one.input_tokens == len("<user> hello\n<assistant> ")
        assert more.input_tokens == one.input_tokens + 2
        with pytest.raises(anthropic.BadRequestError, match="takes no images"):
            await ask.messages.count_tokens(model="demo", messages=IMAGE)


async def test_their_model_names_mean_the_only_chat_model() -> None:
    vectors = replace(CARD, id="vectors", aliases=(), capabilities=("embedding",))
    other = replace(CARD, id="other", aliases=("claude-next-small",))
    async with canned(chunk(content="x"), chunk("stop")) as engine:
        async with asking(StubBackend(engine.port), StubBackend(1, card=vectors)) as ask:
            assert (await say(ask, "claude-next-1-20261101")).model == "claude-next-1-20261101"
            assert engine.asked[-1]["model"] == CARD.id
            with pytest.raises(anthropic.NotFoundError):
                await say(ask, "gpt-5")
        async with asking(StubBackend(1), StubBackend(engine.port, card=other)) as ask:
            await say(ask, "claude-next-small")
            assert engine.asked[-1]["model"] == "other"
            with pytest.raises(anthropic.NotFoundError, match="served here"):
                await say(ask, "claude-next-1")


async def test_models_are_listed_in_their_shape() -> None:
    async with asking(StubBackend(1)) as ask:
        assert [model.id async for model in ask.models.list()] == [CARD.id]
        model = await ask.models.retrieve("demo")
        assert (model.id, model.type, model.max_input_tokens) == (CARD.id, "model", CARD.context_length)
        with pytest.raises(anthropic.NotFoundError) as caught:
            await ask.models.retrieve("none")
        assert caught.value.type == "not_found_error"


async def test_errors_have_their_classes() -> None:
    told: dict[str, object] = {"error": {"message": "the prompt is too long", "type": "exceed_context_size_error"}}
    long: list[MessageParam] = [{"role": "user", "content": "x" * (1 << 20)}]
    async with canned(told, status=400) as engine:
        async with asking(StubBackend(engine.port), api_key="k", key="wrong") as ask:
            with pytest.raises(anthropic.AuthenticationError) as denied:
                await say(ask)
            assert denied.value.type == "authentication_error"
        async with asking(StubBackend(engine.port), api_key="k", key="k") as ask:
            with pytest.raises(anthropic.BadRequestError, match="too long"):
                await say(ask)
            with pytest.raises(anthropic.BadRequestError, match="takes no images"):
                await ask.messages.create(model="demo", max_tokens=5, messages=IMAGE)
            with pytest.raises(anthropic.RequestTooLargeError):
                await ask.messages.create(model="demo", max_tokens=5, messages=long)
            assert len(engine.asked) == 1  # the image never got there
    async with asking(StubBackend(1, state="failed")) as ask:
        with pytest.raises(anthropic.OverloadedError) as busy:
            await say(ask)
        assert busy.value.type == "overloaded_error"
        assert busy.value.response.headers["retry-after"]


async def test_an_answer_that_breaks_off_raises() -> None:
    async with canned(chunk(content="x"), done=False) as engine, asking(StubBackend(engine.port)) as ask:
        for answer in (stream_out, say):
            with pytest.raises(anthropic.APIStatusError, match="before the answer was complete") as caught:
                await answer(ask)
            assert caught.value.type == "api_error"


async def test_an_answer_that_breaks_off_is_continued() -> None:
    events = [
        chunk(role="assistant", content=None),
        chunk(content="one "),
        chunk(content="two"),
        chunk("stop"),
        USAGE,
    ]
    async with (
        canned(*events, first_cut_after=2) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.address, api_key="any", max_retries=0) as ask,
    ):
        text, message = await stream_out(ask)
    # the second engine was given what the client had, and says all of its own answer after it
    assert engine.asked[1]["messages"][-1] == {"role": "assistant", "content": "one "}
    assert text == "one one two"
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason == "end_turn"


async def test_an_error_before_the_first_word_is_a_status() -> None:
    broken: dict[str, object] = {"error": {"message": "out of slots", "type": "server_error"}}
    async with canned(broken) as engine, asking(StubBackend(engine.port)) as ask:
        for answer in (stream_out, say):
            with pytest.raises(anthropic.InternalServerError, match="out of slots"):
                await answer(ask)


async def test_what_was_left_out_is_told_in_a_header() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    body = {"model": "demo", "max_tokens": 5, "messages": HELLO, "tools": [SCALE, search]}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,oauth-2025-04-20"}
    async with (
        canned(chunk(content="x"), chunk("stop")) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway, **headers) as plain,
    ):
        for stream in (False, True):
            async with plain.post("/v1/messages?beta=true", json={**body, "stream": stream}) as reply:
                assert reply.status == 200
                assert reply.headers["X-Terazi-Left-Out"] == "web_search"
                assert reply.headers["X-Request-Id"].startswith("req-")
        async with plain.post("/v1/messages/none", json={}) as reply:
            assert (await reply.json())["type"] == "error"
    assert [tool["function"]["name"] for tool in engine.asked[0]["tools"]] == ["weigh"]
    assert "web_search" not in json.dumps(engine.asked[0])

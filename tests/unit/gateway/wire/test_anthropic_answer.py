"""Anthropic's events, held against the types and the accumulation of Anthropic's own client."""

import json

import jiter  # noqa: F401 - Anthropic's client imports it while it works
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from terazi.gateway.wire.anthropic_answer import MessageTranslator, encode, message_of
from terazi.gateway.wire.errors import WireError

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def chunk(finish: str | None = None, **delta: object) -> bytes:
    """One event of the engine."""
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


def tool(index: int, *, arguments: str, **more: str) -> dict[str, object]:
    """A fragment of a tool call."""
    name = {"name": more["name"]} if "name" in more else {}
    given = {"id": more["id"]} if "id" in more else {}
    return {"index": index, **given, "function": {**name, "arguments": arguments}}


USAGE = {"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 12}}
LAST = json.dumps({"choices": [], "usage": USAGE}).encode()
ROLE = chunk(role="assistant", content=None)


def translated(*data: bytes, **options: object) -> list[dict[str, object]]:
    """All events of an answer."""
    translator = MessageTranslator(message_id="msg_1", model="their-name", **options)  # type: ignore[arg-type]
    events = [event for one in data for event in translator.feed(one)]
    return events + translator.end()


def as_the_client_has_it(events: list[dict[str, object]]) -> Message:
    """What Anthropic's own client makes of *events*; each must be of its types."""
    snapshot, buffers = None, dict[int, bytes]()
    for event in events:
        if event["type"] != "ping":
            snapshot = accumulate_event(
                event=EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers
            )
    assert snapshot is not None
    return snapshot


def test_everything_in_one_answer() -> None:
    events = translated(
        ROLE,
        chunk(reasoning_content="I "),
        chunk(reasoning_content="think."),
        chunk(content="So"),
        chunk(content=" it is."),
        chunk(tool_calls=[tool(0, id="call_a", name="f", arguments='{"x"')]),
        chunk(tool_calls=[tool(0, arguments=": 1}")]),
        chunk(tool_calls=[tool(1, id="call_b", name="g", arguments="{}")]),
        chunk(finish="tool_calls"),
        LAST,
        b"[DONE]",
    )
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    message = as_the_client_has_it(events)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [getattr(block, "id", None) for block in message.content[2:]] == ["call_a", "call_b"]
    assert [getattr(block, "input", None) for block in message.content[2:]] == [{"x": 1}, {}]
    assert message.stop_reason == "tool_use"
    assert message.model == "their-name"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (8, 12)
    assert message.usage.output_tokens == 7
    assert Message.model_validate(message_of(events)).model_dump() == message.model_dump()
    # blocks are opened and closed one after the other
    indices = [event["index"] for event in events if "index" in event]
    assert indices == sorted(indices)  # type: ignore[type-var]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


def test_each_event_is_named() -> None:
    events = translated(ROLE, chunk(content="x"), chunk(finish="stop"))
    for event, sent in zip(events, encode(events).split(b"\n\n"), strict=False):
        name, _, data = sent.partition(b"\n")
        assert name == f"event: {event['type']}".encode()
        assert json.loads(data.removeprefix(b"data: ")) == event


def test_a_stop_sequence_over_several_events() -> None:
    given = [ROLE, chunk(content="one EN"), chunk(content="D"), chunk(content=" two")]
    translator = MessageTranslator(message_id="msg_1", model="m", stops=["END"])
    events = [event for data in given for event in translator.feed(data)]
    assert translator.stopped
    events += translator.end()
    message = as_the_client_has_it(events)
    assert [getattr(block, "text", None) for block in message.content] == ["one "]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert message.usage.output_tokens == 2
    # one that doesn't come
    held = as_the_client_has_it(translated(*given[:2], chunk(finish="stop"), stops=["END"]))
    assert [getattr(block, "text", None) for block in held.content] == ["one EN"]
    assert (held.stop_reason, held.stop_sequence) == ("end_turn", None)
    # one whose beginning stands before a tool call
    call = chunk(tool_calls=[tool(0, id="c", name="f", arguments="{}")])
    mixed = as_the_client_has_it(translated(*given[:2], call, chunk(finish="tool_calls"), stops=["END"]))
    assert [block.type for block in mixed.content] == ["text", "tool_use"]
    assert getattr(mixed.content[0], "text", None) == "one EN"


@pytest.mark.parametrize(
    ("finish", "max_tokens", "reason"),
    [
        ("stop", None, "end_turn"),
        ("length", 7, "max_tokens"),
        ("length", 100, "model_context_window_exceeded"),
        ("length", None, "model_context_window_exceeded"),
        ("content_filter", None, "refusal"),
    ],
)
def test_stop_reasons(finish: str, max_tokens: int | None, reason: str) -> None:
    events = translated(ROLE, chunk(content="x"), chunk(finish=finish), LAST, max_tokens=max_tokens)
    assert message_of(events)["stop_reason"] == reason


def test_counts_come_from_wherever_the_engine_says_them() -> None:
    progress = json.dumps({"choices": [], "prompt_progress": {"total": 50, "cache": 30, "processed": 30}}).encode()
    timed = json.dumps(
        {
            "choices": [{"index": 0, "delta": {"content": "END"}}],
            "timings": {"cache_n": 30, "prompt_n": 20, "predicted_n": 3},
        }
    ).encode()
    start, *rest = translated(progress, timed, stops=["END"])
    assert start["message"]["usage"]["input_tokens"] == 20  # type: ignore[index]
    assert start["message"]["usage"]["cache_read_input_tokens"] == 30  # type: ignore[index]
    assert next(event for event in rest if event["type"] == "message_delta")["usage"] == {
        "input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 30,
        "output_tokens": 3,
    }


def test_calls_that_share_an_index_are_told_apart() -> None:
    both = [tool(0, id="a", name="f", arguments="{}"), tool(0, id="b", name="f", arguments="{}")]
    message = message_of(translated(chunk(tool_calls=both), chunk(finish="tool_calls")))
    assert [block["id"] for block in message["content"]] == ["a", "b"]  # type: ignore[attr-defined]


def test_a_cut_answer_is_an_error() -> None:
    with pytest.raises(WireError) as cut:
        translated(ROLE, chunk(content="x"))
    assert cut.value.fault.code == "engine_cut"
    with pytest.raises(WireError, match="out of memory"):
        translated(ROLE, b'{"error": {"message": "out of memory", "type": "server_error"}}')
    with pytest.raises(WireError, match="not JSON"):
        translated(b"<html>")


def test_arguments_that_are_no_object() -> None:
    broken = chunk(tool_calls=[tool(0, id="a", name="f", arguments='{"x": ')])
    with pytest.raises(WireError, match="not a JSON object"):
        message_of(translated(broken, chunk(finish="tool_calls")))
    # cut off by the limit they are only incomplete
    cut = message_of(translated(broken, chunk(finish="length"), LAST, max_tokens=7))
    assert cut["content"][0]["input"] == {}  # type: ignore[index]

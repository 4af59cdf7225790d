"""The events of a response, held against the types and the accumulation of OpenAI's own client."""

import json

import pytest
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from terazi.gateway.wire.errors import Fault, WireError
from terazi.gateway.wire.responses_answer import ResponseTranslator, echo, encode

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
ASKED = {"model": "m", "input": "a", "temperature": 0.5, "tools": [{"type": "custom", "name": "patch"}]}
USAGE = {"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 12}}
LAST = json.dumps({"choices": [], "usage": USAGE}).encode()


def chunk(finish: str | None = None, **delta: object) -> bytes:
    """One event of the engine."""
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


def tool(index: int, *, arguments: str, **more: str) -> dict[str, object]:
    """A fragment of a tool call."""
    name = {"name": more["name"]} if "name" in more else {}
    given = {"id": more["id"]} if "id" in more else {}
    return {"index": index, **given, "function": {**name, "arguments": arguments}}


def translator() -> ResponseTranslator:
    """For one answer."""
    given = echo(ASKED, model="m", stored=True)
    return ResponseTranslator(key="k", created_s=1, echo=given, custom=frozenset({"patch"}))


def translated(*data: bytes) -> list[dict[str, object]]:
    """All events of an answer."""
    one = translator()
    events = [event for each in data for event in one.feed(each)]
    return events + one.end()


def checked(events: list[dict[str, object]]) -> Response:
    """The last event's response; each event must be of the client's types, in order, and add up to it."""
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        state.handle_event(EVENT.validate_python(event))
    return Response.model_validate(events[-1]["response"])


def test_everything_in_one_answer() -> None:
    events = translated(
        chunk(role="assistant", content=None),
        chunk(reasoning_content="I "),
        chunk(reasoning_content="think."),
        chunk(content="So"),
        chunk(content=" it is."),
        chunk(tool_calls=[tool(0, id="call_a", name="f", arguments='{"x"')]),
        chunk(tool_calls=[tool(0, arguments=": 1}")]),
        chunk(tool_calls=[tool(1, id="call_b", name="patch", arguments='{"input": "*** Begin"}')]),
        chunk(finish="tool_calls"),
        LAST,
        b"[DONE]",
    )
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    response = checked(events)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert response.output_text == "So it is."
    call, patch = response.output[2:]
    assert call.type == "function_call"
    assert (call.name, call.call_id, call.arguments) == ("f", "call_a", '{"x": 1}')
    assert patch.type == "custom_tool_call"
    assert (patch.name, patch.call_id, patch.input) == ("patch", "call_b", "*** Begin")
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 12
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (20, 7, 27)
    assert response.usage.output_tokens_details.reasoning_tokens == 2
    assert (response.status, response.temperature, response.model) == ("completed", 0.5, "m")
    # each item has the same place and id from its beginning to its end
    ids: dict[object, set[object]] = {}
    for event in events:
        if "output_index" in event:
            item = event.get("item")
            given = item["id"] if isinstance(item, dict) else event["item_id"]
            ids.setdefault(event["output_index"], set()).add(given)
    assert sorted(map(len, ids.values())) == [1, 1, 1, 1]
    assert len(set.union(*ids.values())) == 4


def test_each_event_is_named() -> None:
    events = translated(chunk(content="x"), chunk(finish="stop"))
    for event, sent in zip(events, encode(events).split(b"\n\n"), strict=False):
        name, _, data = sent.partition(b"\n")
        assert name == f"event: {event['type']}".encode()
        assert json.loads(data.removeprefix(b"data: ")) == event


def test_a_limit_makes_it_incomplete() -> None:
    events = translated(chunk(content="x"), chunk(finish="length"), LAST)
    assert events[-1]["type"] == "response.incomplete"
    response = checked(events)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]


def test_a_broken_stream_fails() -> None:
    one = translator()
    events = one.feed(chunk(content="x"))
    with pytest.raises(WireError) as cut:
        one.end()
    events += one.fail(cut.value.fault)
    assert events[-1]["type"] == "response.failed"
    response = checked(events)
    assert response.error is not None
    assert (response.status, response.error.code) == ("failed", "server_error")
    # before anything came
    early = translator().fail(Fault(status=503, message="gone"))
    assert [event["type"] for event in early] == ["response.created", "response.in_progress", "response.failed"]
    assert early[0]["response"]["status"] == "in_progress"  # type: ignore[index]
    checked(early)


def test_logprobs_go_with_their_text() -> None:
    probs = [{"token": "x", "logprob": -1.0, "bytes": [120], "top_logprobs": []}]
    with_probs = json.dumps({"choices": [{"delta": {"content": "x"}, "logprobs": {"content": probs}}]}).encode()
    events = translated(with_probs, chunk(content="y"), chunk(finish="stop"))
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [probs, []]
    message = checked(events).output[0]
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    assert message.content[0].logprobs is not None
    assert [one.token for one in message.content[0].logprobs] == ["x"]

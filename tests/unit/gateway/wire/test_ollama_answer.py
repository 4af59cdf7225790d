"""The engine's answers as Ollama's clients get them."""

import json
from typing import cast

import ollama as client
import pytest

from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.ollama_answer import Translator, embed_answer, embeddings, shortened
from terazi.gateway.wire.ollama_request import Shape

NOW = "2026-11-30T10:00:00+00:00"
# As llama-server b11434 writes them.
USAGE = {"completion_tokens": 3, "prompt_tokens": 32, "total_tokens": 35}
TIMINGS = {"cache_n": 31, "prompt_n": 1, "prompt_ms": 6.475, "predicted_n": 3, "predicted_ms": 12.283}


def delta(finish: str | None = None, **fields: object) -> bytes:
    return json.dumps({"choices": [{"finish_reason": finish, "index": 0, "delta": fields}]}).encode()


def end_of(finish: str = "stop") -> list[bytes]:
    usage = json.dumps({"choices": [], "usage": USAGE, "timings": TIMINGS}).encode()
    return [delta(finish), usage, b"[DONE]"]


def lines(events: list[bytes], shape: Shape = Shape.CHAT) -> list[dict[str, object]]:
    translator = Translator(shape=shape, model="m:latest")
    raw = b"".join(translator.feed(event, created_at=NOW) for event in events)
    raw += translator.end(created_at=NOW, total_ns=9, first_ns=7_000_000)
    return [cast("dict[str, object]", json.loads(line)) for line in raw.splitlines()]


def test_a_chat_stream() -> None:
    events = [
        delta(role="assistant", content=None),
        delta(reasoning_content="hm"),
        delta(content="I\n"),
        delta(content="'m"),
    ]
    read = [client.ChatResponse.model_validate(line) for line in lines([*events, *end_of()])]
    assert [(r.message.content, r.message.thinking, r.done) for r in read] == [
        ("", "hm", False),
        ("I\n", None, False),
        ("'m", None, False),
        ("", None, True),
    ]
    last = read[-1]
    assert (last.done_reason, last.total_duration, last.load_duration) == ("stop", 9, 525_000)
    assert (last.prompt_eval_count, last.prompt_eval_duration) == (32, 6_475_000)
    assert (last.eval_count, last.eval_duration) == (3, 12_283_000)
    assert last.model == "m:latest"


def test_a_generate_stream() -> None:
    events = [json.dumps({"choices": [{"text": t, "index": 0, "finish_reason": None}]}).encode() for t in "ab"]
    end = {"choices": [{"text": "", "index": 0, "finish_reason": "length"}], "timings": TIMINGS}
    read = [
        client.GenerateResponse.model_validate(line)
        for line in lines([*events, json.dumps(end).encode(), b"[DONE]"], Shape.GENERATE)
    ]
    assert "".join(r.response or "" for r in read) == "ab"
    assert (read[-1].done_reason, read[-1].prompt_eval_count, read[-1].eval_count) == ("length", 32, 3)


def test_an_infill_stream() -> None:
    events = [b'{"content":"x","stop":false}', b'{"content":"","stop":true,"stop_type":"limit"}']
    read = lines(events, Shape.GENERATE)
    assert [line["response"] for line in read] == ["x", ""]
    assert read[-1]["done_reason"] == "length"


def test_tool_calls_come_whole_with_objects_as_arguments() -> None:
    fragments = [
        {"index": 0, "id": "c0", "type": "function", "function": {"name": "scale", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"what":'}},
        {"index": 1, "id": "c1", "type": "function", "function": {"name": "tare", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": '"gold"}'}},
    ]
    read = lines([*(delta(tool_calls=[f]) for f in fragments), *end_of("tool_calls")])
    assert len(read) == 2
    calls = client.ChatResponse.model_validate(read[0]).message.tool_calls
    assert calls is not None
    assert [(c.function.name, c.function.arguments) for c in calls] == [("scale", {"what": "gold"}), ("tare", {})]
    assert read[1]["done_reason"] == "stop"


def test_calls_that_share_an_index_are_told_apart_by_their_ids() -> None:
    """As Ollama's and some vLLM parsers' streams have it (ollama#15457)."""
    fragments = [
        {"index": 0, "id": "c0", "function": {"name": "scale", "arguments": '{"n": 1}'}},
        {"index": 0, "id": "c1", "function": {"name": "scale", "arguments": '{"n": 2}'}},
    ]
    read = lines([delta(tool_calls=fragments), *end_of("tool_calls")])
    calls = cast("list[dict[str, dict[str, object]]]", read[0]["message"]["tool_calls"])  # type: ignore[index]
    assert [(c["function"]["index"], c["function"]["arguments"]) for c in calls] == [(0, {"n": 1}), (1, {"n": 2})]


def test_a_waiting_line_adds_nothing() -> None:
    line = Translator(shape=Shape.CHAT, model="m").waiting(created_at=NOW)
    read = client.ChatResponse.model_validate_json(line)
    assert (read.message.content, read.done) == ("", False)


def test_an_embedding_is_shortened_to_length_one() -> None:
    assert shortened([3.0, 4.0, 5.0], 2) == pytest.approx([0.6, 0.8])
    assert shortened([3.0, 4.0], 2) == [3.0, 4.0]
    assert shortened([0.0, 0.0, 1.0], 2) == [0.0, 0.0]


def test_a_tool_call_that_was_cut_is_an_error() -> None:
    fragment = {"index": 0, "id": "c0", "function": {"name": "scale", "arguments": '{"what":'}}
    with pytest.raises(WireError, match="scale"):
        lines([delta(tool_calls=[fragment]), *end_of("length")])


def test_a_stream_without_its_end_is_an_error() -> None:
    with pytest.raises(WireError, match="before the answer was complete"):
        lines([delta(content="x")])


@pytest.mark.parametrize("event", [b'{"error":{"message":"boom","type":"server_error"}}', b"{", b"[]", b"7"])
def test_errors_and_junk_in_a_stream(event: bytes) -> None:
    with pytest.raises(WireError) as caught:
        lines([event])
    assert caught.value.fault.status == 502


def test_a_whole_answer() -> None:
    message = {
        "role": "assistant",
        "content": "hi",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
    }
    body = {"choices": [{"finish_reason": "tool_calls", "index": 0, "message": message}], "usage": USAGE}
    translator = Translator(shape=Shape.CHAT, model="m")
    read = client.ChatResponse.model_validate(
        translator.whole(json.dumps(body).encode(), created_at=NOW, total_ns=5)
    )
    assert read.message.content == "hi"
    assert read.message.tool_calls is not None
    assert read.message.tool_calls[0].function.arguments == {}
    assert (read.done, read.done_reason, read.eval_duration) == (True, "stop", None)


@pytest.mark.parametrize("shape", Shape)
def test_loaded(shape: Shape) -> None:
    answer = Translator(shape=shape, model="m").loaded(created_at=NOW)
    assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert ("message" in answer) is (shape is Shape.CHAT)


def test_embeddings_keep_the_inputs_order() -> None:
    body = {
        "data": [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}],
        "usage": {"prompt_tokens": 4},
    }
    raw = json.dumps(body).encode()
    vectors = embeddings(raw)
    assert vectors == [[1.0], [2.0]]
    read = client.EmbedResponse.model_validate(embed_answer(vectors, raw, model="m", total_ns=1, load_ns=0))
    assert read.prompt_eval_count == 4
    with pytest.raises(WireError):
        embeddings(b'{"data": [{"index": 0}]}')

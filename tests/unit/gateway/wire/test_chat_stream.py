"""The one reader of engines' answers: their shapes and habits, and that hostile ones are errors of the engine's."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.chat_stream import DONE, ChatReader
from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.ollama_answer import Translator
from terazi.gateway.wire.ollama_request import Shape

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
#: Answers with the right words in the wrong places.
ODD = st.dictionaries(
    st.sampled_from(["choices", "usage", "timings", "content", "stop", "prompt_progress"]),
    JSON
    | st.lists(
        st.dictionaries(
            st.sampled_from(["delta", "message", "text", "finish_reason", "logprobs"]),
            JSON
            | st.fixed_dictionaries(
                {
                    "tool_calls": st.lists(
                        st.dictionaries(st.sampled_from(["index", "id", "function"]), JSON), max_size=3
                    )
                }
            ),
        ),
        max_size=2,
    ),
)


def read(*events: dict[str, object]) -> tuple[str, ChatReader]:
    reader = ChatReader()
    return "".join(reader.read(json.dumps(event).encode()).text for event in events), reader


@pytest.mark.parametrize(
    ("event", "end", "finish"),
    [
        (
            {"choices": [{"delta": {"content": "ab"}}]},
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            "stop",
        ),
        ({"choices": [{"message": {"content": "ab"}}]}, {"choices": [{"finish_reason": "length"}]}, "length"),
        ({"choices": [{"text": "ab"}]}, {"choices": [{"text": "", "finish_reason": "length"}]}, "length"),
        ({"content": "ab", "stop": False}, {"content": "", "stop": True, "stop_type": "eos"}, "stop"),
        ({"content": "ab", "stop": False}, {"content": "", "stop": True, "stop_type": "limit"}, "length"),
    ],
)
def test_each_shape_of_a_text(event: dict[str, object], end: dict[str, object], finish: str) -> None:
    text, reader = read(event)
    assert (text, reader.counts.output) == ("ab", 1), "one event is a token at least"
    with pytest.raises(WireError):
        reader.check_end()
    text, reader = read(event, end)
    assert (text, reader.finish) == ("ab", finish)
    reader.check_end()


def test_thinking_has_two_names() -> None:
    for name in ("reasoning_content", "reasoning"):
        data = json.dumps({"choices": [{"delta": {name: "hm"}}]}).encode()
        assert ChatReader().read(data).thinking == "hm"
        line = Translator(shape=Shape.CHAT, model="m").feed(data, created_at="now")
        assert json.loads(line)["message"]["thinking"] == "hm"


@pytest.mark.parametrize("index", [None, "1", 2.5, {"a": 1}, [1], True])
def test_an_odd_index_of_a_call_is_no_error_of_ours(index: object) -> None:
    fragments = [
        {"index": index, "id": "x", "function": {"name": "f"}},
        {"index": index, "function": {"arguments": "1"}},
    ]
    data = json.dumps({"choices": [{"delta": {"tool_calls": fragments}}]}).encode()
    calls = ChatReader().read(data).calls
    assert [(call.number, call.id) for call in calls] == [(0, "x"), (0, "x")]


@contextmanager
def no_worse_than_the_engines_fault() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        assert error.fault.status == 502  # noqa: PT017 - it may be raised, and need not


@given(st.lists(ODD, max_size=4))
def test_whatever_an_engine_writes_is_read_or_its_error(events: list[dict[str, object]]) -> None:
    reader, translator = ChatReader(), Translator(shape=Shape.CHAT, model="m")
    for data in (*(json.dumps(event).encode() for event in events), DONE):
        with no_worse_than_the_engines_fault():
            reader.read(data)
        with no_worse_than_the_engines_fault():
            translator.feed(data, created_at="now")

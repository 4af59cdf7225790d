"""Ollama to OpenAI is total: whatever has the right shape is translated, whatever hasn't gives a clean error."""

import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import Fault, WireError
from terazi.gateway.wire.ollama_answer import Translator
from terazi.gateway.wire.ollama_bodies import (
    ChatBody,
    CreateBody,
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    NameBody,
)
from terazi.gateway.wire.ollama_request import Shape, chat_call, generate_call
from terazi.gateway.wire.openai import read_envelope
from terazi.gateway.wire.usage import read_usage

#: Not ``st.text``: it reads a table from disk, which a core test may not do.
text = st.lists(st.sampled_from('ab1 "\\\n\t\0{}[]:,é世😀\u2028'), max_size=8).map("".join)
number = st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
options = st.fixed_dictionaries(
    {},
    optional={
        "num_predict": st.integers(-2, 10_000),
        "temperature": number,
        "seed": st.integers(-(2**63), 2**63),
        "stop": text | st.lists(text, max_size=3),
        "num_ctx": st.integers(),
        "something_else": anything,
    },
)
call = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": text, "arguments": st.dictionaries(text, anything, max_size=3)})},
    optional={"id": text},
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": text | st.none(),
        "thinking": text,
        "images": st.lists(text, max_size=2),
        "tool_calls": st.lists(call, max_size=3),
        "tool_name": text,
    },
)
common = {
    "stream": st.booleans(),
    "format": st.sampled_from(["", "json", None]) | st.dictionaries(text, anything, max_size=3),
    "options": options | st.none(),
    "think": st.booleans() | st.sampled_from(["low", "high"]),
    "keep_alive": text | st.integers(-5, 5) | st.none(),
    "context": st.lists(st.integers(), max_size=3),
}
chat_body = st.fixed_dictionaries(
    {"model": text, "messages": st.lists(message, max_size=5)},
    optional={**common, "tools": st.lists(st.dictionaries(text, anything, max_size=3), max_size=2)},
)
generate_body = st.fixed_dictionaries(
    {"model": text, "prompt": text},
    optional={**common, "suffix": text} | {"raw": st.booleans()} | {"template": st.just("")},
)


@given(chat_body)
def test_a_chat_of_the_right_shape_is_translated(body: dict[str, object]) -> None:
    made = chat_call(read_body(ChatBody, json.dumps(body).encode()), model="served")
    assert (made.body is None) is (not body["messages"])
    if made.body is None:
        return
    asked = json.loads(made.body)
    assert read_envelope(made.body).stream is made.stream is (body.get("stream") is not False)
    assert len(asked["messages"]) == len(body["messages"])  # type: ignore[arg-type]
    for shaped in asked["messages"]:
        assert isinstance(shaped["content"], str | list)
        assert (shaped["role"] == "tool") is ("tool_call_id" in shaped)
        for made_call in shaped.get("tool_calls", []):
            assert isinstance(json.loads(made_call["function"]["arguments"]), dict)
    assert asked.get("max_tokens", 1) > 0
    assert 0 <= asked.get("seed", 0) < 2**32


@given(generate_body)
def test_a_prompt_of_the_right_shape_is_translated(body: dict[str, object]) -> None:
    made = generate_call(read_body(GenerateBody, json.dumps(body).encode()), model="served")
    assert (made.body is None) is not bool(body["prompt"] or body.get("suffix"))
    if made.body is None:
        return
    asked = json.loads(made.body)
    given = {"/infill": "input_prefix", "/v1/completions": "prompt"}.get(made.path)
    assert (asked[given] if given else asked["messages"][-1]["content"]) == body["prompt"]


def fault_of(action: Callable[[], object]) -> Fault | None:
    """How *action* was refused, if it was; any other exception fails the test."""
    try:
        action()
    except WireError as error:
        return error.fault
    return None


@given(st.binary(max_size=40) | anything.map(lambda value: json.dumps(value).encode()))
def test_junk_gives_a_clean_error(raw: bytes) -> None:
    kinds = (ChatBody, GenerateBody, EmbedBody, EmbeddingsBody, NameBody, CreateBody)
    faults = [fault_of(lambda kind=kind: read_body(kind, raw)) for kind in kinds]  # type: ignore[misc]
    for fault in [*faults, fault_of(lambda: read_envelope(raw))]:
        assert fault is None or (fault.status == 400 and fault.message)


@given(st.lists(st.binary(max_size=30) | anything.map(lambda value: json.dumps(value).encode()), max_size=5))
def test_an_engine_may_write_anything(events: list[bytes]) -> None:
    """Whatever comes, the client gets lines of JSON, or an error that the gateway turns into one."""
    translator = Translator(shape=Shape.CHAT, model="m")
    out: list[bytes] = []

    def translate() -> None:
        out.extend(translator.feed(event, created_at="now") for event in events)
        out.append(translator.end(created_at="now", total_ns=1, first_ns=0))

    fault = fault_of(translate)
    assert fault is None or fault.status >= 500
    assert all(json.loads(line)["model"] == "m" for line in b"".join(out).splitlines())


@given(
    st.binary(max_size=60),
    st.binary(max_size=60),
    st.sampled_from([b'"usage":', b'"prompt_tokens":', b'"cache_n": 1', b'"prompt_ms":2', b'"finish_reason":"']),
)
def test_reading_usage_never_fails(before: bytes, after: bytes, key: bytes) -> None:
    found = read_usage(before + key + after, before + key + after)
    assert found.prompt_tokens is None or found.prompt_tokens >= 0

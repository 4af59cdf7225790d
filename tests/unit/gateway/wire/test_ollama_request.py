"""Ollama's requests as the engine gets them."""

import json
from typing import cast

import pytest

from terazi.gateway.library import Preset
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.ollama_bodies import ChatBody, EmbedBody, GenerateBody, parse_keep_alive
from terazi.gateway.wire.ollama_request import (
    EngineCall,
    chat_call,
    embed_fields,
    generate_call,
    with_preset,
    without_oldest,
)


def sent(call: EngineCall) -> dict[str, object]:
    """The engine's request body."""
    assert call.body is not None
    return cast("dict[str, object]", json.loads(call.body))


def chat(**body: object) -> EngineCall:
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}).encode()
    return chat_call(read_body(ChatBody, raw), model="served")


def generate(**body: object) -> EngineCall:
    return generate_call(read_body(GenerateBody, json.dumps({"model": "m", **body}).encode()), model="served")


def test_stream_is_on_unless_turned_off() -> None:
    assert chat().stream
    assert sent(chat())["stream_options"] == {"include_usage": True}
    off = chat(stream=False)
    assert not off.stream
    assert sent(off)["stream"] is False
    assert "stream_options" not in sent(off)


def test_options() -> None:
    options = {
        "num_predict": 5,
        "temperature": 0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.1,
        "seed": 7,
        "stop": ["x"],
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "num_ctx": 99,
        "num_gpu": 1,
    }
    asked = sent(chat(options=options, keep_alive="5m"))
    assert asked.pop("max_tokens") == 5
    assert asked["seed"] == 7
    for name in ("temperature", "top_k", "top_p", "min_p", "stop", "repeat_penalty"):
        assert asked[name] == options[name]
    assert not {"num_ctx", "num_gpu", "keep_alive", "num_predict", "options"} & asked.keys()


@pytest.mark.parametrize("limit", [-1, -2, 0])
def test_no_limit_is_no_limit(limit: int) -> None:
    assert "max_tokens" not in sent(chat(options={"num_predict": limit}))


def test_format() -> None:
    assert sent(chat(format="json"))["response_format"] == {"type": "json_object"}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wrapped = sent(chat(format=schema))["response_format"]
    assert wrapped["json_schema"]["schema"] == schema  # type: ignore[index]
    for empty in ("", None):
        assert "response_format" not in sent(chat(format=empty))
    with pytest.raises(WireError):
        chat(format="xml")
    assert sent(generate(prompt="x", raw=True, format="json"))["json_schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("think", "enabled", "effort"), [(True, True, None), (False, False, None), ("high", True, "high")]
)
def test_think(think: object, enabled: bool, effort: str | None) -> None:
    asked = sent(chat(think=think))
    assert asked["chat_template_kwargs"] == {"enable_thinking": enabled}
    assert asked.get("reasoning_effort") == effort


def test_images_become_data_uris() -> None:
    message = {
        "role": "user",
        "content": "what?",
        "images": ["iVBORw0KGgo=", "/9j/4AAQ", "data:image/webp;base64,xx"],
    }
    content = sent(chat(messages=[message]))["messages"][0]["content"]  # type: ignore[index]
    assert [part["type"] for part in content] == ["text", "image_url", "image_url", "image_url"]
    urls = [part["image_url"]["url"] for part in content[1:]]
    assert urls == [
        "data:image/png;base64,iVBORw0KGgo=",
        "data:image/jpeg;base64,/9j/4AAQ",
        "data:image/webp;base64,xx",
    ]


def test_tool_calls_and_their_results_find_each_other() -> None:
    calls = [{"function": {"name": n, "arguments": {"q": n}}} for n in ("a", "b", "a")]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_name": "b", "content": "B"},
        {"role": "tool", "tool_name": "a", "content": "A1"},
        {"role": "tool", "content": "A2"},
    ]
    shaped = sent(chat(messages=messages))["messages"]
    assert isinstance(shaped, list)
    ids = [call["id"] for call in shaped[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [json.loads(call["function"]["arguments"]) for call in shaped[1]["tool_calls"]] == [
        {"q": "a"},
        {"q": "b"},
        {"q": "a"},
    ]
    assert [message["tool_call_id"] for message in shaped[2:]] == [ids[1], ids[0], ids[2]]
    assert all(isinstance(message["content"], str) for message in shaped)


def test_given_ids_are_kept() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "call_9", "function": {"name": "a", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "call_9", "content": "x"},
    ]
    shaped = sent(chat(messages=messages))["messages"]
    assert isinstance(shaped, list)
    assert shaped[0]["tool_calls"][0]["id"] == shaped[1]["tool_call_id"] == "call_9"


def test_generate_takes_three_ways() -> None:
    plain = generate(prompt="hi", system="be kind")
    assert plain.path == "/v1/chat/completions"
    assert sent(plain)["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
    ]
    raw = generate(prompt="hi", raw=True)
    assert raw.path == "/v1/completions"
    assert sent(raw)["prompt"] == "hi"
    fill = generate(prompt="def f(", suffix="return 1")
    assert fill.path == "/infill"
    assert (sent(fill)["input_prefix"], sent(fill)["input_suffix"]) == ("def f(", "return 1")
    assert {sent(call)["model"] for call in (plain, raw, fill)} == {"served"}


def test_empty_means_load() -> None:
    assert generate().body is None
    assert generate(prompt="").body is None
    assert chat(messages=[]).body is None
    assert chat_call(read_body(ChatBody, b'{"model": "m"}'), model="m").body is None
    assert embed_fields([], model="m") is None
    assert embed_fields("", model="m") is None


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(WireError, match="template"):
        generate(prompt="x", template="{{ .Prompt }}")
    with pytest.raises(WireError, match="images"):
        generate(prompt="x", raw=True, images=["aa"])
    with pytest.raises(WireError, match="raw mode"):
        generate(prompt="x", raw=True, system="y")
    with pytest.raises(WireError, match="top_logprobs"):
        generate(prompt="x", top_logprobs=21)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"messages": []}', "model"),
        (b'{"model": "m", "messages": [{"content": "x"}]}', "messages.0.role"),
        (b'{"model": "m", "options": {"temperature": "hot"}}', "options.temperature"),
        (b'{"model": "m", "options": {"temperature": NaN}}', "temperature"),
        (b"\xff", "JSON"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_junk_is_a_clean_400(raw: bytes, told: str) -> None:
    with pytest.raises(WireError) as caught:
        read_body(ChatBody, raw)
    assert caught.value.fault.status == 400
    assert told in caught.value.fault.message


def test_embed() -> None:
    body = read_body(EmbedBody, b'{"model": "m", "input": ["a", "b"], "truncate": true}')
    asked = embed_fields(body.input, model="served")
    assert asked == {"model": "served", "input": ["a", "b"], "encoding_format": "float"}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0),
        ("0", 0.0),
        (-1, None),
        ("-1", None),
        ("-1m", None),
        (300, 300.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("200ms", 0.2),
        ("24h0m0s", 86400.0),
    ],
)
def test_keep_alive(given: object, seconds: float | None) -> None:
    assert parse_keep_alive(given) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("given", ["soon", "", "5 m", "m", "5mm5", "nan", [], {}, True, "1h-2m"])
def test_keep_alive_that_is_none(given: object) -> None:
    with pytest.raises(WireError, match="keep_alive"):
        parse_keep_alive(given)


PRESET = Preset(
    name="mario:latest",
    base="served",
    modified="2026-11-30T10:00:00+00:00",
    system="You are Mario.",
    parameters={"temperature": 0.1, "stop": ["x"], "num_ctx": 64},
    messages=({"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}),
)


def test_a_preset_fills_what_the_request_leaves_open() -> None:
    body = read_body(
        ChatBody,
        b'{"model": "mario", "messages": [{"role": "user", "content": "hi"}], "options": {"temperature": 0}}',
    )
    asked = sent(chat_call(with_preset(body, PRESET), model="served"))
    told = cast("list[dict[str, str]]", asked["messages"])
    assert [(m["role"], m["content"]) for m in told] == [
        ("system", "You are Mario."),
        ("user", "Who?"),
        ("assistant", "Me."),
        ("user", "hi"),
    ]
    assert (asked["temperature"], asked["stop"]) == (0, ["x"])
    own = read_body(ChatBody, b'{"model": "m", "messages": [{"role": "system", "content": "You are Luigi."}]}')
    assert "Mario" not in json.dumps(sent(chat_call(with_preset(own, PRESET), model="served")))
    plain = read_body(GenerateBody, b'{"model": "m", "prompt": "hi"}')
    asked = sent(generate_call(with_preset(plain, PRESET), model="served"))
    assert cast("list[dict[str, str]]", asked["messages"])[0]["content"] == "You are Mario."
    raw = read_body(GenerateBody, b'{"model": "m", "prompt": "hi", "raw": true}')
    assert "Mario" not in json.dumps(sent(generate_call(with_preset(raw, PRESET), model="served")))
    empty = read_body(ChatBody, b'{"model": "m", "messages": []}')
    assert chat_call(with_preset(empty, PRESET), model="served").body is None


def test_a_long_chat_loses_its_oldest_messages_first() -> None:
    roles = ["system", "user", "assistant", "tool", "user", "assistant", "user"]
    fields = {"messages": [{"role": role, "content": str(i)} for i, role in enumerate(roles)]}

    def left(drop: int) -> str | None:
        found = without_oldest(fields, drop)
        messages = cast("list[dict[str, str]]", found["messages"]) if found else None
        return None if messages is None else "".join(message["content"] for message in messages)

    assert left(1) == "023456"
    assert left(2) == "0456", "a tool's result went with its call"
    assert left(5) == "06"
    assert left(6) is None, "the system message and the last one stay"

"""Ollama's requests as the engine gets them."""

import json
from typing import cast

import pytest

from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.ollama_request import (
    ChatBody,
    EmbedBody,
    EngineCall,
    GenerateBody,
    chat_call,
    embed_call,
    generate_call,
    read_body,
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
    raw = generate(prompt="hi", raw=True, system="ignored")
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
    assert embed_call([], model="m") is None
    assert embed_call("", model="m") is None


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(WireError, match="template"):
        generate(prompt="x", template="{{ .Prompt }}")
    with pytest.raises(WireError, match="images"):
        generate(prompt="x", raw=True, images=["aa"])


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
    call = embed_call(body.input, model="served", dimensions=body.dimensions)
    assert call is not None
    assert json.loads(call) == {"model": "served", "input": ["a", "b"], "encoding_format": "float"}

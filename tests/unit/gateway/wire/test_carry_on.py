"""The request that continues an answer."""

import json
from typing import Any

import pytest

from terazi.gateway.wire.carry_on import continuation, count_request, limit_of, read_tokens
from terazi.gateway.wire.transcript import Transcript
from terazi.policy.resume import CHAT, LLAMA_CPP, TEXT, VLLM, Powers, shape_of

USER = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "Once time"}


def script(path: str, *deltas: dict[str, Any]) -> Transcript:
    """What was sent, in events of *path*."""
    told = Transcript(path)
    for delta in deltas:
        choice = {"index": 0, "finish_reason": None, **({"delta": delta} if path == CHAT else delta)}
        body = {"id": "a", "choices": [choice]} if path in {CHAT, TEXT} else delta
        told.feed(b"data: " + json.dumps(body).encode() + b"\n\n")
    return told


def carried(
    path: str, fields: dict[str, Any], *sent: dict[str, Any], powers: Powers = LLAMA_CPP, **more: Any
) -> dict[str, Any]:
    """The body that continues."""
    shape = shape_of(path, fields, stream=True)
    told = script(path, *sent)
    asked: dict[str, Any] = {"tokens": None, "spent": 3, **more}
    return dict(json.loads(continuation(fields, shape, powers, told, **asked)))


def test_a_chat_is_continued_by_its_last_message() -> None:
    fields = {"messages": [USER], "max_tokens": 10, "min_tokens": 2, "temperature": 0.5, "stream": True}
    body = carried(CHAT, fields, {"role": "assistant", "content": None}, {"content": "Once "}, {"content": "upon"})
    assert body["messages"] == [USER, {"role": "assistant", "content": "Once upon"}]
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert (body["max_tokens"], body["min_tokens"], body["temperature"]) == (7, 0, 0.5)
    assert fields["messages"] == [USER]


def test_an_answer_that_is_still_reasoning_is_continued_there() -> None:
    body = carried(CHAT, {"messages": [USER]}, {"reasoning_content": "Hm, "}, {"reasoning_content": "so"})
    assert body["messages"][-1] == {"role": "assistant", "content": "", "reasoning_content": "Hm, so"}
    assert body["continue_final_message"] == "reasoning_content"
    body = carried(CHAT, {"messages": [USER]}, {"reasoning_content": "Hm"}, {"content": "Yes"})
    assert body["continue_final_message"] is True


@pytest.mark.parametrize(
    ("flags", "sent", "powers", "messages"),
    [
        # with the flags the engine sends only what is new
        (
            {"continue_final_message": True},
            "time",
            LLAMA_CPP,
            [USER, BEGUN],
        ),
        # without them llama-server sends the beginning back first
        ({}, "Once time", LLAMA_CPP, [USER, BEGUN]),
        # and vLLM takes it for an answer that is over, and begins another
        (
            {},
            "time",
            VLLM,
            [USER, {"role": "assistant", "content": "Once "}, {"role": "assistant", "content": "time"}],
        ),
    ],
)
def test_an_answer_that_the_client_had_begun(
    flags: dict[str, Any], sent: str, powers: Powers, messages: list[dict[str, str]]
) -> None:
    fields = {"messages": [USER, {"role": "assistant", "content": "Once "}], **flags}
    assert carried(CHAT, fields, {"content": sent}, powers=powers)["messages"] == messages


@pytest.mark.parametrize(
    ("prompt", "tokens", "expected"),
    [
        ("A: ", None, "A: so it is"),
        ([1, 2], [7, 8, 9], [1, 2, 7, 8, 9]),
        ([1, 2], None, [1, 2, "so it is"]),
        ({"prompt_string": "A: "}, None, {"prompt_string": "A: so it is"}),
    ],
)
def test_a_completion_is_continued_by_its_prompt(
    prompt: object, tokens: list[int] | None, expected: object
) -> None:
    body = carried(TEXT, {"prompt": prompt, "max_tokens": 4}, {"text": "so it"}, {"text": " is"}, tokens=tokens)
    assert body["prompt"] == expected
    assert body["max_tokens"] == 1


def test_tokens_are_better_than_text_where_the_engine_says_them() -> None:
    sent = [{"content": " a", "tokens": [5], "tokens_predicted": 1, "stop": False},
            {"content": " b", "tokens": [6], "tokens_predicted": 2, "stop": False},
            {"content": "", "tokens": [7], "tokens_predicted": 3, "stop": False}]  # fmt: skip
    # the third was held back: perhaps half of a stop string
    assert carried("/completion", {"prompt": "x"}, *sent)["prompt"] == ["x", 5, 6]
    # half of a character has no event, so a token is missing
    sent[1]["tokens_predicted"] = 3
    assert carried("/completion", {"prompt": "x"}, *sent)["prompt"] == "x a b"


def test_a_grammar_is_told_what_is_there() -> None:
    fields = {"prompt": "x", "grammar": 'root ::= "ab"'}
    assert carried(TEXT, fields, {"text": "a"})["generation_prompt"] == "a"
    assert carried(TEXT, fields, {"text": "a"})["grammar_type"] == "tool_calls"
    body = carried(TEXT, {"prompt": "x", "json_schema": {"type": "object"}}, {"text": "{"})
    assert body["generation_prompt"] == "{"
    assert "grammar_type" not in body
    assert "generation_prompt" not in carried(TEXT, {"prompt": "x"}, {"text": "a"})


def test_questions_about_tokens() -> None:
    asked = json.loads(count_request("text", "m"))
    assert (asked["content"], asked["prompt"], asked["add_special"]) == ("text", "text", False)
    assert read_tokens(b'{"tokens": [1, 2]}') == [1, 2]
    assert read_tokens(b'{"count": 2, "max_model_len": 9, "tokens": [1, 2]}') == [1, 2]
    for wrong in (b"", b"[]", b"{}", b'{"tokens": ["a"]}', b'{"tokens": 3}'):
        assert read_tokens(wrong) is None
    assert limit_of({"max_tokens": 5}) == 5
    assert limit_of({"max_tokens": -1}) is None
    assert limit_of({"max_tokens": None, "n_predict": 4}) == 4
    assert limit_of({}) is None

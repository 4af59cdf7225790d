"""What is told from a body alone."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.estimate import BLOCK_CHARS, MOST_BLOCKS, estimate_tokens, fewest_tokens, leading_blocks

CHAT = "/v1/chat/completions"


def chat(text: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **more}


def tokens(fields: dict[str, object], *, path: str = CHAT, context: int | None = 8192) -> int:
    return estimate_tokens(path, json.dumps(fields).encode(), fields, context)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens"])
def test_an_answers_bound_is_counted_wherever_it_stands(name: str) -> None:
    assert tokens(chat("hi", **{name: 500})) - tokens(chat("hi", **{name: 100})) == 400
    assert tokens(chat("hi", **{name: 100}, n=3)) - tokens(chat("hi", **{name: 100}, n=1)) == 200


@pytest.mark.parametrize("unbounded", [{}, {"max_tokens": None}, {"n_predict": -1}, {"max_tokens": "many"}])
def test_an_answer_without_a_bound_may_fill_the_context(unbounded: dict[str, object]) -> None:
    assert tokens(chat("hi", **unbounded)) == 8192


def test_nothing_is_generated_for_embeddings() -> None:
    fields: dict[str, object] = {"input": "some words", "model": "m"}
    assert tokens(fields, path="/v1/embeddings") < 20


def test_the_estimate_is_never_above_the_context_for_it_is_the_engine_that_counts() -> None:
    assert tokens(chat("word " * 20_000, max_tokens=100)) == 8192
    assert tokens(chat("hi", max_tokens=1_000_000)) == 8192


def test_a_picture_counts_by_its_kind_and_not_by_its_bytes() -> None:
    data = base64.b64encode(bytes(300_000)).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    fields: dict[str, object] = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, picture]}],
        "max_tokens": 10,
    }
    assert 1024 <= tokens(fields) < 1024 + 200
    assert fewest_tokens(fields) < 50


@given(st.text(min_size=0, max_size=400), st.integers(0, 5000), st.integers(1, 10_000))
def test_it_is_positive_within_the_context_and_grows_with_the_bound(text: str, bound: int, context: int) -> None:
    few = tokens(chat(text, max_tokens=bound), context=context)
    more = tokens(chat(text, max_tokens=bound + 100), context=context)
    assert 1 <= few <= more <= context
    assert fewest_tokens(chat(text)) <= len(json.dumps(chat(text))) // 64


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"input": ["x" * 6400] * 500}, 100),  # each has the context to itself
        ({"input": "x" * 64_000}, 1000),
        ({"input": [7] * 900}, 900),
        ({"input": [[7] * 900, [7] * 30]}, 900),
        ({"query": "q", "documents": ["x" * 640] * 1000}, 10),
        (chat("x" * 6400, response_format={"schema": "y" * 10**6}, logit_bias={"1": 2}), 100),
        ({"messages": [{"content": [{"type": "text", "text": "x" * 6400}]}, {"content": "x" * 6400}]}, 200),
    ],
)
def test_a_prompt_is_too_long_by_itself_and_not_by_what_comes_with_it(
    fields: dict[str, object], least: int
) -> None:
    assert fewest_tokens(fields) == least


HOSTILE = [
    {"messages": "text"},
    {"messages": [None, 3, [], {"role": 4, "content": 5}]},
    {"messages": [{"content": [None, 7, {"type": "image_url", "image_url": 3}]}]},
    {"prompt": {"a": 1}, "max_tokens": True, "n": "x", "tools": [{}, 3, {"function": 4}]},
    {"prompt": [[1, 2], "x"]},
    {},
]


@pytest.mark.parametrize("fields", HOSTILE)
def test_shapes_that_nobody_expects_are_estimated_all_the_same(fields: dict[str, object]) -> None:
    body = json.dumps(fields).encode() + b" data:x;base64,"
    assert estimate_tokens(CHAT, body, fields, 4096) >= 1
    assert fewest_tokens(fields) >= 0
    assert isinstance(leading_blocks(fields), tuple)


SYSTEM = "You are a careful assistant. " * 40


def talk(*turns: str, system: str = SYSTEM) -> dict[str, object]:
    messages = [{"role": "system", "content": system}]
    messages += [{"role": "user", "content": turn} for turn in turns]
    return {"messages": messages}


def test_a_longer_talk_begins_with_the_blocks_of_the_shorter_one() -> None:
    short, long = leading_blocks(talk("a" * 600)), leading_blocks(talk("a" * 600, "b" * 900))
    assert len(short) >= 6
    assert len(long) > len(short)
    assert long[: len(short)] == short


def test_one_other_letter_changes_its_block_and_all_that_follow() -> None:
    one, other = leading_blocks(talk("a" * 2000)), leading_blocks(talk("a" * 300 + "b" + "a" * 1699))
    same = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    assert same == (len("system\n") + len(SYSTEM) + len("\nuser\n") + 300) // BLOCK_CHARS
    assert not set(one[same:]) & set(other)


def test_at_most_so_many_blocks() -> None:
    assert len(leading_blocks(talk("a" * 100_000))) == MOST_BLOCKS
    assert leading_blocks({"prompt": "short"}) == ()


def test_the_number_that_claude_code_changes_each_time_is_left_out() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={};\n"
    one = leading_blocks(talk("hi", system=line.format("a1b2c") + SYSTEM))
    other = leading_blocks(talk("hi", system=line.format("00f3e") + SYSTEM))
    assert one == other
    assert one


def test_other_tools_and_other_pictures_are_other_prompts() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert leading_blocks(talk("hi"))[0] != leading_blocks({**talk("hi"), "tools": tools})[0]
    pictures = [
        [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{end * 300}"}}, {"text": "x" * 500}]
        for end in ("A", "B")
    ]
    one, other = (leading_blocks({"messages": [{"role": "user", "content": parts}]}) for parts in pictures)
    assert one[0] != other[0]

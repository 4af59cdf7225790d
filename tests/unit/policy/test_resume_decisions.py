"""The table of what can be done for which request."""

import pytest

from terazi.policy.resume import (
    CHAT,
    LLAMA_CPP,
    TEXT,
    UNKNOWN,
    VLLM,
    Continue,
    Finish,
    Form,
    GiveUp,
    Hold,
    Quarantine,
    Replay,
    RunAgain,
    Setbacks,
    Strikes,
    Told,
    binds,
    hold_of,
    next_step,
    powers_of,
    shape_of,
)

USER = {"role": "user", "content": "hello"}
HELLO = {"messages": [USER], "stream": True}
SOME = Told(begun=True, content=True)
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, Form.FREE),
        ({"response_format": {"type": "text"}}, Form.FREE),
        ({"response_format": {"type": "json_object"}}, Form.SCHEMA),
        (SCHEMA, Form.SCHEMA),
        ({"json_schema": {}}, Form.SCHEMA),
        ({"grammar": 'root ::= "a"'}, Form.GRAMMAR),
        ({"grammar": ""}, Form.FREE),
        ({"guided_choice": ["a", "b"]}, Form.GRAMMAR),
        (TOOLS, Form.TOOLS),
        ({"tools": []}, Form.FREE),
        ({**TOOLS, "tool_choice": "none"}, Form.FREE),
        ({**TOOLS, **SCHEMA}, Form.SCHEMA),
    ],
)
def test_what_binds_the_form(fields: dict[str, object], form: Form) -> None:
    assert shape_of(CHAT, {**HELLO, **fields}, stream=True).form is form
    # the quick look may say yes too often, never no
    assert form is Form.FREE or binds(fields)


@pytest.mark.parametrize(
    ("fields", "seeded"),
    [
        ({"seed": 1}, True),
        ({"seed": 0}, True),
        ({"seed": -1}, False),
        ({"seed": None}, False),
        ({"seed": 4294967295}, False),
        ({"seed": 1, "temperature": 0}, False),
        ({"seed": 1, "temperature": 0.7}, True),
        ({}, False),
    ],
)
def test_what_samples_from_a_seed(fields: dict[str, object], seeded: bool) -> None:
    assert shape_of(CHAT, {**HELLO, **fields}, stream=True).seeded is seeded


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        (CHAT, {"n": 2}, "several"),
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "images"),
        (CHAT, {"messages": []}, "unknown form"),
        (CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, "assistant's"),
        (TEXT, {"prompt": ["one", "two"]}, "several"),
        (TEXT, {"prompt": "a", "echo": True}, "echoed"),
        (TEXT, {"prompt": "a", "suffix": "b"}, "in between"),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["AA=="]}}, "images"),
        ("/infill", {"input_prefix": "a"}, "/infill"),
    ],
)
def test_what_cannot_be_continued_is_told_why(path: str, fields: dict[str, object], word: str) -> None:
    shape = shape_of(path, {**HELLO, **fields}, stream=True)
    step = next_step(shape, SOME, LLAMA_CPP)
    assert isinstance(step, GiveUp)
    assert word in step.why
    assert next_step(shape, Told(), LLAMA_CPP) == RunAgain()
    assert hold_of(shape, LLAMA_CPP, resume=True) is Hold.NOTHING


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        (CHAT, {"messages": [USER, {"role": "assistant", "content": "Once"}]}),
        (CHAT, {"logprobs": True, "top_logprobs": 3, "n": 1}),
        (CHAT, SCHEMA),
        (CHAT, TOOLS),
        (TEXT, {"prompt": "a"}),
        (TEXT, {"prompt": [1, 2]}),
        (TEXT, {"prompt": "a", "grammar": 'root ::= "a"'}),
        ("/completion", {"prompt": ["a", 1]}),
        ("/completion", {"prompt": {"prompt_string": "a"}}),
    ],
)
def test_what_llama_cpp_continues(path: str, fields: dict[str, object]) -> None:
    shape = shape_of(path, {**HELLO, **fields}, stream=True)
    assert next_step(shape, SOME, LLAMA_CPP) == Continue()
    assert hold_of(shape, LLAMA_CPP, resume=True) in {Hold.NOTHING, Hold.CALLS}


def test_what_an_engine_cannot_do_is_held_back_or_said() -> None:
    free, bound = shape_of(CHAT, HELLO, stream=True), shape_of(CHAT, {**HELLO, **SCHEMA}, stream=True)
    grammar = shape_of(CHAT, {**HELLO, "grammar": 'root ::= "a"'}, stream=True)
    assert next_step(free, SOME, VLLM) == Continue()
    assert isinstance(next_step(free, SOME, UNKNOWN), GiveUp)
    assert next_step(shape_of(TEXT, {"prompt": "a"}, stream=True), SOME, UNKNOWN) == Continue()
    assert isinstance(next_step(free, Told(begun=True, content=True, reasoning=True), VLLM), GiveUp)
    assert hold_of(bound, VLLM, resume=True) is Hold.ALL
    assert hold_of(bound, LLAMA_CPP, resume=True) is Hold.NOTHING
    assert hold_of(grammar, LLAMA_CPP, resume=True) is Hold.ALL  # the engine's own beginning is foreign to it
    assert hold_of(bound, VLLM, resume=False) is Hold.NOTHING
    assert hold_of(shape_of(CHAT, {**HELLO, **SCHEMA}, stream=False), VLLM, resume=True) is Hold.NOTHING


def test_seeds_are_replayed_once() -> None:
    shape = shape_of(CHAT, {**HELLO, "seed": 3}, stream=True)
    assert next_step(shape, SOME, LLAMA_CPP) == Replay()
    assert next_step(shape, SOME, LLAMA_CPP, replayed=True) == Continue()


def test_a_told_end_needs_no_engine() -> None:
    for fields in (HELLO, {**HELLO, "n": 2}):
        shape = shape_of(CHAT, fields, stream=True)
        assert next_step(shape, Told(begun=True, content=True, finished=True), UNKNOWN, resume=False) == Finish()


def test_engines_are_known_by_their_names() -> None:
    assert powers_of("llama.cpp b11434") is LLAMA_CPP
    assert powers_of("vLLM 0.11") is VLLM
    assert powers_of("openai") is UNKNOWN


def test_strikes() -> None:
    strikes = Strikes()
    strikes.died(got_on=False, from_outside=True)
    assert (strikes.count, strikes.out) == (0, False)
    for _ in range(20):  # a bystander of many deaths, who gets on between them
        strikes.died(got_on=True, from_outside=False)
        assert not strikes.out
    strikes.died(got_on=False, from_outside=False)
    assert strikes.out


def test_quarantine_forgets() -> None:
    quarantine = Quarantine(for_s=10, limit=2)
    quarantine.put(b"a", 0)
    quarantine.put(b"b", 1)
    assert (quarantine.holds(b"a", 4), quarantine.holds(b"c", 4)) == (6, None)
    quarantine.put(b"c", 5)
    assert quarantine.holds(b"a", 5) is None  # the oldest had to go
    assert quarantine.holds(b"b", 12) is None
    assert quarantine.holds(b"c", 12) is not None
    assert (quarantine.holds(b"c", 15), len(quarantine)) == (None, 0)


def test_quarantine_drops_the_one_that_was_seen_longest_ago() -> None:
    quarantine = Quarantine(for_s=100, limit=2)
    for at, digest in enumerate((b"a", b"b", b"a", b"c")):
        quarantine.put(digest, float(at))
    assert quarantine.holds(b"a", 4.0) == 98
    assert quarantine.holds(b"b", 4.0) is None


def test_a_part_of_a_tool_call_is_never_continued_nor_replayed() -> None:
    for fields in (TOOLS, {**TOOLS, "seed": 7, "temperature": 1}):
        shape = shape_of(CHAT, {**HELLO, **fields}, stream=True)
        assert isinstance(next_step(shape, Told(begun=True, tool_calls=True), LLAMA_CPP), GiveUp)


def test_engines_that_bring_next_to_nothing_are_enough_after_six() -> None:
    setbacks = Setbacks()
    for n in range(1, 6):
        setbacks.broke(pieces=3 * n, from_outside=False)
    assert setbacks.enough is None
    setbacks.broke(pieces=18, from_outside=False)
    assert setbacks.enough is not None


def test_one_good_stretch_forgives_the_meagre_ones_before() -> None:
    setbacks, pieces = Setbacks(), 0
    for gained in (0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0):
        pieces += gained
        setbacks.broke(pieces=pieces, from_outside=False)
    assert setbacks.enough is None


def test_ends_from_outside_are_not_called_meagre() -> None:
    setbacks = Setbacks()
    for _ in range(Setbacks.LIMIT - 1):
        setbacks.broke(pieces=0, from_outside=True)
    assert setbacks.enough is None
    setbacks.broke(pieces=0, from_outside=True)
    assert setbacks.enough is not None

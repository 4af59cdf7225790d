"""Answers of the real engine's endpoints (build b11434), and strange ones."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.engines.llama_cpp.endpoints import MAX_BODY, METRICS, parse_metrics, parse_props, parse_slots

GOLDEN = Path(__file__).parents[3] / "golden" / "llama_cpp"
PROPS = (GOLDEN / "props.json").read_text()
SLOTS = (GOLDEN / "slots.json").read_text()
METRICS_TEXT = (GOLDEN / "metrics.txt").read_text()


def test_props() -> None:
    props = parse_props(PROPS)
    assert (props.n_ctx, props.total_slots, props.model_alias) == (2048, 2, "demo")
    assert (props.build_info, props.is_sleeping, props.has_chat_template) == ("b0-unknown", False, True)


def test_slots() -> None:
    assert [(s.id, s.n_ctx, s.is_processing) for s in parse_slots(SLOTS)] == [(0, 2048, False), (1, 2048, False)]


def test_metrics_of_this_build_are_all_known_but_two_averages() -> None:
    found = parse_metrics(METRICS_TEXT)
    assert found["prompt_tokens"] == 5
    assert found["output_tokens"] == 12
    assert found["requests_waiting"] == 0
    assert found.keys() == set(METRICS.values())
    names = {line.split()[0] for line in METRICS_TEXT.splitlines() if line and not line.startswith("#")}
    assert names - METRICS.keys() == {"llamacpp:prompt_tokens_seconds", "llamacpp:predicted_tokens_seconds"}


def test_missing_fields_are_none() -> None:
    props = parse_props("{}")
    assert (props.n_ctx, props.total_slots, props.model_alias, props.is_sleeping) == (None, None, None, None)


@pytest.mark.parametrize("body", ["", "[]", "null", "{", "[" * 100_000, "x" * (MAX_BODY + 1)])
def test_strange_props_are_an_error(body: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_props(body)


@pytest.mark.parametrize("body", ["{}", "[1]", '[{"n_ctx": 5}]'])
def test_strange_slots_are_an_error(body: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_slots(body)


@given(st.text(max_size=200))
def test_any_text_of_metrics_is_read(text: str) -> None:
    assert parse_metrics(text) == {}
    assert parse_metrics(text + "\nllamacpp:requests_processing 3") == {"requests_running": 3}


def test_metrics_stay_bounded() -> None:
    assert parse_metrics("x 1\n" * 20_000 + "llamacpp:requests_processing 3\n") == {}


@given(
    st.dictionaries(
        st.sampled_from(["total_slots", "model_alias", "is_sleeping"]), st.none() | st.text() | st.integers()
    )
)
def test_wrong_types_become_none_not_guesses(fields: dict[str, object]) -> None:
    props = parse_props(json.dumps(fields))
    assert props.total_slots is None or props.total_slots == fields["total_slots"]
    assert props.model_alias is None or props.model_alias == fields["model_alias"]
    assert props.is_sleeping is None

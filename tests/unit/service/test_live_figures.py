"""What the engine's own endpoints say is shown as it is; what they don't say stays unknown."""

import pytest

from terazi.service.live import live_figures

# cut from the answers of llama-server b11434
PROPS = '{"default_generation_settings": {"n_ctx": 2048}, "total_slots": 2, "build_info": "b11434-abc"}'
SLOTS = '[{"id": 0, "n_ctx": 2048, "is_processing": true}, {"id": 1, "n_ctx": 2048, "is_processing": false}]'
METRICS = """\
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 300
llamacpp:tokens_predicted_seconds_total 4
llamacpp:prompt_tokens_total 0
llamacpp:prompt_seconds_total 0
"""


def test_figures() -> None:
    said = live_figures(PROPS, SLOTS, METRICS)
    assert said["context"] == 2048
    assert (said["slots"], said["slots_busy"]) == (2, 1)
    assert said["decode_tok_s"] == 75
    assert said["prefill_tok_s"] is None, "nothing was timed yet"
    assert said["prompt_tokens"] == 0


@pytest.mark.parametrize("body", [None, "", "[]", "nonsense", '{"error": 1}'])
def test_silence_and_nonsense_are_unknown(body: str | None) -> None:
    said = live_figures(body, body, body)
    assert said["context"] is None
    assert said["decode_tok_s"] is None
    assert said["slots"] in {None, 0}


def test_a_rate_of_no_measurable_time_is_unknown() -> None:
    """As after the token that proves an engine ready: one token in a microsecond, says the engine."""
    told = "llamacpp:tokens_predicted_total 1\nllamacpp:tokens_predicted_seconds_total 1e-06\n"
    said = live_figures(None, None, told)
    assert said["output_tokens"] == 1
    assert said["decode_tok_s"] is None

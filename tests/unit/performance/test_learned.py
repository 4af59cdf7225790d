"""What deployments teach: bounded, steady, and never by a few runs alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists

from terazi.performance.forecast import Forecast, Interval
from terazi.performance.learned import LEAST_RUNS, corrected, learn

TEN = Interval(low=8, mid=10, high=12)
SAID = Forecast(
    decode_tok_s=TEN,
    throughput_tok_s=TEN,
    prefill_tok_s=TEN,
    ttft_s=TEN,
    itl_s=Interval(low=0.08, mid=0.1, high=0.12),
    power_w=None,
    kwh_per_mtok=None,
    cost_per_mtok=None,
    basis=("tables",),
)


def test_few_runs_say_nothing() -> None:
    assert learn([1.5] * (LEAST_RUNS - 1)) is None
    assert learn([1.5] * 4 + [100.0, 0.001]) is None, "runs of something else don't count"


def test_steady_runs_narrow_the_interval_around_what_they_reached() -> None:
    learned = learn([0.8, 0.81, 0.79, 0.8] * 25)
    assert learned is not None
    said = corrected(SAID, learned)
    assert said.decode_tok_s.mid == pytest.approx(8.0, rel=0.02)
    assert said.decode_tok_s.high - said.decode_tok_s.low < TEN.high - TEN.low
    assert said.decode_tok_s.low <= 8.0 <= said.decode_tok_s.high
    assert said.itl_s.mid == pytest.approx(0.125, rel=0.02)
    assert said.prefill_tok_s == TEN
    assert "100 runs of this model" in said.basis[0]


def test_a_busy_evening_among_many_runs_changes_nothing() -> None:
    calm = learn([1.0] * 60)
    mixed = learn([1.0] * 60 + [0.2] * 20)
    assert calm is not None
    assert mixed is not None
    assert mixed.factor == pytest.approx(calm.factor)
    assert mixed.low < calm.low, "but it is within what may happen"


@given(lists(floats(1e-3, 1e3), max_size=60))
def test_it_is_bounded_and_in_order(ratios: list[float]) -> None:
    learned = learn(ratios)
    if learned is None:
        return
    assert 0.5 <= learned.factor <= 2.0000001
    assert learned.low < 1 < learned.high
    for interval in (replace(SAID), corrected(SAID, learned)):
        for field in (interval.decode_tok_s, interval.throughput_tok_s, interval.itl_s):
            assert field.low <= field.mid <= field.high


@given(floats(0.3, 3.0))
def test_more_runs_are_believed_more(ratio: float) -> None:
    few, many = learn([ratio] * LEAST_RUNS), learn([ratio] * 100)
    assert few is not None
    assert many is not None
    assert abs(few.factor - 1) <= abs(many.factor - 1) + 1e-9
    assert few.low * few.factor <= ratio * 1.0000001
    assert ratio <= few.high * few.factor * 1.0000001

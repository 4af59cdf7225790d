"""When a model gets another engine, and when it loses one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from terazi.policy.scale import DOWN, UP, Look, State, Terms, step

TERMS = Terms(least=1, most=3)


def play(looks: list[Look], terms: Terms = TERMS) -> list[tuple[float, int]]:
    state, changes = State(), []
    for look in looks:
        state, change = step(state, look, terms)
        if change:
            changes.append((look.at, change))
    return changes


def look(at: float, *, engines: int = 1, in_flight: int = 4, oldest_s: float | None = None) -> Look:
    return Look(at=at, engines=engines, ready=engines, in_flight=in_flight, slots=4, oldest_s=oldest_s)


def test_requests_that_keep_waiting_bring_another_engine() -> None:
    assert play([look(t, oldest_s=8.0) for t in range(12)]) == [(5, UP)]


def test_a_wait_that_passes_brings_none() -> None:
    assert play([look(t, oldest_s=8.0 if t % 4 else None) for t in range(60)]) == []


def test_nothing_is_asked_for_while_one_loads_or_when_there_are_enough() -> None:
    loading = [Look(at=t, engines=2, ready=1, in_flight=4, slots=4, oldest_s=30.0) for t in range(60)]
    assert play(loading) == []
    assert play([look(t, engines=3, in_flight=12, oldest_s=30.0) for t in range(60)]) == []


def test_an_engine_that_can_be_spared_goes_after_a_while() -> None:
    assert play([look(t, engines=2, in_flight=1) for t in range(0, 200, 5)]) == [(120, DOWN)]
    assert play([look(t, engines=2, in_flight=7) for t in range(0, 200, 5)]) == []


def test_the_fewest_are_kept() -> None:
    assert play([look(t, engines=2, in_flight=0) for t in range(0, 400, 5)], Terms(least=2, most=3)) == []


@given(st.lists(st.tuples(st.floats(0.1, 20), st.integers(0, 12), st.none() | st.floats(0, 60)), max_size=60))
def test_it_stays_between_its_bounds_and_does_not_flap(seen: list[tuple[float, int, float | None]]) -> None:
    state, engines, now, ups = State(), 1, 0.0, []
    for passed, in_flight, oldest_s in seen:
        now += passed
        state, change = step(state, look(now, engines=engines, in_flight=in_flight, oldest_s=oldest_s), TERMS)
        engines += change
        if change == UP:
            ups.append(now)
        assert 1 <= engines <= 3
    assert all(later - earlier >= TERMS.pause_s for earlier, later in pairwise(ups))

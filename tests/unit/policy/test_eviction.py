"""Who goes: the cheapest set that makes enough room."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from terazi.policy.eviction import HALF_LIFE_S, Candidate, Uses, choose, worth


def candidate(name: str, needs: Mapping[str, int], worth: float, priority: int = 0) -> Candidate:
    return Candidate(unit=name, needs=needs, priority=priority, worth=worth)


def test_two_cheap_ones_go_rather_than_one_that_is_dear() -> None:
    candidates = [
        candidate("big", {"A": 10}, worth=9.0),
        candidate("x", {"A": 5}, worth=1.0),
        candidate("y", {"A": 5}, worth=2.0),
    ]

    assert choose(candidates, {"A": 8}) == ("x", "y")
    assert choose(candidates, {"A": 4}) == ("x",)
    assert choose(candidates, {"A": 13}) == ("x", "big")
    assert choose(candidates, {"A": 21}) is None


def test_nobody_goes_who_frees_nothing_that_is_missing() -> None:
    candidates = [candidate("ram", {"RAM": 50}, worth=0.1), candidate("card", {"A": 5}, worth=50.0)]

    assert choose(candidates, {"A": 5, "RAM": 0}) == ("card",)
    assert choose(candidates, {}) == ()


def test_a_low_priority_goes_before_a_high_one_whatever_it_is_worth() -> None:
    candidates = [candidate("low", {"A": 5}, worth=100.0), candidate("high", {"A": 5}, worth=1.0, priority=1)]

    assert choose(candidates, {"A": 5}) == ("low",)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 50), st.integers(0, 2)), max_size=7),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_no_other_set_that_is_enough_is_cheaper(
    rows: Sequence[tuple[int, int, int, int]], short_a: int, short_b: int
) -> None:
    candidates = [
        candidate(f"u{n}", {"A": a, "B": b}, worth=float(value), priority=priority)
        for n, (a, b, value, priority) in enumerate(rows)
    ]
    by_name = {c.unit: c for c in candidates}

    def enough(chosen: Sequence[Candidate]) -> bool:
        return sum(c.needs["A"] for c in chosen) >= short_a and sum(c.needs["B"] for c in chosen) >= short_b

    def cost(chosen: Sequence[Candidate]) -> tuple[int, float]:
        return max((c.priority for c in chosen), default=0), sum(c.worth for c in chosen)

    sets = [s for n in range(len(candidates) + 1) for s in combinations(candidates, n) if enough(s)]
    found = choose(candidates, {"A": short_a, "B": short_b})

    assert (found is None) == (not sets)
    if found is not None:
        chosen = [by_name[name] for name in found]
        assert enough(chosen)
        assert cost(chosen) <= min(cost(s) for s in sets)


@given(st.integers(11, 30), st.integers(1, 60))
def test_of_many_enough_go_and_none_for_nothing(count: int, short: int) -> None:
    candidates = [candidate(f"u{n}", {"A": 1 + n % 4}, worth=float(n % 7)) for n in range(count)]
    sizes = {c.unit: c.needs["A"] for c in candidates}

    found = choose(candidates, {"A": short})

    if found is None:
        assert sum(sizes.values()) < short
    else:
        freed = sum(sizes[name] for name in found)
        assert freed >= short
        assert all(freed - sizes[name] < short for name in found)


def test_a_use_counts_half_after_its_time_and_a_long_load_makes_dear() -> None:
    uses = Uses()
    uses.used(0.0)
    uses.used(HALF_LIFE_S)

    assert uses.weighed(HALF_LIFE_S) == 1.5
    assert worth(10.0, uses, HALF_LIFE_S) > 5 * worth(1.0, uses, HALF_LIFE_S)
    assert worth(10.0, uses, 10 * HALF_LIFE_S) < worth(1.0, uses, HALF_LIFE_S)

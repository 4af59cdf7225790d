"""Runs of equal blocks: four copies are drawn, and the rest adds up."""

from hypothesis import given
from hypothesis import strategies as st

from terazi.memory.llama_cpp.abridge import Run, abridge


def test_a_long_run_is_four_blocks() -> None:
    assert abridge("a" * 80) == ((0, 1, 2, 79), (Run(1, 1, 77),))


def test_a_pattern_repeats_as_a_whole() -> None:
    short = abridge("lllg" * 12)
    assert short.blocks == (*range(12), 44, 45, 46, 47)
    assert short.runs == (Run(4, 4, 9),)


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_what_is_drawn_stands_for_all(kinds: list[str]) -> None:
    blocks, runs = abridge(kinds)
    drawn = [kinds[block] for block in blocks]
    for run in reversed(runs):
        third = drawn[run.first + run.period : run.first + 2 * run.period]
        assert third == drawn[run.first : run.first + run.period]
        drawn[run.first + run.period : run.first + 2 * run.period] = third * run.repeats
    assert drawn == kinds

"""How many experts a batch touches, against what measured steps leave room for."""

import pytest

from terazi.performance.routing import distinct_experts


def test_uniform_routing_is_the_published_bound() -> None:
    """128 experts, 4 used: 81.7 distinct at 32 streams; almost twice as many at two as at one."""
    assert distinct_experts(128, 4, 32, skew=0.0) == pytest.approx(81.7, abs=0.1)
    assert distinct_experts(128, 4, 2, skew=0.0) == pytest.approx(7.9, abs=0.1)


def test_one_token_touches_what_it_uses() -> None:
    for experts, used in ((128, 4), (128, 8), (32, 4), (256, 8), (16, 1)):
        assert distinct_experts(experts, used, 1) == pytest.approx(used, rel=1e-3)


def test_gpt_oss_on_a_gb10_leaves_room_for_55_experts() -> None:
    """A step of 32 streams takes 102 ms (llama.cpp benches/dgx-spark.md, November 2025): at most 55 of 128."""
    assert 30 < distinct_experts(128, 4, 32) <= 55


def test_more_tokens_touch_more_and_never_all_but_all() -> None:
    counts = [distinct_experts(128, 8, batch) for batch in (1, 2, 8, 32, 128, 8192)]
    assert counts == sorted(counts)
    assert counts[-1] <= 128
    assert distinct_experts(8, 8, 3) == 8
    assert distinct_experts(0, 0, 8) == 0

"""Guessing ahead: what others measured, and when it stops to pay."""

import pytest

from terazi.performance.speculation import guess, tokens_per_step


def test_tokens_of_a_step_as_reported() -> None:
    """RTX 5090, 4 drafted, 1860 of 2696 accepted: 3.76 tokens a step (sudoingX/qwen38-mtp)."""
    assert tokens_per_step(1860 / 2696, 4) == pytest.approx(3.76, abs=0.01)
    with pytest.raises(ValueError, match="accepted"):
        tokens_per_step(1.2, 4)


def test_a_step_that_costs_more_than_its_tokens_is_a_loss() -> None:
    good = guess(plain_s=0.010, check_s=0.011, draft_pass_s=0.001, drafted=3, accepted=0.7)
    assert good.gain == pytest.approx((1 + 0.7 * 3) * 0.010 / 0.014)
    assert good.token_s == pytest.approx(0.014 / 3.1)
    bad = guess(plain_s=0.010, check_s=0.030, draft_pass_s=0.001, drafted=3, accepted=0.5)
    assert bad.gain < 1

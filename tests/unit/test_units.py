"""Figures as people read them."""

import pytest

from terazi.units import format_figure


@pytest.mark.parametrize(
    ("value", "text"),
    [(178_600, "179,000"), (999.6, "1,000"), (999.4, "999"), (1000, "1,000"), (5.4, "5.4"), (0.50491, "0.505")],
)
def test_three_digits_and_no_powers_of_ten(value: float, text: str) -> None:
    assert format_figure(value) == text

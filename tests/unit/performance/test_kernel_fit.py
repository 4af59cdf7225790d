"""What runs of made-up models are turned into."""

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists

from terazi.performance.kernel_fit import (
    Runs,
    Shape,
    attention_rate,
    kernel_time,
    noise,
    quiet,
    solve_layers,
    solve_overheads,
)


def test_disturbed_samples_do_not_count() -> None:
    found = quiet([1.0, 1.02, 1.04, 3.0, 9.0, 1.01])
    assert found.seconds == pytest.approx(1.015)
    assert (found.used, found.samples) == (4, 6)


def test_a_single_lucky_sample_is_not_the_truth() -> None:
    assert quiet([0.5, 1.0, 1.01, 1.02, 1.03]).seconds == pytest.approx(1.01, abs=0.02)


def test_noise_is_the_share_of_disturbed_samples() -> None:
    assert noise([quiet([1.0, 1.0, 5.0, 5.0]), quiet([1.0] * 4)]) == pytest.approx(0.25)
    assert noise([]) == 0


@pytest.mark.parametrize("samples", [[], [0.0, 1.0]])
def test_no_times_is_an_error(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="times"):
        quiet(samples)


THIN, NARROW, WIDE = Shape(3e6, 28_672, 64), Shape(48e6, 160_000, 38), Shape(48e6, 40_000, 3)
PER_BYTE, PER_ROW, LAYER = {1: 5e-11, 16: 9e-11}, {1: 8e-9, 16: 70e-9}, {1: 20e-6, 16: 60e-6}


def run(shape: Shape) -> Runs:
    return Runs(
        shape,
        {n: shape.block_bytes * PER_BYTE[n] + shape.rows * PER_ROW[n] + shape.layers * LAYER[n] for n in LAYER},
    )


def test_layers_rows_and_bytes_are_told_apart() -> None:
    layers = solve_layers(run(THIN), run(NARROW), run(WIDE))
    assert dict(layers) == pytest.approx(LAYER)
    kernel = kernel_time("q8_0", run(NARROW), run(WIDE), layers)
    assert dict(kernel.batches) == pytest.approx(PER_BYTE)
    assert dict(kernel.rows) == pytest.approx(PER_ROW)


def test_models_that_do_not_differ_tell_nothing() -> None:
    with pytest.raises(ValueError, match="differ"):
        solve_layers(run(THIN), run(NARROW), run(NARROW))
    with pytest.raises(ValueError, match="differ"):
        solve_layers(run(THIN), Runs(NARROW, {}), run(WIDE))


@given(
    lists(floats(1e-4, 1.0), min_size=3, max_size=3),
    lists(floats(1e-4, 1.0), min_size=3, max_size=3),
    lists(floats(1e-4, 1.0), min_size=3, max_size=3),
)
def test_noise_never_makes_a_time_below_nothing(a: list[float], b: list[float], c: list[float]) -> None:
    thin, narrow, wide = (
        Runs(shape, dict(zip((1, 4, 16), times, strict=True)))
        for shape, times in ((THIN, a), (NARROW, b), (WIDE, c))
    )
    layers = solve_layers(thin, narrow, wide)
    assert all(s >= 0 for _, s in layers)
    kernel = kernel_time("q8_0", narrow, wide, layers)
    assert all(s > 0 for _, s in kernel.batches)
    assert all(s >= 0 for _, s in kernel.rows)


def test_attention_that_noise_hides_is_unknown() -> None:
    assert attention_rate(1.0, 1.01, 1e9) is None
    assert attention_rate(1.0, 1.5, 1e9) == pytest.approx(2e9)


def test_overheads_of_a_server() -> None:
    step, token, vocab = 100e-6, 80e-6, 5e-9

    def took(streams: int, words: int) -> float:
        return step + streams * (token + words * vocab)

    found = solve_overheads(
        one_small_s=took(1, 4096),
        many_small_s=took(8, 4096),
        many=8,
        small_vocab=4096,
        one_large_s=took(1, 131072),
        large_vocab=131072,
    )
    assert found == pytest.approx((step, token, vocab))

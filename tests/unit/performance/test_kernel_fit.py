"""What runs of made-up models are turned into."""

import pytest

from terazi.performance.kernel_fit import (
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


def test_layers_and_matrices_are_told_apart() -> None:
    thin, fat = Shape(10e6, 32), Shape(50e6, 4)
    per_byte = {1: 5e-11, 16: 9e-11}
    layer = {1: 20e-6, 16: 60e-6}
    runs = [{n: s.block_bytes * per_byte[n] + s.layers * layer[n] for n in (1, 16)} for s in (thin, fat)]
    layers = solve_layers(thin, runs[0], fat, runs[1])
    assert dict(layers) == pytest.approx(layer)
    kernel = kernel_time("q8_0", fat, runs[1], layers)
    assert dict(kernel.batches) == pytest.approx(per_byte)


def test_models_that_do_not_differ_tell_nothing() -> None:
    same = Shape(10e6, 4)
    with pytest.raises(ValueError, match="differ"):
        solve_layers(same, {1: 1.0}, same, {1: 1.0})


def test_a_larger_batch_never_takes_less() -> None:
    """The middle one was disturbed."""
    kernel = kernel_time("q8_0", Shape(1e6, 1), {1: 1e-3, 4: 5e-3, 16: 2e-3}, ())
    assert [s for _, s in kernel.batches] == pytest.approx([1e-9, 2e-9, 2e-9])


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

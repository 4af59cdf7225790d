"""From timed runs of made-up models to what kernels, layers, attention and sampling take.

In: points, each the quiet time of one run. Out: figures of a ``DeviceCalibration``. Pure; ``terazi calibrate`` runs
the models.

The runs differ in one thing at a time, so nothing is regressed: a *thin* model is almost all layer overhead, a
*fat* one almost all matrices, the same model at a depth adds attention alone, and a server with two vocabularies
and two numbers of streams adds sampling.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from terazi.performance.calibration import KernelTime
from terazi.performance.fit import quantile

#: Samples this much above the fastest ones were disturbed by something else on the machine.
_CLUSTER = 1.15


class Quiet(NamedTuple):
    """The time of a run without disturbances.

    Args:
        seconds: the middle of the samples that lie close to the fastest.
        used, samples: how many those were, of how many.
    """

    seconds: float
    used: int
    samples: int


class Shape(NamedTuple):
    """What a made-up model has of each: bytes of matrices and layers."""

    block_bytes: float
    layers: int


def quiet(samples: Sequence[float]) -> Quiet:
    """What *samples* (seconds) would be on an idle machine: others can only slow a run down, never speed it up.

    The fastest of four or more is itself left out of the search for where the fast ones lie: a clock that was
    turned up for a moment is no more typical than a busy neighbour.

    Raises:
        ValueError: without samples, or one that isn't positive.
    """
    ordered = sorted(samples)
    if not ordered or ordered[0] <= 0:
        raise ValueError("no times")
    start = ordered[min(1, len(ordered) - 1)] if len(ordered) >= 4 else ordered[0]
    near = [s for s in ordered if s <= start * _CLUSTER]
    return Quiet(quantile(near, 0.5), len(near), len(ordered))


def noise(found: Iterable[Quiet]) -> float:
    """Share of all samples that were disturbed."""
    kept = list(found)
    total = sum(q.samples for q in kept)
    return 1 - sum(q.used for q in kept) / total if total else 0.0


def solve_layers(
    thin: Shape, thin_s: Mapping[int, float], fat: Shape, fat_s: Mapping[int, float]
) -> tuple[tuple[int, float], ...]:
    """Seconds a layer by batch, from two models of one type: two equations with two unknowns each.

    Never below nothing, and never above what the thin model took in all.

    Raises:
        ValueError: the two have the same bytes a layer, or share no batch.
    """
    # thin_s = bytes·tau + layers·c ; fat_s likewise
    determinant = thin.layers * fat.block_bytes - fat.layers * thin.block_bytes
    batches = sorted(set(thin_s) & set(fat_s))
    if determinant <= 0 or not batches:
        raise ValueError("the models don't differ")
    found = []
    for batch in batches:
        c = (thin_s[batch] * fat.block_bytes - fat_s[batch] * thin.block_bytes) / determinant
        found.append((batch, min(max(c, 0.0), thin_s[batch] / thin.layers)))
    return tuple(found)


def kernel_time(
    dtype: str, shape: Shape, seconds: Mapping[int, float], layers: Sequence[tuple[int, float]]
) -> KernelTime:
    """What the matrices of *dtype* take, with the layers' own cost taken off.

    A larger batch never takes less than a smaller one: where noise says so, the smaller one's time was disturbed.
    """
    own = dict(layers)
    found: list[tuple[int, float]] = []
    for batch in sorted(seconds):
        left = seconds[batch] - shape.layers * own.get(batch, 0.0)
        # a tenth at least: the rest of the run can't have been overhead alone
        found.append((batch, max(left, 0.1 * seconds[batch]) / shape.block_bytes))
    for i in range(len(found) - 2, -1, -1):
        found[i] = (found[i][0], min(found[i][1], found[i + 1][1]))
    return KernelTime(dtype, tuple(found))


def attention_rate(shallow_s: float, deep_s: float, flops: float) -> float | None:
    """Operations a second that attention reached: *flops* is what the deep run did more. None if noise hid it."""
    more = deep_s - shallow_s
    return flops / more if more > 0.02 * shallow_s else None


class Overheads(NamedTuple):
    """Seconds a step, a token of each stream, and an entry of the vocabulary for each token."""

    step_s: float
    token_s: float
    vocab_s: float


def solve_overheads(
    *, one_small_s: float, many_small_s: float, many: int, small_vocab: int, one_large_s: float, large_vocab: int
) -> Overheads:
    """From what a server's steps took beyond the model itself.

    Args:
        one_small_s: one stream, the small vocabulary; *many_small_s* the same with *many* streams.
        one_large_s: one stream, the large vocabulary.
    """
    vocab_s = max(0.0, (one_large_s - one_small_s) / (large_vocab - small_vocab))
    each = max(0.0, (many_small_s - one_small_s) / (many - 1))
    token_s = max(0.0, each - small_vocab * vocab_s)
    step_s = max(0.0, one_small_s - token_s - small_vocab * vocab_s)
    return Overheads(step_s, token_s, vocab_s)

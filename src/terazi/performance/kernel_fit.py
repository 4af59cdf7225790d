"""From timed runs of made-up models to what kernels, layers, attention and sampling take.

In: points, each the quiet time of one run. Out: figures of a ``DeviceCalibration``. Pure; ``terazi calibrate`` runs
the models.

The runs differ in one thing at a time, so nothing is regressed: a *thin* model is almost all layer overhead, a
*narrow* and a *wide* one almost all matrices, of short and of long rows; the same model at a depth adds attention
alone, and a server with two vocabularies and two numbers of streams adds sampling.
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
    """What a made-up model has of each: bytes and rows of matrices, and layers."""

    block_bytes: float
    rows: float
    layers: int


class Runs(NamedTuple):
    """A model's shape, and its seconds by tokens at once."""

    shape: Shape
    seconds: Mapping[int, float]


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


def solve_layers(thin: Runs, narrow: Runs, wide: Runs) -> tuple[tuple[int, float], ...]:
    """Seconds a layer by batch, from three models of one type: in each, bytes, rows and layers add up to the run.

    Never below nothing, and never above what the thin model took in all.

    Raises:
        ValueError: two of them are of the same proportions, or they share no batch.
    """
    batches = sorted(set(thin.seconds) & set(narrow.seconds) & set(wide.seconds))
    if not batches:
        raise ValueError("the models don't differ: no batch is shared")
    found = []
    for n in batches:
        # what bytes and rows would take if layers were free, and how much less with each second a layer
        free = _two(narrow.shape, narrow.seconds[n], wide.shape, wide.seconds[n])
        less = _two(narrow.shape, narrow.shape.layers, wide.shape, wide.shape.layers)
        s = thin.shape
        slope = s.layers - s.block_bytes * less[0] - s.rows * less[1]
        if abs(slope) < 1e-9 * s.layers:
            raise ValueError("the models don't differ in their proportions")
        c = (thin.seconds[n] - s.block_bytes * free[0] - s.rows * free[1]) / slope
        found.append((n, min(max(c, 0.0), thin.seconds[n] / s.layers)))
    return tuple(found)


def kernel_time(dtype: str, narrow: Runs, wide: Runs, layers: Sequence[tuple[int, float]]) -> KernelTime:
    """What the matrices of *dtype* take a byte and a row, with the layers' own cost taken off.

    A larger batch never takes less than a smaller one: where noise says so, the smaller one's time was disturbed.
    """
    own = dict(layers)
    left = [_without_layers(run, own) for run in (narrow, wide)]
    per_byte, per_row = [], []
    for n in sorted(set(left[0]) & set(left[1])):
        byte_s, row_s = _two(narrow.shape, left[0][n], wide.shape, left[1][n])
        if row_s < 0 or byte_s <= 0:  # noise: all of it is laid to the bytes of the wide one
            byte_s, row_s = left[1][n] / wide.shape.block_bytes, 0.0
        per_byte.append((n, byte_s))
        per_row.append((n, row_s))
    return KernelTime(dtype, tuple(per_byte), tuple(per_row))


def _without_layers(run: Runs, layers: Mapping[int, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    least = float("inf")
    for n in sorted(run.seconds, reverse=True):
        least = min(least, run.seconds[n])
        # a tenth at least: the rest of the run can't have been overhead alone
        found[n] = max(least - run.shape.layers * layers.get(n, 0.0), 0.1 * least)
    return found


def _two(a: Shape, a_s: float, b: Shape, b_s: float) -> tuple[float, float]:
    """Seconds a byte and a row that make *a_s* of the one and *b_s* of the other.

    Raises:
        ValueError: they are of the same proportions.
    """
    determinant = a.block_bytes * b.rows - b.block_bytes * a.rows
    if abs(determinant) < 1e-9 * a.block_bytes * b.rows:
        raise ValueError("the models don't differ in their proportions")
    return (a_s * b.rows - b_s * a.rows) / determinant, (a.block_bytes * b_s - b.block_bytes * a_s) / determinant


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

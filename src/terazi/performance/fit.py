"""Fits constants to measured rows, and tells how well they carry over to a card that they never saw.

In: observations (one measured run each). Out: constants and residuals. Pure; whoever has a table calls it
(``benchmarks/fit_speed.py``, ``benchmarks/fit_serving.py``, a calibration of one machine).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

#: The grid that the search walks: eta in hundredths, c in microseconds a layer.
_ETA = tuple(e / 100 for e in range(30, 104, 2))
_LAYER_S = tuple(us * 1e-6 for us in range(0, 300, 10))
#: Steps of a descent: each round tries smaller ones.
_FACTORS = (1.3, 1.15, 1.08, 1.04, 1.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One single-stream decode run on one card, or on equal cards by layer split."""

    card: str
    bandwidth: float  # bytes per second
    layers: int
    read_bytes: float  # weights and cache that one token reads, on average over the run
    tok_s: float
    unpack_s: float = 0.0  # seconds that unpacking its quantised weights takes beside that


def predict_tok_s(row: Observation, eta: float, layer_s: float) -> float:
    """Tokens per second of *row* under the two constants."""
    return 1 / (row.read_bytes / (eta * row.bandwidth) + row.unpack_s + row.layers * layer_s)


def log_error(row: Observation, eta: float, layer_s: float) -> float:
    """ln(measured / predicted): positive when the card was faster than said."""
    return math.log(row.tok_s / predict_tok_s(row, eta, layer_s))


def fit_decode(rows: Iterable[Observation]) -> tuple[float, float]:
    """The (eta, c) with the least mean absolute log error, every card counting the same however often it ran.

    Absolute rather than squared, so that one odd rig doesn't bend the class.

    Raises:
        ValueError: without rows.
    """
    by_card: dict[str, list[Observation]] = {}
    for row in rows:
        by_card.setdefault(row.card, []).append(row)
    if not by_card:
        raise ValueError("nothing to fit")
    best: tuple[float, float, float] | None = None
    for eta in _ETA:
        for layer_s in _LAYER_S:
            loss = sum(sum(abs(log_error(r, eta, layer_s)) for r in runs) / len(runs) for runs in by_card.values())
            if best is None or loss < best[0]:
                best = (loss, eta, layer_s)
    assert best is not None  # noqa: S101 - the grid is not empty
    return best[1], best[2]


def leave_one_card_out(rows: Sequence[Observation]) -> dict[str, tuple[float, ...]]:
    """Log errors of every card under constants that were fitted without it.

    A group with a single card has nothing to learn from; it is left out of the answer.
    """
    cards = dict.fromkeys(r.card for r in rows)
    residuals: dict[str, tuple[float, ...]] = {}
    for card in cards:
        rest = [r for r in rows if r.card != card]
        if rest:
            eta, layer_s = fit_decode(rest)
            residuals[card] = tuple(log_error(r, eta, layer_s) for r in rows if r.card == card)
    return residuals


def quantile(values: Sequence[float], q: float) -> float:
    """The *q*-quantile with linear interpolation.

    Raises:
        ValueError: without values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def descend(
    loss: Callable[[Mapping[str, float]], float],
    start: Mapping[str, float],
    *,
    at_most: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The constants near *start* with the least *loss*: each in turn is made larger and smaller while that helps.

    Constants stay positive. *at_most* bounds some of them from above. Deterministic, and good enough for a handful
    of constants whose effects differ; it finds a minimum near the start, not the lowest of all.
    """
    bounds = at_most or {}
    found = dict(start)
    best = loss(found)
    for factor in _FACTORS:
        for name in start:
            for step in (factor, 1 / factor):
                while found[name] * step <= bounds.get(name, math.inf):
                    trial = found | {name: found[name] * step}
                    reached = loss(trial)
                    if reached >= best - 1e-9:
                        break
                    found, best = trial, reached
    return found

"""What deployments taught about a forecast: by how much they were faster or slower than said, and how steadily.

In: measured over forecast, run by run. Out: a correction of decode speed, or none. A busy evening must not spoil
next week's forecast, so the middle of the runs counts, few runs count for little, and nothing is corrected by more
than a factor of two.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from terazi.performance.fit import quantile
from terazi.performance.forecast import Forecast, Interval

#: Fewer say nothing.
LEAST_RUNS = 5
#: Runs that the forecast itself counts for.
_OWN_WEIGHT = 5
_MOST_FACTOR = 2.0
#: Runs that are further off than this were of something else: a machine that swapped, a suspended laptop.
_MOST_RATIO = 8.0
#: No interval gets narrower than this on either side: other prompts, other days.
_LEAST_SPREAD = 0.05


class Learned(NamedTuple):
    """A correction: the factor on tokens per second, what eight runs of ten stay within of that, and the runs."""

    factor: float
    low: float
    high: float
    runs: int


def learn(ratios: Sequence[float]) -> Learned | None:
    """From measured over forecast, of one model on one machine; None if that says nothing."""
    logs = [math.log(r) for r in ratios if r > 0 and 1 / _MOST_RATIO <= r <= _MOST_RATIO]
    if len(logs) < LEAST_RUNS:
        return None
    middle = quantile(logs, 0.5)
    believed = middle * len(logs) / (len(logs) + _OWN_WEIGHT)
    bound = math.log(_MOST_FACTOR)
    believed = max(-bound, min(bound, believed))
    # around what is then said, not around the runs' own middle: what wasn't believed stays within the interval
    low = min(quantile(logs, 0.1) - believed, -_LEAST_SPREAD)
    high = max(quantile(logs, 0.9) - believed, _LEAST_SPREAD)
    return Learned(math.exp(believed), math.exp(low), math.exp(high), len(logs))


def corrected(said: Forecast, learned: Learned) -> Forecast:
    """*said* with the speeds of decoding as *learned*; prompts stay as they were."""
    decode = _corrected(said.decode_tok_s, learned)
    throughput = _corrected(said.throughput_tok_s, learned)
    slower = said.itl_s.mid / learned.factor
    runs = f"{learned.runs} runs of this model on this machine: {learned.factor - 1:+.0%} on decoding"
    return replace(
        said,
        decode_tok_s=decode,
        throughput_tok_s=throughput,
        itl_s=Interval(low=slower / learned.high, mid=slower, high=slower / learned.low),
        basis=(runs, *said.basis),
    )


def _corrected(interval: Interval, learned: Learned) -> Interval:
    mid = interval.mid * learned.factor
    return Interval(low=mid * learned.low, mid=mid, high=mid * learned.high)

"""The ``Forecast`` noun and the intervals that it is made of.

In: middle estimates and spreads. Out: intervals. ``forecast`` and ``vllm_forecast`` make the noun.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An 80 % interval around the middle estimate."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What to expect. A ``None`` field can't be known here; ``basis`` says why.

    Units: tokens per second, seconds, watts, kWh and currency per million output tokens.

    ``decode_tok_s`` is a stream that runs alone, mean over the output. ``throughput_tok_s`` is all streams together
    and ``itl_s`` the time between two tokens of one of them (TPOT), while the others' prompts are worked between
    them. ``ttft_s`` counts the prompts that are ahead of one's own, and the wait for a slot where there are more
    users than slots. ``prefill_share`` is the share of the engine's time that prompts take. ``power_w`` is of the
    cards alone, mean over prompts and answers; energy and cost have the prompts in them.
    """

    decode_tok_s: Interval
    throughput_tok_s: Interval
    prefill_tok_s: Interval
    ttft_s: Interval
    itl_s: Interval
    power_w: Interval | None = None
    kwh_per_mtok: Interval | None = None
    cost_per_mtok: Interval | None = None
    basis: tuple[str, ...] = ()
    prefill_share: float = 0.0
    users_at_slo: Interval | None = None
    schema: str = "terazi.forecast/1"


def faster(mid: float, spread: tuple[float, float]) -> Interval:
    """A rate whose measured value lies within *spread* times what is said."""
    return Interval(low=mid * spread[0], mid=mid, high=mid * spread[1])


def slower(mid: float, spread: tuple[float, float]) -> Interval:
    """Seconds of something whose rate has that *spread*."""
    return Interval(low=mid / spread[1], mid=mid, high=mid / spread[0])


def widen(spread: tuple[float, float], by: tuple[float, float], streams: int) -> tuple[float, float]:
    """*spread*, wider by *by* (down, up) for each doubling of the streams."""
    doublings = math.log2(streams)
    return spread[0] * math.exp(-by[0] * doublings), spread[1] * math.exp(by[1] * doublings)

"""The ``Forecast`` noun and the intervals that it is made of.

In: middle estimates and spreads. Out: intervals. ``forecast`` and ``vllm_forecast`` make the noun.
"""

import math
from dataclasses import dataclass

from terazi.performance.power import POWER_SPREAD, kwh_per_mtok


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
    users than slots. ``prefill_share`` is the share of the engine's time that prompts take.
    """

    decode_tok_s: Interval
    throughput_tok_s: Interval
    prefill_tok_s: Interval
    ttft_s: Interval
    itl_s: Interval
    power_w: Interval | None
    kwh_per_mtok: Interval | None
    cost_per_mtok: Interval | None
    basis: tuple[str, ...]
    prefill_share: float = 0.0
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


def power_of(found: tuple[float, float] | str, basis: list[str]) -> Interval | None:
    """Watts and the caps' sum as an interval; or, with the reason put into *basis*, None."""
    if isinstance(found, str):
        basis.append(found)
        return None
    watts, ceiling = found
    basis.append("power: of the cards alone, from TDP, cap and the share of time that each works")
    down, up = POWER_SPREAD
    return Interval(low=watts * down, mid=watts, high=max(watts, min(watts * up, ceiling)))


def energy_of(power: Interval | None, throughput: Interval) -> Interval | None:
    """kWh of a million tokens."""
    if power is None:
        return None
    mid = kwh_per_mtok(power.mid, throughput.mid)
    # a card that is faster than said also draws more: the two errors partly cancel, so only the speed's is kept
    return Interval(low=mid * throughput.mid / throughput.high, mid=mid, high=mid * throughput.mid / throughput.low)


def cost_of(energy: Interval | None, tariff_per_kwh: float | None, basis: list[str]) -> Interval | None:
    """What that costs; or, with the reason put into *basis*, None."""
    if energy is None:
        basis.append("no cost: the energy isn't known")
        return None
    if tariff_per_kwh is None:
        basis.append("no cost: no electricity tariff was given")
        return None
    return Interval(
        low=energy.low * tariff_per_kwh, mid=energy.mid * tariff_per_kwh, high=energy.high * tariff_per_kwh
    )

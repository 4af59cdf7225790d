"""The ``Forecast`` noun and the function that makes one."""

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
    """

    decode_tok_s: Interval  # one stream, mean over the output
    throughput_tok_s: Interval  # all streams together
    prefill_tok_s: Interval
    ttft_s: Interval
    itl_s: Interval
    power_w: Interval | None
    kwh_per_mtok: Interval | None
    cost_per_mtok: Interval | None
    basis: tuple[str, ...]
    schema: str = "terazi.forecast/1"

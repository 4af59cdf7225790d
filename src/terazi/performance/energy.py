"""The power report: watts at the wall in each phase, energy and money of a million tokens, cap, supply, heat, bill.

In: a plan with its forecast, and what the owner says of tariff and supply. Out: ``PowerReport``. Energy of a
million tokens is given for those that come in (prompt) and those that go out (answer): they cost differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.caps import CapAdvice, advise
from terazi.performance.efficiency import classify
from terazi.performance.host_power import (
    HOST_SPREAD,
    HostWatts,
    PsuCheck,
    Supply,
    check_psu,
    heat_btu_h,
    host_watts,
    wall_w,
)
from terazi.performance.outlook import Forecast, Interval
from terazi.performance.phases import Phase, RequestMix, phases, request_mix
from terazi.performance.power import POWER_SPREAD, Draw, draw, kwh_per_mtok
from terazi.performance.watts import draws_of
from terazi.placement.plan import Plan

#: 365.25 days in twelve parts.
HOURS_PER_MONTH: Final = 730.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """What a kilowatt-hour costs, and in which currency. ``per_kwh`` is None where it wasn't said."""

    per_kwh: float | None = None
    currency: str = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePower:
    """One kind of work: watts of each card, of the host, at the wall; energy and money of a million of its tokens.

    ``tokens`` is ``in`` for prompts and ``out`` for answers. Watts, kWh, currency.
    """

    name: str
    tokens: str
    tok_s: float
    cards_w: Mapping[str, float]
    host_w: float
    wall_w: Interval
    kwh_per_mtok: Interval
    cost_per_mtok: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyBill:
    """Electricity of a month in which the machine works for the share *duty* of the time and idles for the rest."""

    duty: float
    kwh: Interval
    cost: Interval | None
    tokens_in: float
    tokens_out: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReport:
    """Power and what it costs. ``cap`` is None without cards whose board power is known."""

    idle_wall_w: Interval
    phases: tuple[PhasePower, ...]
    work_wall_w: Interval
    month: MonthlyBill
    cap: CapAdvice | None
    psu: PsuCheck
    heat_btu_h: float
    tariff: Tariff
    basis: tuple[str, ...]
    schema: str = "terazi.power/1"


def power_report(
    spec: ModelSpec,
    plan: Plan,
    machine: Machine,
    workload: Workload,
    forecast: Forecast,
    *,
    supply: Supply | None = None,
    tariff: Tariff | None = None,
    duty: float = 1.0,
) -> PowerReport | str:
    """All of it, or the one sentence why it can't be known."""
    supply, tariff = supply or Supply(), tariff or Tariff()
    draws = draws_of(plan, machine)
    if isinstance(draws, str):
        return draws
    cards = [d for d in machine.devices if d.id in draws]
    if not draws and supply.host_load_w is None:
        return "no power: without a card it is the CPU's, and its watts aren't known (power.host_load_w says them)"
    work = phases(spec, plan, machine, workload, forecast)
    idlers = [draw(d, classify(d)) for d in machine.devices if d.id not in draws]
    idle_cards = sum(d.idle_w for d in draws.values()) + sum(d.idle_w for d in idlers if d is not None)
    rows = []
    for phase in work:
        host = host_watts(machine, supply, cpu_busy=phase.host_busy)
        rows.append(_phase_power(phase, draws, host, forecast, supply=supply, tariff=tariff))
    together = rows[-1]
    mix = request_mix(workload, forecast)
    host = host_watts(machine, supply, cpu_busy=work[-1].host_busy)
    advice = None
    if draws:
        advice = advise(_uncapped(draws), work[0], work[-1], mix, host_w=host.load_w, supply=supply)
    idle = _wall(idle_cards, host.idle_w, supply, cards_known=True)
    at_work = _mean(rows[0].wall_w, together.wall_w, mix)
    month = _month(idle, at_work, mix, tariff, duty)
    basis = [
        "cards: board power, cap, and the share of bandwidth and operations that the forecast implies",
        host.words,
        _loss(supply),
    ]
    if any(d.idle_w.value is None or d.idle_w.basis == "assumed" for d in cards):
        basis.append("idle watts of the cards: 6 % of their board power, assumed")
    if tariff.per_kwh is None:
        basis.append("no cost: no electricity tariff was given (--price-per-kwh, or power.price_per_kwh)")
    return PowerReport(
        idle_wall_w=idle,
        phases=tuple(rows),
        work_wall_w=at_work,
        month=month,
        cap=advice,
        psu=check_psu(machine, draws, host.load_w, supply),
        heat_btu_h=heat_btu_h(at_work.mid),
        tariff=tariff,
        basis=tuple(basis),
    )


def _uncapped(draws: Mapping[str, Draw]) -> dict[str, Draw]:
    return {name: d.capped(max(d.tdp_w, d.limit_w)) for name, d in draws.items()}


def _speed_of(phase: Phase, forecast: Forecast) -> Interval:
    """The phase's own rate, as uncertain as the forecast's figure for it."""
    if phase.name == "prompt":
        return forecast.prefill_tok_s
    if phase.name == "one stream":
        return forecast.decode_tok_s
    said = forecast.throughput_tok_s
    scale = phase.tok_s / said.mid
    return Interval(low=said.low * scale, mid=phase.tok_s, high=said.high * scale)


def _phase_power(
    phase: Phase,
    draws: Mapping[str, Draw],
    host: HostWatts,
    forecast: Forecast,
    *,
    supply: Supply,
    tariff: Tariff,
) -> PhasePower:
    speed = _speed_of(phase, forecast)
    cards = {name: d.drawn_w(phase.loads[name]) for name, d in draws.items() if name in phase.loads}
    for name, d in draws.items():
        cards.setdefault(name, d.idle_w)
    wall = _wall(sum(cards.values()), host.load_w, supply, cards_known=False)
    mid = kwh_per_mtok(wall.mid, speed.mid)
    # a card that is faster than said also draws more: the two errors partly cancel, so the wider one is kept
    low = min(mid * speed.mid / speed.high, mid * wall.low / wall.mid)
    high = max(mid * speed.mid / speed.low, mid * wall.high / wall.mid)
    energy = Interval(low=low, mid=mid, high=high)
    return PhasePower(
        name=phase.name,
        tokens="in" if phase.name == "prompt" else "out",
        tok_s=speed.mid,
        cards_w=cards,
        host_w=host.load_w,
        wall_w=wall,
        kwh_per_mtok=energy,
        cost_per_mtok=times(energy, tariff.per_kwh),
    )


def _wall(cards_w: float, host_w: float, supply: Supply, *, cards_known: bool) -> Interval:
    down, up = (1.0, 1.0) if cards_known else POWER_SPREAD
    said = supply.host_load_w is not None
    host_down, host_up = (1.0, 1.0) if said else HOST_SPREAD
    low, high = cards_w * down + host_w * host_down, cards_w * up + host_w * host_up
    return Interval(low=wall_w(low, supply), mid=wall_w(cards_w + host_w, supply), high=wall_w(high, supply))


def _mean(prompt: Interval, decode: Interval, mix: RequestMix) -> Interval:
    share = mix.prompt_s / (mix.prompt_s + mix.decode_s)

    def blend(a: float, b: float) -> float:
        return share * a + (1 - share) * b

    return Interval(
        low=blend(prompt.low, decode.low), mid=blend(prompt.mid, decode.mid), high=blend(prompt.high, decode.high)
    )


def _month(idle: Interval, work: Interval, mix: RequestMix, tariff: Tariff, duty: float) -> MonthlyBill:
    def kwh(idle_w: float, work_w: float) -> float:
        return (duty * work_w + (1 - duty) * idle_w) * HOURS_PER_MONTH / 1000

    energy = Interval(low=kwh(idle.low, work.low), mid=kwh(idle.mid, work.mid), high=kwh(idle.high, work.high))
    requests = duty * HOURS_PER_MONTH * 3600 / (mix.prompt_s + mix.decode_s)
    return MonthlyBill(
        duty=duty,
        kwh=energy,
        cost=times(energy, tariff.per_kwh),
        tokens_in=requests * mix.prompt_tokens,
        tokens_out=requests * mix.tokens,
    )


def times(value: Interval, factor: float | None) -> Interval | None:
    """The interval in another unit; None if the factor isn't known."""
    if factor is None:
        return None
    return Interval(low=value.low * factor, mid=value.mid * factor, high=value.high * factor)


def _loss(supply: Supply) -> str:
    if supply.efficiency is not None:
        return f"power supply: {supply.efficiency:.0%} of the wall's power arrives, as you said"
    if supply.psu_w is not None:
        return f"power supply: 80 PLUS Gold at its share of {supply.psu_w:.0f} W, assumed"
    return "power supply: 90 % of the wall's power arrives, assumed"

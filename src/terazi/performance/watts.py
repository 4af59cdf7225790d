"""Watts of a plan's cards, put into its forecast: power, energy and cost of a million answer tokens.

In: a forecast without them, and what it was made of. Out: the forecast with them, or with the reason why not.
Prompts are in the energy, as in published figures; the host and the supply's loss are in ``energy``'s report alone.
"""

from collections.abc import Mapping
from dataclasses import replace

from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.efficiency import classify
from terazi.performance.outlook import Forecast, Interval
from terazi.performance.phases import Phase, phases, request_mix
from terazi.performance.power import NO_POWER_OF_CPU, POWER_SPREAD, Draw, draw, kwh_per_mtok
from terazi.placement.plan import Plan


def draws_of(plan: Plan, machine: Machine) -> Mapping[str, Draw] | str:
    """The cards that hold a part of the plan; or whose board power isn't known."""
    used = {s.id for s in plan.devices if s.weights_bytes or s.kv_bytes}
    draws: dict[str, Draw] = {}
    for device in machine.devices:
        if device.id not in used:
            continue
        found = draw(device, classify(device))
        if found is None:
            return f"no power: the board power (TDP) of {device.name} isn't known"
        draws[device.id] = found
    return draws


def with_watts(
    spec: ModelSpec,
    plan: Plan,
    machine: Machine,
    workload: Workload,
    said: Forecast,
    *,
    tariff_per_kwh: float | None,
) -> Forecast:
    """*said* with its watts, mean over prompts and answers; kWh and cost are of a million answer tokens."""
    draws = draws_of(plan, machine)
    if isinstance(draws, str):
        return replace(said, basis=(*said.basis, draws, "no cost: the energy isn't known"))
    if not draws:
        return replace(said, basis=(*said.basis, NO_POWER_OF_CPU))
    work, mix = phases(spec, plan, machine, workload, said), request_mix(workload, said)
    seconds = mix.prompt_s + mix.decode_s
    watts = (cards_w(draws, work[0]) * mix.prompt_s + cards_w(draws, work[-1]) * mix.decode_s) / seconds
    down, up = POWER_SPREAD
    ceiling = sum(d.limit_w for d in draws.values())
    power = Interval(low=watts * down, mid=watts, high=max(watts, min(watts * up, ceiling)))
    speed = said.throughput_tok_s
    mid = kwh_per_mtok(watts, mix.tokens / seconds)
    # a card that is faster than said also draws more: the two errors partly cancel, so the wider one is kept
    cheap, dear = min(speed.mid / speed.high, down), max(speed.mid / speed.low, power.high / watts)
    energy = Interval(low=mid * cheap, mid=mid, high=mid * dear)
    basis = [*said.basis, "power: of the cards alone, from board power, cap, and the work that this speed means"]
    cost = None
    if tariff_per_kwh is None:
        basis.append("no cost: no electricity tariff was given")
    else:
        cost = Interval(
            low=energy.low * tariff_per_kwh, mid=mid * tariff_per_kwh, high=energy.high * tariff_per_kwh
        )
    return replace(said, power_w=power, kwh_per_mtok=energy, cost_per_mtok=cost, basis=tuple(basis))


def cards_w(draws: Mapping[str, Draw], phase: Phase) -> float:
    """Watts of all cards in a phase; one that has nothing to do in it idles."""
    return sum(d.drawn_w(phase.loads[name]) if name in phase.loads else d.idle_w for name, d in draws.items())

"""The ``Forecast`` noun and the function that makes one."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from terazi.hardware.machine import Machine
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.calibration import Calibration
from terazi.performance.efficiency import DECODE_SPREAD, PREFILL_SPREAD
from terazi.performance.power import POWER_SPREAD, kwh_per_mtok
from terazi.performance.timing import Timing
from terazi.placement.plan import Plan

#: Widening of the interval per doubling of the streams, down and up: dense batches of the table stay within 10 % at
#: 32 streams; routed experts overlap more than the uniform bound knows, up to 1.9 times as fast at 32.
_DENSE_WIDEN, _EXPERT_WIDEN = (0.05, 0.05), (0.06, 0.13)


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


def forecast(
    spec: ModelSpec,
    plan: Plan,
    machine: Machine,
    workload: Workload,
    *,
    tariff_per_kwh: float | None = None,
    calibration: Calibration | None = None,
) -> Forecast:
    """Speed, latency and energy of *plan* on *machine* under *workload*.

    ``decode_tok_s`` is a stream that runs alone; ``throughput_tok_s`` and ``itl_s`` are for all users at once, each
    at the mean depth ``prompt + output/2``; ``ttft_s`` is one prompt without a queue and its first decode step.

    Args:
        tariff_per_kwh: price of electricity, in the currency that the cost shall have.
        calibration: what was measured on *machine*.
    """
    model = Timing.of(spec, plan, machine, calibration)
    streams = max(1, min(workload.users, model.resolved.n_seq_max))
    depth = min(workload.prompt + workload.output / 2, float(model.resolved.n_ctx_seq))
    prompt = max(1, min(workload.prompt, model.resolved.n_ctx_seq))

    alone = model.step(batch=1, depth=depth)
    together = alone if streams == 1 else model.step(batch=streams, depth=depth)
    alone_spread = model.spread(alone.by_device, DECODE_SPREAD)
    widen = _EXPERT_WIDEN if spec.expert_count else _DENSE_WIDEN
    together_spread = _widen(model.spread(together.by_device, DECODE_SPREAD), widen, streams)

    prefill = model.prefill(prompt)
    prefill_spread = model.spread(prefill.by_device, PREFILL_SPREAD)
    first = _slower(prefill.seconds, prefill_spread)
    step = _slower(alone.seconds, alone_spread)
    ttft = Interval(low=first.low + step.low, mid=first.mid + step.mid, high=first.high + step.high)

    throughput = _faster(streams / together.seconds, together_spread)
    basis = [*model.words()]
    power = _power(model.power(together), basis)
    energy = _energy(power, throughput)
    cost = None
    if energy is None:
        basis.append("no cost: the energy isn't known")
    elif tariff_per_kwh is None:
        basis.append("no cost: no electricity tariff was given")
    else:
        cost = Interval(
            low=energy.low * tariff_per_kwh, mid=energy.mid * tariff_per_kwh, high=energy.high * tariff_per_kwh
        )
    if spec.expert_count and streams > 1:
        basis.append("experts that a batch touches: uniform routing, an upper bound")
    if workload.users > model.resolved.n_seq_max:
        basis.append(f"{workload.users} users share {model.resolved.n_seq_max} slots; those without one wait")
    return Forecast(
        decode_tok_s=_faster(1 / alone.seconds, alone_spread),
        throughput_tok_s=throughput,
        prefill_tok_s=_faster(prompt / prefill.seconds, prefill_spread),
        ttft_s=ttft,
        itl_s=_slower(together.seconds, together_spread),
        power_w=power,
        kwh_per_mtok=energy,
        cost_per_mtok=cost,
        basis=tuple(basis),
    )


def score(
    spec: ModelSpec, machine: Machine, workload: Workload, calibration: Calibration | None = None
) -> Callable[[Plan], float]:
    """A judge of plans for ``placement.solve``: output tokens per second of the workload, prompts included."""

    def judge(plan: Plan) -> float:
        said = forecast(spec, plan, machine, workload, calibration=calibration)
        users, output = max(1, workload.users), max(1, workload.output)
        waves = -(-users // max(1, llama_cpp_settings(plan.settings).n_parallel or 1))
        seconds = users * said.ttft_s.mid + waves * output * said.itl_s.mid
        return users * output / seconds

    return judge


def _faster(mid: float, spread: tuple[float, float]) -> Interval:
    return Interval(low=mid * spread[0], mid=mid, high=mid * spread[1])


def _slower(mid: float, spread: tuple[float, float]) -> Interval:
    return Interval(low=mid / spread[1], mid=mid, high=mid / spread[0])


def _widen(spread: tuple[float, float], by: tuple[float, float], streams: int) -> tuple[float, float]:
    doublings = math.log2(streams)
    return spread[0] * math.exp(-by[0] * doublings), spread[1] * math.exp(by[1] * doublings)


def _power(found: tuple[float, float] | str, basis: list[str]) -> Interval | None:
    if isinstance(found, str):
        basis.append(found)
        return None
    watts, ceiling = found
    basis.append("power: of the cards alone, from TDP, cap and the share of time that each works")
    down, up = POWER_SPREAD
    return Interval(low=watts * down, mid=watts, high=max(watts, min(watts * up, ceiling)))


def _energy(power: Interval | None, throughput: Interval) -> Interval | None:
    if power is None:
        return None
    mid = kwh_per_mtok(power.mid, throughput.mid)
    # a card that is faster than said also draws more: the two errors partly cancel, so only the speed's is kept
    return Interval(low=mid * throughput.mid / throughput.high, mid=mid, high=mid * throughput.mid / throughput.low)

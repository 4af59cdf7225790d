"""The ``Forecast`` noun and the function that makes one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.efficiency import (
    DECODE_SPREAD,
    PREFILL_SPREAD,
    Ground,
    Speed,
    speed_of_device,
    speed_of_host,
)
from terazi.performance.links import boundary_s, slot_bytes_per_s
from terazi.performance.power import POWER_SPREAD, Draw, draw, kwh_per_mtok
from terazi.performance.roofline import Rates, decode_step_s, distinct_experts, prefill_s
from terazi.performance.traffic import DeviceTraffic, boundaries, traffic
from terazi.placement.plan import Plan

#: Share of the ideal overlap that pipelined micro-batches reach over several cards (``benchmarks/fit_speed.py``).
OVERLAP = 0.8
#: llama.cpp computes host layers of a batch this large on the first card (``ggml_backend_cuda_..._offload_op``).
OFFLOAD_BATCH = 32
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
    spec: ModelSpec, plan: Plan, machine: Machine, workload: Workload, *, tariff_per_kwh: float | None = None
) -> Forecast:
    """Speed, latency and energy of *plan* on *machine* under *workload*.

    ``decode_tok_s`` is a stream that runs alone; ``throughput_tok_s`` and ``itl_s`` are for all users at once, each
    at the mean depth ``prompt + output/2``; ``ttft_s`` is one prompt without a queue and its first decode step.

    Args:
        tariff_per_kwh: price of electricity, in the currency that the cost shall have.
    """
    model = _Model.of(spec, plan, machine)
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
    power = model.power(together, basis)
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


def score(spec: ModelSpec, machine: Machine, workload: Workload) -> Callable[[Plan], float]:
    """A judge of plans for ``placement.solve``: output tokens per second of the workload, prompts included."""

    def judge(plan: Plan) -> float:
        said = forecast(spec, plan, machine, workload)
        users, output = max(1, workload.users), max(1, workload.output)
        waves = -(-users // max(1, plan.settings.n_parallel or 1))
        seconds = users * said.ttft_s.mid + waves * output * said.itl_s.mid
        return users * output / seconds

    return judge


@dataclass(frozen=True, slots=True)
class _Timed:
    """Seconds in all, and the part of each device."""

    seconds: float
    by_device: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """One plan made ready to be timed."""

    spec: ModelSpec
    machine: Machine
    resolved: Resolved
    op_offload: bool
    traffic: Mapping[str, DeviceTraffic]
    speeds: Mapping[str, Speed]
    draws: Mapping[str, Draw | None]

    @classmethod
    def of(cls, spec: ModelSpec, plan: Plan, machine: Machine) -> "_Model":
        resolved = resolve(spec, plan.settings, machine.devices)
        load = traffic(spec, plan.settings, resolved, plan.bill, machine.host.isa)
        by_id: dict[str, Device] = {d.id: d for d in machine.devices}
        speeds = {
            name: speed_of_device(by_id[name]) if name in by_id else speed_of_host(machine.host) for name in load
        }
        draws = {name: draw(by_id[name], speeds[name].card_class) for name in load if name in by_id}
        return cls(
            spec=spec,
            machine=machine,
            resolved=resolved,
            op_offload=plan.settings.op_offload,
            traffic=load,
            speeds=speeds,
            draws=draws,
        )

    def rates(self, name: str) -> Rates:
        """The device's rates, slowed by its power cap."""
        rates = self.speeds[name].rates
        limit = self.draws.get(name)
        slow = limit.speed if limit is not None else 1.0
        return Rates(bandwidth=rates.bandwidth * slow, flops=rates.flops * slow, efficiency=rates.efficiency)

    def step(self, *, batch: int, depth: float) -> _Timed:
        """One decode step for *batch* streams, each *depth* tokens deep."""
        parts: dict[str, float] = {}
        for name, t in self.traffic.items():
            touched = distinct_experts(self.spec.expert_count, self.spec.expert_used_count, batch)
            experts = t.expert_bytes * (touched / self.spec.expert_count if self.spec.expert_count else 1.0)
            parts[name] = decode_step_s(
                self.rates(name),
                read_bytes=t.dense_bytes + experts,
                kv_bytes=batch * t.kv_bytes(depth),
                layers=t.layers,
                flops_per_token=t.flops_per_token,
                batch=batch,
            )
        hops = sum(
            boundary_s(self.machine, a, b, n_embd=self.spec.embedding_length, tokens=batch)
            for a, b in boundaries(self.resolved)
        )
        return _Timed(sum(parts.values()) + hops, parts)

    def prefill(self, tokens: int) -> _Timed:
        """A whole prompt of one stream, with an empty cache."""
        micro = max(1, min(self.resolved.n_ubatch, tokens))
        batches = -(-tokens // micro)
        heads = max(self.spec.head_count, default=0)
        per_pair = 2.0 * heads * (self.spec.key_length + self.spec.value_length)
        parts: dict[str, float] = {}
        for name, t in self.traffic.items():
            touched = distinct_experts(self.spec.expert_count, self.spec.expert_used_count, micro)
            experts = t.expert_bytes * (touched / self.spec.expert_count if self.spec.expert_count else 1.0)
            read = t.dense_bytes + experts
            flops = t.flops_per_token * tokens + t.attention_flops(tokens, per_pair)
            parts[name] = prefill_s(
                self.rates(name),
                flops=flops,
                read_bytes_per_batch=read,
                kv_bytes=0.0,
                layers=t.layers,
                batches=batches,
            )
            if name == HOST and self._computed_on_card(micro):
                parts[name] = self._streamed_s(read, flops, t.layers, batches)
        hops = sum(
            boundary_s(self.machine, a, b, n_embd=self.spec.embedding_length, tokens=micro)
            for a, b in boundaries(self.resolved)
        )
        serial = sum(parts.values()) + batches * hops
        if not self.resolved.pipeline or batches == 1:
            return _Timed(serial, parts)
        stages = [s / batches for s in parts.values()]
        ideal = sum(stages) + hops + (batches - 1) * max(stages)
        return _Timed(min(serial, OVERLAP * ideal + (1 - OVERLAP) * serial), parts)

    def _computed_on_card(self, micro: int) -> bool:
        cards = self.resolved.devices
        return bool(cards) and self.op_offload and micro >= OFFLOAD_BATCH and not cards[0].unified_memory

    def _streamed_s(self, read_bytes: float, flops: float, layers: int, batches: int) -> float:
        """Host layers of a large batch: their weights cross the first card's slot once a micro-batch."""
        first = self.resolved.devices[0]
        rates = self.rates(first.id) if first.id in self.speeds else speed_of_device(first).rates
        wire = batches * read_bytes / slot_bytes_per_s(first)
        return wire + flops / (rates.efficiency.compute * rates.flops) + batches * layers * rates.efficiency.layer_s

    def spread(
        self, parts: Mapping[str, float], table: Mapping[Ground, tuple[float, float]]
    ) -> tuple[float, float]:
        """Low and high factors: each device's own, weighted by its share of the time."""
        total = sum(parts.values())
        low = high = 0.0
        for name, seconds in parts.items():
            down, up = table[self.speeds[name].ground]
            low += seconds / total * math.log(down)
            high += seconds / total * math.log(up)
        return math.exp(low), math.exp(high)

    def words(self) -> tuple[str, ...]:
        """What the speeds rest on, a sentence each."""
        said = dict.fromkeys(self.speeds[name].words for name, t in self.traffic.items() if t.flops_per_token)
        counted = len(boundaries(self.resolved)) - 1
        hops = (f"{counted} hand-overs between devices a token",) if counted > 0 else ()
        return (*said, *hops, "roofline: active weights and cache over bandwidth, plus a cost per layer")

    def power(self, timed: _Timed, basis: list[str]) -> Interval | None:
        """Average watts of the cards while all streams decode."""
        if not self.draws:
            basis.append("no power: no figure for this CPU")
            return None
        missing = [name for name, d in self.draws.items() if d is None]
        if missing:
            basis.append(f"no power: the TDP of {', '.join(missing)} isn't known")
            return None
        watts = sum(
            d.watts(timed.by_device[name] / timed.seconds) for name, d in self.draws.items() if d is not None
        )
        ceiling = sum(d.allowed_w for d in self.draws.values() if d is not None)
        basis.append("power: of the cards alone, from TDP, cap and the share of time that each works")
        down, up = POWER_SPREAD
        return Interval(low=watts * down, mid=watts, high=max(watts, min(watts * up, ceiling * up)))


def _faster(mid: float, spread: tuple[float, float]) -> Interval:
    return Interval(low=mid * spread[0], mid=mid, high=mid * spread[1])


def _slower(mid: float, spread: tuple[float, float]) -> Interval:
    return Interval(low=mid / spread[1], mid=mid, high=mid / spread[0])


def _widen(spread: tuple[float, float], by: tuple[float, float], streams: int) -> tuple[float, float]:
    doublings = math.log2(streams)
    return spread[0] * math.exp(-by[0] * doublings), spread[1] * math.exp(by[1] * doublings)


def _energy(power: Interval | None, throughput: Interval) -> Interval | None:
    if power is None:
        return None
    mid = kwh_per_mtok(power.mid, throughput.mid)
    # a card that is faster than said also draws more: the two errors partly cancel, so only the speed's is kept
    return Interval(low=mid * throughput.mid / throughput.high, mid=mid, high=mid * throughput.mid / throughput.low)

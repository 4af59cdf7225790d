"""One plan made ready to be timed: each device's traffic, rates and power limit side by side.

In: ``ModelSpec``, ``Plan``, ``Machine``. Out: seconds of a decode step and of a prompt, per device and in all, and
the watts meanwhile. ``forecast`` turns them into intervals.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.settings import llama_cpp_settings
from terazi.models.spec import ModelSpec
from terazi.performance.calibration import Calibration, DeviceCalibration
from terazi.performance.efficiency import (
    CardClass,
    Ground,
    Speed,
    small_model_factor,
    speed_of_device,
    speed_of_host,
)
from terazi.performance.kernels import KernelWork, kernel_work, kernels_prompt_s, kernels_step_s
from terazi.performance.links import boundary_s, slot_bytes_per_s
from terazi.performance.power import Draw, draw
from terazi.performance.roofline import Rates, decode_step_s, distinct_experts, prefill_s
from terazi.performance.traffic import DeviceTraffic, boundaries, traffic
from terazi.placement.plan import Plan

#: Share of the ideal overlap that pipelined micro-batches reach over several cards (``benchmarks/fit_speed.py``).
OVERLAP = 0.8
#: llama.cpp computes host layers of a batch this large on the first card (ggml-cuda.cu:
#: ggml_backend_cuda_device_offload_op, b11434).
OFFLOAD_BATCH = 32


class Timed(NamedTuple):
    """Seconds in all, and the part of each device."""

    seconds: float
    by_device: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One plan made ready to be timed."""

    spec: ModelSpec
    machine: Machine
    resolved: Resolved
    op_offload: bool
    traffic: Mapping[str, DeviceTraffic]
    speeds: Mapping[str, Speed]
    draws: Mapping[str, Draw | None]
    timed_kernels: Mapping[str, DeviceCalibration]
    kernel_work: Mapping[str, KernelWork]

    @classmethod
    def of(cls, spec: ModelSpec, plan: Plan, machine: Machine, calibration: Calibration | None = None) -> "Timing":
        settings = llama_cpp_settings(plan.settings)
        resolved = resolve(spec, settings, machine.devices)
        load = traffic(spec, settings, resolved, plan.bill, machine.host.isa)
        by_id: dict[str, Device] = {d.id: d for d in machine.devices}
        speeds = {
            name: speed_of_device(by_id[name]) if name in by_id else speed_of_host(machine.host) for name in load
        }
        draws = {name: draw(by_id[name], speeds[name].card_class) for name in load if name in by_id}
        timed = _timed_kernels(load, by_id, machine, calibration)
        return cls(
            spec=spec,
            machine=machine,
            resolved=resolved,
            op_offload=settings.op_offload,
            traffic=load,
            speeds=speeds,
            draws=draws,
            timed_kernels=timed,
            kernel_work=kernel_work(spec, settings, resolved, machine.host.isa) if timed else {},
        )

    def rates(self, name: str) -> Rates:
        """The device's rates, slowed by its power cap."""
        rates = self.speeds[name].rates
        limit = self.draws.get(name)
        slow = limit.speed if limit is not None else 1.0
        return Rates(bandwidth=rates.bandwidth * slow, flops=rates.flops * slow, efficiency=rates.efficiency)

    def step(self, *, batch: int, depth: float) -> Timed:
        """One decode step for *batch* streams, each *depth* tokens deep."""
        parts: dict[str, float] = {}
        for name, t in self.traffic.items():
            if name in self.timed_kernels:
                own, work = self.timed_kernels[name], self.kernel_work.get(name)
                parts[name] = kernels_step_s(own, self.spec, work, t, batch=batch, depth=depth)
                continue
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
        return Timed(sum(parts.values()) + hops, parts)

    def prefill(self, tokens: int) -> Timed:
        """A whole prompt of one stream, with an empty cache."""
        micro = max(1, min(self.resolved.n_ubatch, tokens))
        batches = -(-tokens // micro)
        heads = max(self.spec.head_count, default=0)
        per_pair = 2.0 * heads * (self.spec.key_length + self.spec.value_length)
        parts: dict[str, float] = {}
        for name, t in self.traffic.items():
            if name in self.timed_kernels and not (name == HOST and self._computed_on_card(micro)):
                own, kernels = self.timed_kernels[name], self.kernel_work.get(name)
                parts[name] = kernels_prompt_s(own, self.spec, kernels, t, tokens=tokens, micro_batch=micro)
                continue
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
            return Timed(serial, parts)
        stages = [s / batches for s in parts.values()]
        ideal = sum(stages) + hops + (batches - 1) * max(stages)
        return Timed(min(serial, OVERLAP * ideal + (1 - OVERLAP) * serial), parts)

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
        beyond = math.log(small_model_factor(self.read_bytes()))
        low = high = 0.0
        for name, seconds in parts.items():
            down, up = table[self.speeds[name].ground]
            extra = 0.0 if self.speeds[name].card_class is CardClass.CPU else beyond
            low += seconds / total * (math.log(down) - extra)
            high += seconds / total * (math.log(up) + extra)
        return math.exp(low), math.exp(high)

    def read_bytes(self) -> float:
        """Weights that one token reads, on all devices together."""
        used = self.spec.expert_used_count / self.spec.expert_count if self.spec.expert_count else 1.0
        return sum(t.dense_bytes + used * t.expert_bytes for t in self.traffic.values())

    def words(self) -> tuple[str, ...]:
        """What the speeds rest on, a sentence each."""
        said = dict.fromkeys(self.speeds[name].words for name, t in self.traffic.items() if t.flops_per_token)
        counted = len(boundaries(self.resolved)) - 1
        hops = (f"{counted} hand-over{'s' * (counted > 1)} between devices a token",) if counted > 0 else ()
        if small_model_factor(self.read_bytes()) > 1 and self.draws:
            hops = (*hops, "a smaller model than any that was measured on a card, so the interval is wider")
        return (*said, *hops, "roofline: active weights and cache over bandwidth, plus a cost per layer")

    def power(self, timed: Timed) -> tuple[float, float] | str:
        """Average watts of the cards during *timed*, and the sum of their caps; or why it can't be known."""
        if not self.draws:
            return "no power: no figure for this CPU"
        missing = [name for name, d in self.draws.items() if d is None]
        if missing:
            return f"no power: the TDP of {', '.join(missing)} isn't known"
        known = {name: d for name, d in self.draws.items() if d is not None}
        watts = sum(d.watts(timed.by_device[name] / timed.seconds) for name, d in known.items())
        return watts, sum(d.limit_w for d in known.values())


def _timed_kernels(
    load: Mapping[str, DeviceTraffic],
    devices: Mapping[str, Device],
    machine: Machine,
    calibration: Calibration | None,
) -> Mapping[str, DeviceCalibration]:
    """The devices whose kernels were timed on this machine."""
    if calibration is None:
        return {}
    names = {name: devices[name].name if name in devices else machine.host.cpu_name or "CPU" for name in load}
    found = {name: calibration.device(name, called) for name, called in names.items()}
    return {name: own for name, own in found.items() if own is not None and own.kernels}

"""One plan made ready to be timed: each device's traffic, rates and power limit side by side.

In: ``ModelSpec``, ``Plan``, ``Machine``. Out: seconds of a decode step and of a prompt, per device and in all, and
the watts meanwhile. ``forecast`` turns them into intervals.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.settings import llama_cpp_settings
from terazi.models.spec import ModelSpec
from terazi.performance.collectives import Fabric, fabric_of
from terazi.performance.efficiency import (
    PREFILL_SPREAD,
    CardClass,
    Ground,
    Speed,
    small_model_factor,
    speed_of_device,
    speed_of_host,
)
from terazi.performance.links import boundary_s, slot_bytes_per_s
from terazi.performance.power import DECODE, DECODE_CORE_SHARE, PREFILL, Draw, draw
from terazi.performance.roofline import SCORE_BYTES, PromptWork, Rates, decode_step_s, prompt_s
from terazi.performance.routing import distinct_experts
from terazi.performance.traffic import DeviceTraffic, boundaries, traffic
from terazi.placement.plan import Plan

if TYPE_CHECKING:
    from terazi.performance.calibration import Calibration, DeviceCalibration, LinkCalibration
    from terazi.performance.kernels import KernelWork

#: Share of the ideal overlap that pipelined micro-batches reach over several cards (``benchmarks/fit_speed.py``).
OVERLAP = 0.8
#: llama.cpp computes host layers of a batch this large on the first card (ggml-cuda.cu:
#: ggml_backend_cuda_device_offload_op, b11434).
OFFLOAD_BATCH = 32
#: Tokens at the end of a prompt that are computed apart where checkpoints are kept.
_APART = 4


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
    timed_kernels: "Mapping[str, DeviceCalibration]"
    kernel_work: "Mapping[str, KernelWork]"
    fabric: Fabric | None = None  # between devices that every layer is cut over
    links: "Mapping[frozenset[str], LinkCalibration]" = field(default_factory=dict)
    checkpoints: bool = False  # whether a server breaks prompts to keep what can't be rolled back

    @classmethod
    def of(
        cls, spec: ModelSpec, plan: Plan, machine: Machine, calibration: "Calibration | None" = None
    ) -> "Timing":
        settings = llama_cpp_settings(plan.settings)
        resolved = resolve(spec, settings, machine.devices)
        load = dict(traffic(spec, settings, resolved, plan.bill, machine.host.isa))
        cut = tuple(d.id for d in resolved.cut)
        if len(cut) > 1:
            whole = load.pop(cut[0])
            given = settings.tensor_split[: len(cut)] or (1.0,) * len(cut)
            load |= {name: whole.cut(name, part / sum(given)) for name, part in zip(cut, given, strict=True)}
        by_id: dict[str, Device] = {d.id: d for d in machine.devices}
        speeds = {name: _speed(name, by_id.get(name), machine, calibration) for name in load}
        draws = {name: draw(by_id[name], speeds[name].card_class) for name in load if name in by_id}
        timed = {} if cut else _timed_kernels(load, by_id, machine, calibration)
        return cls(
            spec=spec,
            machine=machine,
            resolved=resolved,
            op_offload=settings.op_offload,
            traffic=load,
            speeds=speeds,
            draws=draws,
            timed_kernels=timed,
            kernel_work=_kernel_work(spec, settings, resolved, machine) if timed else {},
            fabric=fabric_of(machine, cut) if len(cut) > 1 else None,
            checkpoints=_keeps_checkpoints(settings, load),
            links=_measured_links(load, by_id, calibration),
        )

    def rates(self, name: str, *, prompt: bool = False) -> Rates:
        """The device's rates, slowed by its power cap. That limits averages: in a layer split cards take turns."""
        rates = self.speeds[name].rates
        limit = self.draws.get(name)
        slow = 1.0
        if limit is not None and prompt:
            slow = limit.speed_at(PREFILL, 1.0)
        elif limit is not None:
            turns = len(self.draws) if self.fabric is None else 1
            slow = limit.speed_at(DECODE._replace(busy=1 / turns), DECODE_CORE_SHARE)
        return rates._replace(bandwidth=rates.bandwidth * slow, flops=rates.flops * slow)

    def step(self, *, batch: int, depth: float, checked: int = 0) -> Timed:
        """One decode step for *batch* streams, each *depth* tokens deep.

        Args:
            checked: guessed tokens of each stream that the step checks beside the one it makes.
        """
        tokens = batch * (1 + checked)
        parts: dict[str, float] = {}
        for name, t in self.traffic.items():
            if name in self.timed_kernels:
                from terazi.performance.kernels import kernels_step_s

                own, work = self.timed_kernels[name], self.kernel_work.get(name)
                parts[name] = kernels_step_s(own, self.spec, work, t, batch=tokens, depth=depth)
                continue
            touched = distinct_experts(self.spec.expert_count, self.spec.expert_used_count, tokens)
            experts = t.expert_bytes * (touched / self.spec.expert_count if self.spec.expert_count else 1.0)
            parts[name] = decode_step_s(
                self.rates(name),
                read_bytes=t.dense_bytes + experts,
                kv_bytes=batch * t.kv_bytes(depth),
                layers=t.layers,
                flops_per_token=t.flops_per_token,
                batch=tokens,
                packed_weights=t.packed_weights,
                hidden=self.spec.embedding_length,
            )
        hops = sum(self._boundary_s(a, b, tokens) for a, b in boundaries(self.resolved))
        return Timed(self._together(parts, tokens) + hops, parts)

    def first_token_s(self, alone: Timed) -> float:
        """Seconds from the end of a prompt to its first token: a step like *alone*'s, of which kernels that were
        timed leave the sampling only, since a prompt's last micro-batch makes the logits."""
        sampling = [
            own.token_s + self.spec.vocab_size * own.vocab_s
            for name, own in self.timed_kernels.items()
            if (work := self.kernel_work.get(name)) is not None and work.output
        ]
        return sum(sampling) if sampling else alone.seconds

    def _together(self, parts: Mapping[str, float], tokens: int) -> float:
        """Seconds of devices one after another; of those that share every layer the slowest, and their sums."""
        if self.fabric is None:
            return sum(parts.values())
        cut = [d.id for d in self.resolved.cut]
        sums = 2 * self.spec.block_count
        reduce_s = self.fabric.all_reduce_s(tokens * self.spec.embedding_length * 4, len(cut))
        rest = sum(seconds for name, seconds in parts.items() if name not in cut)
        return max(parts[name] for name in cut) + rest + sums * reduce_s

    def break_s(self, tokens: int, cached: int = 0) -> float:
        """Seconds that a server takes longer over a prompt because it computes the last tokens apart.

        It does so to keep a checkpoint of what can't be rolled back, a window's cells or a recurrent state
        (``tools/server/server-context.cpp``, ``checkpoint_offsets``, b11434).
        """
        if not self.checkpoints or tokens - cached <= _APART:
            return 0.0
        before = self.prefill(tokens - _APART, cached, logits=False).seconds
        last = self.prefill(tokens, tokens - _APART).seconds
        return max(0.0, before + last - self.prefill(tokens, cached).seconds)

    def prefill(self, tokens: int, cached: int = 0, *, logits: bool = True) -> Timed:
        """A whole prompt of one stream, of which the first *cached* tokens are in the cache already.

        Without *logits* it is a part of one that isn't the last.
        """
        fresh = max(1, tokens - cached)
        micro = max(1, min(self.resolved.n_ubatch, fresh))
        batches = -(-fresh // micro)
        heads = max(self.spec.head_count, default=0)
        per_pair = 2.0 * heads * (self.spec.key_length + self.spec.value_length)
        touched = distinct_experts(self.spec.expert_count, self.spec.expert_used_count, micro)
        share = touched / self.spec.expert_count if self.spec.expert_count else 1.0
        parts: dict[str, float] = {}
        for name, t in self.traffic.items():
            if name in self.timed_kernels and not (name == HOST and self._computed_on_card(micro)):
                from terazi.performance.kernels import kernels_prompt_s

                own, kernels = self.timed_kernels[name], self.kernel_work.get(name)
                parts[name] = kernels_prompt_s(
                    own, self.spec, kernels, t, tokens=tokens, micro_batch=micro, cached=cached, logits=logits
                )
                continue
            pairs = (t.pairs(tokens) - (t.pairs(cached) if cached else 0.0)) * self._share(name)
            work = PromptWork(
                tokens=fresh,
                batches=batches,
                layers=t.layers,
                hidden=self.spec.embedding_length,
                flops=(t.flops_per_token - t.expert_flops) * fresh + pairs * per_pair,
                expert_flops=t.expert_flops * fresh,
                read_bytes=t.dense_bytes + share * t.expert_bytes,
                packed_weights=t.packed_dense + share * t.packed_experts,
                score_bytes=0.0 if self.resolved.flash_attn else SCORE_BYTES * heads * pairs,
            )
            if name == HOST and self._computed_on_card(micro):
                parts[name] = self._streamed_s(work)
            else:
                parts[name] = prompt_s(self.rates(name, prompt=True), work)
        hops = sum(self._boundary_s(a, b, micro) for a, b in boundaries(self.resolved))
        serial = batches * (self._together({n: s / batches for n, s in parts.items()}, micro) + hops)
        if not self.resolved.pipeline or batches == 1:
            return Timed(serial, parts)
        stages = [s / batches for s in parts.values()]
        ideal = sum(stages) + hops + (batches - 1) * max(stages)
        return Timed(min(serial, OVERLAP * ideal + (1 - OVERLAP) * serial), parts)

    def _boundary_s(self, a: str, b: str, tokens: int) -> float:
        """Seconds to hand the hidden state of *tokens* tokens over, as it was measured here if it was."""
        own = self.links.get(frozenset((a, b)))
        if own is not None:
            return own.latency_s + tokens * self.spec.embedding_length * 4 / own.bytes_per_s
        return boundary_s(self.machine, a, b, n_embd=self.spec.embedding_length, tokens=tokens)

    def _share(self, name: str) -> float:
        """The share of every layer that lies on a device; 1 where layers are whole."""
        if self.fabric is None or not any(d.id == name for d in self.resolved.cut):
            return 1.0
        mine = self.traffic[name].flops_per_token
        return mine / sum(self.traffic[d.id].flops_per_token for d in self.resolved.cut)

    def _computed_on_card(self, micro: int) -> bool:
        card = self._taking_over()
        return card is not None and self.op_offload and micro >= OFFLOAD_BATCH and not card.unified_memory

    def _taking_over(self) -> Device | None:
        """The first card that takes over operations of the host; an RPC server takes none (ggml-rpc.cpp)."""
        return next((d for d in self.resolved.devices if d.backend != "rpc"), None)

    def _streamed_s(self, work: PromptWork) -> float:
        """Host layers of a large batch: their weights cross the first card's slot once a micro-batch."""
        first = self._taking_over() or self.resolved.devices[0]
        rates = self.rates(first.id, prompt=True) if first.id in self.speeds else speed_of_device(first).rates
        wire = work.batches * work.read_bytes / slot_bytes_per_s(first)
        return wire + prompt_s(rates, work._replace(read_bytes=0.0, packed_weights=0.0))

    def spread(
        self, parts: Mapping[str, float], table: Mapping[Ground, tuple[float, float]]
    ) -> tuple[float, float]:
        """Low and high factors: each device's own, weighted by its share of the time."""
        total = sum(parts.values())
        beyond = math.log(small_model_factor(self.read_bytes()))
        low = high = 0.0
        for name, seconds in parts.items():
            speed = self.speeds[name]
            own = speed.prefill_spread if table is PREFILL_SPREAD else speed.decode_spread
            down, up = own or table[speed.ground]
            known = speed.card_class is CardClass.CPU or speed.ground is Ground.CALIBRATED
            extra = 0.0 if known else beyond
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
        if self.fabric is not None:
            hops = (f"every layer on {len(self.resolved.cut)} devices, which sum up over {self.fabric.wire}",)
        if small_model_factor(self.read_bytes()) > 1 and self.draws:
            hops = (*hops, "a smaller model than any that was measured on a card, so the interval is wider")
        return (*said, *hops, "roofline: active weights and cache over bandwidth, plus a cost per layer")


def _speed(name: str, device: Device | None, machine: Machine, calibration: "Calibration | None") -> Speed:
    if device is None:
        found = calibration.device(HOST, machine.host.cpu_name or "CPU") if calibration is not None else None
        return speed_of_host(machine.host, found)
    return speed_of_device(device, calibration.device(name, device.name) if calibration is not None else None)


def _keeps_checkpoints(settings: LlamaCppSettings, load: Mapping[str, DeviceTraffic]) -> bool:
    if settings.tool != "llama-server" or settings.ctx_checkpoints == 0:
        return False
    windows = any(c.window is not None for t in load.values() for c in t.caches)
    return (windows and not settings.swa_full) or any(t.state_bytes for t in load.values())


def _measured_links(
    load: Mapping[str, DeviceTraffic], devices: Mapping[str, Device], calibration: "Calibration | None"
) -> "Mapping[frozenset[str], LinkCalibration]":
    """Those between devices that still are the ones that were measured."""
    if calibration is None or not calibration.links:
        return {}
    same = [n for n in load if n in devices and calibration.device(n, devices[n].name) is not None]
    found = {frozenset((a, b)): calibration.link(a, b) for a, b in combinations(same, 2)}
    return {ends: link for ends, link in found.items() if link is not None}


def _kernel_work(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, machine: Machine
) -> "Mapping[str, KernelWork]":
    """Imported only where a machine was calibrated: start-up is part of the product."""
    from terazi.performance.kernels import kernel_work

    return kernel_work(spec, settings, resolved, machine.host.isa)


def _timed_kernels(
    load: Mapping[str, DeviceTraffic],
    devices: Mapping[str, Device],
    machine: Machine,
    calibration: "Calibration | None",
) -> "Mapping[str, DeviceCalibration]":
    """The devices whose kernels were timed on this machine."""
    if calibration is None:
        return {}
    names = {name: devices[name].name if name in devices else machine.host.cpu_name or "CPU" for name in load}
    found = {name: calibration.device(name, called) for name, called in names.items()}
    return {name: own for name, own in found.items() if own is not None and own.kernels}

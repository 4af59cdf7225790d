"""What each device does while a prompt is read and while tokens come, as shares of its data sheet.

In: model, plan, machine, workload, forecast. Out: ``Load`` per device and phase: bytes and operations over the
forecast's own seconds, and how often each device has its turn.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec, Tensor
from terazi.performance.outlook import Forecast
from terazi.performance.power import Load
from terazi.performance.routing import distinct_experts
from terazi.performance.timing import Timing
from terazi.performance.traffic import is_expert
from terazi.placement.plan import Plan

#: Tokens computed at once while a prompt is read: the weights are read once for each such batch.
_PROMPT_BATCH: Final = 512


class Phase(NamedTuple):
    """One kind of work: its name, tokens per second of all streams, and the load of each device.

    ``flops_per_byte`` of a device says where it stands under its roofline.
    """

    name: str
    tok_s: float
    loads: Mapping[str, Load]
    flops_per_byte: Mapping[str, float]
    host_busy: float


class RequestMix(NamedTuple):
    """One request: machine seconds in prompt and decode, the answer's tokens, the prompt's tokens."""

    prompt_s: float
    decode_s: float
    tokens: float
    prompt_tokens: float


class _Job(NamedTuple):
    spec: ModelSpec
    plan: Plan
    machine: Machine
    workload: Workload
    timing: Timing | None  # of llama.cpp


class _Part(NamedTuple):
    """One device's part of a step: bytes, operations, and the share of the step in which it works."""

    read_bytes: float
    flops: float
    busy: float


def phases(
    spec: ModelSpec, plan: Plan, machine: Machine, workload: Workload, forecast: Forecast
) -> tuple[Phase, ...]:
    """Reading a prompt, one stream alone, and all streams together (left out where it is the same)."""
    depth = workload.prompt + workload.output / 2
    together = forecast.throughput_tok_s.mid / (1 - min(0.99, forecast.prefill_share))
    streams = max(1.0, forecast.throughput_tok_s.mid * forecast.itl_s.mid)
    timing = Timing.of(spec, plan, machine) if isinstance(plan.settings, LlamaCppSettings) else None
    job = _Job(spec, plan, machine, workload, timing)
    found = [
        _phase(job, "prompt", tok_s=forecast.prefill_tok_s.mid, batch=_PROMPT_BATCH, depth=workload.prompt / 2),
        _phase(job, "one stream", tok_s=forecast.decode_tok_s.mid, batch=1, depth=depth),
    ]
    if streams > 1.5:
        name = f"{streams:.0f} streams"
        # the forecast's rate has the others' prompts between the steps; here they are a phase of their own
        found.append(_phase(job, name, tok_s=together, batch=streams, depth=depth))
    return tuple(found)


def request_mix(workload: Workload, forecast: Forecast) -> RequestMix:
    """Seconds of machine time that one request takes in prompt and decode when all users are served at once.

    With several users the forecast's throughput has their prompts in it already, as ``prefill_share`` of the time.
    """
    prompt, output = max(1, workload.prompt), max(1, workload.output)
    prompt_s, decode_s = prompt / forecast.prefill_tok_s.mid, output / forecast.throughput_tok_s.mid
    if forecast.prefill_share > 0:
        prompt_s, decode_s = decode_s * forecast.prefill_share, decode_s * (1 - forecast.prefill_share)
    return RequestMix(prompt_s, decode_s, tokens=float(output), prompt_tokens=float(prompt))


def active_share(spec: ModelSpec, batch: float) -> float:
    """Share of all weights that a step of *batch* tokens reads."""
    routed = sum(t.n_bytes for t in spec.tensors if _routed(t))
    total = spec.weights_bytes
    if not spec.expert_count or not total:
        return 1.0
    touched = distinct_experts(spec.expert_count, spec.expert_used_count, max(1, round(batch))) / spec.expert_count
    return (total - routed + routed * touched) / total


def active_parameters(spec: ModelSpec) -> float:
    """Weights that one token multiplies with: all but the input table and the experts that it isn't routed to."""
    used = spec.expert_used_count / spec.expert_count if spec.expert_count else 1.0
    total = 0.0
    for tensor in spec.tensors:
        if len(tensor.shape) < 2:
            continue
        total += math.prod(tensor.shape) * (used if _routed(tensor) else 1.0)
    if not total:
        return float(spec.parameter_count)
    table = spec.embedding_length * spec.vocab_size
    return max(total - table, total / 2)


def _routed(tensor: Tensor) -> bool:
    return is_expert(tensor) or ".experts." in tensor.name


def _phase(job: _Job, name: str, *, tok_s: float, batch: float, depth: float) -> Phase:
    by_id = {d.id: d for d in job.machine.devices}
    step_s = batch / tok_s
    prompt = name == "prompt"
    if isinstance(job.plan.settings, VllmSettings):
        parts = _vllm_parts(job, job.plan.settings, batch=batch, depth=depth, prompt=prompt)
    else:
        parts = _llama_cpp_parts(job, batch=batch, depth=depth, prompt=prompt)
    loads, intensity = {}, {}
    for device, part in parts.items():
        intensity[device] = part.flops / part.read_bytes if part.read_bytes else 0.0
        found = by_id.get(device)
        if found is None or part.busy <= 0:
            continue
        bandwidth, flops = found.memory_bandwidth.value, found.flops_fp16.value
        seconds = step_s * part.busy
        loads[device] = Load(
            memory=min(1.0, part.read_bytes / (seconds * bandwidth)) if bandwidth else 0.0,
            compute=min(1.0, part.flops / (seconds * flops)) if flops else 0.0,
            busy=part.busy,
        )
    return Phase(name, tok_s, loads, intensity, parts[HOST].busy if HOST in parts else 0.0)


def _llama_cpp_parts(job: _Job, *, batch: float, depth: float, prompt: bool) -> dict[str, _Part]:
    """Each device's part of a step, by the same traffic and timing that the forecast was made of."""
    model = job.timing or Timing.of(job.spec, job.plan, job.machine)
    tokens = max(1, round(batch))
    timed = model.prefill(max(1, job.workload.prompt)) if prompt else model.step(batch=tokens, depth=depth)
    share = 1.0
    if job.spec.expert_count:
        touched = distinct_experts(job.spec.expert_count, job.spec.expert_used_count, tokens)
        share = touched / job.spec.expert_count
    caches = 0 if prompt else tokens
    return {
        name: _Part(
            read_bytes=t.dense_bytes + share * t.expert_bytes + caches * t.kv_bytes(depth),
            flops=t.flops_per_token * tokens,
            busy=min(1.0, timed.by_device[name] / timed.seconds),
        )
        for name, t in model.traffic.items()
        if t.flops_per_token or t.caches
    }


def _vllm_parts(job: _Job, settings: VllmSettings, *, batch: float, depth: float, prompt: bool) -> dict[str, _Part]:
    """Each rank's part: what it holds, of which a step reads what it touches; pipeline stages take turns."""
    held = {s.id: s.weights_bytes for s in job.plan.devices if s.weights_bytes}
    total = sum(held.values()) or 1
    active, per_token = active_share(job.spec, batch), 2 * active_parameters(job.spec)
    filled = 0.0 if prompt else _filled(job.spec, job.plan, settings, depth * batch)
    caches = {s.id: s.kv_bytes * filled + s.state_bytes for s in job.plan.devices}
    return {
        name: _Part(
            read_bytes=size * active + caches[name],
            flops=per_token * batch * size / total,
            busy=1 / settings.pipeline_parallel,
        )
        for name, size in held.items()
    }


def _filled(spec: ModelSpec, plan: Plan, settings: VllmSettings, tokens: float) -> float:
    """Share of vLLM's cache, which takes all memory that is left, that *tokens* tokens of all streams need.

    Counted by the model's own heads, at two bytes a number or one.
    """
    wide = 1 if "fp8" in settings.kv_cache_dtype else 2
    row = sum(spec.head_count_kv) * (spec.key_length + spec.value_length) * wide
    held = sum(s.kv_bytes for s in plan.devices)
    return min(1.0, tokens * row / held) if held else 0.0

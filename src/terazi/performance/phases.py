"""What each device does while a prompt is read and while tokens come, as shares of its data sheet.

In: model, plan, machine, workload, forecast. Out: ``Load`` per device and phase. Made from the ``Forecast`` noun
alone, so that it holds for whatever engine made it: bytes and operations over the forecast's own seconds.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec, Tensor
from terazi.performance.efficiency import speed_of_device, speed_of_host
from terazi.performance.links import slot_bytes_per_s
from terazi.performance.outlook import Forecast
from terazi.performance.power import Load
from terazi.performance.routing import distinct_experts
from terazi.performance.traffic import is_expert
from terazi.placement.plan import DeviceShare, Plan

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


class _Part(NamedTuple):
    read_bytes: float
    flops: float


def phases(
    spec: ModelSpec, plan: Plan, machine: Machine, workload: Workload, forecast: Forecast
) -> tuple[Phase, ...]:
    """Reading a prompt, one stream alone, and all streams together (left out where it is the same)."""
    depth = workload.prompt + workload.output / 2
    together = forecast.throughput_tok_s.mid / (1 - min(0.99, forecast.prefill_share))
    streams = max(1.0, forecast.throughput_tok_s.mid * forecast.itl_s.mid)
    job = _Job(spec, plan, machine, workload)
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


def together(plan: Plan) -> bool:
    """Whether the devices work at the same time on one token, rather than one after the other."""
    settings = plan.settings
    if isinstance(settings, LlamaCppSettings):
        return settings.split_mode in {"row", "tensor"}
    return settings.pipeline_parallel == 1


def _routed(tensor: Tensor) -> bool:
    return is_expert(tensor) or ".experts." in tensor.name


def _phase(job: _Job, name: str, *, tok_s: float, batch: float, depth: float) -> Phase:
    spec, plan, machine, workload = job
    by_id = {d.id: d for d in machine.devices}
    streams = 1.0 if name == "prompt" else batch
    step_s = batch / tok_s
    held = {s.id: _computed_bytes(spec, s) for s in plan.devices}
    weights = sum(held.values()) or 1
    active, per_token = active_share(spec, batch), 2 * active_parameters(spec)
    filled = min(1.0, depth * streams / max(1.0, (workload.context or depth) * max(1, workload.users)))
    parts: dict[str, _Part] = {}
    seconds: dict[str, float] = {}
    for share in plan.devices:
        if not held[share.id] and not share.kv_bytes:
            continue
        read = held[share.id] * active + share.kv_bytes * filled + share.state_bytes
        parts[share.id] = _Part(read, per_token * batch * held[share.id] / weights)
        seconds[share.id] = _seconds(by_id.get(share.id), machine, parts[share.id], prompt=name == "prompt")
    whole = max(seconds.values(), default=0.0) if together(plan) else sum(seconds.values())
    loads, intensity = {}, {}
    for device, part in parts.items():
        busy = min(1.0, seconds[device] / whole) if whole else 0.0
        intensity[device] = part.flops / part.read_bytes if part.read_bytes else 0.0
        found = by_id.get(device)
        if found is None or busy <= 0:
            continue
        bandwidth, flops = found.memory_bandwidth.value, found.flops_fp16.value
        loads[device] = Load(
            memory=min(1.0, part.read_bytes / (step_s * busy * bandwidth)) if bandwidth else 0.0,
            compute=min(1.0, part.flops / (step_s * busy * flops)) if flops else 0.0,
            busy=busy,
        )
    host = seconds.get(HOST, 0.0) / whole if whole else 0.0
    return Phase(name, tok_s, loads, intensity, min(1.0, host))


def _computed_bytes(spec: ModelSpec, share: DeviceShare) -> int:
    """Weights that are multiplied with there; of the input table, in host memory, a token reads one row."""
    if share.id != HOST:
        return share.weights_bytes
    if share.layers is None:
        return 0
    table = sum(t.n_bytes for t in spec.tensors if t.name == "token_embd.weight")
    return max(0, share.weights_bytes - table)


def _seconds(device: Device | None, machine: Machine, part: _Part, *, prompt: bool) -> float:
    """How long the part takes beside the others', by this device's constants: only the proportions count."""
    rates = (speed_of_device(device) if device is not None else speed_of_host(machine.host)).rates
    memory_s = part.read_bytes / (rates.efficiency.memory * rates.bandwidth)
    if not prompt:
        return memory_s
    seconds = max(memory_s, part.flops / (rates.efficiency.compute * rates.flops))
    if device is None and machine.devices:
        # llama.cpp computes host layers of a large batch on the first card, to which their weights travel
        seconds = min(seconds, part.read_bytes / slot_bytes_per_s(machine.devices[0]))
    return seconds

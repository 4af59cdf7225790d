"""Turns a model and a machine into what ``layout`` searches over: bytes per layer and room per role.

The sums per layer are taken once per setting; the costs that don't belong to a layer are read off real bills of
trial layouts (one device, several, all layers offloaded or not), so no rule of the engine is redone here.
"""

from dataclasses import replace

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, allocation_bytes, backend_of
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.kv import cache_layers
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import Capacity
from terazi.placement.layout import Role, Room

#: Assumed where a card's bandwidth is unknown; only the order of the cards depends on it.
_ASSUMED_BANDWIDTH = 300e9


def place(settings: LlamaCppSettings, devices: tuple[Device, ...], counts: tuple[int, ...]) -> LlamaCppSettings:
    """*settings* that give ``counts[i]`` layers to ``devices[i]`` and leave the first layers to the host.

    Unused devices are left out with ``-dev``, so that the engine makes no context on them. With the counts as
    ``-ts`` the engine's rule (``load_tensors``: index over layers against cumulative shares) gives back the counts.
    """
    used = [(d, n) for d, n in zip(devices, counts, strict=True) if n]
    if not used:
        return replace(settings, n_gpu_layers=0, tensor_split=(), devices=("none",) if devices else ())
    return replace(
        settings,
        n_gpu_layers=sum(counts),
        tensor_split=tuple(float(n) for _, n in used) if len(used) > 1 else (),
        devices=tuple(d.id for d, _ in used),
    )


def rooms(
    spec: ModelSpec,
    machine: Machine,
    devices: tuple[Device, ...],
    settings: LlamaCppSettings,
    capacity: Capacity,
    *,
    partial: bool,
) -> list[Room]:
    """One ``Room`` per device. *partial*: some layers stay on the host, which makes other compute buffers."""
    by_backend: dict[tuple[str, bool], list[int]] = {}
    for device in devices:
        key = (backend_of(device), device.unified_memory)
        if key not in by_backend:
            by_backend[key] = _prefix(spec, device, settings)
    prefixes = [by_backend[backend_of(d), d.unified_memory] for d in devices]
    fixed = _fixed_by_role(spec, machine, settings, devices=devices, prefixes=prefixes, partial=partial)
    contexts = [_context_bytes(d) for d in devices]
    return [
        Room(
            prefix=prefixes[i],
            room=_room(capacity.device_bytes[device.id] - contexts[i], fixed),
            seconds_per_byte=1 / (device.memory_bandwidth.value or _ASSUMED_BANDWIDTH),
        )
        for i, device in enumerate(devices)
    ]


def _room(free: int, fixed: dict[Role, int]) -> tuple[int, int, int, int]:
    return (
        free - fixed[Role.ALONE],
        free - fixed[Role.FIRST],
        free - fixed[Role.MIDDLE],
        free - fixed[Role.LAST],
    )


def _prefix(spec: ModelSpec, device: Device, settings: LlamaCppSettings) -> list[int]:
    """Running sums of what each layer, and last the output, puts on *device*."""
    total = spec.block_count + 1
    own = [0] * total
    trial = place(settings, (device,), (total,))
    resolved = resolve(spec, trial, (device,))
    tied = not any(t.name == "output.weight" for t in spec.tensors)
    in_ram = set(range(settings.n_cpu_moe)) if not settings.cpu_moe else set(range(spec.block_count))
    for tensor in spec.tensors:
        if tensor.block is not None:
            index = min(tensor.block, total - 1)
            if tensor.block in in_ram and ("_exps" in tensor.name or "_chexps" in tensor.name):
                continue
        elif tensor.name in {"output.weight", "output_norm.weight"} or (
            tied and tensor.name == "token_embd.weight"
        ):
            index = total - 1
        else:
            continue
        own[index] += allocation_bytes(device, tensor.dtype, tensor.shape, tensor.n_bytes)
    for cache in cache_layers(spec, family_of(spec), trial, resolved):
        if cache.device != HOST:
            own[cache.block] += cache.k_bytes + cache.v_bytes
    prefix = [0]
    for size in own:
        prefix.append(prefix[-1] + size)
    return prefix


def _fixed_by_role(
    spec: ModelSpec,
    machine: Machine,
    settings: LlamaCppSettings,
    *,
    devices: tuple[Device, ...],
    prefixes: list[list[int]],
    partial: bool,
) -> dict[Role, int]:
    """What a device holds beside its layers and its driver context, by role, from real bills."""
    total = spec.block_count + 1
    start = 1 if partial and total > 2 else 0
    fixed = dict.fromkeys(Role, 0)
    one = _beside(spec, machine, settings, devices=devices[:1], counts=(total - start,), prefixes=prefixes)
    fixed[Role.ALONE] = one[0]
    if len(devices) > 1:
        several = devices[: min(len(devices), 3, total - start)]
        counts = [(total - start) // len(several)] * len(several)
        counts[0] += total - start - sum(counts)
        found = _beside(spec, machine, settings, devices=several, counts=tuple(counts), prefixes=prefixes)
        fixed[Role.FIRST], fixed[Role.LAST] = found[0], found[-1]
        fixed[Role.MIDDLE] = max(found[1:-1], default=max(found))
    return fixed


def _beside(
    spec: ModelSpec,
    machine: Machine,
    settings: LlamaCppSettings,
    *,
    devices: tuple[Device, ...],
    counts: tuple[int, ...],
    prefixes: list[list[int]],
) -> list[int]:
    total = spec.block_count + 1
    bill = weigh(spec, place(settings, devices, counts), devices, machine.host.isa)
    left = []
    start = total - sum(counts)
    for i, (device, count) in enumerate(zip(devices, counts, strict=True)):
        layers = prefixes[i][start + count] - prefixes[i][start]
        left.append(bill.on(device.id).total_bytes - layers - _context_bytes(device))
        start += count
    return left


def _context_bytes(device: Device) -> int:
    """The driver's context, as ``memory.llama_cpp.bill`` charges it."""
    return (
        round(device.context_bytes.value) if backend_of(device) in CUDA_LIKE and device.context_bytes.value else 0
    )

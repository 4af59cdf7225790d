"""Turns a model and a machine into what ``layout`` searches over: bytes per layer, room per role, the host's share.

Sums per layer are exact and cheap. What doesn't belong to a layer (compute buffers, copies of shared tables, the
input table) is read off real bills of a *short twin* of the model: the same blocks, but only so many of them that
each role of a device gets every kind of block. So no rule of the engine is redone here, and a search over hundreds
of layouts costs a few bills of six layers; what is found is judged by the real bill of the real model afterwards.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.blocks import recurrent_blocks, trunk_length
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, allocation_bytes, backend_of
from terazi.memory.llama_cpp.cache_rules import window_layers
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.kv import cache_layers
from terazi.memory.llama_cpp.recurrent import StateLayer, state_layers
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import Capacity
from terazi.placement.layout import Role, Room
from terazi.placement.pace import Pace, active_bytes, running_ns
from terazi.placement.scales import Scales

#: Devices of a trial with several: one first, one in the middle, one last.
_TRIAL_DEVICES = 3


#: Layers by device.
Counts = tuple[int, ...]
#: Bytes by role: of a device with several layers, and with one.
_Fixed = tuple[dict[Role, int], dict[Role, int]]


class Space(NamedTuple):
    """What the search knows.

    Args:
        rooms: one per device.
        budgets: what a plan may use on each device.
        shared: which devices draw on the host's memory.
        host_prefix: ``host_prefix[i]`` is what layers ``0..i-1`` put on the host if they stay there.
        host_fixed: what the host holds whatever the layout.
        host_budget: what a plan may use of RAM.
        host_cost: ``host_cost[i]`` is what the host takes for layers ``0..i-1``, in nanoseconds.
    """

    rooms: tuple[Room, ...]
    budgets: tuple[int, ...]
    shared: tuple[bool, ...]
    host_prefix: Sequence[int]
    host_fixed: int
    host_budget: int
    host_cost: Sequence[int]

    def host_holds(self, layers: int) -> bool:
        """Whether the host holds its first *layers*, unified devices aside."""
        return self.host_fixed + self.host_prefix[layers] <= self.host_budget

    def host_fits(self, counts: Sequence[int]) -> bool:
        """Whether the host holds the layers that *counts* leave to it, and what unified devices take."""
        layers = len(self.host_prefix) - 1
        start = at = layers - sum(counts)
        needed = self.host_fixed + self.host_prefix[start]
        used = [i for i, n in enumerate(counts) if n]
        for i in used:
            end = at + counts[i]
            if self.shared[i]:
                role = role_of(i, used)
                room = self.rooms[i]
                left = room.room_for_one[role] if counts[i] == 1 else room.room[role]
                needed += self.budgets[i] - left + room.prefix[end] - room.prefix[at]
            at = end
        return needed <= self.host_budget


def place(settings: LlamaCppSettings, devices: tuple[Device, ...], counts: Sequence[int]) -> LlamaCppSettings:
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


def survey(
    spec: ModelSpec,
    machine: Machine,
    devices: tuple[Device, ...],
    settings: LlamaCppSettings,
    capacity: Capacity,
    *,
    pace: Pace,
    partial: bool,
    scales: Scales,
) -> Space:
    """The search space for *settings*. *partial*: some layers stay on the host, which changes compute buffers."""
    twin = scales.twin(spec, short_twin)
    trial_settings = replace(settings, n_cpu_moe=min(settings.n_cpu_moe, twin.block_count))
    fixed, host_fixed = scales.noted(
        (devices, trial_settings, partial),
        lambda: _beside_layers(twin, machine, devices, trial_settings, partial=partial, scales=scales),
    )
    whole: dict[tuple[str, bool], Sequence[int]] = {}
    for device in devices:
        if _kind(device) not in whole:
            whole[_kind(device)] = layer_sums(spec, device, settings)
    budgets = tuple(capacity.device_bytes[d.id] for d in devices)
    active = active_bytes(spec)
    rooms = tuple(
        Room(
            prefix=whole[_kind(device)],
            room=_room(budget - _context_bytes(device), fixed[0]),
            room_for_one=_room(budget - _context_bytes(device), fixed[1]),
            cost=running_ns(active, pace.block_s[device.id], pace.output_s[device.id]),
            entry=round(1e9 * pace.entry_s[device.id]),
            host=_beside_ns(active, pace, device.id),
        )
        for device, budget in zip(devices, budgets, strict=True)
    )
    return Space(
        rooms=rooms,
        budgets=budgets,
        shared=tuple(d.id in capacity.shared for d in devices),
        host_prefix=_host_prefix(spec, machine, settings),
        host_fixed=host_fixed,
        host_budget=capacity.host_bytes,
        host_cost=running_ns(active, pace.block_s[HOST], pace.output_s[HOST]),
    )


def _beside_ns(active: Sequence[float], pace: Pace, device_id: str) -> list[int]:
    begin = round(1e9 * pace.begin_s[device_id])
    kept = running_ns(active, pace.beside_s[device_id], pace.output_s[HOST])
    return [0, *(begin + cost for cost in kept[1:])]


def short_twin(spec: ModelSpec, periods: int = _TRIAL_DEVICES) -> ModelSpec:
    """*spec* with its first blocks only: so many times as it takes to have every kind of block, twice at least.

    Of some families it is *spec* itself.
    """
    family = family_of(spec)
    if family is None or family.own_kv is not None or trunk_length(spec) != spec.block_count:
        # its bound may grow with the layers; which blocks share a cache or only guess ahead counts from the last
        return spec
    kinds = list(
        zip(
            window_layers(spec, family),
            recurrent_blocks(spec, family.recurrent),
            (heads > 0 for heads in spec.head_count_kv),
            (width > 0 for width in spec.feed_forward_length),
            strict=True,
        )
    )
    blocks = min(spec.block_count, periods * max(2, _period(kinds)))
    if blocks == spec.block_count:
        return spec
    return replace(
        spec,
        block_count=blocks,
        head_count=spec.head_count[:blocks],
        head_count_kv=spec.head_count_kv[:blocks],
        feed_forward_length=spec.feed_forward_length[:blocks],
        tensors=tuple(t for t in spec.tensors if t.block is None or t.block < blocks),
    )


def _period(kinds: Sequence[tuple[bool, ...]]) -> int:
    """After how many blocks their kinds repeat; the number of blocks if they don't."""
    for period in range(1, len(kinds)):
        if all(kind == kinds[index % period] for index, kind in enumerate(kinds)):
            return period
    return len(kinds)


def _beside_layers(
    twin: ModelSpec,
    machine: Machine,
    devices: tuple[Device, ...],
    settings: LlamaCppSettings,
    *,
    partial: bool,
    scales: Scales,
) -> tuple[_Fixed, int]:
    """What a device holds beside its layers and its driver context, and the same for the host."""
    several, one = dict.fromkeys(Role, 0), dict.fromkeys(Role, 0)
    layers = twin.block_count + 1
    if not devices:
        return (several, one), _trial(twin, machine, (), settings, (), scales=scales)[1]
    left = layers - (1 if partial and layers > 2 else 0)
    host = 0

    def hold(counts: Sequence[int], roles: Sequence[Role]) -> None:
        nonlocal host
        used = devices[: len(counts)]
        found, on_host = _trial(twin, machine, used, settings, counts, scales=scales)
        host = max(host, on_host)
        for role, count, size in zip(roles, counts, found, strict=True):
            into = one if count == 1 else several
            into[role] = max(into[role], size)

    hold((left,), (Role.ALONE,))
    if partial and left > 1:
        hold((1,), (Role.ALONE,))
    if len(devices) > 2 and left > _TRIAL_DEVICES:
        roles = (Role.FIRST, Role.MIDDLE, Role.LAST)
        first = max(1, left // 2 - 1)
        hold((first, 1, left - 1 - first), roles)
        hold((1, left - 2, 1), roles)
    elif len(devices) > 1 and left > 1:
        hold((max(1, left // 2), left - max(1, left // 2)), (Role.FIRST, Role.LAST))
        if left > 2:
            hold((1, left - 1), (Role.FIRST, Role.LAST))
            hold((left - 1, 1), (Role.FIRST, Role.LAST))
    for role in Role:  # what no trial could show
        several[role] = several[role] or one[role] or several[Role.FIRST]
        one[role] = one[role] or several[role]
    return (several, one), host


def _trial(
    twin: ModelSpec,
    machine: Machine,
    devices: tuple[Device, ...],
    settings: LlamaCppSettings,
    counts: Sequence[int],
    *,
    scales: Scales,
) -> tuple[list[int], int]:
    placed = place(settings, devices, counts) if devices else settings
    bill = scales.of(twin, devices).weigh(placed)
    at = start = twin.block_count + 1 - sum(counts)
    left = []
    for device, count in zip(devices, counts, strict=True):
        prefix = layer_sums(twin, device, settings)
        left.append(bill.needed_bytes(device.id) - prefix[at + count] + prefix[at] - _context_bytes(device))
        at += count
    host = bill.needed_bytes(HOST) - _host_prefix(twin, machine, settings)[start]
    return left, host


def layer_sums(spec: ModelSpec, device: Device, settings: LlamaCppSettings) -> Sequence[int]:
    """Running sums of what each layer, and last the output, puts on *device*."""
    total = spec.block_count + 1
    own = [0] * total
    trial = place(settings, (device,), (total,))
    resolved = resolve(spec, trial, (device,))
    tied = _is_tied(spec)
    for tensor in spec.tensors:
        if tensor.block is not None:
            index = min(tensor.block, total - 1)
            if tensor.block < _blocks_in_ram(spec, settings) and _is_expert(tensor.name):
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
    for state in _states(spec, trial, resolved):
        if state.device != HOST:
            own[state.block] += state.n_bytes
    return _running(own)


def _states(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...]:
    family = family_of(spec)
    return state_layers(spec, family, settings, resolved) if family else ()


def _host_prefix(spec: ModelSpec, machine: Machine, settings: LlamaCppSettings) -> Sequence[int]:
    """What layers ``0..i-1`` put on the host, by *i*; what stays there in any case is in every entry."""
    total = spec.block_count + 1
    own = [0] * total
    always = 0
    on_host = replace(settings, n_gpu_layers=0, tensor_split=(), devices=("none",))
    for tensor in spec.tensors:
        if tensor.block is None:
            continue
        if tensor.block < _blocks_in_ram(spec, settings) and _is_expert(tensor.name):
            always += tensor.n_bytes
        else:
            own[min(tensor.block, total - 1)] += tensor.n_bytes
    resolved = resolve(spec, on_host, machine.devices)
    kept = [(c.block, c.k_bytes + c.v_bytes) for c in cache_layers(spec, family_of(spec), on_host, resolved)]
    for block, size in (*kept, *((state.block, state.n_bytes) for state in _states(spec, on_host, resolved))):
        if settings.kv_offload:
            own[block] += size
        else:
            always += size
    for tensor in spec.tensors:
        if tensor.name == "output.weight":
            own[-1] += tensor.n_bytes
    return [always + n for n in _running(own)]


def _running(own: Sequence[int]) -> list[int]:
    prefix = [0]
    for size in own:
        prefix.append(prefix[-1] + size)
    return prefix


def _room(free: int, fixed: dict[Role, int]) -> tuple[int, int, int, int]:
    return (
        free - fixed[Role.ALONE],
        free - fixed[Role.FIRST],
        free - fixed[Role.MIDDLE],
        free - fixed[Role.LAST],
    )


def role_of(index: int, used: Sequence[int]) -> Role:
    """The role of device *index* among those *used*."""
    if len(used) == 1:
        return Role.ALONE
    return Role.FIRST if index == used[0] else Role.LAST if index == used[-1] else Role.MIDDLE


def _kind(device: Device) -> tuple[str, bool]:
    return backend_of(device), device.unified_memory


def _blocks_in_ram(spec: ModelSpec, settings: LlamaCppSettings) -> int:
    """The first so many blocks keep their routed experts in RAM."""
    return spec.block_count if settings.cpu_moe else settings.n_cpu_moe


def _is_expert(name: str) -> bool:
    return "_exps" in name or "_chexps" in name


def _is_tied(spec: ModelSpec) -> bool:
    return not any(t.name == "output.weight" for t in spec.tensors)


def _context_bytes(device: Device) -> int:
    """The driver's context, as ``memory.llama_cpp.bill`` charges it."""
    return (
        round(device.context_bytes.value) if backend_of(device) in CUDA_LIKE and device.context_bytes.value else 0
    )

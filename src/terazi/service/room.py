"""How much memory models may take: of a machine as it is, of a budget, of what is left beside running engines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.placement.capacity import capacity_of, device_reserve, host_reserve
from terazi.placement.plan import DeviceShare
from terazi.service.config import MemoryTable

#: What people call the host's memory in ``[memory]``.
_RAM = ("RAM", "ram", HOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One engine's memory: what it was promised per device, and what its process is seen to hold.

    Args:
        needs: by its bill, with unified devices counted on the host.
        loading: it doesn't answer yet.
        host_bytes: resident and not backed by a file.
        device_bytes: as the driver counts them; None if it doesn't.
    """

    needs: Mapping[str, int]
    loading: bool
    host_bytes: int = 0
    device_bytes: Mapping[str, int] | None = None


def needs_of(shares: Iterable[DeviceShare], machine: Machine) -> dict[str, int]:
    """The most that a plan holds on each device until it is ready; unified devices draw on the host's memory."""
    shared = capacity_of(machine).shared
    needs: dict[str, int] = {}
    for share in shares:
        device = HOST if share.id in shared else share.id
        needs[device] = needs.get(device, 0) + share.peak_bytes
    return {device: need for device, need in needs.items() if need > 0}


def free_for_models(machine: Machine, holdings: Iterable[Holding], memory: MemoryTable) -> dict[str, int]:
    """Bytes per device that may be promised now, as ``FreeMeasured`` has it.

    *machine* is as it was just read. What an engine that answers was promised counts as taken, whether it has
    touched it or not: mapped weights are page cache to the kernel, which calls them available. What a loading one
    already holds counts as free, since all that it needs is promised to it.
    """
    capacity = capacity_of(machine)
    free = {HOST: capacity.host_bytes} | {
        device: n for device, n in capacity.device_bytes.items() if device not in capacity.shared
    }
    promised = dict.fromkeys(free, 0)
    for holding in holdings:
        for device, need in holding.needs.items():
            if device not in free:
                continue
            seen = holding.host_bytes if device == HOST else (holding.device_bytes or {}).get(device)
            if holding.loading:
                free[device] += min(seen or 0, need)
                continue
            promised[device] += need
            if seen is not None:  # an accelerator that can't be asked about a process shows what is taken
                free[device] -= max(0, need - seen)
    for device in free:
        free[device] -= _given(memory.reserve, device) or 0
        budget = _given(memory.budget, device)
        if budget is not None:
            free[device] = min(free[device], budget - promised[device])
    return {device: max(0, n) for device, n in free.items()}


def _given(table: Mapping[str, int], device: str) -> int | None:
    names = _RAM if device == HOST else (device,)
    return next((table[name] for name in names if name in table), None)


def with_room(machine: Machine, room: Mapping[str, int]) -> Machine:
    """*machine* with just *room* free for models on each device that it names, whatever is free there now."""
    host, left = machine.host, room.get(HOST)
    if left is not None:
        free = left + host_reserve(host)
        limit = host.memory_limit_bytes
        used = host.memory_limit_used_bytes if limit is None else max(0, limit - free)
        host = replace(host, ram_available_bytes=free, memory_limit_used_bytes=used)
    devices = tuple(
        replace(d, memory_free_bytes=room[d.id] + device_reserve(d)) if d.id in room else d for d in machine.devices
    )
    return replace(machine, host=host, devices=devices)

"""What a machine has left once a plan runs on it, so that the next model is planned beside it."""

from collections.abc import Sequence
from dataclasses import replace

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.placement.plan import DeviceShare


def left_by(machine: Machine, shares: Sequence[DeviceShare]) -> Machine:
    """*machine* less what *shares* hold, the program itself included. A later engine brings its own driver context.

    What unified devices hold is missing from the host as well.
    """
    held = {s.id: s.total_bytes + s.process_bytes for s in shares}
    devices = tuple(
        replace(d, memory_free_bytes=max(0, d.memory_free_bytes - held.get(d.id, 0))) for d in machine.devices
    )
    in_ram = held.get(HOST, 0) + sum(held.get(d.id, 0) for d in machine.devices if d.unified_memory)
    host = machine.host
    limit_used = host.memory_limit_used_bytes
    host = replace(
        host,
        ram_available_bytes=max(0, host.ram_available_bytes - in_ram),
        memory_limit_used_bytes=None if host.memory_limit_bytes is None else (limit_used or 0) + in_ram,
    )
    return replace(machine, devices=devices, host=host)

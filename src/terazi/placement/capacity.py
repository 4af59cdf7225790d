"""What a plan may use on each device: free memory less a stated reserve, and never the swap.

In: ``Machine``. Out: ``Capacity``. The reserves:

* accelerator: 3 % of its memory, at least 256 MiB, because allocators fragment and desktops draw. The driver's own
  context is a line of the bill already and is not reserved a second time.
* host: one eighth (12.5 %) of the RAM stays free for the system and its page cache. Under a cgroup limit the
  eighth is of the limit, and the plan stays below what the cgroup has left. Swap counts for nothing. Weights mapped
  from the file are reclaimable, yet they count in full: what doesn't fit is read from disk again at every token.
* unified memory (Apple, integrated graphics): device and host draw on one budget, the host's.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from terazi.hardware.machine import Device, Host, Machine
from terazi.memory.bill import HOST, Bill
from terazi.units import MIB

#: Share of the RAM that stays free.
HOST_RESERVE_SHARE: Final = 0.125
DEVICE_RESERVE_SHARE: Final = 0.03
DEVICE_RESERVE_MIN_BYTES: Final = 256 * MIB


class Capacity(NamedTuple):
    """Bytes that a plan may use.

    Args:
        host_bytes: of RAM; what unified devices take comes out of it too.
        device_bytes: per accelerator.
        shared: ids of the devices whose memory is the host's.
    """

    host_bytes: int
    device_bytes: Mapping[str, int]
    shared: frozenset[str]

    def left_for_host(self, bill: Bill) -> int:
        """The host's budget once unified devices have taken their part of *bill*."""
        return max(0, self.host_bytes - sum(bill.needed_bytes(name) for name in self.shared))

    def of(self, device: str, bill: Bill) -> int:
        """What *device* (or the host) may hold under *bill*."""
        if device == HOST:
            return self.left_for_host(bill)
        return self.device_bytes.get(device, 0)


def capacity_of(machine: Machine) -> Capacity:
    """The budget of *machine* as it is now."""
    host = host_capacity(machine.host)
    shared = frozenset(d.id for d in machine.devices if d.unified_memory)
    return Capacity(
        host_bytes=host,
        device_bytes={
            d.id: min(device_capacity(d), host) if d.unified_memory else device_capacity(d) for d in machine.devices
        },
        shared=shared,
    )


def device_reserve(device: Device) -> int:
    """Bytes that stay free on *device*."""
    return max(DEVICE_RESERVE_MIN_BYTES, round(DEVICE_RESERVE_SHARE * device.memory_total_bytes))


def device_capacity(device: Device) -> int:
    """Bytes that a plan may use on *device*."""
    return max(0, device.memory_free_bytes - device_reserve(device))


def host_reserve(host: Host) -> int:
    """Bytes of RAM that stay free."""
    total = host.ram_total_bytes
    if host.memory_limit_bytes is not None:
        total = min(total, host.memory_limit_bytes)
    return round(HOST_RESERVE_SHARE * total)


def host_capacity(host: Host) -> int:
    """Bytes of RAM that a plan may use: free, within the cgroup, less the reserve."""
    return max(0, host.usable_ram_bytes - host_reserve(host))

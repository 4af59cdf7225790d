"""What it costs to hand a hidden state, or a host layer's weights, from one device to another.

In: ``Machine``. Out: seconds and bytes per second.

A layer split moves ``n_embd`` numbers of 4 bytes a token over each boundary: 32 KB for a 70B model, 33 us even on
PCIe 3.0 x1. What a boundary really costs is the scheduler's synchronisation, so the fixed part matters and the
lanes hardly do: a layer split adds capacity, not speed, and loses little of it to the slot.
"""

from typing import Final

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST

#: Seconds of synchronisation per boundary: the median over layer splits of 2 to 6 equal cards of what a token took
#: longer than on one card (``benchmarks/fit_speed.py``, "seconds per boundary").
BOUNDARY_S: Final = 0.23e-3
#: Assumed where a slot's link is not known: PCIe 3.0 x8, one way.
ASSUMED_LINK: Final = 7.9e9
#: Assumed to another machine (an RPC device): gigabit Ethernet, its payload, and the time there and back.
ASSUMED_NETWORK: Final = 117e6
NETWORK_S: Final = 0.3e-3
#: Assumed inside one memory (unified): a pointer changes hands.
_SHARED_MEMORY: Final = 50e9


def path_bytes_per_s(machine: Machine, a: str, b: str) -> float:
    """Payload rate from *a* to *b*: a direct link if there is one, else through the host and the slower slot."""
    direct = [
        link.bandwidth.value
        for link in machine.links
        if {link.a, link.b} == {a, b} and link.kind != "host" and link.bandwidth.value
    ]
    if direct:
        return max(direct)
    ends = [d for d in machine.devices if d.id in {a, b}]
    slots = [slot_bytes_per_s(d) for d in ends]
    if not slots:
        return _SHARED_MEMORY
    # two hops, device to host and host to device, one after the other
    return 1 / sum(1 / rate for rate in slots)


def slot_bytes_per_s(device: Device) -> float:
    """The device's link to the host, one way."""
    if device.backend == "rpc":
        return ASSUMED_NETWORK
    if device.unified_memory:
        return _SHARED_MEMORY
    return device.pcie.bytes_per_s if device.pcie is not None else ASSUMED_LINK


def boundary_s(machine: Machine, a: str, b: str, *, n_embd: int, tokens: int) -> float:
    """Seconds to hand the hidden state of *tokens* tokens from *a* to *b* (32-bit floats, llama.cpp's graph)."""
    fixed = 0.0 if HOST in {a, b} else BOUNDARY_S
    if _over_network(machine, a, b):
        fixed += NETWORK_S
    return fixed + tokens * n_embd * 4 / path_bytes_per_s(machine, a, b)


def _over_network(machine: Machine, a: str, b: str) -> bool:
    kinds = {link.kind for link in machine.links if {link.a, link.b} == {a, b}}
    remote = any(d.backend == "rpc" for d in machine.devices if d.id in {a, b})
    return "ethernet" in kinds or (remote and not kinds - {"host"})

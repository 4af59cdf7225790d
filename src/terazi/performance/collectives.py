"""What tensor parallelism pays for its links: NVLink, PCIe with and without P2P, through the host, Ethernet.

In: ``Machine`` and the devices that work together. Out: seconds per all-reduce.

An all-reduce of *b* bytes over *n* ranks takes ``alpha(n) + b/algbw(n)``. A ring sends each byte 2(n-1)/n times, so
``algbw = efficiency·link·n/(2(n-1))``. The constants are those of aiconfigurator's communication tables
(@095f58a, ``benchmarks/data/allreduce.csv``; ``benchmarks/fit_serving.py`` refits them).
"""

from enum import StrEnum
from itertools import combinations
from typing import Final, NamedTuple

from terazi.hardware.machine import Machine
from terazi.performance.links import slot_bytes_per_s


class Wire(StrEnum):
    """By what way two devices exchange data."""

    NVLINK = "nvlink"
    PCIE_P2P = "pcie-p2p"
    HOST = "host"  # through the host's memory: no P2P
    ETHERNET = "ethernet"


class Cost(NamedTuple):
    """Latency of two ranks, how it grows (power of n/2), link share that two ranks and that more reach."""

    alpha_s: float
    growth: float
    share_of_two: float
    share_of_more: float


#: H100 and A100 NVLink: alpha 4.2-7.2 us, 0.51-0.70 of the link. PCIe 5 with P2P: 4.4, 13.8 and 27.7 us for 2, 4
#: and 8 ranks; 0.60 of the slot for two, 0.33-0.40 for more; PCIe 4 (L40S): 0.60, then 0.07-0.12. Through the host:
#: 15.2 us and 11.3 GB/s a copy for a pair of RTX 3090 on PCIe 4 x16 without the P2P driver (club-3090
#: docs/PCIE_P2P.md); an all-reduce copies twice, partly at once (issue 698: NVLink brings prompts 35-49 %).
COSTS: Final = {
    Wire.NVLINK: Cost(4.5e-6, 0.25, 0.55, 0.57),
    Wire.PCIE_P2P: Cost(5.0e-6, 1.2, 0.60, 0.25),
    Wire.HOST: Cost(15e-6, 1.2, 0.25, 0.12),
    Wire.ETHERNET: Cost(50e-6, 1.0, 0.60, 0.40),
}
#: The least that a call outside a CUDA graph takes: 20 us on H100, 44-69 us on A100 and L40S in the same tables.
EAGER_S: Final = 35e-6


class Fabric(NamedTuple):
    """The weakest way between any two of the ranks: its kind and its bytes per second, one way."""

    wire: Wire
    bytes_per_s: float

    def all_reduce_s(self, n_bytes: float, ranks: int, *, graph: bool = True) -> float:
        """Seconds of one all-reduce of *n_bytes* on each of *ranks* ranks; *graph*: inside a CUDA graph."""
        if ranks <= 1:
            return 0.0
        cost = COSTS[self.wire]
        share = cost.share_of_two if ranks == 2 else cost.share_of_more
        rate = share * self.bytes_per_s * ranks / (2 * (ranks - 1))
        seconds = float(cost.alpha_s * (ranks / 2) ** cost.growth + n_bytes / rate)
        return seconds if graph else max(seconds, EAGER_S)

    def send_s(self, n_bytes: float) -> float:
        """Seconds to hand *n_bytes* to the next pipeline stage."""
        cost = COSTS[self.wire]
        return cost.alpha_s + n_bytes / (cost.share_of_two * self.bytes_per_s)


def fabric_of(machine: Machine, devices: tuple[str, ...]) -> Fabric:
    """The weakest way among *devices* of *machine*; a pair without a link goes through the host."""
    slots = {d.id: slot_bytes_per_s(d) for d in machine.devices}
    worst: Fabric | None = None
    for a, b in combinations(devices, 2):
        found = _between(machine, a, b, slots)
        if worst is None or _rate(found) < _rate(worst):
            worst = found
    return worst or Fabric(Wire.NVLINK, 1e12)


def _rate(fabric: Fabric) -> float:
    return COSTS[fabric.wire].share_of_two * fabric.bytes_per_s


def _between(machine: Machine, a: str, b: str, slots: dict[str, float]) -> Fabric:
    slot = min(slots.get(a, 8e9), slots.get(b, 8e9))
    best = Fabric(Wire.HOST, slot)
    for link in machine.links:
        if {link.a, link.b} != {a, b} or not link.bandwidth.value:
            continue
        wire = Wire(link.kind) if link.kind in set(Wire) else Wire.HOST
        found = Fabric(wire, link.bandwidth.value)
        if _rate(found) > _rate(best):
            best = found
    return best

"""The ``Machine`` noun: a host, its devices, and the links between them.

Unknown is ``None`` with a reason in the figure's note, never 0 or a placeholder. Bytes, bytes per second,
FLOP per second and watts throughout.
"""

from dataclasses import dataclass
from enum import StrEnum


class Basis(StrEnum):
    """Where a figure came from."""

    READ = "read"  # the kernel or the driver said so, on this machine
    CATALOGUE = "catalogue"  # the maker's data sheet, through the packaged table
    MEASURED = "measured"  # timed on this machine
    ASSUMED = "assumed"  # a stated default; widen the interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its basis; ``value`` is ``None`` when it can't be known, and ``note`` says why."""

    value: float | None
    basis: Basis
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One memory node of the host."""

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The computer around the devices.

    ``ram_total_bytes`` is what the kernel has; ``memory_limit_bytes`` is the tightest cgroup limit on this
    process, if any, and ``memory_limit_used_bytes`` what that cgroup already holds.
    ``cores`` is what this process may use, after affinity and cgroup quota. ``memlock_limit_bytes`` is how much of
    its memory this process may lock; None is no limit, or unknown.
    """

    cpu_name: str | None
    isa: frozenset[str]
    cores: int
    sockets: int | None
    ram_total_bytes: int
    ram_available_bytes: int
    memory_limit_bytes: int | None = None
    memory_limit_used_bytes: int | None = None
    swap_total_bytes: int = 0
    swap_used_bytes: int = 0
    memlock_limit_bytes: int | None = None
    ram_bandwidth: Figure = Figure(value=None, basis=Basis.ASSUMED, note="not measured")
    flops: Figure = Figure(value=None, basis=Basis.ASSUMED, note="not measured")
    numa: tuple[NumaNode, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def usable_ram_bytes(self) -> int:
        """What a new process may still take: MemAvailable, cut by what the cgroup has left."""
        if self.memory_limit_bytes is None:
            return self.ram_available_bytes
        left = self.memory_limit_bytes - (self.memory_limit_used_bytes or 0)
        return max(0, min(self.ram_available_bytes, left))


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """The slot's link as the whole path allows it; ``basis`` says if it was read or assumed."""

    generation: int
    lanes: int
    basis: Basis = Basis.ASSUMED

    @property
    def bytes_per_s(self) -> float:
        """Payload rate one way. PCIe base spec: GT/s per lane × 8b/10b (gen 1–2) or 128b/130b (gen 3+)."""
        rate = {1: 2.5e9 * 0.8, 2: 5e9 * 0.8}.get(self.generation)
        if rate is None:
            rate = 8e9 * 2 ** (self.generation - 3) * 128 / 130
        return rate / 8 * self.lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator.

    ``id`` is the engine's own name for it (``CUDA0``, ``ROCm1``, ``Vulkan0``, ``MTL0``, ``RPC0``).
    ``memory_free_bytes`` is what is free now; on a preset machine it equals the total less the usual reserve.
    ``context_bytes`` is what the driver takes before the first tensor (CUDA context), a figure with a basis.
    """

    id: str
    name: str
    vendor: str
    backend: str
    memory_total_bytes: int
    memory_free_bytes: int
    memory_bandwidth: Figure
    flops_fp16: Figure
    tdp_w: Figure
    idle_w: Figure = Figure(value=None, basis=Basis.ASSUMED, note="not measured")
    power_cap_w: float | None = None
    pcie: PcieLink | None = None
    context_bytes: Figure = Figure(value=None, basis=Basis.ASSUMED, note="not known for this backend")
    unified_memory: bool = False
    pci_address: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A direct path between two devices, by device id."""

    a: str
    b: str
    kind: str  # "nvlink" | "pcie-p2p" | "host" | "ethernet"
    bandwidth: Figure  # bytes per second, one way


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything the bill, the map and the forecast need to know about a computer."""

    name: str
    host: Host
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = "terazi.machine/1"

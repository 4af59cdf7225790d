"""A ``Machine`` from the parts of a preset, with a note on whatever had to be assumed.

In: counted catalogue rows and what was said about the RAM. Out: ``Machine``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from terazi.hardware import cards
from terazi.hardware.catalogue import GpuRecord
from terazi.hardware.host import assumed_ram_bytes, cpu_flops, ram_bandwidth, system_reserve_bytes
from terazi.hardware.links import Port, link_all
from terazi.hardware.machine import Basis, Device, Host, Machine, PcieLink
from terazi.units import GIB, format_bytes

#: What a preset's CPU is taken to be: eight cores of a desktop or server since 2015.
_ASSUMED_CORES: Final = 8
_ASSUMED_ISA: Final = frozenset({"sse2", "sse4_2", "avx", "avx2", "fma", "f16c"})
_ARM_ISA: Final = frozenset({"neon", "fp16", "dotprod"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RamPart:
    """What was said about the RAM; ``None`` is for what was left out."""

    size_bytes: int | None = None
    ddr: int | None = None
    rate: int | None = None
    channels: int | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPart:
    """*count* equal cards, or RPC stand-ins where there is no record.

    ``part`` is the whole text, ``said`` the name in it; ``size_bytes`` is what was said about memory.
    """

    part: str
    count: int
    record: GpuRecord | None
    size_bytes: int | None
    nvlink: bool
    p2p: bool
    pcie: PcieLink | None
    cap_w: float | None
    said: str


def build_machine(name: str, groups: Sequence[CardPart], ram: RamPart) -> Machine:
    """Put the parts together: devices in llama.cpp's order, links and host, with a note on each assumption."""
    ranked = sorted(groups, key=lambda g: list(cards.DEVICE_NAMES).index(_backend(g)))
    counts: dict[str, int] = {}
    devices: list[Device] = []
    ports: list[Port] = []
    for number, group in enumerate(ranked):
        backend = _backend(group)
        for index in range(group.count):
            device_id = f"{cards.DEVICE_NAMES[backend]}{counts.setdefault(backend, 0)}"
            counts[backend] += 1
            devices.append(_device(device_id, backend, group))
            ports.append(_port(group, number, index))
    host = _host(devices, ram)
    if devices and devices[-1].unified_memory:
        host, devices[-1] = _share_memory(host, devices[-1])
    notes = ["a preset: nothing here was read from a machine"]
    datacentre = [
        g
        for g in groups
        if g.record is not None and (g.record.memory_min_bytes >= 40 * GIB) and not g.record.unified
    ]
    if ram.channels is None and sum(g.count for g in datacentre) >= 4:
        notes.append(
            "servers for such cards have 8 or 12 memory channels; say so to use them, e.g. 512GiB ddr5 12-channel"
        )
    if any(
        g.nvlink and g.record is not None and g.record.nvlink_topology == "bridge" and g.count > 2 for g in groups
    ):
        notes.append(
            "NVLink bridges join cards in pairs, so only neighbours (first and second, third and fourth) are joined"
        )
    return Machine(
        name=name,
        host=host,
        devices=tuple(devices),
        links=link_all(devices, ports, basis=Basis.ASSUMED),
        notes=tuple(notes),
    )


def _backend(group: CardPart) -> str:
    return "rpc" if group.record is None else cards.BACKENDS[group.record.vendor]


def _device(device_id: str, backend: str, group: CardPart) -> Device:
    record = group.record
    if record is None:
        size = group.size_bytes or 0
        unknown = cards.unknown_figure("whatever stands behind this RPC server")
        return Device(
            id=device_id,
            name="RPC device",
            vendor="rpc",
            backend=backend,
            memory_total_bytes=size,
            memory_free_bytes=size,
            memory_bandwidth=unknown,
            flops_fp16=unknown,
            tdp_w=unknown,
            idle_w=unknown,
            power_cap_w=group.cap_w,
            pcie=group.pcie,
            context_bytes=cards.unknown_figure("the server reports what it has free after its own driver"),
            notes=("over the network: its speed and its link aren't known",),
        )
    total = cards.preset_total_bytes(record, group.size_bytes)
    reserve = cards.driver_reserve_bytes(total)
    notes = [f"{format_bytes(reserve)} assumed to be kept by the driver; no desktop on this card"]
    if record.note:
        notes.append(record.note)
    pcie = cards.card_link(record)
    if group.pcie is not None:
        pcie = cards.narrower(pcie, group.pcie, Basis.ASSUMED)
    elif pcie is not None:
        notes.append("PCIe link as fast as the card allows; boards often give less to the second card")
    return Device(
        id=device_id,
        name=record.name,
        vendor=record.vendor,
        backend=backend,
        memory_total_bytes=total,
        memory_free_bytes=total - reserve,
        memory_bandwidth=cards.bandwidth_figure(record),
        flops_fp16=cards.flops_figure(record),
        tdp_w=cards.tdp_figure(record),
        idle_w=cards.idle_figure(record),
        power_cap_w=group.cap_w,
        pcie=pcie,
        context_bytes=cards.context_figure(backend, record),
        unified_memory=record.unified,
        notes=tuple(notes),
    )


def _port(group: CardPart, number: int, index: int) -> Port:
    record = group.record
    if not group.nvlink or record is None:
        return Port(p2p=group.p2p)
    rate = cards.nvlink_rate(record, group.count)
    pair = f".{index // 2}" if record.nvlink_topology == "bridge" else ""
    return Port(nvlink_group=f"{number}{pair}", nvlink_bytes_per_s=rate, p2p=group.p2p)


def _host(devices: Sequence[Device], ram: RamPart) -> Host:
    notes = []
    size = ram.size_bytes
    if size is None:
        own = sum(d.memory_total_bytes for d in devices if d.backend != "rpc")
        size = assumed_ram_bytes(own)
        notes.append(f"{format_bytes(size)} of RAM assumed, since none was named")
    if ram.cores is None:
        notes.append(f"{_ASSUMED_CORES} cores with AVX2 assumed")
    cores = ram.cores or _ASSUMED_CORES
    notes.append(f"{format_bytes(system_reserve_bytes(size))} of RAM assumed to be in use by the system")
    return Host(
        cpu_name=None,
        isa=_ASSUMED_ISA,
        cores=cores,
        sockets=None,
        ram_total_bytes=size,
        ram_available_bytes=size - system_reserve_bytes(size),
        ram_bandwidth=ram_bandwidth(ddr=ram.ddr, transfers_m_per_s=ram.rate, channels=ram.channels),
        flops=cpu_flops(_ASSUMED_ISA, cores),
        notes=tuple(notes),
    )


def _share_memory(host: Host, device: Device) -> tuple[Host, Device]:
    """CPU and GPU hold one memory: the host gets its size and bandwidth, the device what it may take of it."""
    size = device.memory_total_bytes
    available = size - system_reserve_bytes(size)
    note = f"unified memory: what this device holds is missing from the host's {format_bytes(size)}"
    if device.backend == "cuda":  # llama.cpp takes all of MemAvailable there (ggml-cuda.cu, b11434)
        total, limit = size, available
    else:
        total = limit = min(cards.metal_working_set_bytes(size), available)
        note += f"; {format_bytes(total)} of it is assumed to be the most that the GPU may wire"
    isa = _ARM_ISA if device.vendor in {"apple", "nvidia"} else host.isa
    shared = replace(
        host,
        isa=isa,
        ram_total_bytes=size,
        ram_available_bytes=available,
        ram_bandwidth=device.memory_bandwidth,
        flops=cpu_flops(isa, host.cores),
        notes=(
            f"{host.cores} cores assumed",
            f"{format_bytes(size - available)} of RAM assumed to be in use by the system",
        ),
    )
    return shared, replace(
        device, memory_total_bytes=total, memory_free_bytes=limit, notes=(note, *device.notes[1:])
    )

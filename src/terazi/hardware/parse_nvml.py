"""NVIDIA cards from what the probe's child process printed: one JSON object a line.

In: lines (possibly cut short by a driver that hung). Out: ``Device``s in CUDA's order, ports, notes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from terazi.hardware import cards
from terazi.hardware.catalogue import Catalogue, GpuRecord
from terazi.hardware.links import Port
from terazi.hardware.machine import Basis, Device, Figure, PcieLink
from terazi.hardware.parse_pci import normal_address

#: nvmlDeviceGetP2PStatus: 0 is "possible" (NVML_P2P_STATUS_OK).
_P2P_OK = 0
#: nvmlClocksEventReason: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown (``nvml.h``).
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One card as NVML shows it; what a driver didn't answer is ``None``. Bytes, watts and degrees Celsius.

    ``slowed``: the driver holds its clocks down for heat, or since its power supply demands it. That it keeps to a
    power cap is no such thing.
    """

    index: int
    name: str
    uuid: str | None
    address: str | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    power_limit_w: float | None
    power_draw_w: float | None
    pcie: PcieLink | None
    mig: bool
    temperature_c: int | None = None
    slowed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReport:
    """All that the driver told. ``nvlinked`` and ``p2p`` hold pairs of NVML indices, lower first.

    ``processes`` are (NVML index, process id, bytes), of those that compute and whose memory the driver knows.
    """

    driver: str | None
    gpus: tuple[NvmlGpu, ...]
    nvlinked: frozenset[tuple[int, int]]
    p2p: frozenset[tuple[int, int]]
    notes: tuple[str, ...]
    complete: bool
    processes: tuple[tuple[int, int, int], ...] = ()


def parse_nvml(text: str) -> NvmlReport:
    """Read the child's lines; a half-written last line is dropped."""
    driver: str | None = None
    complete = False
    gpus: list[NvmlGpu] = []
    notes: list[str] = []
    pairs: dict[str, set[tuple[int, int]]] = {"nvlink": set(), "p2p": set()}
    processes: list[tuple[int, int, int]] = []
    for line in text.splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if not isinstance(item, dict):
            continue
        kind = item.get("kind")
        if kind == "driver":
            driver = _text(item, "version")
        elif kind == "gpu":
            gpus.append(_gpu(item))
        elif kind == "pair":
            pair = (_whole(item, "a") or 0, _whole(item, "b") or 0)
            for name, found in pairs.items():
                if item.get(name) == _P2P_OK:
                    found.add(pair)
        elif kind == "process":
            index, pid, used = (_whole(item, name) for name in ("index", "pid", "memory_used"))
            if index is not None and pid is not None and used is not None:
                processes.append((index, pid, used))
        elif kind == "error":
            notes.append(_text(item, "text") or "NVIDIA driver: an error without a text")
        elif kind == "end":
            complete = True
    return NvmlReport(
        driver=driver, gpus=tuple(gpus), notes=tuple(notes), complete=complete,
        nvlinked=frozenset(pairs["nvlink"]), p2p=frozenset(pairs["p2p"]), processes=tuple(processes),
    )  # fmt: skip


def _text(item: Mapping[str, object], key: str) -> str | None:
    value = item.get(key)
    return value[:200] if isinstance(value, str) and value else None


def _whole(item: Mapping[str, object], key: str) -> int | None:
    value = item.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _watts(item: Mapping[str, object], key: str) -> float | None:
    milliwatts = _whole(item, key)
    return None if milliwatts is None else milliwatts / 1000


def _gpu(item: Mapping[str, object]) -> NvmlGpu:
    generation, width = _whole(item, "pcie_gen_max"), _whole(item, "pcie_width_max")
    current = _whole(item, "pcie_width_current")
    lanes = min(width, current) if width and current else width
    address = _text(item, "pci_address")
    return NvmlGpu(
        index=_whole(item, "index") or 0,
        name=_text(item, "name") or "NVIDIA GPU",
        uuid=_text(item, "uuid"),
        address=None if address is None else normal_address(address),
        memory_total_bytes=_whole(item, "memory_total"),
        memory_free_bytes=_whole(item, "memory_free"),
        power_limit_w=_watts(item, "power_limit_mw"),
        power_draw_w=_watts(item, "power_draw_mw"),
        pcie=PcieLink(generation=generation, lanes=lanes, basis=Basis.READ) if generation and lanes else None,
        mig=item.get("mig") is True,
        temperature_c=_whole(item, "temperature_c"),
        slowed=None if (why := _whole(item, "slowed")) is None else bool(why & _SLOWED),
    )


def select_visible(gpus: Sequence[NvmlGpu], visible: str | None) -> tuple[NvmlGpu, ...]:
    """The cards that CUDA will show, in its order, given ``CUDA_VISIBLE_DEVICES`` (NVML itself ignores it).

    CUDA's rule (programming guide, environment variables): entries are indices or prefixes of a UUID, in the order
    to use; the list ends at the first entry that names nothing; an entry named twice leaves nothing at all.
    """
    if visible is None:
        return tuple(gpus)
    chosen: list[NvmlGpu] = []
    for entry in (e.strip() for e in visible.split(",")):
        if entry.isdecimal():
            found = [gpus[int(entry)]] if int(entry) < len(gpus) else []
        else:
            found = [g for g in gpus if entry and g.uuid is not None and g.uuid.lower().startswith(entry.lower())]
        if len(found) != 1:
            break
        if found[0] in chosen:
            return ()
        chosen.append(found[0])
    return tuple(chosen)


def nvml_device(
    device_id: str, gpu: NvmlGpu, catalogue: Catalogue, *, slot: PcieLink | None, ram_bytes: tuple[int, int]
) -> Device | str:
    """The card as a ``Device``, or the reason why it can't be one.

    Args:
        slot: what sysfs says about the whole path to the card, if anything.
        ram_bytes: the host's total and available RAM, which is what a unified-memory chip has.
    """
    record = catalogue.find_or_none(gpu.name, gpu.memory_total_bytes)
    notes: list[str] = []
    guess = ""
    if record is None:
        record = catalogue.find_or_none(gpu.name)
        if record is not None:
            guess = f"taken from the {record.name}, whose memory size differs"
            notes.append(f"speed {guess}")
    total, free = gpu.memory_total_bytes, gpu.memory_free_bytes
    unified = record is not None and record.unified
    if total is None and unified:
        total, free = ram_bytes
        notes.append("unified memory: what this device holds is missing from the host's RAM")
    if total is None:
        return f"{gpu.name} ({device_id}) is left out: the driver doesn't tell its memory size"
    if free is None:
        free = total - cards.driver_reserve_bytes(total)
        notes.append("what is in use can't be read; the driver's usual share is taken off")
    if gpu.mig:
        notes.append("MIG is on: CUDA sees its slices, not the whole card")
    unknown = cards.unknown_figure("not in the catalogue")
    return Device(
        id=device_id,
        name=gpu.name,
        vendor="nvidia",
        backend="cuda",
        memory_total_bytes=total,
        memory_free_bytes=min(free, total),
        memory_bandwidth=_figure(cards.bandwidth_figure(record), guess) if record else unknown,
        flops_fp16=_figure(cards.flops_figure(record), guess) if record else unknown,
        tdp_w=_power(gpu, record),
        idle_w=cards.idle_figure(record) if record else unknown,
        power_cap_w=gpu.power_limit_w,
        pcie=cards.narrower(gpu.pcie, slot, Basis.READ),
        context_bytes=cards.context_figure("cuda", record),
        unified_memory=unified,
        pci_address=gpu.address,
        notes=tuple(notes),
    )


def _figure(figure: Figure, guess: str) -> Figure:
    return Figure(value=figure.value, basis=Basis.ASSUMED, note=guess) if guess else figure


def _power(gpu: NvmlGpu, record: GpuRecord | None) -> Figure:
    if record is not None and record.tdp_w is not None:
        return cards.tdp_figure(record)
    return Figure(value=gpu.power_limit_w, basis=Basis.READ, note="the driver's power limit")


def nvml_port(gpu: NvmlGpu, report: NvmlReport, catalogue: Catalogue) -> Port:
    """What this card brings to its pairs: NVLink partners are grouped by the lowest index that they reach."""
    reached = {gpu.index} | {i for pair in report.nvlinked if gpu.index in pair for i in pair}
    record = catalogue.find_or_none(gpu.name, gpu.memory_total_bytes)
    direct = {i for pair in report.p2p if gpu.index in pair for i in pair}
    return Port(
        nvlink_group=str(min(reached)) if len(reached) > 1 else None,
        nvlink_bytes_per_s=None if record is None else cards.nvlink_rate(record, len(reached)),
        p2p=bool(direct),
    )

"""AMD and Intel cards from sysfs text (/sys/class/drm/cardN/device).

In: attribute files as text. Out: ``DrmCard``, then ``Device`` with the catalogue's figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from terazi.hardware import cards
from terazi.hardware.catalogue import Catalogue, GpuRecord
from terazi.hardware.machine import Basis, Device, Figure, PcieLink
from terazi.units import GIB

VENDORS: Final = {"0x1002": "amd", "0x8086": "intel"}
#: Attribute files to read, relative to the card's PCI folder. Intel's names differ by driver (i915, xe).
ATTRIBUTES: Final = (
    "vendor", "device", "revision", "class", "product_name", "mem_info_vram_total", "mem_info_vram_used",
    "mem_info_gtt_total", "lmem_total_bytes", "tile0/physical_vram_size_bytes", "resource",
)  # fmt: skip
_SIZES: Final = ("mem_info_vram_total", "lmem_total_bytes", "tile0/physical_vram_size_bytes")
#: An APU's fixed part of the RAM is mostly 0.5 to 4 GiB, with a larger GTT beside it; discrete cards have more.
_APU_VRAM: Final = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DrmCard:
    """One AMD or Intel graphics device as sysfs shows it; ``window_bytes`` is its largest PCI window."""

    address: str
    vendor: str
    pci_id: str
    revision: str
    product_name: str | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    window_bytes: int | None
    integrated: bool


def parse_drm_card(address: str, files: Mapping[str, str]) -> DrmCard | None:
    """Read one card; ``None`` if it is neither AMD's nor Intel's. *files*: those of ``ATTRIBUTES`` that exist."""
    vendor_id = files.get("vendor", "").strip().lower()
    vendor = VENDORS.get(vendor_id)
    if vendor is None:
        return None
    device_id = files.get("device", "").strip().lower()
    vram, gtt = _bytes(files.get("mem_info_vram_total")), _bytes(files.get("mem_info_gtt_total"))
    if vendor == "amd":
        integrated = vram is not None and gtt is not None and vram <= _APU_VRAM and gtt > vram
    else:  # Intel's own graphics always sit at this place of the root bus
        integrated = address.endswith(":00:02.0")
    return DrmCard(
        address=address,
        vendor=vendor,
        pci_id=f"{vendor_id.removeprefix('0x')}:{device_id.removeprefix('0x')}",
        revision=files.get("revision", "").strip().lower().removeprefix("0x"),
        product_name=files.get("product_name", "").strip() or None,
        memory_total_bytes=next((n for n in (_bytes(files.get(name)) for name in _SIZES) if n), None),
        memory_used_bytes=_bytes(files.get("mem_info_vram_used")),
        window_bytes=_largest_bar(files.get("resource", "")),
        integrated=integrated,
    )


def _bytes(text: str | None) -> int | None:
    value = (text or "").strip()
    try:
        return int(value, 0) or None if value else None
    except ValueError:
        return None


def _largest_bar(resource: str) -> int | None:
    """The largest memory window in a PCI ``resource`` file (lines: first address, last address, flags)."""
    sizes = []
    for line in resource.splitlines()[:6]:
        words = line.split()
        try:
            first, last = (int(w, 16) for w in words[:2])
        except ValueError:
            continue
        if last > first:
            sizes.append(last - first + 1)
    return max(sizes, default=None)


def name_card(card: DrmCard, catalogue: Catalogue) -> tuple[str, GpuRecord | None, str]:
    """The card's name, its catalogue row, and a note if either is a guess.

    The driver's own product name comes first (datacentre cards have one), then PCI id and revision. Where several
    cards share an id, the slowest stands for all: too cautious beats too bold.
    """
    if card.product_name is not None:
        record = catalogue.find_or_none(card.product_name, card.memory_total_bytes)
        if record is not None:
            return card.product_name, record, ""
    found = catalogue.by_pci_id(card.pci_id, card.revision, card.memory_total_bytes)
    if not found:
        maker = {"amd": "AMD", "intel": "Intel"}[card.vendor]
        return card.product_name or f"{maker} graphics {card.pci_id}", None, "not in the catalogue"
    record = min(found, key=lambda r: (r.bandwidth_bytes_per_s, r.flops_fp16 or 0.0))
    if len(found) == 1:
        return card.product_name or record.name, record, ""
    names = " or ".join(r.name for r in found)
    return card.product_name or names, record, f"one of {names}; the figures are those of the {record.name}"


def drm_device(device_id: str, card: DrmCard, catalogue: Catalogue, pcie: PcieLink | None) -> Device | str:
    """The card as a ``Device``, or the reason why it can't be one."""
    name, record, note = name_card(card, catalogue)
    if card.integrated:
        return f"{name} at {card.address} is left out: integrated graphics, whose memory is the computer's RAM"
    total = card.memory_total_bytes
    notes = [note] if note else []
    if total is None and record is not None and not record.unified:
        total = record.memory_max_bytes
        # With a resizable BAR the window spans all memory (rounded up), so a smaller one is a smaller variant.
        if card.window_bytes is not None and card.window_bytes >= GIB:
            total = min(total, card.window_bytes)
        notes.append("memory size from the catalogue, since the driver doesn't tell it")
    if total is None:
        return f"{name} at {card.address} is left out: its memory size can't be read"
    if card.memory_used_bytes is None:
        reserve = cards.driver_reserve_bytes(total)
        notes.append("what is in use can't be read; the driver's usual share is taken off")
    else:
        reserve = card.memory_used_bytes
    unknown = cards.unknown_figure("not in the catalogue")
    backend = cards.BACKENDS[card.vendor]
    return Device(
        id=device_id,
        name=name,
        vendor=card.vendor,
        backend=backend,
        memory_total_bytes=total,
        memory_free_bytes=max(0, total - reserve),
        memory_bandwidth=_figure(cards.bandwidth_figure(record), note) if record else unknown,
        flops_fp16=_figure(cards.flops_figure(record), note) if record else unknown,
        tdp_w=_figure(cards.tdp_figure(record), note) if record else unknown,
        idle_w=cards.idle_figure(record) if record else unknown,
        pcie=pcie,
        context_bytes=cards.context_figure(backend, record),
        unified_memory=record is not None and record.unified,
        pci_address=card.address,
        notes=tuple(notes),
    )


def _figure(figure: Figure, guess: str) -> Figure:
    return Figure(value=figure.value, basis=Basis.ASSUMED, note=guess) if guess else figure

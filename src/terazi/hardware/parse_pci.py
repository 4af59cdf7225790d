"""PCI devices from sysfs text: which are graphics cards, and what the whole path to one allows.

In: the text of a device's attribute files and of every bridge above it. Out: ``PcieLink``, addresses.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from terazi.hardware.machine import Basis, PcieLink

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: max_link_speed as the kernel prints it ("16.0 GT/s PCIe"), by generation.
_GENERATION: Final = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


class LinkFiles(NamedTuple):
    """One hop's link files as text, ``None`` where absent (in many VMs all are)."""

    max_speed: str | None
    max_width: str | None
    current_width: str | None


def addresses_in(path: str) -> tuple[str, ...]:
    """PCI addresses in a resolved sysfs path, from the root port down to the device itself."""
    return tuple(_ADDRESS.findall(path.lower()))


def normal_address(text: str) -> str:
    """``00000000:0A:00.0`` (NVML) → ``0000:0a:00.0`` (sysfs)."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}" if colon else text.strip().lower()


def is_display(class_text: str | None) -> bool:
    """True for PCI class 03 (VGA, 3D or other display) and 12 (processing accelerators, as AMD's Instinct are)."""
    return (class_text or "").strip().lower().startswith(("0x03", "0x12"))


def path_link(hops: Iterable[LinkFiles]) -> PcieLink | None:
    """The slowest speed and the narrowest width along the way, or ``None`` if no hop says anything.

    Speed comes from ``max_link_speed`` only: an idle card lowers its current speed. Width doesn't change at idle,
    so a current width below the maximum is a real limit (a chipset slot, a riser, a dirty contact).
    """
    generations: list[int] = []
    lanes: list[int] = []
    for hop in hops:
        speed = (hop.max_speed or "").split()
        if speed and speed[0] in _GENERATION:
            generations.append(_GENERATION[speed[0]])
        widths = [int(w) for w in (hop.max_width, hop.current_width) if w is not None and w.strip().isdecimal()]
        # 0 means that no link is up or that the hop isn't PCIe; 255 is what a hop without the register reads.
        lanes.extend(w for w in widths if 0 < w <= 32)
    if not generations or not lanes:
        return None
    return PcieLink(generation=min(generations), lanes=min(lanes), basis=Basis.READ)

"""Reads PCI folders of sysfs: display devices, the path to each, AMD's and Intel's attribute files."""

import os
from typing import TYPE_CHECKING

from terazi.hardware.probe.files import Tree, read_text

# Most of what is here is for cards, so the parsers are imported where one was found.
if TYPE_CHECKING:
    from terazi.hardware.machine import PcieLink
    from terazi.hardware.parse_drm import DrmCard

_NVIDIA = "0x10de"


def read_link(tree: Tree, address: str) -> "PcieLink | None":
    """What the whole path from the root port to the device at *address* allows."""
    from terazi.hardware.parse_pci import LinkFiles, addresses_in, path_link

    folder = os.path.realpath(tree.path(f"sys/bus/pci/devices/{address}"))
    hops = []
    while addresses_in(os.path.basename(folder)):  # noqa: PTH119 - strings all the way
        hops.append(
            LinkFiles(
                max_speed=read_text(f"{folder}/max_link_speed"),
                max_width=read_text(f"{folder}/max_link_width"),
                current_width=read_text(f"{folder}/current_link_width"),
            )
        )
        folder = os.path.dirname(folder)  # noqa: PTH120
    return path_link(hops)


def read_drm_cards(tree: Tree) -> "tuple[DrmCard, ...]":
    """AMD's and Intel's cards, in PCI order, which is the order in which their runtimes number them."""
    names = [name for name in tree.names("sys/class/drm") if name.startswith("card") and name[4:].isdecimal()]
    if not names:
        return ()
    from terazi.hardware.parse_drm import ATTRIBUTES, parse_drm_card
    from terazi.hardware.parse_pci import addresses_in

    found = {}
    for name in names:
        link = tree.path(f"sys/class/drm/{name}/device")
        address = os.path.basename(os.path.realpath(link))  # noqa: PTH119
        # Some attributes lie beside the PCI folder, at the card itself.
        texts = {a: read_text(f"{link}/{a}") or read_text(f"{link}/../{a}") for a in ATTRIBUTES}
        card = parse_drm_card(address, {a: t for a, t in texts.items() if t is not None})
        if card is not None and addresses_in(address):
            found[address] = card
    return tuple(found[a] for a in sorted(found))


def find_nvidia(tree: Tree) -> tuple[str, ...]:
    """PCI addresses of NVIDIA's display devices, whether or not a driver holds them."""
    folder = "sys/bus/pci/devices"
    found = [a for a in tree.names(folder) if (tree.text(f"{folder}/{a}/vendor") or "").strip().lower() == _NVIDIA]
    if not found:
        return ()
    from terazi.hardware.parse_pci import is_display

    return tuple(a for a in found if is_display(tree.text(f"{folder}/{a}/class")))

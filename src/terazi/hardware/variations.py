"""A machine with something changed: a card more, a card less, another link, a power cap.

In: ``Machine``. Out: another ``Machine``; the given one stays as it is.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from terazi.errors import UsageError
from terazi.hardware.machine import Basis, Device, Figure, Link, Machine, PcieLink


def with_cards(machine: Machine, more: Machine) -> Machine:
    """*machine* and the cards of *more*, renumbered behind those of their kind; its host stays."""
    counts: dict[str, int] = {}
    for device in machine.devices:
        prefix = _prefix(device.id)
        counts[prefix] = max(counts.get(prefix, 0), _number(device.id) + 1)
    names: dict[str, str] = {}
    added = []
    for device in more.devices:
        prefix = _prefix(device.id)
        names[device.id] = f"{prefix}{counts.get(prefix, 0)}"
        counts[prefix] = counts.get(prefix, 0) + 1
        added.append(replace(device, id=names[device.id]))
    links = [replace(link, a=names[link.a], b=names[link.b]) for link in more.links]
    links += [_through_host(a, b) for a in machine.devices for b in added]
    return replace(
        machine,
        name=f"{machine.name} + {more.name}",
        devices=(*machine.devices, *added),
        links=(*machine.links, *links),
    )


def without_cards(machine: Machine, ids: Sequence[str]) -> Machine:
    """*machine* less the devices *ids*.

    Raises:
        UsageError: it has no such device.
    """
    there = {device.id for device in machine.devices}
    for name in ids:
        if name not in there:
            raise UsageError(
                f"the machine has no device {name}", hint=f"it has: {', '.join(sorted(there)) or 'no accelerator'}"
            )
    return replace(
        machine,
        name=f"{machine.name} without {', '.join(ids)}",
        devices=tuple(d for d in machine.devices if d.id not in ids),
        links=tuple(link for link in machine.links if not {link.a, link.b} & set(ids)),
    )


def with_cap(machine: Machine, watts: float) -> Machine:
    """*machine* with every card held to *watts*, or to the cap that it has if that is lower."""
    devices = tuple(
        replace(d, power_cap_w=min(watts, d.power_cap_w) if d.power_cap_w else watts) for d in machine.devices
    )
    return replace(machine, devices=devices)


def with_pcie(machine: Machine, link: PcieLink) -> Machine:
    """*machine* with every card in such a slot, and whatever went over PCIe as fast as that."""
    devices = tuple(d if d.unified_memory else replace(d, pcie=link) for d in machine.devices)
    by_id = {d.id: d for d in devices}
    links = tuple(
        old if old.kind == "nvlink" else replace(_through_host(by_id[old.a], by_id[old.b]), kind=old.kind)
        for old in machine.links
    )
    return replace(machine, devices=devices, links=links)


def with_links(machine: Machine, kind: str, rates: Sequence[float | None]) -> Machine:
    """*machine* with each pair of equal cards joined by *kind* (``nvlink``, ``pcie-p2p`` or ``host``).

    *rates* are the NVLink bytes per second of each device, one way; a card without stays on PCIe.
    """
    rate_of = dict(zip((d.id for d in machine.devices), rates, strict=True))
    links = []
    for a, b in combinations(machine.devices, 2):
        through = _through_host(a, b)
        rate = rate_of[a.id]
        if kind == "nvlink" and a.name == b.name and rate is not None:
            figure = Figure(value=rate, basis=Basis.CATALOGUE, note="NVLink, one way")
            links.append(Link(a=a.id, b=b.id, kind="nvlink", bandwidth=figure))
        else:
            links.append(through if kind == "nvlink" else replace(through, kind=kind))
    return replace(machine, links=tuple(links))


def _through_host(a: Device, b: Device) -> Link:
    if a.pcie is None or b.pcie is None:
        missing = a.id if a.pcie is None else b.id
        figure = Figure(value=None, basis=Basis.ASSUMED, note=f"the link of {missing} isn't known")
        return Link(a=a.id, b=b.id, kind="host", bandwidth=figure)
    slower = min(a.pcie, b.pcie, key=lambda p: p.bytes_per_s)
    note = f"PCIe {slower.generation} ×{slower.lanes}, the slower end"
    return Link(
        a=a.id,
        b=b.id,
        kind="host",
        bandwidth=Figure(value=slower.bytes_per_s, basis=Basis.ASSUMED, note=note),
    )


def _prefix(device_id: str) -> str:
    return re.sub(r"\d+$", "", device_id)


def _number(device_id: str) -> int:
    digits = device_id.removeprefix(_prefix(device_id))
    return int(digits) if digits else 0

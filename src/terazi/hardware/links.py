"""Which devices reach each other directly, and how fast.

In: devices, the cards' NVLink data, what the driver or the person said. Out: ``Link`` for every pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from terazi.hardware.machine import Basis, Device, Figure, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """What one device brings to a pair. ``nvlink_group`` joins devices that are bridged or switched together."""

    nvlink_group: str | None = None
    nvlink_bytes_per_s: float | None = None
    p2p: bool = False


def link_all(devices: Sequence[Device], ports: Sequence[Port], *, basis: Basis) -> tuple[Link, ...]:
    """One link a pair, in order. Rates are one way, bytes per second.

    NVLink where both ends sit in one group; else PCIe, which is as fast as its slower end: straight between the
    cards with P2P, or through host memory. Unified memory and RPC devices have no PCIe link of their own.
    """
    links = []
    for i, (a, port_a) in enumerate(zip(devices, ports, strict=True)):
        for b, port_b in list(zip(devices, ports, strict=True))[i + 1 :]:
            kind, bandwidth = _join(a, port_a, b, port_b, basis)
            links.append(Link(a=a.id, b=b.id, kind=kind, bandwidth=bandwidth))
    return tuple(links)


def _join(a: Device, port_a: Port, b: Device, port_b: Port, basis: Basis) -> tuple[str, Figure]:
    if port_a.nvlink_group is not None and port_a.nvlink_group == port_b.nvlink_group:
        rates = [r for r in (port_a.nvlink_bytes_per_s, port_b.nvlink_bytes_per_s) if r is not None]
        if not rates:
            return "nvlink", Figure(
                value=None, basis=Basis.ASSUMED, note="this card's NVLink rate isn't in the catalogue"
            )
        return "nvlink", Figure(value=min(rates), basis=Basis.CATALOGUE, note="NVLink, one way")
    if a.pcie is None or b.pcie is None:
        missing = a.id if a.pcie is None else b.id
        return "host", Figure(value=None, basis=Basis.ASSUMED, note=f"the link of {missing} isn't known")
    slower = min(a.pcie, b.pcie, key=lambda p: p.bytes_per_s)
    note = f"PCIe {slower.generation} ×{slower.lanes}, the slower end"
    direct = port_a.p2p and port_b.p2p
    return ("pcie-p2p" if direct else "host"), Figure(value=slower.bytes_per_s, basis=basis, note=note)

"""Which brackets join the devices of a map: one for each group that is joined alike, not one for each pair.

In: links, device ids in the order of the rows. Out: ``Bracket``s with columns, so that none overlaps another.
"""

from collections.abc import Sequence
from typing import NamedTuple

from terazi.hardware.machine import Link

_NAMES = {"nvlink": "NVLink", "pcie-p2p": "PCIe, direct"}


class Bracket(NamedTuple):
    """Devices that are joined alike, in the order of their rows."""

    devices: tuple[str, ...]
    name: str
    rate: str
    dash: str
    column: int


def brackets(links: Sequence[Link], order: Sequence[str]) -> tuple[Bracket, ...]:
    """The brackets of the direct links; what goes through the host is told by each device's own PCIe link."""
    rank = {name: i for i, name in enumerate(order)}
    groups: dict[tuple[str, float | None], list[frozenset[str]]] = {}
    for link in links:
        if link.kind != "host" and link.a in rank and link.b in rank:
            groups.setdefault((link.kind, link.bandwidth.value), []).append(frozenset((link.a, link.b)))
    found = []
    for (kind, rate), pairs in groups.items():
        for group in _cliques(pairs, rank):
            said = "rate not known" if rate is None else f"{rate / 1e9:,.0f} GB/s one way"
            name = _NAMES.get(kind, kind)
            if len(group) > 2:
                name += ", each to each"
            found.append((group, name, said, "" if kind == "nvlink" else "5 4"))
    found.sort(key=lambda b: (rank[b[0][0]], -len(b[0])))
    free: list[int] = []  # the last row that each column is taken to
    drawn = []
    for group, name, said, dash in found:
        first, last = rank[group[0]], rank[group[-1]]
        column = next((i for i, taken in enumerate(free) if taken < first), len(free))
        free[column : column + 1] = [last]
        drawn.append(Bracket(group, name, said, dash, column))
    return tuple(drawn)


def _cliques(pairs: Sequence[frozenset[str]], rank: dict[str, int]) -> list[tuple[str, ...]]:
    """The pairs gathered into groups in which each is joined to each, greedily; leftover pairs stay pairs."""
    left = set(pairs)
    groups = []
    while left:
        start = min(left, key=lambda p: sorted(rank[name] for name in p))
        group = set(start)
        for name in sorted({n for p in left for n in p} - group, key=rank.__getitem__):
            if all(frozenset((name, other)) in left for other in group):
                group.add(name)
        left -= {frozenset((a, b)) for a in group for b in group if a != b}
        groups.append(tuple(sorted(group, key=rank.__getitem__)))
    return groups

"""The device map: a bar a device, to scale, with what is in it, what may come, and the links between them.

In: machine, shares, growth lines of the bill. Out: ``Panel``.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST, BillLine
from terazi.pictures import svg
from terazi.pictures.links import Bracket, brackets
from terazi.pictures.svg import KINDS, MARGIN, Kind, Panel
from terazi.placement.plan import DeviceShare
from terazi.units import format_bytes

_BAR_X: Final = MARGIN
_BAR_WIDTH: Final = 660.0
_BAR_HEIGHT: Final = 36.0
_ROW: Final = 92.0
_HEAD: Final = 58.0
_GUTTER_X: Final = _BAR_X + _BAR_WIDTH + 14
_COLUMN: Final = 16.0
#: How many times the largest card a host may be before its bar gets a scale of its own.
_LARGE_HOST: Final = 1.2
_FIELDS: Final = {
    "weights": "weights_bytes",
    "kv": "kv_bytes",
    "state": "state_bytes",
    "compute": "compute_bytes",
    "overhead": "overhead_bytes",
    "beside": "beside_bytes",
}


class _Row(NamedTuple):
    share: DeviceShare
    device: Device | None
    total_bytes: int
    ceiling_bytes: int  # with all growth
    scale_bytes: int
    apart: bool


def device_map(machine: Machine, shares: Sequence[DeviceShare], growth: Sequence[BillLine], *, title: str) -> Panel:
    """The picture of *shares* on *machine*; *growth* becomes dashed ceilings."""
    rows = _rows(machine, shares, growth)
    parts = [
        svg.text(MARGIN, 30, svg.fit(title, 18, svg.WIDTH - 2 * MARGIN, bold=True), size=18, bold=True),
        svg.text(MARGIN, 48, "what each device holds, to scale", size=12, style="soft"),
    ]
    tops: dict[str, float] = {}
    for i, row in enumerate(rows):
        tops[row.share.id] = _HEAD + i * _ROW
        parts.append(_draw(row, tops[row.share.id]))
    parts.append(_links(brackets(machine.links, [r.share.id for r in rows]), tops))
    height = _HEAD + len(rows) * _ROW
    legend, lines = _legend(rows, height + 10)
    parts.append(legend)
    return Panel(height + 10 + lines * 20 + 14, "".join(parts), f"Device map: {title}", _described(rows))


def _rows(machine: Machine, shares: Sequence[DeviceShare], growth: Sequence[BillLine]) -> list[_Row]:
    by_id = {d.id: d for d in machine.devices}
    later: dict[str, int] = {}
    for entry in growth:
        later[entry.device] = later.get(entry.device, 0) + entry.bytes
    totals = {
        s.id: max(
            by_id[s.id].memory_total_bytes if s.id in by_id else machine.host.ram_total_bytes, s.capacity_bytes
        )
        for s in shares
    }
    sizes = {s.id: max(totals[s.id], totals[s.id] - s.capacity_bytes + s.peak_bytes, 1) for s in shares}
    cards = max((size for name, size in sizes.items() if name != HOST), default=0)
    apart = cards > 0 and sizes.get(HOST, 0) > _LARGE_HOST * cards
    common = cards if apart else max(sizes.values(), default=1)
    return [
        _Row(
            share=s,
            device=by_id.get(s.id),
            total_bytes=totals[s.id],
            ceiling_bytes=s.total_bytes + s.process_bytes + later.get(s.id, 0),
            scale_bytes=sizes[HOST] if apart and s.id == HOST else common,
            apart=apart and s.id == HOST,
        )
        for s in shares
    ]


def _draw(row: _Row, top: float) -> str:
    share = row.share
    name = svg.fit(f"{share.id}: {share.name}", 14, 400, bold=True)
    told = _state(share)
    parts = [
        svg.text(_BAR_X, top + 16, name, size=14, bold=True),
        svg.text(_BAR_X + _BAR_WIDTH, top + 16, told, size=13, anchor="end"),
    ]
    y = top + 23
    per_byte = _BAR_WIDTH / row.scale_bytes
    x = float(_BAR_X)
    tags = []
    for kind, size in _segments(row):
        width = size * per_byte
        if width <= 0:
            continue
        shown = svg.fit(kind.words, 11, width - 8)
        parts.append(f"<g><title>{svg.escape(kind.words)}: {format_bytes(size)}</title>")
        parts.append(svg.bar(x, y, width, _BAR_HEIGHT, kind))
        parts.append("</g>")
        if shown == kind.words:
            tags.append(svg.tag(x + 4, y + _BAR_HEIGHT - 6, shown))
        x += width
    end = _BAR_X + row.total_bytes * per_byte
    parts.append(svg.frame(_BAR_X, y, end - _BAR_X, _BAR_HEIGHT))
    if share.headroom_bytes < 0:
        parts.append(svg.line(end, y - 3, end, y + _BAR_HEIGHT + 3, width=3, style="mark"))
        tags = tags[:1]
        tags.append(svg.tag(end + 6, y + 16, svg.fit("its memory ends here", 11, x - end - 8)))
    parts += tags
    others = max(0, row.total_bytes - share.capacity_bytes)
    parts.append(_ceiling(row, y, others, per_byte))
    parts.append(svg.text(_BAR_X, y + _BAR_HEIGHT + 17, _caption(row), size=12, style="soft"))
    return "".join(parts)


def _ceiling(row: _Row, y: float, others: int, per_byte: float) -> str:
    """The dashed line up to which it may grow under use, kept inside the picture."""
    if row.share.headroom_bytes < 0 or row.ceiling_bytes <= row.share.total_bytes + row.share.process_bytes:
        return ""
    x = min(_BAR_X + (others + row.ceiling_bytes) * per_byte, _BAR_X + _BAR_WIDTH)
    return svg.line(x, y - 1, x, y + _BAR_HEIGHT + 4, dash="4 3", width=2, style="mark")


def _segments(row: _Row) -> list[tuple[Kind, int]]:
    """From the left: what isn't ours to use, then what the plan puts there."""
    share = row.share
    sizes = {name: int(getattr(share, field)) for name, field in _FIELDS.items()}
    sizes["others"] = max(0, row.total_bytes - share.capacity_bytes)
    sizes["overhead"] += share.process_bytes
    return [(kind, sizes[kind.name]) for kind in KINDS if sizes[kind.name]]


def _state(share: DeviceShare) -> str:
    left = share.headroom_bytes
    if left < 0:
        return f"{format_bytes(-left)} MISSING of {format_bytes(share.total_bytes)}"
    return f"{format_bytes(share.total_bytes)} used, {format_bytes(left)} free"


def _caption(row: _Row) -> str:
    share, device = row.share, row.device
    said = []
    if share.layers is not None:
        first, last = share.layers
        said.append(f"layer {first}" if first == last else f"layers {first}–{last}")
    if device is not None and device.pcie is not None:
        link = device.pcie
        said.append(f"PCIe {link.generation}.0 ×{link.lanes} to the host, {link.bytes_per_s / 1e9:.1f} GB/s")
    if device is not None and device.memory_bandwidth.value:
        said.append(f"memory {device.memory_bandwidth.value / 1e9:,.0f} GB/s")
    if row.apart:
        said.append("bar to its own scale")
    grown = row.ceiling_bytes - share.total_bytes - share.process_bytes
    if grown > 0:
        said.append(f"may grow by {format_bytes(grown)}")
    return svg.fit(", ".join(said), 12, _BAR_WIDTH)


def _links(found: Sequence[Bracket], tops: Mapping[str, float]) -> str:
    parts = []
    columns = max((b.column for b in found), default=-1) + 1
    label_x = _GUTTER_X + columns * _COLUMN + 4
    taken: list[float] = []
    for bracket in found:
        ys = [tops[name] + 23 + _BAR_HEIGHT / 2 for name in bracket.devices]
        x = _GUTTER_X + bracket.column * _COLUMN + 8
        parts.append(svg.line(x, min(ys), x, max(ys), width=2, dash=bracket.dash, style="mark"))
        parts += [svg.line(_BAR_X + _BAR_WIDTH + 3, y, x, y, width=2, dash=bracket.dash, style="mark") for y in ys]
        y = (min(ys) + max(ys)) / 2
        while any(abs(y - other) < 30 for other in taken):
            y += 15
        taken.append(y)
        room = svg.WIDTH - label_x - 8
        parts.append(svg.text(label_x, y - 2, svg.fit(bracket.name, 12, room), size=12, bold=True))
        parts.append(svg.text(label_x, y + 13, svg.fit(bracket.rate, 12, room), size=12, style="soft"))
    return "".join(parts)


def _legend(rows: Sequence[_Row], top: float) -> tuple[str, int]:
    """Swatches of the kinds that are there, wrapped; the text and how many lines it takes."""
    used = [kind for kind in KINDS if any(kind is k for row in rows for k, _ in _segments(row))]
    parts, x, rank = [], float(MARGIN), 0
    for kind in used:
        needed = 24 + svg.width_of(kind.words, 12) + 18
        if x + needed > svg.WIDTH - MARGIN:
            x, rank = float(MARGIN), rank + 1
        y = top + rank * 20
        parts.append(svg.bar(x, y, 18, 12, kind))
        parts.append(svg.text(x + 24, y + 11, kind.words, size=12))
        x += needed
    if any(row.ceiling_bytes > row.share.total_bytes + row.share.process_bytes for row in rows):
        words = "may grow to here under use"
        if x + 24 + svg.width_of(words, 12) > svg.WIDTH - MARGIN:
            x, rank = float(MARGIN), rank + 1
        y = top + rank * 20
        parts.append(svg.line(x + 9, y - 2, x + 9, y + 14, dash="4 3", width=2, style="mark"))
        parts.append(svg.text(x + 24, y + 11, words, size=12))
    return "".join(parts), rank + 1


def _described(rows: Sequence[_Row]) -> str:
    """The same in words."""
    return "; ".join(
        f"{r.share.id} ({r.share.name}) of {format_bytes(r.total_bytes)}: "
        + ", ".join(f"{kind.words} {format_bytes(size)}" for kind, size in _segments(r))
        + f", {_state(r.share)}"
        for r in rows
    )

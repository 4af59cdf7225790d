"""The roofline: what binds each device while it reads a prompt, and while tokens come.

In: machine and phases. Out: ``Panel``. A point right of the ridge is bound by operations, left of it by memory; how
far it lies below the roof is what launches, waiting and unpacking take (Williams et al., CACM 2009).
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from terazi.hardware.machine import Device, Machine
from terazi.performance.phases import Phase
from terazi.pictures import svg
from terazi.pictures.svg import MARGIN, Panel

_LEFT: Final = 74.0
_TOP: Final = 78.0
_PLOT_WIDTH: Final = 560.0
_PLOT_HEIGHT: Final = 300.0
_NOTES_X: Final = _LEFT + _PLOT_WIDTH + 24
_DASHES: Final = ("", "8 4", "2 3", "10 3 2 3")


class _Roof(NamedTuple):
    """One kind of device: its peaks, and its points as (phase, operations per byte, operations per second)."""

    name: str
    ids: tuple[str, ...]
    bandwidth: float
    flops: float
    points: tuple[tuple[str, float, float], ...]

    @property
    def ridge(self) -> float:
        """Operations per byte where both roofs meet."""
        return self.flops / self.bandwidth


def roofline(machine: Machine, phases: Sequence[Phase]) -> Panel | None:
    """The picture, or None where no device at work has both peaks known."""
    roofs = _roofs(machine, phases)
    if not roofs:
        return None
    xs = [x for r in roofs for _, x, _ in r.points] + [r.ridge for r in roofs]
    ys = [y for r in roofs for _, _, y in r.points] + [r.flops for r in roofs]
    axes = _Axes(_low(min(xs) / 2), _high(max(xs) * 2), _low(min(ys) / 2), _high(max(ys) * 1.5))
    parts = [
        svg.text(MARGIN, 30, "What binds: the roofline", size=18, bold=True),
        svg.text(
            MARGIN, 48, "under the slope memory binds, under the flat roof operations do", size=12, style="soft"
        ),
        axes.draw(),
    ]
    y = _TOP + 6
    for i, roof in enumerate(roofs):
        parts.append(_roof_line(axes, roof, _DASHES[i % len(_DASHES)]))
        note, y = _note(roof, i, y)
        parts.append(note)
    parts.append(_labels(axes, roofs))
    for i, roof in enumerate(roofs):
        parts += [svg.marker(i, axes.x(x), axes.y(v)) for _, x, v in roof.points]
    height = max(_TOP + _PLOT_HEIGHT + 62, y + 16)
    return Panel(height, "".join(parts), "Roofline", " ".join(_verdicts(r) for r in roofs))


def _roofs(machine: Machine, phases: Sequence[Phase]) -> list[_Roof]:
    kinds: dict[tuple[str, float, float], list[Device]] = {}
    for device in machine.devices:
        bandwidth, flops = device.memory_bandwidth.value, device.flops_fp16.value
        if bandwidth and flops and any(device.id in p.loads for p in phases):
            kinds.setdefault((device.name, bandwidth, flops), []).append(device)
    roofs = []
    for (name, bandwidth, flops), devices in kinds.items():
        first = devices[0].id
        points = tuple(
            (p.name, p.flops_per_byte[first], p.loads[first].compute * flops)
            for p in phases
            if first in p.loads and p.flops_per_byte.get(first, 0) > 0 and p.loads[first].compute > 0
        )
        if points:
            roofs.append(_Roof(name, tuple(d.id for d in devices), bandwidth, flops, points))
    return roofs


class _Axes(NamedTuple):
    """Logarithmic axes in whole decades."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Place of an intensity."""
        value = min(max(value, self.x_low), self.x_high)
        return _LEFT + _PLOT_WIDTH * math.log(value / self.x_low) / math.log(self.x_high / self.x_low)

    def y(self, value: float) -> float:
        """Place of a rate."""
        value = min(max(value, self.y_low), self.y_high)
        share = math.log(value / self.y_low) / math.log(self.y_high / self.y_low)
        return _TOP + _PLOT_HEIGHT * (1 - share)

    def draw(self) -> str:
        """Frame, grid and ticks."""
        parts = [svg.frame(_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT)]
        bottom = _TOP + _PLOT_HEIGHT
        for value in _decades(self.x_low, self.x_high):
            parts.append(svg.line(self.x(value), _TOP, self.x(value), bottom, dash="1 3"))
            parts.append(svg.text(self.x(value), bottom + 17, _tick(value), size=12, anchor="middle"))
        for value in _decades(self.y_low, self.y_high):
            parts.append(svg.line(_LEFT, self.y(value), _LEFT + _PLOT_WIDTH, self.y(value), dash="1 3"))
            parts.append(svg.text(_LEFT - 8, self.y(value) + 4, _tick(value / 1e12), size=12, anchor="end"))
        parts.append(
            svg.text(_LEFT + _PLOT_WIDTH / 2, bottom + 38, "operations per byte read", size=13, anchor="middle")
        )
        parts.append(svg.text(_LEFT - 8, _TOP - 8, "TFLOP/s", size=12, anchor="end"))
        return "".join(parts)


def _roof_line(axes: _Axes, roof: _Roof, dash: str) -> str:
    start = max(axes.x_low, axes.y_low / roof.bandwidth)
    points = [
        (axes.x(start), axes.y(start * roof.bandwidth)),
        (axes.x(roof.ridge), axes.y(roof.flops)),
        (axes.x(axes.x_high), axes.y(roof.flops)),
    ]
    return svg.polyline(points, dash=dash)


def _labels(axes: _Axes, roofs: Sequence[_Roof]) -> str:
    """The phases' names beside their points, moved apart where they would touch."""
    taken: list[tuple[float, float, float]] = []
    parts = []
    for roof in roofs:
        for name, at, value in roof.points:
            width = svg.width_of(name, 12) + 6
            right = axes.x(at) + 8
            x = right if right + width < _LEFT + _PLOT_WIDTH - 4 else axes.x(at) - 8 - width
            y = axes.y(value) + 16  # below the roof, where nothing is
            while any(abs(y - ty) < 17 and x < tx + tw and tx < x + width for tx, ty, tw in taken):
                y += 17
            taken.append((x, y, width))
            parts.append(svg.tag(x, y, name, size=12))
    return "".join(parts)


def _note(roof: _Roof, index: int, y: float) -> tuple[str, float]:
    """What is said of one kind of device, right of the plot; the text, and where the next one starts."""
    room = svg.WIDTH - _NOTES_X - 8
    count = f"{len(roof.ids)} × " if len(roof.ids) > 1 else ""
    parts = [
        svg.marker(index, _NOTES_X + 6, y + 7),
        svg.text(
            _NOTES_X + 20, y + 12, svg.fit(f"{count}{roof.name}", 13, room - 20, bold=True), size=13, bold=True
        ),
        svg.line(
            _NOTES_X, y + 22, _NOTES_X + 60, y + 22, dash=_DASHES[index % len(_DASHES)], width=2, style="mark"
        ),
        svg.text(_NOTES_X + 68, y + 26, f"ridge at {_tick(roof.ridge)} per byte", size=12, style="soft"),
    ]
    y += 46
    for name, at, value in roof.points:
        parts.append(svg.text(_NOTES_X, y, svg.fit(f"{name}: {_bound(roof, at)} binds", 12, room), size=12))
        parts.append(svg.text(_NOTES_X, y + 15, svg.fit(_share(roof, at, value), 12, room), size=12, style="soft"))
        y += 36
    return "".join(parts), y + 8


def _bound(roof: _Roof, at: float) -> str:
    return "memory" if at < roof.ridge else "arithmetic"


def _share(roof: _Roof, at: float, value: float) -> str:
    roof_here = min(roof.flops, at * roof.bandwidth)
    what = "bandwidth" if at < roof.ridge else "FP16 rate"
    return f"{value / roof_here:.0%} of the {what}, {_tick(at)} per byte"


def _verdicts(roof: _Roof) -> str:
    said = "; ".join(
        f"{name}: {_bound(roof, at)} binds, {_share(roof, at, value)}" for name, at, value in roof.points
    )
    return f"{roof.name}: {said}."


def _low(value: float) -> float:
    return float(10 ** math.floor(math.log10(value)))


def _high(value: float) -> float:
    return float(10 ** math.ceil(math.log10(value)))


def _decades(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    return [float(10**p) for p in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"

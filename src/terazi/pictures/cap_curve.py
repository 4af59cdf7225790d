"""The power-cap curve: speed and energy of a request over the cap, with the knee marked.

In: ``CapAdvice``. Out: ``Panel``.
"""

from typing import Final

from terazi.performance.caps import CapAdvice
from terazi.pictures import svg
from terazi.pictures.svg import MARGIN, Panel

_LEFT: Final = 74.0
_TOP: Final = 62.0
_WIDTH: Final = 560.0
_HEIGHT: Final = 200.0
_NOTES_X: Final = _LEFT + _WIDTH + 24


def cap_curve(advice: CapAdvice) -> Panel:
    """Speed (solid) and energy a token (dashed), as shares of those without a cap, over the cap's share."""
    curve = advice.curve
    low, high = curve[0].cap_share, curve[-1].cap_share
    full = curve[-1].joules_per_token
    values = [p.speed for p in curve] + [p.joules_per_token / full for p in curve]
    bottom, top = min(0.5, int(min(values) * 10) / 10), max(1.05, max(values) + 0.02)

    def x(share: float) -> float:
        return _LEFT + _WIDTH * (share - low) / (high - low)

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (top - value) / (top - bottom)

    speed = [(x(p.cap_share), y(p.speed)) for p in curve]
    energy = [(x(p.cap_share), y(p.joules_per_token / full)) for p in curve]
    parts = [
        svg.text(MARGIN, 30, "Power caps", size=18, bold=True),
        svg.text(MARGIN, 48, "of this workload, at the wall, beside no cap", size=12, style="soft"),
        svg.frame(_LEFT, _TOP, _WIDTH, _HEIGHT),
    ]
    for percent in range(round(bottom * 100), int(top * 100) + 1, 10):
        parts.append(svg.line(_LEFT, y(percent / 100), _LEFT + _WIDTH, y(percent / 100), dash="1 3"))
        parts.append(svg.text(_LEFT - 8, y(percent / 100) + 4, f"{percent} %", size=12, anchor="end"))
    for percent in range(60, 101, 10):
        parts.append(svg.line(x(percent / 100), _TOP, x(percent / 100), _TOP + _HEIGHT, dash="1 3"))
        parts.append(svg.text(x(percent / 100), _TOP + _HEIGHT + 17, f"{percent} %", size=12, anchor="middle"))
    middle = _LEFT + _WIDTH / 2
    parts.append(svg.text(middle, _TOP + _HEIGHT + 38, "cap, of the board power", size=13, anchor="middle"))
    parts += [svg.polyline(speed), svg.polyline(energy, dash="7 4")]
    notes = [("", "speed"), ("7 4", "energy a token")]
    for i, (dash, name) in enumerate(notes):
        at = _TOP + 12 + i * 22
        parts.append(svg.line(_NOTES_X, at - 4, _NOTES_X + 40, at - 4, dash=dash, width=2, style="mark"))
        parts.append(svg.text(_NOTES_X + 48, at, name, size=13))
    best = curve[advice.knee]
    parts.append(svg.line(x(best.cap_share), _TOP, x(best.cap_share), _TOP + _HEIGHT, width=2, style="mark"))
    parts.append(svg.marker(3, x(best.cap_share), y(best.speed)))
    parts.append(svg.marker(3, x(best.cap_share), y(best.joules_per_token / full)))
    parts.append(svg.text(_NOTES_X, _TOP + 72, "the knee", size=13, bold=True))
    words = [f"{watts:.0f} W a card" for watts in sorted(set(advice.caps_w.values()))]
    words += [f"{best.speed:.0%} of the speed", f"{best.joules_per_token / full:.0%} of the energy"]
    words.append(f"{advice.saved_w:.0f} W less at the wall")
    parts += [svg.text(_NOTES_X, _TOP + 92 + i * 18, word, size=12) for i, word in enumerate(words)]
    return Panel(_TOP + _HEIGHT + 56, "".join(parts), "Power caps", advice.words)

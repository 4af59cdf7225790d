"""The little SVG that the pictures need: escaped text that fits, shapes, patterns, panels on a sheet.

In: numbers and words. Out: SVG text. Written by hand, because it is a dozen elements and a library for it would be
larger than they are (docs/adr/0010-pictures-by-hand.md).
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 960
MARGIN: Final = 24
#: Width of an average character over the font's size: wide, so that what is estimated to fit does fit.
_CHARACTER: Final = 0.56
_BOLD: Final = 1.2
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
#: Control characters that XML 1.0 doesn't allow, and lone surrogates.
_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Kind(NamedTuple):
    """One kind of memory: class in the style, words, colours by day and by night, and how its pattern is drawn."""

    name: str
    words: str
    light: str
    dark: str
    pattern: str


#: Okabe and Ito's colours, which differ for eyes of every kind; each with a pattern of its own besides.
KINDS: Final = (
    Kind("others", "others and the driver", "#9a9a9a", "#6b6b6b", "cross"),
    Kind("weights", "weights", "#0072b2", "#3d9bd6", ""),
    Kind("kv", "KV cache", "#e69f00", "#e6a817", "rising"),
    Kind("state", "state", "#009e73", "#2bb58c", "dots"),
    Kind("compute", "compute", "#56b4e9", "#8ccbf0", "upright"),
    Kind("overhead", "overhead", "#cc79a7", "#d893bb", "level"),
    Kind("beside", "draft, projector, adapters", "#d55e00", "#e8803a", "falling"),
)
_SHAPES: Final = {
    "rising": '<path d="M-2 2 2 -2M0 8 8 0M6 10 10 6"/>',
    "falling": '<path d="M-2 6 2 10M0 0 8 8M6 -2 10 2"/>',
    "upright": '<path d="M4 0V8"/>',
    "level": '<path d="M0 4H8"/>',
    "dots": '<circle cx="4" cy="4" r="1.2" fill="#ffffff"/>',
    "cross": '<path d="M0 0 8 8M8 0 0 8"/>',
}


class Panel(NamedTuple):
    """One picture, *height* tall on a sheet; *title* and *description* are for those who can't see it."""

    height: float
    body: str
    title: str
    description: str


def escape(text: str) -> str:
    """Text for an element or an attribute; what XML can't hold becomes the replacement character."""
    safe = _FORBIDDEN.sub("\ufffd", text)
    return safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """About how wide *text* is at a font size."""
    return len(text) * size * _CHARACTER * (_BOLD if bold else 1.0)


def fit(text: str, size: float, width: float, *, bold: bool = False) -> str:
    """*text*, cut with an ellipsis where it is wider than *width*; empty where not even that fits."""
    text = " ".join(text.split())
    if width_of(text, size, bold=bold) <= width:
        return text
    room = int(width / width_of("x", size, bold=bold)) - 1
    return text[:room].rstrip() + "…" if room >= 3 else ""


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 13,
    anchor: str = "start",
    style: str = "ink",
    bold: bool = False,
) -> str:
    """Words with their baseline at *y*."""
    if not words:
        return ""
    weight = ' font-weight="600"' if bold else ""
    fill = {"ink": "#1a1a1a", "soft": "#555555", "on": "#ffffff"}[style]
    place = f'x="{n(x)}" y="{n(y)}" font-size="{n(size)}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}" class="{style}"{weight}>{escape(words)}</text>'


def tag(x: float, y: float, words: str, *, size: float = 11) -> str:
    """A label on a plate of the paper's colour, so that neither line nor pattern runs through it."""
    if not words:
        return ""
    box = f'x="{n(x)}" y="{n(y - size - 1)}" width="{n(width_of(words, size) + 6)}" height="{n(size + 5)}" rx="3"'
    return f'<rect {box} fill="#ffffff" class="paper"/>{text(x + 3, y, words, size=size)}'


def line(
    x1: float, y1: float, x2: float, y2: float, *, dash: str = "", width: float = 1.0, style: str = "rule"
) -> str:
    """A straight line."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    stroke = {"rule": "#b8b8b8", "mark": "#1a1a1a"}[style]
    return (
        f'<path d="M{n(x1)} {n(y1)}L{n(x2)} {n(y2)}" fill="none" stroke="{stroke}" class="{style}" '
        f'stroke-width="{n(width)}"{dashed}/>'
    )


def polyline(points: Sequence[tuple[float, float]], *, dash: str = "", width: float = 2.0) -> str:
    """A line through *points*."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    path = "M" + "L".join(f"{n(x)} {n(y)}" for x, y in points)
    return f'<path d="{path}" fill="none" stroke="#1a1a1a" class="mark" stroke-width="{n(width)}"{dashed}/>'


def bar(x: float, y: float, width: float, height: float, kind: Kind) -> str:
    """A filled stretch of a bar, with its kind's pattern over it and a tooltip."""
    box = f'x="{n(x)}" y="{n(y)}" width="{n(max(width, 0.5))}" height="{n(height)}"'
    drawn = f'<rect {box} fill="{kind.light}" class="{kind.name}"/>'
    if kind.pattern:
        drawn += f'<rect {box} fill="url(#{kind.pattern})"/>'
    return drawn


def frame(x: float, y: float, width: float, height: float) -> str:
    """An empty box with a border."""
    box = f'x="{n(x)}" y="{n(y)}" width="{n(width)}" height="{n(height)}"'
    return f'<rect {box} fill="none" stroke="#1a1a1a" class="mark" stroke-width="1"/>'


def marker(shape: int, x: float, y: float) -> str:
    """A point: circle, square, triangle or diamond, by *shape*."""
    paths = (
        f'<circle cx="{n(x)}" cy="{n(y)}" r="5.5"',
        f'<rect x="{n(x - 5)}" y="{n(y - 5)}" width="10" height="10"',
        f'<path d="M{n(x)} {n(y - 6.5)}L{n(x + 6.5)} {n(y + 5)}H{n(x - 6.5)}Z"',
        f'<path d="M{n(x)} {n(y - 7)}L{n(x + 7)} {n(y)}L{n(x)} {n(y + 7)}L{n(x - 7)} {n(y)}Z"',
    )
    return paths[shape % len(paths)] + ' fill="#d55e00" class="beside" stroke="#ffffff" stroke-width="1"/>'


def sheet(panels: Sequence[Panel], *, title: str, description: str) -> str:
    """All panels under each other as one SVG document."""
    height = sum(p.height for p in panels)
    parts, y = [], 0.0
    for panel in panels:
        parts.append(
            f'<g transform="translate(0 {n(y)})" role="group"><title>{escape(panel.title)}</title>'
            f"<desc>{escape(panel.description)}</desc>{panel.body}</g>"
        )
        y += panel.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {n(height)}" width="{WIDTH}" '
        f'height="{n(height)}" role="img" font-family="{_FONT}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n"
        f"<style>{_style()}</style>\n<defs>{_patterns()}</defs>\n"
        f'<rect width="{WIDTH}" height="{n(height)}" fill="#ffffff" class="paper"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def n(value: float) -> str:
    """A coordinate: two decimals at most, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def _style() -> str:
    """The night's colours; the day's are in the elements, for readers that know no styles."""
    dark = {"paper": "#161616", "ink": "#ededed", "soft": "#b0b0b0", "on": "#101010"}
    rules = [f".{name}{{fill:{colour}}}" for name, colour in dark.items()]
    rules += [f".{kind.name}{{fill:{kind.dark}}}" for kind in KINDS]
    rules += [
        ".rule{stroke:#5a5a5a}",
        ".mark{stroke:#ededed}",
        ".grain{stroke:#101010}",
        ".grain circle{fill:#101010}",
    ]
    return f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"


def _patterns() -> str:
    return "".join(
        f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<g class="grain" stroke="#ffffff" stroke-width="1.4" fill="none">{shape}</g></pattern>'
        for name, shape in _SHAPES.items()
    )

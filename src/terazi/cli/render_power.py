"""Watts, energy and money for people, a few lines of them."""

from terazi.performance.energy import PowerReport
from terazi.performance.forecast import Interval


def render_power(report: PowerReport) -> str:
    """At the wall: idle and per phase; energy and cost of tokens in and out; cap, supply, heat, the month."""
    lines = ["power (at the wall, the host included)"]
    lines.append(f"  {'idle':<20} {_range(report.idle_wall_w)} W")
    for phase in report.phases:
        cards = sum(phase.cards_w.values())
        lines.append(f"  {phase.name:<20} {_range(phase.wall_w)} W ({cards:.0f} W of it the cards)")
    money = report.tariff.currency
    for tokens in ("in", "out"):
        phase = next(p for p in reversed(report.phases) if p.tokens == tokens)
        cost = ""
        if phase.cost_per_mtok is not None:
            cost = f", {_range(phase.cost_per_mtok)} {money}"
        lines.append(f"  {f'million tokens {tokens}':<20} {_range(phase.kwh_per_mtok)} kWh{cost}")
    month = report.month
    cost = "" if month.cost is None else f", {_range(month.cost)} {money}"
    lines.append(f"  {f'a month at {month.duty:.0%}':<20} {_range(month.kwh)} kWh{cost}")
    if report.cap is not None:
        lines.append(f"  {'power cap':<20} {cap_words(report)}")
    lines.append(f"  {'power supply':<20} {psu_words(report)}")
    lines.append(f"  {'heat':<20} {report.heat_btu_h:,.0f} BTU/h into the room at work")
    lines += [f"  rests on: {text}" for text in report.basis]
    return "\n".join(lines)


def cap_words(report: PowerReport) -> str:
    """The advised cap, and what it does."""
    if report.cap is None or not report.cap.caps_w:
        return report.cap.words if report.cap is not None else "no card to cap"
    watts: dict[float, list[str]] = {}
    for name, cap in report.cap.caps_w.items():
        watts.setdefault(cap, []).append(name)
    caps = ", ".join(f"{cap:.0f} W on {' '.join(names)}" for cap, names in watts.items())
    return f"{caps}: {report.cap.words}"


def psu_words(report: PowerReport) -> str:
    """The supply's verdict, or the size that would do."""
    psu = report.psu
    if psu.rating_w is not None:
        return f"{psu.verdict}: {psu.words}"
    if psu.suggested_w is None:
        return (
            f"beyond one of a desktop: {psu.sustained_w:,.0f} W all the time, {psu.spike_w:,.0f} W for milliseconds"
        )
    older = (
        f", an older one {psu.suggested_old_w:.0f} W" if psu.suggested_old_w not in {None, psu.suggested_w} else ""
    )
    return f"an ATX 3.x one of {psu.suggested_w:.0f} W{older} ({psu.spike_w:.0f} W for milliseconds)"


def _range(value: Interval) -> str:
    return f"{_short(value.low)} … {_short(value.mid)} … {_short(value.high)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

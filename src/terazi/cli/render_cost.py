"""Own hardware against hosted, as one table for people."""

from collections.abc import Sequence
from typing import Final

from terazi.cli.terminal import harmless, one_line
from terazi.performance.cost import Option
from terazi.service.costing import CostReport

#: What each kind asks of its user and leaves to them: (convenience, control, both in a sentence).
TRADE_OFF: Final = {
    "own": (
        "you run it",
        "all yours",
        "any model, no limits but the machine's; nothing leaves the house; you mend it",
    ),
    "hyperscaler": (
        "minutes",
        "your instance",
        "quotas and sales talks; paid by the hour, also idle; their building",
    ),
    "gpu cloud": ("minutes", "your instance", "if one is free; paid by the hour, also idle; their building"),
    "serverless": ("cold starts", "your image", "paid while it works; seconds to minutes to wake; their scheduler"),
    "api": (
        "at once",
        "theirs",
        "nothing to run; rate limits; their choice of models and versions; they see the texts",
    ),
}
#: How many of a kind the table shows unless asked for all.
_OF_EACH_KIND: Final = 3
_HEAD: Final = ("option", "a month", "per Mtok", "own is cheaper", "paid back", "as of", "convenience", "control")


def render_cost(report: CostReport, *, every: bool = False) -> str:
    """The volume, the table of the cheapest of each kind (or all), what was left out, and where prices are from."""
    comparison = report.comparison
    spec, workload = report.weighing.spec, report.weighing.workload
    volume = comparison.volume
    tokens = f"{volume.tokens_in / 1e6:,.1f} in, {volume.tokens_out / 1e6:,.1f} out"
    lengths = f"prompts of {workload.prompt}, answers of {workload.output}"
    shown = comparison.hosted if every else _cheapest(comparison.hosted)
    lines = [
        f"{one_line(spec.name)} on {one_line(report.weighing.machine.name)}",
        f"a month of {volume.mtok:,.1f} million tokens: {tokens} ({lengths}); in {one_line(comparison.currency)}",
        "",
        *_table(comparison.own, shown),
    ]
    if len(shown) < len(comparison.hosted):
        lines.append(f"{len(comparison.hosted) - len(shown)} dearer ones aren't shown (--all)")
    kinds = dict.fromkeys(o.kind for o in (*([comparison.own] if comparison.own else []), *shown))
    lines += ["", *(f"  {kind:<12} {TRADE_OFF[kind][2]}" for kind in kinds), ""]
    if comparison.own is not None:
        lines.append(f"own hardware {comparison.own.note}")
    lines += [f"note: {note}" for note in comparison.notes]
    lines += [f"left out: {one_line(text)}" for text in comparison.left_out]
    notes = dict.fromkeys(f"{o.name}: {o.note}" for o in shown if o.note)
    lines += [f"  {one_line(text)}" for text in notes]
    sources = dict.fromkeys(o.source for o in shown)
    if sources:
        lines += ["", "prices as of the dates above, from:", *(f"  {one_line(s)}" for s in sources)]
        lines.append("they move: put your own into a file (--prices, docs/guides/cost.md)")
    return harmless("\n".join(lines))


def _cheapest(options: Sequence[Option]) -> tuple[Option, ...]:
    counts: dict[str, int] = {}
    shown = []
    for option in options:
        counts[option.kind] = counts.get(option.kind, 0) + 1
        if counts[option.kind] <= _OF_EACH_KIND:
            shown.append(option)
    return tuple(shown)


def _table(own: Option | None, options: Sequence[Option]) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEAD]
    if own is not None:
        rows.append(_row(own))
    rows += [_row(option) for option in options]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    numeric = {1, 2, 3, 4}
    return [
        "  ".join(
            cell.rjust(width) if i in numeric else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(option: Option) -> tuple[str, ...]:
    start, control, _ = TRADE_OFF[option.kind]
    if option.kind == "own":
        cheaper, back = "-", "-"
    else:
        cheaper = _cheaper(option.break_even_mtok)
        back = _back(option.payback_months)
    return (
        one_line(option.name),
        f"{option.monthly:,.2f}",
        f"{option.per_mtok:,.3f}",
        cheaper,
        back,
        option.as_of,
        start,
        control,
    )


def _back(months: float | None) -> str:
    if months is None:
        return "never"
    if months < 1:
        return "in weeks"
    return "1 month" if round(months) == 1 else f"{months:,.0f} months"


def _cheaper(mtok: float | None) -> str:
    if mtok is None:
        return "never"
    return "always" if mtok == 0 else f"from {mtok:,.0f} Mtok"

"""Tables of weighings side by side: the engines, or variations of one request."""

from collections.abc import Sequence

from terazi.cli.terminal import harmless, one_line
from terazi.placement.plan import Verdict
from terazi.service.compare import Comparison
from terazi.service.several import Several
from terazi.service.side_by_side import Row, difference
from terazi.units import format_bytes, format_seconds

_VERDICTS = {
    Verdict.FITS.value: "fits",
    Verdict.FITS_OFFLOADED.value: "part in RAM",
    Verdict.REFUSED.value: "REFUSED",
    "impossible": "can't",
}
_UNKNOWN = "?"


def render_comparison(comparison: Comparison) -> str:
    """The engines, a line each, then why a line has no plan, and which one to take."""
    rows = comparison.rows
    table = [_cells(row) for row in rows]
    lines = ["engines", *_table(["engine", *_HEAD], table), *_why_not(rows), f"take {comparison.why}"]
    return harmless("\n".join(lines))


def render_variations(rows: Sequence[Row]) -> str:
    """The request as it is and its variations, a line each."""
    head = ["what if", *_HEAD, "beside the first"]
    table = [[*_cells(row), "" if i == 0 else difference(row, rows[0])] for i, row in enumerate(rows)]
    return harmless("\n".join(["variations", *_table(head, table), *_why_not(rows)]))


def render_several(several: Several) -> str:
    """One verdict for all models, below their own pages."""
    lines = ["together"]
    for weighing in several.weighings:
        plan = weighing.plan
        verdict = _VERDICTS[Verdict.REFUSED.value if plan is None else plan.verdict.value]
        held = format_bytes(weighing.outcome.bill.total_bytes)
        lines.append(f"  {one_line(weighing.spec.name)}: {verdict}, {held}")
    lines += [f"  {several.reason}", f"verdict for all: {_VERDICTS[several.verdict.value]}"]
    return harmless("\n".join(lines))


_HEAD = ["verdict", "holds", "headroom", "tok/s", "all tok/s", "first token", "between", "W"]


def _cells(row: Row) -> list[str]:
    def rate(name: str) -> str:
        value = row.figure(name)
        return _UNKNOWN if value is None else f"{value.mid:.3g}"

    def seconds(name: str) -> str:
        value = row.figure(name)
        return _UNKNOWN if value is None else format_seconds(value.mid)

    cells = [one_line(row.label), _VERDICTS[row.verdict]]
    if row.weighing is None:
        return [*cells, *[""] * (len(_HEAD) - 1)]
    cells += ["" if size is None else format_bytes(size) for size in (row.total_bytes, row.headroom_bytes)]
    if not row.fits:
        return [*cells, *[""] * (len(_HEAD) - 3)]
    return [
        *cells,
        rate("decode_tok_s"),
        rate("throughput_tok_s"),
        seconds("ttft_s"),
        seconds("itl_s"),
        rate("power_w"),
    ]


def _why_not(rows: Sequence[Row]) -> list[str]:
    return [f"  {one_line(row.label)}: {row.reason}" for row in rows if not row.fits]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Words to the left, figures to the right; what comes after the figures is words again."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = []
    for line in (head, *rows):
        cells = [
            cell.rjust(width) if 2 <= i <= len(_HEAD) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines

"""Turns what an engine printed into the basis of a bill's lines: a line that held is measured.

In: the lines that held, and a bill. Out: the same bill, its confirmed lines with another basis. Any engine's.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from terazi.memory.bill import Bill, BillLine, LineBasis, line_label

#: (device, ``memory.bill.line_label``), as ``telemetry.reconciliation.lines_held`` gives them.
LineKey: TypeAlias = tuple[str, str]


def confirm(bill: Bill, held: Mapping[LineKey, int], note: str, *, names: Mapping[str, str] | None = None) -> Bill:
    """*bill* with every line measured that *held* names with just its bytes.

    Args:
        bill: what was planned.
        held: from :func:`lines_held`.
        note: who measured, and when; it is appended to the line's note.
        names: device id in the bill → device id in *held*, where they differ (stand-ins).
    """
    sums: dict[LineKey, int] = {}
    every = (*bill.lines, *bill.page_cache, *(line for line in bill.loading if line.part))
    for line in every:
        key = _key(line, names)
        sums[key] = sums.get(key, 0) + line.bytes

    def measured(line: BillLine) -> BillLine:
        key = _key(line, names)
        if line.basis is LineBasis.MEASURED or not line.bytes or held.get(key) != sums[key]:
            return line
        return replace(line, basis=LineBasis.MEASURED, note=f"{line.note}; {note}" if line.note else note)

    return replace(
        bill,
        lines=tuple(measured(line) for line in bill.lines),
        page_cache=tuple(measured(line) for line in bill.page_cache),
        loading=tuple(measured(line) if line.part else line for line in bill.loading),
    )


def _key(line: BillLine, names: Mapping[str, str] | None) -> LineKey:
    device = line.device if names is None else names.get(line.device, line.device)
    return (device, line_label(line))

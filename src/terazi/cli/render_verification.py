"""A verification for people: a table for each command that was asked, and what could not be asked. Pure text."""

import shlex

from terazi.service.verification import Asked, Verification
from terazi.telemetry.reconciliation import BufferRow, Verdict, signed_mib
from terazi.units import format_bytes

_PRECISION = {"llama-server": "prints hundredths of a MiB", "llama-fit-params": "prints whole MiB"}


def render_verification(found: Verification) -> str:
    """The tables, then the outcome."""
    lines = [f"asked the engine (llama.cpp {found.build})"]
    for asked in found.asked:
        lines += _asked(asked)
    lines += [f"  not asked: {text}" for text in found.unasked]
    lines.append(f"  {_outcome(found)}")
    return "\n".join(lines)


def _asked(asked: Asked) -> list[str]:
    lines = [f"  {asked.tool}, {asked.seconds:.1f} s, {_PRECISION[asked.tool]}: {shlex.join(asked.argv)}"]
    if asked.failure is not None:
        return [*lines, f"  FAILED: {asked.failure}"]
    columns = f"{'device':<8} {'term':<8} {'planned':>12} {'engine':>12} {'difference':>14}  lines of the bill"
    lines.append(f"    {columns}")
    return [*lines, *(_row(row) for row in asked.rows)]


def _row(row: BufferRow) -> str:
    gap = "none" if row.verdict is Verdict.HELD else signed_mib(row.difference_bytes)
    mark = {Verdict.HELD: "", Verdict.WITHIN: "  (within the bound)", Verdict.DIFFERS: "  DIFFERS"}[row.verdict]
    return (
        f"    {row.device:<8} {row.term:<8} {format_bytes(row.planned_bytes):>12} "
        f"{format_bytes(row.actual_bytes):>12} {gap:>14}  {row.formula}{mark}"
    )


def _outcome(found: Verification) -> str:
    counted = f"{found.confirmed} of {found.lines} lines of the bill are the engine's own figures"
    if found.agreed is None:
        return "the engine could not be asked, so nothing is verified"
    rows = [row for asked in found.asked for row in asked.rows]
    wrong = sum(row.verdict is Verdict.DIFFERS for row in rows)
    if found.agreed:
        return f"the engine agrees: {counted}"
    failed = sum(asked.failure is not None for asked in found.asked)
    parts = [f"{wrong} of {len(rows)} figures differ"] if wrong else []
    parts += [f"{failed} of {len(found.asked)} questions failed"] if failed else []
    return f"the engine does NOT agree: {', '.join(parts)}; {counted}"

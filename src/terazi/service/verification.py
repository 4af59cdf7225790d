"""The ``Verification`` noun: what the engine said when it was asked about a bill, command by command."""

from dataclasses import dataclass

from terazi.telemetry.reconciliation import BufferRow, Verdict, row_to_json

SCHEMA = "terazi.verification/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question to the engine.

    Args:
        tool: ``llama-server`` (a real load) or ``llama-fit-params`` (its estimate).
        argv: the command as it was run.
        seconds: how long the answer took.
        rows: its figures beside those planned for this very command.
        failure: why there is no answer; None if there is one.
    """

    tool: str
    argv: tuple[str, ...]
    seconds: float
    rows: tuple[BufferRow, ...] = ()
    failure: str | None = None

    @property
    def agreed(self) -> bool:
        """An answer came, and every figure is as planned."""
        return bool(self.rows) and all(row.verdict is not Verdict.DIFFERS for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All that was asked about one bill.

    Args:
        build: the binary's own name for itself.
        asked: in the order of asking.
        confirmed: how many lines of the bill the engine confirmed, of those that it could.
        lines: how many lines with bytes the bill has.
        unasked: what could not be asked, and why.
    """

    build: str
    asked: tuple[Asked, ...]
    confirmed: int
    lines: int
    unasked: tuple[str, ...] = ()

    @property
    def agreed(self) -> bool | None:
        """False if a figure differs or the engine failed; None if it gave no figure at all."""
        return all(asked.agreed for asked in self.asked) if self.asked else None


def to_json(found: Verification) -> dict[str, object]:
    """The document, schema ``terazi.verification/1``."""
    return {
        "schema": SCHEMA,
        "build": found.build,
        "agreed": found.agreed,
        "confirmed_lines": found.confirmed,
        "lines": found.lines,
        "asked": [
            {
                "tool": asked.tool,
                "argv": list(asked.argv),
                "seconds": round(asked.seconds, 3),
                "agreed": asked.agreed,
                "failure": asked.failure,
                "rows": [row_to_json(row) for row in asked.rows],
            }
            for asked in found.asked
        ],
        "unasked": list(found.unasked),
    }

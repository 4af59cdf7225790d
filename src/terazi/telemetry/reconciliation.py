"""The ``Reconciliation`` noun: what one launch's log says, held against the bill of its plan, buffer by buffer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

SCHEMA = "terazi.reconciliation/1"


class Verdict(StrEnum):
    """What a printed figure says about the planned one."""

    HELD = "held"  # equal, as far as the engine prints digits
    WITHIN = "within the bound"  # the plan promised an upper bound, and the figure is below it
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRow:
    """One buffer, or several that the engine doesn't tell apart.

    Args:
        device: as the plan calls it.
        term: ``weights``, ``kv``, ``state``, ``compute`` or ``output``; ``context`` is a tool's sum of both caches.
        parts: (formula, bytes) of the bill's lines behind it.
        actual_bytes: what the engine printed; 0 if it printed no such buffer.
        precision_bytes: how far the printed figure may be from the true one.
        verdict: by the rule of whoever printed it, since tools round differently.
    """

    device: str
    term: str
    parts: tuple[tuple[str, int], ...]
    actual_bytes: int
    precision_bytes: int
    verdict: Verdict

    @property
    def planned_bytes(self) -> int:
        """Sum of the lines."""
        return sum(n for _, n in self.parts)

    @property
    def difference_bytes(self) -> int:
        """Printed less planned; what lies within the precision counts as none."""
        gap = self.actual_bytes - self.planned_bytes
        return 0 if self.verdict is Verdict.HELD else gap

    @property
    def formula(self) -> str:
        """The lines' formulas, for people."""
        return " + ".join(dict.fromkeys(name for name, _ in self.parts)) or "not planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """What the kernel and the driver count for the engine's process once it is ready. None where they don't say.

    Args:
        anonymous_bytes: resident memory that only swap could take (``RssAnon``).
        file_bytes: resident pages of mapped files (``RssFile``).
        device_bytes: (device id, bytes) of the process as the driver counts them, its own context included.
    """

    anonymous_bytes: int | None = None
    file_bytes: int | None = None
    device_bytes: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One launch. ``wall_s`` is Unix time when it was ready; ``build`` is the engine's own name for itself."""

    plan_id: str
    engine: str
    build: str
    model: str
    wall_s: float
    rows: tuple[BufferRow, ...]
    process: ProcessMemory = ProcessMemory()
    schema: str = SCHEMA

    @property
    def agreed(self) -> bool | None:
        """Whether every buffer is as planned; None if the log named none."""
        return all(row.verdict is not Verdict.DIFFERS for row in self.rows) if self.rows else None

    def sentence(self) -> str:
        """The outcome in one line, for a person."""
        return sentence(self.rows)


def lines_held(rows: Iterable[BufferRow]) -> dict[tuple[str, str], int]:
    """(device, formula) → planned bytes, of the lines all of whose rows held."""
    held: dict[tuple[str, str], int] = {}
    wrong: set[tuple[str, str]] = set()
    for row in rows:
        for formula, n in row.parts:
            key = (row.device, formula)
            held[key] = held.get(key, 0) + n
            if row.verdict is not Verdict.HELD:
                wrong.add(key)
    return {key: n for key, n in held.items() if key not in wrong}


def sentence(rows: Iterable[BufferRow]) -> str:
    """How many of *rows* are as planned, and which aren't."""
    rows = tuple(rows)
    if not rows:
        return "the engine's log names no buffers, so the bill can't be held against it"
    wrong = [row for row in rows if row.verdict is Verdict.DIFFERS]
    if not wrong:
        bounds = sum(row.verdict is Verdict.WITHIN for row in rows)
        tail = (
            f", {bounds} of them within an upper bound" if bounds else " to the last digit that the engine prints"
        )
        return f"bill held: {len(rows)} of {len(rows)} buffers{tail}"
    worst = sorted(wrong, key=lambda row: -abs(row.difference_bytes))[:4]
    told = ", ".join(f"{row.device} {row.term} {signed_mib(row.difference_bytes)}" for row in worst)
    more = f" and {len(wrong) - len(worst)} more" if len(wrong) > len(worst) else ""
    return f"bill DIFFERS in {len(wrong)} of {len(rows)} buffers: {told}{more}"


def signed_mib(n: int) -> str:
    """A difference with its sign, in MiB."""
    return f"{n / (1024 * 1024):+.2f} MiB"


def to_json(found: Reconciliation) -> dict[str, object]:
    """The document, schema ``terazi.reconciliation/1``."""
    process = found.process
    return {
        "schema": found.schema,
        "plan_id": found.plan_id,
        "engine": found.engine,
        "build": found.build,
        "model": found.model,
        "wall_s": found.wall_s,
        "agreed": found.agreed,
        "rows": [row_to_json(row) for row in found.rows],
        "process": {
            "anonymous_bytes": process.anonymous_bytes,
            "file_bytes": process.file_bytes,
            "device_bytes": None if process.device_bytes is None else dict(process.device_bytes),
        },
    }


def row_to_json(row: BufferRow) -> dict[str, object]:
    """One row, with its sums worked out for readers."""
    return {
        "device": row.device,
        "term": row.term,
        "lines": [{"formula": name, "bytes": n} for name, n in row.parts],
        "planned_bytes": row.planned_bytes,
        "actual_bytes": row.actual_bytes,
        "difference_bytes": row.difference_bytes,
        "precision_bytes": row.precision_bytes,
        "verdict": row.verdict.value,
    }


def from_json(document: object) -> Reconciliation | None:
    """The reconciliation that *document* is; None if it is none, or of another schema."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        return None
    try:
        process = document["process"]
        held = process["device_bytes"]
        return Reconciliation(
            plan_id=_text(document["plan_id"]),
            engine=_text(document["engine"]),
            build=_text(document["build"]),
            model=_text(document["model"]),
            wall_s=float(document["wall_s"]),
            rows=tuple(_row(row) for row in document["rows"]),
            process=ProcessMemory(
                anonymous_bytes=_count_or_none(process["anonymous_bytes"]),
                file_bytes=_count_or_none(process["file_bytes"]),
                device_bytes=None if held is None else tuple((_text(k), _count(v)) for k, v in held.items()),
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _row(row: Mapping[str, object]) -> BufferRow:
    parts = row["lines"]
    if not isinstance(parts, list):
        raise TypeError("lines")
    return BufferRow(
        device=_text(row["device"]),
        term=_text(row["term"]),
        parts=tuple((_text(part["formula"]), _count(part["bytes"])) for part in parts),
        actual_bytes=_count(row["actual_bytes"]),
        precision_bytes=_count(row["precision_bytes"]),
        verdict=Verdict(_text(row["verdict"])),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("a number of bytes was expected")
    return value


def _count_or_none(value: object) -> int | None:
    return None if value is None else _count(value)

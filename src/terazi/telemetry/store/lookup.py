"""Reads the lines that held from the store, as cheaply as can be: this is on the way of ``terazi weigh``.

Nothing but SQLite is imported, and whatever stands against the file, the answer is None.
"""

import sqlite3
from typing import NamedTuple

#: "TRZI"; tells our file from any other SQLite file.
APPLICATION_ID = 0x54525A49


class HeldLines(NamedTuple):
    """What the last launch of a plan confirmed: when (Unix time), by which build, (device, formula) → bytes."""

    wall_s: float
    build: str
    lines: dict[tuple[str, str], int]


def held_lines(path: str, plan_id: str) -> HeldLines | None:
    """From the last record of *plan_id* in the file *path*; None if there is none, or the file can't be read."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        # mode=rw: a reader of a WAL file needs its side files, but must not make the file itself
        db = sqlite3.connect(f"file:{quoted}?mode=rw", timeout=0.2, isolation_level=None, uri=True)
    except sqlite3.Error:
        return None
    try:
        if db.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
            return None
        row = db.execute(
            "SELECT wall_s, build, held FROM reconciliation WHERE plan_id = ? ORDER BY id DESC LIMIT 1", (plan_id,)
        ).fetchone()
        return None if row is None else HeldLines(float(row[0]), str(row[1]), _lines(str(row[2])))
    except (sqlite3.Error, ValueError):
        return None
    finally:
        db.close()


def _lines(text: str) -> dict[tuple[str, str], int]:
    found = {}
    for line in text.splitlines():
        n, device, formula = line.split("\t")
        found[device, formula] = int(n)
    return found

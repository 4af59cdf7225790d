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
    db = _open(path)
    if db is None:
        return None
    try:
        row = db.execute(
            "SELECT wall_s, build, held FROM reconciliation WHERE plan_id = ? ORDER BY id DESC LIMIT 1", (plan_id,)
        ).fetchone()
        return None if row is None else HeldLines(float(row[0]), str(row[1]), _lines(str(row[2])))
    except (sqlite3.Error, ValueError):
        return None
    finally:
        db.close()


class Measured(NamedTuple):
    """What is kept of a machine.

    Args:
        calibrations: (driver, build, document), the newest first.
        speeds: (model, build, streams, tok_s, forecast_tok_s) of deployments, the newest first.
    """

    calibrations: tuple[tuple[str, str, str], ...]
    speeds: tuple[tuple[str, str, float, float, float], ...]


def measured(path: str, machine: str, engine: str) -> Measured | None:
    """Of *machine* under *engine*, from the file *path*; None if there is nothing, or the file can't be read."""
    db = _open(path)
    if db is None:
        return None
    try:
        if db.execute("PRAGMA user_version").fetchone()[0] < 2:
            return None
        kept = db.execute(
            "SELECT driver, build, document FROM calibration WHERE machine = ? AND engine = ? ORDER BY wall_s DESC",
            (machine, engine),
        ).fetchall()
        speeds = db.execute(
            "SELECT model, build, streams, tok_s, forecast_tok_s FROM speed WHERE machine = ? "
            "ORDER BY id DESC LIMIT 1000",
            (machine,),
        ).fetchall()
    except sqlite3.Error:
        return None
    finally:
        db.close()
    return Measured(tuple(map(tuple, kept)), tuple(map(tuple, speeds)))


def _open(path: str) -> sqlite3.Connection | None:
    """The file, if it is one of ours."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        # mode=rw: a reader of a WAL file needs its side files, but must not make the file itself
        db = sqlite3.connect(f"file:{quoted}?mode=rw", timeout=0.2, isolation_level=None, uri=True)
    except sqlite3.Error:
        return None
    try:
        if db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,):
            return db
    except sqlite3.Error:
        pass
    db.close()
    return None


def _lines(text: str) -> dict[tuple[str, str], int]:
    found = {}
    for line in text.splitlines():
        n, device, formula = line.split("\t")
        found[device, formula] = int(n)
    return found

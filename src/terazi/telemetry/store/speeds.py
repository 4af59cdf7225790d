"""Calibrations of machines and speeds that deployments reached, in the store's file.

A calibration is kept as the document that it was given as, one for each machine, engine, driver and build. Speeds
are few numbers each, the last of them count, and the oldest go.
"""

import sqlite3
import time
from typing import NamedTuple

from terazi.telemetry.store.sqlite import Store

#: Of one model on one machine: more say nothing new.
MOST_SPEEDS = 200
#: One calibration is some kilobytes.
MOST_DOCUMENT = 256 * 1024


class Kept(NamedTuple):
    """A calibration as it was kept."""

    machine: str
    engine: str
    driver: str
    build: str
    wall_s: float
    document: str


class Speed(NamedTuple):
    """How fast a deployment decoded.

    Args:
        machine, model: who, by their identities.
        build: of the engine.
        streams: how many were decoding, on average.
        depth: tokens in the context of each, on average.
        tok_s, forecast_tok_s: of all streams together, measured and forecast for just that.
    """

    machine: str
    model: str
    wall_s: float
    build: str
    streams: float
    depth: float
    tok_s: float
    forecast_tok_s: float


def keep_calibration(store: Store, kept: Kept) -> None:
    """Keep it, in place of an earlier one of the same machine, engine, driver and build.

    Raises:
        StoreError: it can't be kept.
        ValueError: it is too long to be one.
    """
    if len(kept.document) > MOST_DOCUMENT:
        raise ValueError(f"a calibration of {len(kept.document)} characters")
    store.use(lambda db: db.execute("INSERT OR REPLACE INTO calibration VALUES (?, ?, ?, ?, ?, ?)", kept).close())


def kept_calibrations(store: Store) -> tuple[Kept, ...]:
    """All of them, the newest first.

    Raises:
        StoreError: the file can't be used.
    """
    return tuple(Kept(*row) for row in store.use(lambda db: db.execute(_ALL + " ORDER BY wall_s DESC").fetchall()))


_ALL = "SELECT machine, engine, driver, build, wall_s, document FROM calibration"


def forget_calibrations(store: Store, machine: str) -> int:
    """Drop all that was measured on *machine*, deployments' speeds too; how many calibrations there were.

    Raises:
        StoreError: the file can't be used.
    """

    def forget(db: sqlite3.Connection) -> int:
        db.execute("BEGIN IMMEDIATE")
        gone = db.execute("DELETE FROM calibration WHERE machine = ?", (machine,)).rowcount
        db.execute("DELETE FROM speed WHERE machine = ?", (machine,))
        db.execute("COMMIT")
        return gone

    return store.use(forget)


def add_speed(store: Store, speed: Speed, *, most: int = MOST_SPEEDS, keep_s: float = 366 * 24 * 3600.0) -> None:
    """Keep *speed*; the oldest of the same model and machine go, and what is older than *keep_s*.

    Raises:
        StoreError: it can't be kept.
    """

    def insert(db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "INSERT INTO speed (machine, model, wall_s, build, streams, depth, tok_s, forecast_tok_s) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            speed,
        )
        db.execute("DELETE FROM speed WHERE wall_s < ?", (time.time() - keep_s,))
        db.execute(
            "DELETE FROM speed WHERE machine = ? AND model = ? AND id NOT IN "
            "(SELECT id FROM speed WHERE machine = ? AND model = ? ORDER BY id DESC LIMIT ?)",
            (speed.machine, speed.model, speed.machine, speed.model, most),
        )
        db.execute("COMMIT")

    store.use(insert)

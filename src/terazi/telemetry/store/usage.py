"""What each API key used, by model and day, in the store's file. Rows are added to, never one a request."""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from terazi.telemetry.store.sqlite import Store

#: Days that are kept.
KEEP_DAYS = 400


class Used(NamedTuple):
    """Use of one model with one key on one day.

    Args:
        day: ISO date, UTC.
        key: the key's name.
        requests, failed: that ended, and of them those with a status of 400 or more.
        prompt_tokens, cached_tokens, output_tokens: as far as engines told.
        seconds: that engines worked on them, together.
    """

    day: str
    key: str
    model: str
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


def add_usage(store: Store, used: Iterable[Used]) -> None:
    """Add *used* to what is there, all or nothing; days before the last ``KEEP_DAYS`` go.

    Raises:
        StoreError: it can't be kept.
    """
    rows = list(used)

    def insert(db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, key, model) DO UPDATE SET "
            "requests = requests + excluded.requests, failed = failed + excluded.failed, "
            "prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
            "cached_tokens = cached_tokens + excluded.cached_tokens, "
            "output_tokens = output_tokens + excluded.output_tokens, seconds = seconds + excluded.seconds",
            rows,
        )
        db.execute("DELETE FROM usage WHERE day < date('now', ?)", (f"-{KEEP_DAYS} days",))
        db.execute("COMMIT")

    if rows:
        store.use(insert)


def usage_since(store: Store, day: str) -> tuple[Used, ...]:
    """All use from *day* (ISO date, UTC) on, by day, key and model.

    Raises:
        StoreError: the file can't be used.
    """
    return tuple(
        Used(*row)
        for row in store.use(
            lambda db: db.execute(
                "SELECT day, key, model, requests, failed, prompt_tokens, cached_tokens, output_tokens, seconds "
                "FROM usage WHERE day >= ? ORDER BY day, key, model",
                (day,),
            ).fetchall()
        )
    )

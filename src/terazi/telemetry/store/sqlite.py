"""The store's file: SQLite in WAL mode, so that a crash loses at most the last record and two processes may write.

The schema's version is SQLite's ``user_version``; a file of an older version is brought up to date in one
transaction, one of a newer Terazi or of another program is left alone. A file that is damaged is moved aside, with
a notice, and a new one begun.
"""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from terazi.errors import ServiceError
from terazi.telemetry.reconciliation import Reconciliation, from_json, lines_held, to_json
from terazi.telemetry.store.lookup import APPLICATION_ID

#: Script *n* brings version *n* to *n* + 1. Never edit one that was released: add another.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE reconciliation (
            id INTEGER PRIMARY KEY, plan_id TEXT NOT NULL, wall_s REAL NOT NULL, build TEXT NOT NULL,
            held TEXT NOT NULL, document TEXT NOT NULL
        )""",
        "CREATE INDEX reconciliation_of_plan ON reconciliation (plan_id, id)",
    ),
    (
        """CREATE TABLE calibration (
            machine TEXT NOT NULL, engine TEXT NOT NULL, driver TEXT NOT NULL, build TEXT NOT NULL,
            wall_s REAL NOT NULL, document TEXT NOT NULL, PRIMARY KEY (machine, engine, driver, build)
        )""",
        """CREATE TABLE speed (
            id INTEGER PRIMARY KEY, machine TEXT NOT NULL, model TEXT NOT NULL, wall_s REAL NOT NULL,
            build TEXT NOT NULL, streams REAL NOT NULL, depth REAL NOT NULL, tok_s REAL NOT NULL,
            forecast_tok_s REAL NOT NULL
        )""",
        "CREATE INDEX speed_of_model ON speed (machine, model, id)",
    ),
    (
        """CREATE TABLE usage (
            day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,
            failed INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
            output_tokens INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (day, key, model)
        ) WITHOUT ROWID""",
    ),
)
BUSY_S = 5.0
KEEP_S = 366 * 24 * 3600.0
MOST_RECORDS = 5000
MOST_BYTES = 32 * 1024 * 1024
#: One record is a few kilobytes; what is larger isn't one.
MOST_RECORD_BYTES = 1024 * 1024
_MOST_ASIDE = 100

T = TypeVar("T")


class StoreError(ServiceError):
    """The store can't be used: no room, no rights, another program's file, or a newer Terazi's."""


class Store:
    """Opens the file for each call and closes it again: records are rare, and nothing is held between them.

    Args:
        path: of the file; made with its folder when the first record comes.
        notice: is told in a sentence when a damaged file is moved aside.
        most_records, most_bytes, keep_s: bounds; the oldest records go first.
    """

    def __init__(
        self,
        path: str,
        *,
        notice: Callable[[str], None] = lambda _: None,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
        keep_s: float = KEEP_S,
        migrations: tuple[tuple[str, ...], ...] = MIGRATIONS,
    ) -> None:
        self._path = path
        self._notice = notice
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._keep_s = keep_s
        self._migrations = migrations

    def add(self, found: Reconciliation) -> None:
        """Keep *found*; it is on disk when this returns.

        Raises:
            StoreError: it can't be kept.
        """
        text = json.dumps(to_json(found))
        if len(text) > MOST_RECORD_BYTES:
            raise StoreError("A record is too large to be kept.", hint="This is a mistake in Terazi: report it.")

        held = "\n".join(f"{n}\t{device}\t{formula}" for (device, formula), n in lines_held(found.rows).items())

        def insert(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "INSERT INTO reconciliation (plan_id, wall_s, build, held, document) VALUES (?, ?, ?, ?, ?)",
                (found.plan_id, found.wall_s, found.build, held, text),
            )
            self._forget(db)
            db.execute("COMMIT")
            self._shrink(db)

        self.use(insert)

    def latest(self, plan_id: str) -> Reconciliation | None:
        """The last record of *plan_id*; None if there is none that can be read.

        Raises:
            StoreError: the file can't be used.
        """
        if not os.path.exists(self._path):  # noqa: PTH110 - a text, on the way of `terazi weigh`
            return None
        return self.use(lambda db: _latest(db, plan_id))

    def count(self) -> int:
        """How many records there are.

        Raises:
            StoreError: the file can't be used.
        """

        def counted(db: sqlite3.Connection) -> int:
            n: int = db.execute("SELECT count(*) FROM reconciliation").fetchone()[0]
            return n

        return self.use(counted)

    # --- bounds -------------------------------------------------------------------------------------

    def _forget(self, db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM reconciliation WHERE wall_s < ?", (time.time() - self._keep_s,))
        db.execute(
            "DELETE FROM reconciliation WHERE id <= (SELECT max(id) FROM reconciliation) - ?", (self._most_records,)
        )

    def _shrink(self, db: sqlite3.Connection) -> None:
        """Drop the older half until the file is small enough."""
        while _pages_bytes(db) > self._most_bytes:
            db.execute("BEGIN IMMEDIATE")
            dropped = db.execute(
                "DELETE FROM reconciliation WHERE id IN (SELECT id FROM reconciliation ORDER BY id LIMIT "
                "(SELECT (count(*) + 1) / 2 FROM reconciliation))"
            ).rowcount
            db.execute("COMMIT")
            # as a script: execute() would step it once, which gives back a single page
            db.executescript("PRAGMA incremental_vacuum")
            if dropped <= 0:
                break

    # --- the file -----------------------------------------------------------------------------------

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do *work* with the open file; once more on a new file if this one turns out to be damaged.

        Raises:
            StoreError: the file can't be used.
        """
        for again in (True, False):
            try:
                with self._open() as db:
                    return work(db)
            except sqlite3.OperationalError as error:
                raise StoreError(
                    f"Records can't be kept in {self._path}: {error}.",
                    hint="Make room on its disk and see that you may write there, or set TERAZI_HOME.",
                ) from error
            except sqlite3.DatabaseError as error:
                if not again:
                    raise StoreError(
                        f"Records can't be kept in {self._path}: {error}.", hint="Remove the file, it is damaged."
                    ) from error
                self._move_aside(error)
        raise AssertionError("unreachable")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Made by us, so that nobody else may ever read it; SQLite gives its side files the same mode. One that
            # is there stays closed: closing it would drop the locks of another thread's connection.
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(
                f"Records can't be kept in {self._path}: {error.strerror}.",
                hint="Set TERAZI_HOME to a folder that you may write to.",
            ) from error
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        try:
            self._prepare(db)
            yield db
        finally:
            db.close()

    def _prepare(self, db: sqlite3.Connection) -> None:
        version, newest = _pragma(db, "user_version"), len(self._migrations)
        if version == newest:
            return
        if version > newest:
            raise StoreError(
                f"{self._path} was written by a newer Terazi.", hint="Update Terazi, or set another TERAZI_HOME."
            )
        if version == 0 and _pragma(db, "application_id") != APPLICATION_ID and _pragma(db, "schema_version"):
            raise StoreError(
                f"{self._path} is another program's database.", hint="Move it away, or set another TERAZI_HOME."
            )
        with _exclusive(self._path):  # one process makes or migrates; the others then find it done
            version = _pragma(db, "user_version")
            if version == 0:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
                db.execute("PRAGMA journal_mode = WAL").fetchall()
            db.execute("BEGIN IMMEDIATE")
            for script in self._migrations[version:]:
                for statement in script:
                    db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {newest}")
            db.execute("COMMIT")

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        with _exclusive(self._path):
            if self._sound():
                return  # another process was faster
            for number in range(1, _MOST_ASIDE + 1):
                aside = f"{self._path}.damaged-{number}"
                if not os.path.lexists(aside) or number == _MOST_ASIDE:
                    break
            with suppress(FileNotFoundError):
                os.replace(self._path, aside)  # noqa: PTH105 - texts
            for tail in ("-wal", "-shm"):
                with suppress(OSError):
                    os.unlink(self._path + tail)  # noqa: PTH108 - texts
        self._notice(f"the records in {self._path} were damaged ({error}); they lie in {aside} now")

    def _sound(self) -> bool:
        try:
            db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            try:
                answer = db.execute("PRAGMA quick_check(1)").fetchone()
            finally:
                db.close()
        except sqlite3.Error:
            return False
        return bool(answer and answer[0] == "ok")


def _latest(db: sqlite3.Connection, plan_id: str) -> Reconciliation | None:
    row = db.execute(
        "SELECT document FROM reconciliation WHERE plan_id = ? ORDER BY id DESC LIMIT 1", (plan_id,)
    ).fetchone()
    if row is None or not isinstance(row[0], str):
        return None
    try:
        return from_json(json.loads(row[0]))
    except (ValueError, RecursionError):
        return None


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _pages_bytes(db: sqlite3.Connection) -> int:
    return (_pragma(db, "page_count") - _pragma(db, "freelist_count")) * _pragma(db, "page_size")


@contextmanager
def _exclusive(path: str) -> Iterator[None]:
    """One process at a time; the lock goes with the process."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)

"""An engine's log on disk and in memory, both bounded.

On disk the first half of the cap is kept for ever (how it was started, how it loaded), the second half holds the
latest: ``NAME`` (the beginning), ``NAME.older`` and ``NAME.recent``. Reading them in this order gives the log, with
a line where something was left out. A disk that is full costs the log, never the engine.
"""

import fcntl
import os
from collections import deque
from contextlib import suppress
from io import FileIO
from pathlib import Path

MAX_LINE = 4096
MIN_CAP = 4096
_MOST_CLAIMS = 64


class BoundedLog:
    """Takes bytes as they come.

    Args:
        path: the file of the beginning; files of an earlier log there are removed.
        cap_bytes: what all files together may take.
        tail_lines: how many of the last lines are kept in memory.
    """

    def __init__(self, path: str, *, cap_bytes: int = 8 * 1024 * 1024, tail_lines: int = 200) -> None:
        self._head, self._older, self._recent = parts(path)
        self._cap = max(cap_bytes, MIN_CAP)
        self._tail: deque[str] = deque(maxlen=tail_lines)
        self.lines_taken = 0  # whole lines so far, for those who follow
        self._partial = b""
        self._written = 0  # into the present file
        self._in_head = True
        self._dropped = 0
        self._broken = False
        with suppress(OSError):
            self._head.parent.mkdir(parents=True, exist_ok=True)
        for part in (self._head, self._older, self._recent):
            with suppress(OSError):
                part.unlink(missing_ok=True)
        self._file = _open(self._head)

    def lines_after(self, taken: int) -> tuple[str, ...]:
        """Whole lines since *taken* of them had come, as far as they are still in memory."""
        new = self.lines_taken - taken
        return tuple(self._tail)[-new:] if new > 0 else ()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first; one that has no end yet is the last."""
        last = (_text(self._partial),) if self._partial else ()
        return (*self._tail, *last)[-(self._tail.maxlen or 1) :]

    def write(self, data: bytes) -> None:
        """Append *data* to memory and disk."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._tail.extend(_text(line) for line in lines)
        self.lines_taken += len(lines)
        self._partial = self._partial[-MAX_LINE:]
        while data and self._file is not None and not self._broken:
            limit = self._cap // 2 if self._in_head else self._cap // 4
            try:
                n = self._file.write(data[: limit - self._written])
                data, self._written = data[n:], self._written + n
                if self._written >= limit:
                    self._turn()
            except OSError:
                self._broken = True

    def _turn(self) -> None:
        """Go on in a new ``.recent``; the one before becomes ``.older``, and the one before that is lost."""
        if self._file is not None:
            self._file.close()
        if not self._in_head:
            if self._older.exists():
                self._dropped += self._older.stat().st_size
            self._recent.replace(self._older)
        self._in_head = False
        self._file, self._written = _open(self._recent), 0
        if self._dropped and self._file is not None:
            mark = f"\n[terazi: {self._dropped} bytes of the log before this part were left out]\n".encode()
            self._written = self._file.write(mark)

    def close(self) -> None:
        """No more will come."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def claim(folder: Path, name: str) -> tuple[str, int | None]:
    """A path for the log *name* that no other living engine writes to, and the lock that keeps it so.

    The lock (a descriptor; None if the disk gives none) holds until it is closed or this process ends. A second
    service of the same user and the same model gets ``NAME.2.log``, and so on.
    """
    path = folder / f"{name}.log"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(1, _MOST_CLAIMS + 1):
            path = folder / (f"{name}.log" if number == 1 else f"{name}.{number}.log")
            lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return str(path), lock
    return str(path), None


def parts(path: str) -> tuple[Path, Path, Path]:
    """The files of the log *path* in reading order."""
    return Path(path), Path(f"{path}.older"), Path(f"{path}.recent")


def read_log(path: str) -> bytes:
    """All that was kept of the log *path*, in order; empty if there is none."""
    return b"".join(part.read_bytes() for part in parts(path) if part.exists())


def _open(path: Path) -> FileIO | None:
    try:
        file = path.open("wb", buffering=0)
        path.chmod(0o600)
    except OSError:
        return None
    return file


def _text(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")

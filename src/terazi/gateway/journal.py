"""What was accepted, and what each client has been sent: what an answer is continued from.

In memory it is a list of the very bytes that went out, whole events, which nobody reads before an engine breaks;
only of long answers the older part is read and folded. Beside it, an append-only file in the state directory says
what was accepted and how it ended (never a key, and no prompt unless that is asked for), so that the next start can
tell what a killed service left unanswered. The file is written in batches, by a thread of its own: what was
accepted within a quarter of a second, what ended within two. Of what was answered meanwhile it says nothing.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, Final

from terazi.gateway.call import Call
from terazi.gateway.wire.transcript import Transcript

#: What earlier runs left, for the doctor.
LEFT: Final = "unfinished.json"

_log = logging.getLogger(__name__)

#: Raw bytes of one answer that are kept unread; a token's event has about 250.
_RAW_BYTES: Final = 1 << 20
#: So much is folded at once: about a millisecond of work.
_FOLD_BYTES: Final = 32 << 10
#: Text of one answer beyond which it isn't continued any more.
_TEXT_CHARACTERS: Final = 8 << 20
#: Of all answers together.
_TOTAL_BYTES: Final = 256 << 20
#: How long the file may lack what was accepted, and that it ended.
_ACCEPTED_S: Final = 0.25
_ENDED_S: Final = 2.0
_SUFFIX: Final = ".jsonl"
_FILE_BYTES: Final = 8 << 20
#: How many unfinished requests of an earlier run are kept by name.
_REMEMBERED: Final = 100


class Entry:
    """One request, and what its client has been sent."""

    __slots__ = ("_counted", "_journal", "_last", "_raw", "_reserved", "_script", "_size", "call", "lost_track")

    def __init__(self, journal: "Journal", call: Call) -> None:
        self.call = call
        #: More was sent than is kept: the answer can't be continued.
        self.lost_track = False
        self._journal = journal
        self._raw: list[bytes] = []
        self._size = 0  # of the raw bytes
        self._counted = 0  # what the journal's total holds for it
        self._reserved = 0  # a part of that
        self._last = b""
        self._script: Transcript | None = None

    def sent(self, data: bytes) -> None:
        """The client has been sent *data*: whole events."""
        self._last = data
        if self.lost_track:
            return
        self._raw.append(data)
        size = len(data)
        self._size += size
        self._counted += size
        self._journal.total_bytes += size
        if self._size > _RAW_BYTES or self._journal.total_bytes > self._journal.limit_bytes:
            self._shrink()

    def sent_all(self, events: list[bytes], size: int) -> None:
        """The same of several at once; *size*: of all of them."""
        self._last = events[-1]
        if self.lost_track:
            return
        self._raw += events
        self._size += size
        self._counted += size
        self._journal.total_bytes += size
        if self._size > _RAW_BYTES or self._journal.total_bytes > self._journal.limit_bytes:
            self._shrink()

    def reserve(self, size: int) -> bool:
        """Whether *size* bytes may be sent before they are told: they count as kept until ``release``."""
        if self.lost_track or self._journal.total_bytes + size > self._journal.limit_bytes:
            return False
        if not self._reserved:
            self._reserved = size
            self._counted += size
            self._journal.total_bytes += size
        return True

    def release(self) -> None:
        """What was reserved is told by now."""
        self._counted -= self._reserved
        self._journal.total_bytes -= self._reserved
        self._reserved = 0

    def tail(self) -> bytes:
        """What was sent last: the last events of an answer come together or one by one."""
        return b"".join(self._raw[-4:]) or self._last

    def script(self) -> Transcript:
        """What was sent, read. Of an answer that was too long it is not all."""
        self._fold(len(self._raw))
        return self._script or Transcript(self.call.path)

    def close(self, state: str) -> None:
        """It is over, and *state* says how in a word."""
        self._journal.closed(self.call, state)
        self._forget()

    def _forget(self) -> None:
        self._journal.total_bytes -= self._counted
        self._raw, self._size, self._counted, self._reserved = [], 0, 0, 0

    def _shrink(self) -> None:
        too_long = self._script is not None and self._script.length > _TEXT_CHARACTERS
        if too_long or self._journal.total_bytes > self._journal.limit_bytes:
            self.lost_track = True
            self._forget()
            return
        count = taken = 0
        while taken < _FOLD_BYTES:
            taken += len(self._raw[count])
            count += 1
        self._fold(count)

    def _fold(self, count: int) -> None:
        """Read the oldest *count* pieces, and keep their text only."""
        if self._script is None:
            self._script = Transcript(self.call.path)
        before = self._script.length
        data = b"".join(self._raw[:count])
        self._script.feed(data)
        del self._raw[:count]
        self._size -= len(data)
        change = self._script.length - before - len(data)
        self._counted += change
        self._journal.total_bytes += change


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """What an earlier run had accepted and never finished.

    Args:
        count: of all of them.
        requests: the last of them: ``id``, ``key`` (its name), ``model``, ``path``, ``at`` (Unix seconds).
    """

    count: int = 0
    requests: tuple[dict[str, Any], ...] = ()


class Journal:
    """All requests that are being answered.

    Args:
        folder: where its file lies; None keeps nothing on disk.
        prompts: whether the file holds the requests' bodies, too.
        limit_bytes: of all that clients have been sent, kept in memory.
        clock: Unix seconds.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        prompts: bool = False,
        limit_bytes: int = _TOTAL_BYTES,
        file_bytes: int = _FILE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self.unfinished = Unfinished()
        self._folder = folder
        self._prompts = prompts
        self._file_bytes = file_bytes
        self._clock = clock
        #: Lines of the file, of the requests that are being answered: those that are written, and those to be.
        self._open: dict[str, str] = {}
        self._new: dict[str, str] = {}
        #: Lines to be written about the end of others.
        self._ends: list[str] = []
        self._file: FileIO | None = None
        self._failed = False  # the file lacks something
        self._path: Path | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    # --- its life

    def open(self) -> Unfinished:
        """Read what earlier runs left, keep the sum of it for the doctor, and begin a file of one's own.

        A folder that can't be written to costs the file, not the service.
        """
        if self._folder is None:
            return self.unfinished
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.unfinished = take_unfinished(self._folder)
            if self.unfinished.count:
                left = {"schema": "terazi.unfinished/1", "found_at": self._clock(), **asdict(self.unfinished)}
                (self._folder / LEFT).write_text(json.dumps(left))
            self._begin_file()
        except OSError as problem:
            _log.warning("no journal is kept in %s: %s", self._folder, problem)
        return self.unfinished

    async def close(self) -> None:
        """Write what is left to be written; a file in which all is finished goes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is not None and self._writing is not None:
            await asyncio.wrap_future(self._writing)
            self._writer.shutdown(wait=False)
        self._write(self._take())
        if self._file is not None and self._path is not None:
            with contextlib.suppress(OSError):
                if not self._open:
                    self._path.unlink(missing_ok=True)
                self._file.close()
            self._file = None

    # --- requests

    def accept(self, call: Call) -> None:
        """*call* is to be answered from now on. Its id needs no escaping in JSON."""
        if self._file is not None:
            body = ', "body": ' + json.dumps(call.body.decode("utf-8", "replace")) if self._prompts else ""
            asked = _asked(call.caller.name, call.model, call.path)
            line = f'{{"id": "{call.id}", {asked}, "at": {self._clock():.3f}{body}}}\n'
            self._new[call.id] = line
            self._write_within(_ACCEPTED_S)

    def closed(self, call: Call, state: str) -> None:
        """*call* is over."""
        if self._new.pop(call.id, None) is None and self._open.pop(call.id, None) is not None:
            self._ends.append(f'{{"id": "{call.id}", "state": {_quoted(state)}, "at": {self._clock():.3f}}}\n')
            self._write_within(_ENDED_S)

    # --- the file

    def _write_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        at, timer = loop.time() + seconds, self._timer
        if timer is None or timer.when() > at:
            if timer is not None:
                timer.cancel()
            self._timer = loop.call_at(at, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._write_within(_ACCEPTED_S)  # the disk is slow
        elif self._new or self._ends or self._failed:
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "journal")
            # nobody waits for it: to be told of its end would wake this thread for nothing
            self._writing = self._writer.submit(self._write, self._take())

    def _take(self) -> tuple[list[str], list[str] | None]:
        """What is to be written, and if the file is full, what a new one begins with."""
        pending = [*self._new.values(), *self._ends]
        self._open |= self._new
        self._new, self._ends = {}, []
        anew = self._file is not None and (self._failed or self._file.tell() > self._file_bytes)
        return pending, list(self._open.values()) if anew else None

    def _begin_file(self) -> None:
        """A file that nobody else takes for a dead run's: it is locked as long as this process lives."""
        if self._folder is None:
            return
        handle, name = tempfile.mkstemp(suffix=_SUFFIX, prefix="journal-", dir=self._folder)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before, old = self._file, self._path
        # unbuffered: what couldn't be written would be tried again when the file is closed
        self._file, self._path = FileIO(handle, "wb"), Path(name)
        if before is not None and old is not None:
            old.unlink(missing_ok=True)
            before.close()

    def _write(self, taken: tuple[list[str], list[str] | None]) -> None:
        """Append; if the file is full or lacks something, begin a new one with what is open. Any thread may."""
        pending, still_open = taken
        if self._file is None:
            return
        try:
            if still_open is not None:
                self._begin_file()
                pending = still_open
            _write_all(self._file, "".join(pending).encode())
        except (OSError, ValueError) as problem:
            if not self._failed:  # once, not four times a second
                _log.warning("the journal can't be written now: %s", problem)
            self._failed = True
        else:
            if self._failed:
                _log.info("the journal is written again")
            self._failed = False


@lru_cache(maxsize=1024)
def _asked(key: str, model: str, path: str) -> str:
    """The fields of a line that many requests have in common."""
    return json.dumps({"key": key, "model": model, "path": path})[1:-1]


_quoted = lru_cache(maxsize=64)(json.dumps)


def _write_all(file: FileIO, data: bytes) -> None:
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def take_unfinished(folder: Path) -> Unfinished:
    """What dead runs had accepted and not finished; their files are deleted. Torn lines are passed over."""
    left: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"journal-*{_SUFFIX}")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living run's raises
            left += unfinished_in(file.read())
            path.unlink(missing_ok=True)
    left.sort(key=lambda said: said["at"])
    return Unfinished(count=len(left), requests=tuple(left[-_REMEMBERED:]))


def unfinished_in(data: bytes) -> list[dict[str, Any]]:
    """The requests that a journal's text says were accepted and not finished."""
    begun: dict[str, dict[str, Any]] = {}
    for said in _lines(data):
        if "state" in said:
            begun.pop(said["id"], None)
        else:
            begun[said["id"]] = said
    return list(begun.values())


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict) and isinstance(said.get("id"), str) and isinstance(said.get("at"), float):
                yield said

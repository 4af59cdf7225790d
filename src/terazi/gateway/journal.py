"""What was accepted, and what each client has been sent: what an answer is continued from.

In memory it is a list of the very bytes that went out, whole events, which nobody reads before an engine breaks;
only of long answers the older part is read and folded. Beside it, an append-only file in the state directory says
what was accepted and how it ended (never a key, and no prompt unless that is asked for), so that the next start can
tell what a killed service left unanswered. The file is written in batches, off the event loop's way.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from terazi.gateway.call import Call
from terazi.gateway.wire.transcript import Transcript

#: The files in its folder.
CURRENT: Final = "journal.jsonl"
OLDER: Final = "journal.older.jsonl"
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
_FLUSH_S: Final = 0.25
_FILE_BYTES: Final = 8 << 20
#: How many unfinished requests of an earlier run are kept by name.
_REMEMBERED: Final = 100


class Entry:
    """One accepted request, and what its client has been sent."""

    __slots__ = ("_counted", "_journal", "_last", "_raw", "_script", "_size", "call", "lost_track")

    def __init__(self, journal: "Journal", call: Call) -> None:
        self.call = call
        #: More was sent than is kept: the answer can't be continued.
        self.lost_track = False
        self._journal = journal
        self._raw: list[bytes] = []
        self._size = 0  # of the raw bytes
        self._counted = 0  # what the journal's total holds for it
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
        self._raw, self._size, self._counted = [], 0, 0

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
        self._open: dict[str, dict[str, Any]] = {}
        self._pending: list[dict[str, Any]] = []
        self._file: IO[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    # --- its life

    def open(self) -> Unfinished:
        """Read what an earlier run left, keep the sum of it for the doctor, and begin a new file.

        A folder that can't be written to costs the file, not the service.
        """
        if self._folder is None:
            return self.unfinished
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.unfinished = read_unfinished(self._folder)
            if self.unfinished.count:
                left = {"schema": "terazi.unfinished/1", "found_at": self._clock(), **asdict(self.unfinished)}
                (self._folder / LEFT).write_text(json.dumps(left))
            (self._folder / OLDER).unlink(missing_ok=True)
            self._file = (self._folder / CURRENT).open("wb")
        except OSError as problem:
            _log.warning("no journal is kept in %s: %s", self._folder, problem)
        if self.unfinished.count:
            _log.warning("an earlier run left %d requests unanswered", self.unfinished.count)
        return self.unfinished

    async def close(self) -> None:
        """Write what is left to be written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        self._write(self._take())
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- requests

    def accept(self, call: Call) -> Entry:
        """*call* is to be answered from now on."""
        if self._file is not None:
            said: dict[str, Any] = {"id": call.id, "key": call.caller.name, "model": call.model, "path": call.path}
            said["at"] = self._clock()
            if self._prompts:
                said["body"] = call.body.decode("utf-8", "replace")
            self._open[call.id] = said
            self._note(said)
        return Entry(self, call)

    def closed(self, call: Call, state: str) -> None:
        """*call* is over."""
        if self._file is not None and self._open.pop(call.id, None) is not None:
            self._note({"id": call.id, "state": state, "at": self._clock()})

    # --- the file

    def _note(self, said: dict[str, Any]) -> None:
        self._pending.append(said)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush)  # the disk is slow
            return
        self._writing = asyncio.create_task(asyncio.to_thread(self._write, self._take()))

    def _take(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """What is to be written, and if the file is full, what a new one begins with."""
        pending, self._pending = self._pending, []
        full = self._file is not None and self._file.tell() > self._file_bytes
        return pending, list(self._open.values()) if full else None

    def _write(self, taken: tuple[list[dict[str, Any]], list[dict[str, Any]] | None]) -> None:
        """Append; if the file is full, begin a new one with what is open. May run in a thread."""
        pending, still_open = taken
        if self._file is None or self._folder is None:
            return
        try:
            self._file.write(b"".join(json.dumps(said).encode() + b"\n" for said in pending))
            self._file.flush()
            if still_open is not None:
                self._file.close()
                (self._folder / CURRENT).replace(self._folder / OLDER)
                self._file = (self._folder / CURRENT).open("wb")
                self._file.write(b"".join(json.dumps(said).encode() + b"\n" for said in still_open))
                self._file.flush()
        except (OSError, ValueError) as problem:
            _log.warning("the journal can't be written: %s", problem)


def read_unfinished(folder: Path) -> Unfinished:
    """What the files in *folder* say was accepted and not finished. Torn lines are passed over."""
    begun: dict[str, dict[str, Any]] = {}
    ended: set[str] = set()
    for name in (OLDER, CURRENT):
        with contextlib.suppress(OSError):
            for said in _lines((folder / name).read_bytes()):
                if "state" in said:
                    ended.add(said["id"])
                else:
                    begun[said["id"]] = said
    left = [said for id_, said in begun.items() if id_ not in ended]
    return Unfinished(count=len(left), requests=tuple(left[-_REMEMBERED:]))


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict) and isinstance(said.get("id"), str):
                yield said

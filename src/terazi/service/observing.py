"""Who is shown each request that is over: the request log, the usage of keys, and traces if they are asked for."""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from terazi import __version__
from terazi.gateway.account import Reader
from terazi.gateway.request_log import NAME, RequestLog
from terazi.service.records import store_file
from terazi.service.usage import Tally
from terazi.telemetry.store.sqlite import Store

#: The log of requests: so many bytes, then a new file; so many old ones stay.
LOG_BYTES: Final = 16 * 1024**2
LOG_FILES: Final = 4
LOG_NAME: Final = "requests.jsonl"


class _QuietHandler(RotatingFileHandler):
    """Writes the lines of one turn of the loop together. A disk that is full costs lines, and says so once."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, delay=True, encoding="utf-8")
        self._say = say
        self._said = False
        self._lines: list[str] = []
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Called on the event loop."""
        if not self._lines:
            self._loop.call_soon(self._write)
        self._lines.append(record.getMessage())

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            super().emit(logging.makeLogRecord({"msg": "\n".join(lines)}))

    def close(self) -> None:
        """Write what is left."""
        self._write()
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's own
        """Called by ``emit`` for whatever stands against a line."""
        if not self._said:
            self._said = True
            problem = sys.exc_info()[1]
            self._say(f"requests aren't logged in {self.baseFilename} now: {problem}")


@asynccontextmanager
async def observing(
    state: Path,
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    *,
    level: int = logging.INFO,
) -> AsyncIterator[list[Reader]]:
    """The readers for a gateway, while it runs; what they hold is written at the end.

    Args:
        state: the folder that ``logs/`` is in.
        say: tells the person at the terminal.
        level: of the request log, to begin with.

    Raises:
        UsageError: traces are asked for, and OpenTelemetry isn't installed.
    """
    folder = state / "logs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = logging.getLogger(NAME)
    _make_private(folder / LOG_NAME)
    handler = _QuietHandler(folder / LOG_NAME, say)
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
    tally = Tally(Store(store_file(), notice=say))
    readers: list[Reader] = [RequestLog(time.time, log), tally]
    tracing = None
    writing = asyncio.create_task(tally.run())
    try:
        # imported only if it is asked for: its packages are an extra, and not small
        from terazi.gateway.tracing import start_tracing, wanted

        if wanted(environ):
            tracing = await asyncio.to_thread(start_tracing, __version__)
            readers.append(tracing)
            say("traces of requests go to the OpenTelemetry endpoint that is set")
        yield readers
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        await tally.write()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
        log.removeHandler(handler)
        handler.close()


def _make_private(path: Path) -> None:
    """Only its owner may read who asked what model when."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))

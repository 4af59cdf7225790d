"""What the service's log says, and in which form: executes ``[log]``, at the start and when it changes."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from terazi.gateway.request_log import NAME as REQUESTS
from terazi.service.config import LogTable

PROGRAM: Final = "terazi"
#: Above all levels: nothing is logged.
_SILENT: Final = logging.CRITICAL + 1
#: What every record has; all else was given with it.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextLine(logging.Formatter):
    """The time of day and the message: a service is looked at hours later."""

    def format(self, record: logging.LogRecord) -> str:
        """As ``Formatter`` has it, with tracebacks."""
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {super().format(record)}"


class JsonLine(logging.Formatter):
    """One object a line: ``at`` (Unix seconds), ``level``, ``log``, ``message``, what else was given with it."""

    def format(self, record: logging.LogRecord) -> str:
        """As ``Formatter`` has it; a traceback is under ``exception``."""
        said: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "log": record.name,
            "message": record.getMessage(),
        }
        said |= {key: value for key, value in vars(record).items() if key not in _USUAL}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str, separators=(",", ":"))


@contextmanager
def logging_as(table: LogTable) -> Iterator[None]:
    """``apply`` it, and have the logs as they were at the end."""
    logs = [logging.getLogger(name) for name in (PROGRAM, REQUESTS)]
    before = [log.level for log in logs]
    apply(table)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


def apply(table: LogTable) -> None:
    """Log like this from now on: levels, and the form of what the program's own handlers write."""
    program = logging.getLogger(PROGRAM)
    program.setLevel(table.level.upper())
    for handler in program.handlers:
        handler.setFormatter(JsonLine() if table.format == "json" else TextLine())
    logging.getLogger(REQUESTS).setLevel(level_of_requests(table))


def level_of_requests(table: LogTable) -> int:
    """The level of the request log."""
    return logging.INFO if table.requests else _SILENT

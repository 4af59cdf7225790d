"""One line for each request that is over: JSON, in the log ``terazi.requests``. No prompt, no answer, no key.

``logging.getLogger("terazi.requests")`` has no handler of its own; the composition root gives it one.
"""

import json
import logging
from collections.abc import Callable
from typing import Final

from terazi.gateway.account import Entry

#: The log's name.
NAME: Final = "terazi.requests"


def fields_of(entry: Entry) -> dict[str, object]:
    """What is logged of a request: seconds and tokens; what isn't known is left out."""
    call, outcome, usage = entry.call, entry.outcome, entry.usage
    said: dict[str, object | None] = {
        "id": call.id,
        "api": str(call.api),
        "path": call.path,
        "model": call.model,
        "replica": entry.replica,
        "key": call.caller.name,
        "status": outcome.status,
        "error": outcome.code or (str(outcome.why) if outcome.why is not None else None),
        "stream": call.stream,
        "queued_s": round(entry.queued_s, 4),
        "ttft_s": None if entry.ttft_s is None else round(entry.ttft_s, 4),
        "total_s": round(entry.total_s, 4),
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "finish": usage.finish,
        "attempts": len(outcome.attempts) if len(outcome.attempts) > 1 else None,
        "resumed": list(outcome.resumed) or None,
        "client_gone": entry.client_gone or None,
    }
    return {key: value for key, value in said.items() if value is not None}


class RequestLog:
    """A ``Reader`` that writes the lines.

    Args:
        wall_s: Unix seconds now, for ``at``.
        log: where they go.
    """

    def __init__(self, wall_s: Callable[[], float], log: logging.Logger | None = None) -> None:
        self._wall_s = wall_s
        self._log = log or logging.getLogger(NAME)

    def noted(self, entry: Entry) -> None:
        """One line: a warning if the request failed by the service's fault."""
        level = logging.WARNING if entry.outcome.status >= 500 else logging.INFO
        if self._log.isEnabledFor(level):
            at = round(self._wall_s(), 3)
            self._log.log(level, "%s", json.dumps({"at": at, **fields_of(entry)}, separators=(",", ":")))

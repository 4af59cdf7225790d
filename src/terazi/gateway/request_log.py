"""One line for each request that is over: JSON, in the log ``terazi.requests``. No prompt, no answer, no key.

``logging.getLogger("terazi.requests")`` has no handler of its own; the composition root gives it one.
"""

import json
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from terazi.gateway.account import Entry

#: The log's name.
NAME: Final = "terazi.requests"


def line_of(entry: Entry, at: float) -> str:
    """What is logged of a request, as JSON: seconds and tokens; what isn't known is left out.

    Args:
        at: when it was over, in Unix seconds.
    """
    call, outcome, usage = entry.call, entry.outcome, entry.usage
    error = outcome.code or outcome.why
    ttft, prompt, output = entry.ttft_s, usage.prompt_tokens, usage.output_tokens
    cached, finish, attempts = usage.cached_tokens, usage.finish, len(outcome.attempts)
    return "".join((
        f'{{"at":{at:.3f},"id":"{call.id}",',
        _names(call.api, call.path, call.model, entry.replica, call.caller.name),
        f',"status":{outcome.status}',
        "" if error is None else f',"error":{_quoted(error)}',
        ',"stream":true' if call.stream else ',"stream":false',
        f',"queued_s":{entry.queued_s:.4f}',
        "" if ttft is None else f',"ttft_s":{ttft:.4f}',
        f',"total_s":{entry.total_s:.4f}',
        "" if prompt is None else f',"prompt_tokens":{prompt}',
        "" if output is None else f',"output_tokens":{output}',
        "" if cached is None else f',"cached_tokens":{cached}',
        "" if finish is None else f',"finish":{_quoted(finish)}',
        "" if attempts < 2 else f',"attempts":{attempts}',
        f',"resumed":{json.dumps(outcome.resumed, separators=(",", ":"))}' if outcome.resumed else "",
        ',"client_gone":true}' if entry.client_gone else "}",
    ))  # fmt: skip


@lru_cache(maxsize=1024)
def _names(api: str, path: str, model: str, replica: str | None, key: str) -> str:
    """The fields of a line that many requests have in common."""
    said = {"api": api, "path": path, "model": model, "replica": replica, "key": key}
    if replica is None:
        del said["replica"]
    return json.dumps(said, separators=(",", ":"))[1:-1]


_quoted = lru_cache(maxsize=256)(json.dumps)


class RequestLog:
    """A ``Reader`` that writes the lines.

    Args:
        wall_s: Unix seconds now, for ``at``.
        log: where they go.
        monotonic_s: the clock of the entries' moments; the event loop's.
    """

    def __init__(
        self,
        wall_s: Callable[[], float],
        log: logging.Logger | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._log = log or logging.getLogger(NAME)

    def noted(self, entry: Entry) -> None:
        """One line: a warning if the request failed by the service's fault."""
        level = logging.WARNING if entry.outcome.status >= 500 else logging.INFO
        if self._log.isEnabledFor(level):
            line = line_of(entry, self._wall_s() - self._monotonic_s() + entry.outcome.ended)
            # not by ``log``, which would look through the stack for who called it
            self._log.handle(self._log.makeRecord(self._log.name, level, __file__, 0, line, (), None))

"""Turns an engine's stream of events into Ollama's stream of lines as it comes."""

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from terazi.gateway.answer import Answer
from terazi.gateway.call import Head
from terazi.gateway.desk import Tab, stream_response
from terazi.gateway.metrics import Metrics
from terazi.gateway.wire.errors import WireError, ndjson_line
from terazi.gateway.wire.ollama_answer import Translator
from terazi.gateway.wire.sse import EventReader

_log = logging.getLogger(__name__)

NDJSON: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """One answer on its way to a client. ``started`` is in ``time.perf_counter_ns``."""

    request: web.Request
    tab: Tab
    head: Head
    translator: Translator
    started: int

    async def relay(self, answer: Answer, metrics: Metrics) -> web.StreamResponse:
        """Write a line for each event that adds something. What goes wrong on the way is the last line.

        Raises:
            WireError: it went wrong before the first line, so that it can still be a status.
        """
        response = stream_response(200, NDJSON)
        response.headers.update(self.head.headers)
        sent = 0
        try:
            async for lines in self._lines(answer):
                if not self.tab.prepared:
                    await response.prepare(self.request)
                    self.tab.prepared = True
                await response.write(lines)
                sent += len(lines)
        except WireError as error:
            if not self.tab.prepared:
                raise
            _log.warning("a stream of %s was cut after %d bytes: %s", self.tab.model, sent, error.fault.code)
            await response.write(ndjson_line(error.fault))
        finally:
            metrics.stream_bytes.labels(self.tab.model).inc(sent)
        await response.write_eof()
        return response

    async def _lines(self, answer: Answer) -> AsyncIterator[bytes]:
        events, first_ns = EventReader(), 0
        async for chunk in answer:
            created_at, whole = now(), events.feed(chunk)
            if whole:
                first_ns = first_ns or time.perf_counter_ns() - self.started
                lines = b"".join([self.translator.feed(event, created_at=created_at) for event in whole])
            else:  # a heartbeat of the broker's: the client waits for an engine
                lines = self.translator.waiting(created_at=created_at)
            if lines:
                yield lines
        total_ns = time.perf_counter_ns() - self.started
        yield self.translator.end(created_at=now(), total_ns=total_ns, first_ns=first_ns)


def now() -> str:
    """This moment as Ollama writes moments."""
    return datetime.now(UTC).isoformat()

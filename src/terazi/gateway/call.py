"""The nouns of one answer: a ``Call`` is what was accepted, a ``Sink`` is where its answer goes.

Whoever speaks a client's API makes a ``Call`` in the engine's terms and a ``Sink`` in the client's, and gives both
to the ``Broker``, which queues, sends, journals, resumes and accounts for it. Nothing here waits: an answer is
pushed into its sink as it comes, and a client that leaves cancels the broker's task.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from terazi.gateway.wire.errors import Api, Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: an API key's holder, or everybody on this machine when no key is needed.

    Args:
        name: of the key, never the key itself; it names the queue, the usage and the log line.
        weight: its share beside the others'.
        priority: higher ones go first, whatever their share.
        max_concurrent: requests in engines at once; None is no limit.
        tokens_per_minute: prompt and output together; None is no limit.
        max_queued: requests that may wait; None is the service's own bound.
        models: those it may use, by any name that finds them; None is all.
    """

    name: str = "local"
    weight: float = 1.0
    priority: int = 0
    max_concurrent: int | None = None
    tokens_per_minute: int | None = None
    max_queued: int | None = None
    models: frozenset[str] | None = None


@dataclass(slots=True, kw_only=True)
class Call:
    """One accepted request, in the engine's terms. Nobody changes it; freezing one per request would cost more.

    Args:
        id: unique in this service; it goes into the journal, the log line and the ``X-Request-Id`` header.
        api: whose shapes the client speaks; the engine always speaks OpenAI's, or llama.cpp's own.
        path: the engine's path, e.g. ``/v1/chat/completions``.
        body: as it goes to the engine.
        fields: *body* parsed, if it is a JSON object, else empty; not to be changed.
        model: the id of the model that is meant, as its card has it.
        stream: whether the answer is asked for as server-sent events.
        resume: False if the client would rather have an error than a resumed answer (``X-Terazi-Resume: off``).
        deadline_s: seconds from its arrival after which it is given up; None is never.
        priority: added to the caller's.
        arrived: monotonic seconds of the event loop.
        traceparent: the client's own trace (W3C Trace Context), as it sent it.
    """

    id: str
    api: Api
    path: str
    body: bytes
    fields: Mapping[str, Any] = field(default_factory=dict)
    model: str
    stream: bool
    content_type: str = "application/json"
    caller: Caller = Caller()
    resume: bool = True
    deadline_s: float | None = None
    priority: int = 0
    arrived: float
    traceparent: str | None = None


class Flow(Protocol):
    """The tap of an answer under way."""

    def pause(self) -> None:
        """The client reads too slowly: take no more from the engine."""
        ...

    def go_on(self) -> None:
        """There is room again."""
        ...


class Tap(Flow, Protocol):
    """The same for whoever reads the answer, who may have enough of it."""

    def enough(self) -> None:
        """What came is all that was wanted: the answer is complete here, and its engine is freed."""
        ...


@dataclass(slots=True, kw_only=True)
class Head:
    """How an answer begins. ``headers`` are the broker's own (queue, resumption, request id), in lower case.

    Nobody changes it, as a ``Call``.
    """

    status: int
    content_type: str
    stream: bool
    headers: Mapping[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """Where one answer goes: ``begin``, any number of ``write``, then ``end`` or ``fail``; or ``fail`` at once.

    All are called on the event loop and return at once. After the client has left they do nothing.
    """

    def begin(self, head: Head, flow: Tap) -> None:
        """The head; exactly once before the first byte. In a stream, that follows in the same turn of the loop."""
        ...

    def write(self, data: bytes) -> None:
        """More of the body. Of a stream: whole server-sent events and comments only."""
        ...

    def bypass(self) -> Callable[[bytes], None] | None:
        """What takes whole chunks of HTTP/1.1 with events in them, as they are; None if nothing does.

        It holds until ``end`` or ``fail``, and ``write`` may come in between.
        """
        ...

    def bypassed(self, size: int) -> None:
        """*size* bytes of the body, without the framing, went that way."""
        ...

    def end(self) -> None:
        """It is complete."""
        ...

    def fail(self, fault: Fault) -> None:
        """It won't be completed: an error answer in the API's shape, or an error event at the end of a stream."""
        ...

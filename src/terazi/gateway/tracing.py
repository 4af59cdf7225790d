"""OpenTelemetry traces, if the extra ``terazi[otel]`` is installed and an endpoint is set: one span a request.

A span is made when the request is over, with the moments that the outcome holds, so tracing costs nothing on the
way. Its children are the wait in the queue and each engine's attempt, whose id is known before it begins: the
engine is told it (``traceparent_of``), so that its own spans, if it makes any, are below it. Names and attributes
are those of OpenTelemetry's semantic conventions for generative AI; no prompt and no answer goes into them.

The exporter reads its settings as every OpenTelemetry program does: ``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from terazi.errors import UsageError
from terazi.gateway.account import Attempt, Entry
from terazi.gateway.call import Call

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator

#: What the conventions call the work behind a path; others are named by their last part.
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/completion": "text_completion",
    "/infill": "text_completion",
    "/v1/embeddings": "embeddings",
}
#: Request fields that the conventions have attributes for.
_ASKED: Final = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
_NS: Final = 1_000_000_000
#: W3C Trace Context, level 1; a zero trace or span is none.
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")


def traceparent_of(call: Call, attempt: int) -> str:
    """What an engine is told: the client's trace, or a new one, and the span of its own attempt at *call*."""
    told = _TRACEPARENT.fullmatch(call.traceparent or "")
    trace, flags = (told[1], told[2]) if told else (f"{_trace_id(call):032x}", "01")
    return f"00-{trace}-{_span_id(call, attempt):016x}-{flags}"


def _trace_id(call: Call) -> int:
    return int.from_bytes(blake2b(call.id.encode(), digest_size=16).digest()) or 1


def _span_id(call: Call, attempt: int) -> int:
    return int.from_bytes(blake2b(f"{call.id} {attempt}".encode(), digest_size=8).digest()) or 1


@dataclass(slots=True)
class Told:
    """Ids that the next spans shall have; None is a random one."""

    trace: int | None = None
    span: int | None = None


def _generator(told: Told) -> "IdGenerator":
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Generator(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            trace, told.trace = told.trace, None
            return trace or super().generate_trace_id()

        def generate_span_id(self) -> int:
            span, told.span = told.span, None
            return span or super().generate_span_id()

    return Generator()


class Tracing:
    """A ``Reader`` of the bookkeeper's entries.

    Args:
        provider: of OpenTelemetry's SDK.
        told: what its generator of ids goes by.
        monotonic_s: the clock of the entries' moments; the event loop's.
        wall_ns: Unix nanoseconds now.
    """

    def __init__(
        self,
        provider: "TracerProvider",
        told: Told,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._told = told
        self._tracer = provider.get_tracer("terazi")
        self._propagator = TraceContextTextMapPropagator()
        self._monotonic_s = monotonic_s
        self._wall_ns = wall_ns

    def noted(self, entry: Entry) -> None:
        """Make the spans of one request. The exporter sends them from a thread of its own."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        call, outcome = entry.call, entry.outcome
        offset_ns = self._wall_ns() - round(self._monotonic_s() * _NS)

        def at(moment: float) -> int:
            return offset_ns + round(moment * _NS)

        carrier = {"traceparent": call.traceparent} if call.traceparent else {}
        self._told.trace = _trace_id(call)
        operation = _OPERATIONS.get(call.path, call.path.rpartition("/")[2])
        span = self._tracer.start_span(
            f"{operation} {call.model}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=at(call.arrived),
            attributes=attributes_of(entry, operation),
        )
        if outcome.began is not None:
            span.add_event("first byte", timestamp=at(outcome.began))
        if outcome.status >= 500:
            span.set_status(Status(StatusCode.ERROR, outcome.code or ""))
        inside = set_span_in_context(span)
        waited = self._tracer.start_span("queue", context=inside, start_time=at(call.arrived))
        waited.end(at(call.arrived + entry.queued_s))
        for number, attempt in enumerate(outcome.attempts):
            self._told.span = _span_id(call, number)
            part = self._tracer.start_span(
                f"attempt {attempt.replica}",
                context=inside,
                kind=SpanKind.CLIENT,
                start_time=at(attempt.began),
                attributes=_of_attempt(attempt, number),
            )
            if attempt.lost is not None:
                part.set_status(Status(StatusCode.ERROR, attempt.lost))
            part.end(at(attempt.ended))
        span.end(at(outcome.ended))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def attributes_of(entry: Entry, operation: str) -> dict[str, Any]:
    """What a request's span says, in the conventions' names, and in ``terazi.`` ones where they have none."""
    call, outcome, usage = entry.call, entry.outcome, entry.usage
    said: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "terazi",
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.stream,
        "gen_ai.response.model": call.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.finish_reasons": (usage.finish,) if usage.finish else None,
        "gen_ai.response.time_to_first_chunk": entry.ttft_s,
        "http.response.status_code": outcome.status,
        "error.type": (outcome.code or str(outcome.status)) if outcome.status >= 400 else None,
        "terazi.request.id": call.id,
        "terazi.request.api": str(call.api),
        "terazi.key.name": call.caller.name,
        "terazi.replica": entry.replica,
        "terazi.resumed": outcome.resumed or None,
        **_asked(call.fields),
    }
    return {name: value for name, value in said.items() if value is not None}


def _asked(fields: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for field, name in _ASKED.items()
        if isinstance(value := fields.get(field), int | float) and not isinstance(value, bool)
    }


def _of_attempt(attempt: Attempt, number: int) -> dict[str, Any]:
    lost = {"error.type": "engine_lost"} if attempt.lost is not None else {}
    return {"terazi.replica": attempt.replica, "terazi.attempt": number, **lost}


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether *environ* asks for traces: an endpoint is set, and the SDK isn't switched off."""
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(environ.get(name) for name in endpoints)


def start_tracing(version: str, *, processor: "SpanProcessor | None" = None) -> Tracing:
    """Traces to where the environment says.

    Args:
        version: Terazi's.
        processor: takes the spans instead of the exporter.

    Raises:
        UsageError: the extra isn't installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as problem:
        raise UsageError(
            "an OpenTelemetry endpoint is set, and OpenTelemetry isn't installed",
            hint="pip install 'terazi[otel]', or unset OTEL_EXPORTER_OTLP_ENDPOINT",
        ) from problem
    resource = Resource.create({"service.version": version})
    if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "terazi"}))  # nothing else was set
    told = Told()
    provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=_generator(told))
    provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider, told)

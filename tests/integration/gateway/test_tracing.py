"""Traces: the spans of one request, read from OpenTelemetry's own exporters."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import StatusCode

from canned import answering
from serving import CHAT, StubBackend, client_of, gateway_over
from terazi.gateway.account import Attempt, Bookkeeper, Outcome
from terazi.gateway.call import Call, Caller
from terazi.gateway.tracing import start_tracing, wanted
from terazi.gateway.wire.errors import Api

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SECRET = "the prompt that nobody may read"  # noqa: S105 - a prompt
CALL = Call(
    id="r1",
    api=Api.OPENAI,
    path="/v1/chat/completions",
    body=SECRET.encode(),
    fields={"messages": [{"role": "user", "content": SECRET}], "temperature": 0.5, "max_tokens": 64, "seed": True},
    model="m",
    stream=True,
    caller=Caller(name="anna"),
    arrived=100.0,
    traceparent=f"00-{TRACE}-{PARENT}-01",
)
OUTCOME = Outcome(
    status=502,
    code="engine_cut",
    began=101.0,
    ended=104.0,
    attempts=(
        Attempt(replica="m#1", began=100.5, ended=102.0, lost="connection reset"),
        Attempt(replica="m#2", began=102.5, ended=104.0),
    ),
    resumed=("continued",),
    tail=b'"finish_reason":"stop","usage":{"prompt_tokens":30,"completion_tokens":11}',
)


def test_one_request_is_a_span_with_its_wait_and_its_attempts() -> None:
    memory = InMemorySpanExporter()
    tracing = start_tracing("1.2.3", processor=SimpleSpanProcessor(memory))
    Bookkeeper([tracing], wait_s=0).closed(CALL, OUTCOME)
    tracing.close()
    spans = {span.name: span for span in memory.get_finished_spans()}
    assert set(spans) == {"chat m", "queue", "attempt m#1", "attempt m#2"}
    root = spans["chat m"]
    assert root.context is not None
    assert root.parent is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, PARENT)
    assert {span.parent.span_id for name, span in spans.items() if name != "chat m" and span.parent} == {
        root.context.span_id
    }
    lasted = {name: ((span.end_time or 0) - (span.start_time or 0)) / 1e9 for name, span in spans.items()}
    assert lasted == pytest.approx({"chat m": 4.0, "queue": 0.5, "attempt m#1": 1.5, "attempt m#2": 1.5})
    assert spans["attempt m#1"].status.status_code is StatusCode.ERROR
    assert spans["attempt m#2"].status.status_code is StatusCode.UNSET
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "engine_cut")
    said = dict(root.attributes or {})
    assert said["gen_ai.usage.input_tokens"] == 30
    assert said["gen_ai.usage.output_tokens"] == 11
    assert said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.response.time_to_first_chunk"] == 1.0
    assert said["terazi.key.name"] == "anna"
    assert "gen_ai.request.seed" not in said, "a flag is no number"
    assert SECRET not in "".join(span.to_json() for span in memory.get_finished_spans())
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {name for name in said if name.startswith("gen_ai.")} <= known
    assert root.resource.attributes["service.name"] == "terazi"
    assert root.resource.attributes["service.version"] == "1.2.3"


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP endpoint on loopback."""
    taken: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            taken.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    "told", [CALL.traceparent, f"00-{TRACE}-{PARENT}-00", None, "00-junk", f"00-{'0' * 32}-1-01"]
)
async def test_engines_are_told_their_attempts_span(told: str | None) -> None:
    """The engine dies and is asked again: each attempt is told its own span, in the client's trace."""
    got: list[str] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        got.append(request.headers["traceparent"])
        if len(got) == 1:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"choices": []})

    memory = InMemorySpanExporter()
    tracing = start_tracing("1", processor=SimpleSpanProcessor(memory))
    headers = {"traceparent": told} if told else {}
    async with (
        answering("/v1/chat/completions", chat) as port,
        gateway_over(StubBackend(port), readers=(tracing,)) as gateway,
        client_of(gateway, **headers) as client,
        client.post("/v1/chat/completions", json=CHAT) as reply,
    ):
        assert reply.status == 200
    tracing.close()
    attempts = [span for span in memory.get_finished_spans() if span.name.startswith("attempt")]
    flags = "00" if told and told.endswith("-00") else "01"
    sent = [re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", one) for one in got]
    assert [one is not None and one[3] for one in sent] == [flags, flags]
    spans = [(one[1], one[2]) for one in sent if one]
    assert len(set(spans)) == 2
    if told and PARENT in told:
        assert {trace for trace, _ in spans} == {TRACE}
    if flags == "01":  # else the client wanted none
        context = [span.context for span in attempts]
        assert [(f"{one.trace_id:032x}", f"{one.span_id:016x}") for one in context if one] == spans


async def test_without_traces_engines_are_told_of_none() -> None:
    got: list[bool] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        got.append("traceparent" in request.headers)
        return web.json_response({"choices": []})

    async with (
        answering("/v1/chat/completions", chat) as port,
        gateway_over(StubBackend(port)) as gateway,
        client_of(gateway, traceparent=f"00-{TRACE}-{PARENT}-01") as client,
        client.post("/v1/chat/completions", json=CHAT) as reply,
    ):
        assert reply.status == 200
    assert got == [False]


def test_spans_go_to_the_endpoint_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (url, taken):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "my scales")
        tracing = start_tracing("1.2.3")
        Bookkeeper([tracing], wait_s=0).closed(CALL, OUTCOME)
        tracing.close()
    (sent,) = ExportTraceServiceRequest.FromString(taken[0]).resource_spans
    names = {span.name for scope in sent.scope_spans for span in scope.spans}
    assert "chat m" in names
    assert "my scales" in {attribute.value.string_value for attribute in sent.resource.attributes}


def test_it_is_off_unless_an_endpoint_is_set() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert wanted(endpoint)
    assert wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"})
    for off in ({}, {**endpoint, "OTEL_SDK_DISABLED": "true"}, {**endpoint, "OTEL_TRACES_EXPORTER": "none"}):
        assert not wanted(off)

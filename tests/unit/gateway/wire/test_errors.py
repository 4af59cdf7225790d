"""Errors in each API's shape."""

import json

import pytest

from terazi.gateway.wire.errors import (
    Api,
    Fault,
    api_of,
    engine_cut,
    engine_down,
    engine_fault,
    ndjson_line,
    render,
    render_headers,
    sse_event,
    unknown_model,
)


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/models", Api.OPENAI),
        ("/api/chat", Api.OLLAMA),
        ("/", Api.OLLAMA),
        ("/healthz", Api.OWN),
        ("/v1", Api.OWN),
    ],
)
def test_api_of(path: str, api: Api) -> None:
    assert api_of(path) is api


def test_shapes() -> None:
    fault = unknown_model("x", ["a", "b"])
    assert json.loads(render(Api.OPENAI, fault))["error"]["code"] == "model_not_found"
    assert json.loads(render(Api.OLLAMA, fault)) == {"error": "model 'x' not found; served here: a, b"}
    assert "none" in unknown_model("x", []).message


def test_headers() -> None:
    assert render_headers(engine_down("gone", retry_after_s=7)) == {"Retry-After": "7"}
    assert render_headers(engine_down("gone", final=True))["x-should-retry"] == "false"
    assert render_headers(engine_cut()) == {}


@pytest.mark.parametrize(
    ("after", "closes"), [(b"", False), (b"data: x\n\n", False), (b"data: x\r\n\r\n", False), (b'data: {"ch', True)]
)
def test_an_error_event_is_an_event_of_its_own(after: bytes, closes: bool) -> None:
    event = sse_event(engine_cut(), after=after)
    assert event.startswith(b"\n\n") is closes
    data = event.strip().removeprefix(b"data: ")
    assert json.loads(data)["error"]["message"]
    assert event.endswith(b"\n\n")


def test_ndjson_line() -> None:
    line = ndjson_line(engine_cut("a\nb"))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"error": "a\nb"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}', "too long"),
        (b'{"error":"plain"}', "plain"),
        (b"Bad Gateway", "Bad Gateway"),
        (b"", "the engine answered 500"),
        (b"[]", "[]"),
        (b'{"error":{}}', '{"error":{}}'),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 100_000, "[" * 500),
    ],
)
def test_engine_fault_reads_anything(body: bytes, message: str) -> None:
    fault = engine_fault(500, body)
    assert isinstance(fault, Fault)
    assert fault.message == message

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
    status_of,
    unknown_model,
)


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/models", Api.OPENAI),
        ("/v1/messages", Api.ANTHROPIC),
        ("/v1/messages/count_tokens", Api.ANTHROPIC),
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
    assert json.loads(render(Api.ANTHROPIC, fault)) == {
        "type": "error",
        "error": {"type": "not_found_error", "message": fault.message},
    }
    assert "none" in unknown_model("x", []).message


@pytest.mark.parametrize(
    ("status", "shown", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (405, 405, "invalid_request_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (502, 502, "api_error"),
        (503, 529, "overloaded_error"),
        (504, 504, "timeout_error"),
    ],
)
def test_anthropic_has_words_and_a_status_of_its_own(status: int, shown: int, kind: str) -> None:
    fault = Fault(status=status, message="m")
    assert status_of(Api.ANTHROPIC, fault) == shown
    assert status_of(Api.OPENAI, fault) == status
    assert json.loads(render(Api.ANTHROPIC, fault))["error"]["type"] == kind
    name, data = sse_event(fault, api=Api.ANTHROPIC).strip().split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["type"] == "error"


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

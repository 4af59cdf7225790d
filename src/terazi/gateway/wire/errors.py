"""Errors in the shape that each API's clients expect: as a body, as an SSE event, as an NDJSON line.

OpenAI's clients read ``{"error": {"message", "type", "param", "code"}}`` and raise on an SSE event that carries
a truthy ``error``; Ollama's read ``{"error": "text"}``, as a body or as a line of a stream; Anthropic's read
``{"type": "error", "error": {"type", "message"}}``, as a body or as an SSE event that is named ``error``.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: When to ask again after an engine was found away for a moment.
RETRY_AFTER_S: Final = 2
_OVERLOADED: Final = 529
#: Anthropic's error types by status (its API reference, "Errors"); others follow from their hundreds.
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Api(StrEnum):
    """Whose shapes a path speaks."""

    OPENAI = "openai"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"
    OWN = "terazi"


def api_of(path: str) -> Api:
    """The API that *path* belongs to."""
    if path.startswith("/v1/messages"):
        return Api.ANTHROPIC
    if path.startswith("/v1/"):
        return Api.OPENAI
    return Api.OLLAMA if path == "/" or path.startswith("/api/") else Api.OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What went wrong, before it has a shape.

    ``kind`` and ``code`` are OpenAI's ``type`` and ``code``. ``final`` tells clients that sending the same
    again is no use.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    retry_after_s: int | None = None
    final: bool = False


class WireError(Exception):
    """A request that ends with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def render(api: Api, fault: Fault) -> bytes:
    """The JSON body for *fault*."""
    return json.dumps(_shape(api, fault)).encode()


def render_headers(fault: Fault) -> dict[str, str]:
    """The headers that go with it. ``x-should-retry`` is what OpenAI's clients look at first."""
    headers: dict[str, str] = {}
    if fault.retry_after_s is not None:
        headers["Retry-After"] = str(fault.retry_after_s)
    if fault.final:
        headers["x-should-retry"] = "false"
    return headers


def status_of(api: Api, fault: Fault) -> int:
    """The status that *fault* has in *api*: Anthropic's word for "not now" is 529."""
    return _OVERLOADED if api is Api.ANTHROPIC and fault.status == 503 else fault.status


def sse_event(fault: Fault, *, after: bytes = b"", api: Api = Api.OPENAI) -> bytes:
    """*fault* as an SSE event; *after* is what was sent last, so that a half-sent event is closed first."""
    closing = b"" if not after or after.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"
    name = b"event: error\n" if api is Api.ANTHROPIC else b""
    return closing + name + b"data: " + render(api, fault) + b"\n\n"


def ndjson_line(fault: Fault) -> bytes:
    """*fault* as the last line of an Ollama stream."""
    return render(Api.OLLAMA, fault) + b"\n"


def _shape(api: Api, fault: Fault) -> dict[str, object]:
    if api is Api.OPENAI:
        inner = {"message": fault.message, "type": fault.kind, "param": None, "code": fault.code}
        return {"error": inner}
    if api is Api.ANTHROPIC:
        return {"type": "error", "error": {"type": _anthropic_type(fault.status), "message": fault.message}}
    return {"error": fault.message}


def _anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def engine_fault(status: int, body: bytes) -> Fault:
    """The fault in an engine's own error answer: ``{"error": {"message", "type"}}``, or any text."""
    message, kind = "", "engine_error"
    try:
        error = json.loads(body)["error"]
        message = error if isinstance(error, str) else str(error["message"])
        kind = kind if isinstance(error, str) else str(error.get("type", kind))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = body[:500].decode("utf-8", "replace").strip()
    return Fault(
        status=status,
        message=message or f"the engine answered {status}",
        kind=kind,
        retry_after_s=RETRY_AFTER_S if status == 503 else None,
    )


def bad_request(message: str) -> Fault:
    """400: the body isn't what the endpoint takes."""
    return Fault(status=400, message=message)


def unknown_model(name: str, known: Iterable[str]) -> Fault:
    """404 that says what is there."""
    there = ", ".join(known) or "none"
    return Fault(status=404, message=f"model '{name}' not found; served here: {there}", code="model_not_found")


def too_large(limit_bytes: int) -> Fault:
    """413 with the limit."""
    return Fault(status=413, message=f"the request body is larger than {limit_bytes} bytes", code="body_too_large")


def unauthorised() -> Fault:
    """401. It doesn't say whether the key was missing or wrong."""
    message = "missing or wrong API key; send it as 'Authorization: Bearer KEY'"
    return Fault(status=401, message=message, kind="authentication_error", code="invalid_api_key")


def engine_down(reason: str, *, retry_after_s: int = RETRY_AFTER_S, final: bool = False) -> Fault:
    """503: nothing of an answer has come, and *reason* says why."""
    return Fault(
        status=503,
        message=reason,
        kind="service_unavailable",
        code="engine_unavailable",
        retry_after_s=retry_after_s,
        final=final,
    )


def engine_cut(reason: str = "the engine stopped before the answer was complete") -> Fault:
    """The end of a stream that the engine didn't finish; what came before it stands."""
    return Fault(status=502, message=reason, kind="engine_error", code="engine_cut")


def poisonous() -> Fault:
    """500: engines died under this request, and it is not fed to another one."""
    return Fault(
        status=500,
        message="engines died twice while they worked on this request; it won't be tried again for a while",
        kind="engine_error",
        code="request_quarantined",
        final=True,
    )


def deadline_passed(deadline_s: float | None) -> Fault:
    """504: the request's own deadline."""
    within = "in time" if deadline_s is None else f"within {deadline_s:g} s"
    return Fault(
        status=504,
        message=f"the request could not be answered {within}",
        kind="timeout_error",
        code="deadline_exceeded",
        final=True,
    )


def server_error() -> Fault:
    """500: our own mistake, which the log has more about."""
    return Fault(status=500, message="an error inside the gateway; its log has more", kind="server_error")


def shutting_down() -> Fault:
    """503 while the service drains."""
    return Fault(
        status=503,
        message="the service is shutting down",
        kind="service_unavailable",
        code="shutting_down",
        retry_after_s=5,
    )

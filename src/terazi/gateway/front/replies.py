"""The bytes of heads and small answers."""

import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, TypeAlias

from terazi.gateway.call import Head
from terazi.gateway.wire.errors import Api, Fault, render, render_headers

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n" for s in HTTPStatus}
#: No proxy in between may hold a stream back.
_STREAM_FIELDS: Final = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
_CHUNKED: Final = ("Transfer-Encoding", "chunked")
_JSON: Final = (("Content-Type", "application/json"),)
Fields: TypeAlias = tuple[tuple[str, str], ...]

_date: tuple[int, str] = (0, "")


def date_line() -> str:
    """The ``Date`` field, made once a second."""
    global _date  # noqa: PLW0603 - a cache of one line
    now = int(time.time())
    if _date[0] != now:
        _date = (now, f"Date: {formatdate(now, usegmt=True)}\r\n")
    return _date[1]


def stream_head(head: Head, fields: Fields, *, keep_alive: bool, old: bool) -> bytes:
    """The head of a stream. *fields* are those that each answer to this client has, its request's id among them."""
    lines = [_begin_of_stream(head.status, head.content_type, keep_alive, old), date_line()]
    for name, value in head.headers.items():
        if name != "x-request-id":
            lines.append(f"{name}: {value}\r\n")
    for name, value in fields:
        lines.append(f"{name}: {value}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1", "replace")


@lru_cache(maxsize=64)
def _begin_of_stream(status: int, content_type: str, keep_alive: bool, old: bool) -> str:  # noqa: FBT001 - as below
    chunked = () if old else (_CHUNKED,)
    return _begin(status, (("Content-Type", content_type), *_STREAM_FIELDS, *chunked), keep_alive, old)


def head_bytes(
    status: int, usual: Fields, fields: Iterable[tuple[str, str]], *, keep_alive: bool, old: bool
) -> bytes:
    """An answer's head. *usual* are fields that many answers share; *old*: the client speaks HTTP/1.0."""
    rest = "".join([f"{name}: {value}\r\n" for name, value in fields])
    begin = _begin(status, usual, keep_alive, old)
    return f"{begin}{date_line()}{rest}\r\n".encode("latin-1", "replace")


@lru_cache(maxsize=64)
def _begin(status: int, usual: Fields, keep_alive: bool, old: bool) -> str:  # noqa: FBT001 - keys of a cache
    lines = [_STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in usual]
    if not keep_alive:
        lines.append("Connection: close\r\n")
    elif old:
        lines.append("Connection: keep-alive\r\n")
    return "".join(lines)


def fault_bytes(
    api: Api, fault: Fault, fields: Iterable[tuple[str, str]] = (), *, keep_alive: bool, old: bool = False
) -> bytes:
    """An error answer in *api*'s shape."""
    body = render(api, fault)
    every = (("Content-Length", str(len(body))), *render_headers(fault).items(), *fields)
    return head_bytes(fault.status, _JSON, every, keep_alive=keep_alive, old=old) + body

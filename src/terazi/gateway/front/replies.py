"""The bytes of heads and small answers."""

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from terazi.gateway.wire.errors import Api, Fault, render, render_headers

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n" for s in HTTPStatus}

_date: tuple[int, str] = (0, "")


def date_line() -> str:
    """The ``Date`` field, made once a second."""
    global _date  # noqa: PLW0603 - a cache of one line
    now = int(time.time())
    if _date[0] != now:
        _date = (now, f"Date: {formatdate(now, usegmt=True)}\r\n")
    return _date[1]


def head_bytes(status: int, fields: Iterable[tuple[str, str]], *, keep_alive: bool, old: bool) -> bytes:
    """An answer's head. *old*: the client speaks HTTP/1.0, which has to be told that a connection stays."""
    first = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n"
    rest = "".join([f"{name}: {value}\r\n" for name, value in fields])
    end = ("Connection: keep-alive\r\n\r\n" if old else "\r\n") if keep_alive else "Connection: close\r\n\r\n"
    return (first + date_line() + rest + end).encode("latin-1", "replace")


def fault_bytes(
    api: Api, fault: Fault, fields: Iterable[tuple[str, str]] = (), *, keep_alive: bool, old: bool = False
) -> bytes:
    """An error answer in *api*'s shape."""
    body = render(api, fault)
    every = (
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        *render_headers(fault).items(),
        *fields,
    )
    return head_bytes(fault.status, every, keep_alive=keep_alive, old=old) + body

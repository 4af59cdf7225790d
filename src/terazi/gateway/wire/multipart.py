"""Looks into a form without taking it apart: which model a multipart body names."""

from email.message import Message
from typing import Final

from terazi.gateway.wire.errors import WireError, bad_request

#: Of a part's head, and of the field that is looked for.
_MOST_BYTES: Final = 4096


def form_field(body: bytes, content_type: str, name: str) -> str | None:
    """The text of the field *name* in a ``multipart/form-data`` body; None if it isn't there.

    Raises:
        WireError: 400, the body isn't such a form.
    """
    boundary = _parameters(content_type).get("boundary")
    if not boundary:
        raise WireError(bad_request("a multipart form needs a boundary in its Content-Type"))
    mark = b"--" + boundary.encode("latin-1", "replace")
    at = body.find(mark)
    if at < 0:
        raise WireError(bad_request("the body is not the multipart form that its Content-Type announces"))
    while at >= 0 and not body.startswith(b"--", at + len(mark)):
        end = body.find(mark, at + len(mark))
        blank = body.find(b"\r\n\r\n", at, at + len(mark) + _MOST_BYTES)
        if blank >= 0 and _is_field(body[at + len(mark) : blank], name):
            return (
                body[blank + 4 : end if end >= 0 else None][:_MOST_BYTES].rstrip(b"\r\n").decode("utf-8", "replace")
            )
        at = end
    return None


def _is_field(head: bytes, name: str) -> bool:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            return _parameters(value.strip()).get("name") == name
    return False


def _parameters(value: str) -> dict[str, str]:
    message = Message()
    message["content-type"] = value.replace("\r", " ").replace("\n", " ")
    found: dict[str, str] = {}
    for key, text in message.get_params() or []:
        kind: object = text  # of three parts if it is encoded as RFC 2231 has it
        if isinstance(kind, str):
            found.setdefault(key.lower(), kind)
    return found

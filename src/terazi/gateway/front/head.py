"""The head of a request, read strictly: what two servers could understand in two ways is refused.

The rules are those of RFC 9112 (3.2 target and host, 6.3 length of a body, 11.2 smuggling) where it leaves a choice
between mending and refusing. llhttp does the parsing, and refuses folded lines, stray control characters and
spaces before a colon by itself.
"""

import re
from dataclasses import dataclass
from typing import Final

import httptools

from terazi.gateway.access import LOCAL
from terazi.gateway.call import Caller

#: Fields that mean something to us and that nobody may send twice.
_SINGLE: Final = frozenset(
    {
        "authorization", "content-encoding", "content-length", "content-type", "expect", "host", "origin",
        "transfer-encoding", "x-api-key",
    }
)  # fmt: skip
#: Fields that belong to one connection (RFC 9110, 7.6.1), and those that ``forwarded`` writes itself.
_HOP: Final = frozenset(
    {
        b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_BARE: Final = "a line of the head ends without CR and LF"
_HOST: Final = re.compile(r"[A-Za-z0-9.\-_~%\[\]:]*")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")


class BadHeadError(Exception):
    """A head that is refused, with the status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class RequestHead:
    """A head that has only one meaning.

    Args:
        method, path, query: of the request line; *query* without its question mark.
        fields: names in lower case; a field that came twice is joined by a comma.
        lines: names and values as they came.
        old: HTTP/1.0, which knows no chunks.
        keep_alive: the client would use the connection again.
        length: bytes of the body; None if it is chunked.
        body: reads on, if it is chunked.
        caller: who asks, once somebody has looked.
    """

    method: str
    path: str
    query: bytes
    fields: dict[str, str]
    lines: list[tuple[bytes, bytes]]
    old: bool
    keep_alive: bool
    length: int | None
    body: "Body"
    caller: Caller = LOCAL

    @property
    def expects(self) -> bool:
        """The client waits for a ``100 Continue`` before it sends the body."""
        return "expect" in self.fields

    def forwarded(self, body: bytes) -> bytes:
        """The request written anew for a server behind us: this body, one length, and no second request."""
        query = b"?" + self.query if self.query else b""
        lines = [b"%b %b%b HTTP/1.%d" % (self.method.encode(), self.path.encode("latin-1"), query, not self.old)]
        lines.append(b"Host: " + self.fields.get("host", "").encode("latin-1"))
        lines += [name + b": " + value for name, value in self.lines if name.lower() not in _HOP]
        if body or self.method in {"POST", "PUT", "PATCH"}:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\nConnection: close\r\n\r\n" + body


#: Stands where a parser was, so that no cycle is left for the garbage collector.
_NOBODYS: Final = httptools.HttpRequestParser(object())


class Body:
    """What the parser finds: the head's parts first, then those of a chunked body."""

    __slots__ = ("complete", "excess", "keep_alive", "lines", "parser", "pieces", "size", "started", "target")

    def __init__(self) -> None:
        self.target = b""
        self.lines: list[tuple[bytes, bytes]] = []
        self.started = False
        self.keep_alive = False
        self.complete = False
        #: Bytes of another request followed in the same read.
        self.excess = False
        self.pieces: list[bytes] = []
        self.size = 0
        self.parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """More of a chunked body.

        Raises:
            BadHeadError: it is none.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as problem:
            if not self.complete:
                raise BadHeadError(400, f"the body isn't chunked as it should be: {problem}") from problem
            self.excess = True

    def release(self) -> None:
        """It is read: part with the parser, which refers back here."""
        self.parser = _NOBODYS

    def on_message_begin(self) -> None:
        """A second one can only be another request."""
        self.excess = self.complete

    def on_url(self, url: bytes) -> None:
        """The target may come in parts."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers of a chunked body are dropped: none of them means anything here."""
        if not self.started:
            self.lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is read."""
        if not self.started:
            self.started = True
            self.keep_alive = self.parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """A part of a chunk."""
        if not self.excess:
            self.pieces.append(body)
            self.size += len(body)

    def on_message_complete(self) -> None:
        """The last chunk has come."""
        self.complete = True


def find_end(buffer: bytes, *, scanned: int, most_bytes: int) -> int | None:
    """Where the head in *buffer* ends; None if more has to come. The first *scanned* bytes were looked at before.

    Raises:
        BadHeadError: it is too large, or can't become a head any more.
    """
    end = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
    if end > most_bytes or (end < 0 and len(buffer) > most_bytes):
        raise BadHeadError(431, f"the head of a request is larger than {most_bytes} bytes")
    if end >= 0:
        return end + 4
    if buffer.count(b"\n") != buffer.count(b"\r\n"):
        raise BadHeadError(400, _BARE)
    return None


def read_head(raw: bytes, *, most_headers: int) -> RequestHead:
    """Read *raw*, which ends with the empty line.

    Raises:
        BadHeadError: it is refused.
    """
    if raw.startswith(b"PRI * HTTP/2"):
        raise BadHeadError(505, "this service speaks HTTP/1.1 without TLS, and no HTTP/2")
    if not raw.count(b"\n") == raw.count(b"\r") == raw.count(b"\r\n"):
        raise BadHeadError(400, _BARE)
    if raw.count(b" ", 0, raw.find(b"\r")) != 2:  # llhttp takes more, and HTTP/0.9
        raise BadHeadError(400, "this is no request line")
    found = Body()
    parser = found.parser
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an offer that nobody has to take
    except httptools.HttpParserError as problem:
        raise BadHeadError(400, f"this is no HTTP request: {problem}") from problem
    if not found.started:
        raise BadHeadError(400, "this is no HTTP request")
    version = parser.get_http_version()
    if version not in {"1.0", "1.1"}:
        raise BadHeadError(505, f"HTTP/{version} is not spoken here")
    method = parser.get_method().decode()
    if method == "CONNECT":
        raise BadHeadError(405, "this is no proxy")
    if len(found.lines) > most_headers:
        raise BadHeadError(431, f"more than {most_headers} header fields")
    fields = _fields(found.lines)
    path, query = _target(found.target, method, fields)
    host = fields.get("host")
    if host is None:
        if version == "1.1":
            raise BadHeadError(400, "a request needs a Host")
    elif not _HOST.fullmatch(host):
        raise BadHeadError(400, "this is no Host")
    length = _length(fields, old=version == "1.0")
    if fields.get("expect", "100-continue").lower() != "100-continue":
        raise BadHeadError(417, "only 100-continue can be expected")
    return RequestHead(
        method=method,
        path=path,
        query=query,
        fields=fields,
        lines=found.lines,
        old=version == "1.0",
        keep_alive=found.keep_alive,
        length=length,
        body=found,
    )


def _fields(lines: list[tuple[bytes, bytes]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
        before = fields.get(name)
        if before is None:
            fields[name] = value
        elif name in _SINGLE:
            raise BadHeadError(400, f"'{name}' is there twice")
        else:
            fields[name] = f"{before}, {value}"
    return fields


def _target(target: bytes, method: str, fields: dict[str, str]) -> tuple[str, bytes]:
    """Path and query. A whole URL's host counts instead of the field (RFC 9112, 3.2.2)."""
    lower = target[:8].lower()
    if lower.startswith((b"http://", b"https://")):
        authority, slash, rest = target.partition(b"://")[2].partition(b"/")
        if b"@" in authority or b"?" in authority or b"#" in authority:
            raise BadHeadError(400, "this is no target of a request")
        fields["host"] = authority.decode("latin-1")
        target = slash + rest or b"/"
    if not target.startswith(b"/") or b"#" in target:
        raise BadHeadError(400, f"this is no target of a {method}")
    path, _, query = target.partition(b"?")
    return path.decode("latin-1"), query


def _length(fields: dict[str, str], *, old: bool) -> int | None:
    coding, length = fields.get("transfer-encoding"), fields.get("content-length")
    if coding is not None:
        if length is not None:
            raise BadHeadError(400, "a body has either a length or an encoding, not both")
        if old or coding.lower() != "chunked":
            raise BadHeadError(400, "the only encoding of a transfer is 'chunked'")
        return None
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise BadHeadError(400, "this is no Content-Length")
    return int(length)

"""The head of a request, read strictly: what two servers could understand in two ways is refused.

The rules are those of RFC 9112 (3.2 target and host, 6.3 length of a body, 11.2 smuggling) where it leaves a choice
between mending and refusing: one expression is the whole grammar of a head, and there is no lenient second one.
llhttp reads chunked bodies, and with them the head again.
"""

import re
from dataclasses import dataclass, field
from typing import Final

import httptools

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
        "connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE: Final = r"[\t\x20-\x7e\x80-\xff]*"
#: No character ends a name, a value or a line and may also stand in it, so nothing is ever tried twice (``++``).
_HEAD: Final = re.compile(
    rf"([A-Z]{{1,32}}+) ([\x21-\x7e\x80-\xff]++) HTTP/1\.([01])\r\n((?:{_NAME}+:{_VALUE}+\r\n)*+)\r\n"
)
_FIELD: Final = re.compile(rf"({_NAME}):({_VALUE})\r\n")
_OTHER_VERSION: Final = re.compile(r"[A-Z]+ [^ ]+ HTTP/[0-9]\.[0-9]\r\n")
_MOST_DIGITS: Final = 18
_LENGTH_FIELD: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
#: Of a head whose pattern is kept for as long as its connection.
_PATTERN_BYTES: Final = 2048
_BARE: Final = "a line of the head ends without CR and LF"
_HOST: Final = re.compile(r"[A-Za-z0-9.\-_~%\[\]:]*")
_LENGTH_DIGITS: Final = 18


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
        old: HTTP/1.0, which knows no chunks.
        keep_alive: the client would use the connection again.
        length: bytes of the body; None if it is chunked.
        raw: as it came.
        caller: who asks, once the gate has let it in; None for what has not come to it.
        pattern: what it has in common with others of its connection, if anything.
    """

    method: str
    path: str
    query: str
    fields: dict[str, str]
    old: bool
    keep_alive: bool
    length: int | None
    raw: str
    caller: Caller | None = None
    pattern: "Pattern | None" = field(default=None, compare=False, repr=False)

    @property
    def expects(self) -> bool:
        """The client waits for a ``100 Continue`` before it sends the body."""
        return "expect" in self.fields

    def forwarded(self, body: bytes) -> bytes:
        """The request written anew for a server behind us: this body, one length, and no second request."""
        query = f"?{self.query}" if self.query else ""
        lines = [
            f"{self.method} {self.path}{query} HTTP/1.{int(not self.old)}",
            f"Host: {self.fields.get('host', '')}",
        ]
        first = self.raw.index("\r\n") + 2
        lines += [f"{name}:{value}" for name, value in _FIELD.findall(self.raw, first) if name.lower() not in _HOP]
        if body or self.method in {"POST", "PUT", "PATCH"}:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


class Pattern:
    """What the heads of a client's requests have in common: all but the length of the body.

    Clients that keep a connection send the same head on it again and again; it needs to be read once.

    Attributes:
        caller: whom the gate let in with such a head.
        edition: of the keys by which it did.
    """

    __slots__ = ("_after", "_before", "_head", "caller", "edition")

    def __init__(self, before: bytes, after: bytes, head: RequestHead) -> None:
        self._before = before
        self._after = after
        self._head = head
        self.caller: Caller | None = None
        self.edition: object = None

    @classmethod
    def of(cls, raw: bytes, head: RequestHead) -> "Pattern | None":
        """The one of *raw*, which was read as *head*; None if it has no length, or is too large to be kept."""
        found = _LENGTH_FIELD.search(raw) if len(raw) <= _PATTERN_BYTES and head.length is not None else None
        return None if found is None else cls(raw[: found.start(1)], raw[found.end(1) :], head)

    def read(self, raw: bytes) -> RequestHead | None:
        """*raw* as ``read_head`` reads it; None if it has another pattern."""
        before, after, head = self._before, self._after, self._head
        size = len(raw) - len(before) - len(after)
        if not (0 < size <= _MOST_DIGITS and raw.startswith(before) and raw.endswith(after)):
            return None
        digits = raw[len(before) : len(before) + size]
        if not digits.isdigit():
            return None
        return RequestHead(
            head.method,
            head.path,
            head.query,
            {**head.fields, "content-length": digits.decode()},
            head.old,
            head.keep_alive,
            int(digits),
            raw.decode("latin-1"),
            pattern=self,
        )


#: Stands where a parser was, so that no cycle is left for the garbage collector.
_NOBODYS: Final = httptools.HttpRequestParser(object())


class ChunkedBody:
    """The parts of a chunked body, as they come."""

    __slots__ = ("_parser", "complete", "excess", "pieces", "size")

    def __init__(self, head: RequestHead) -> None:
        self.complete = False
        #: Bytes of another request followed in the same read.
        self.excess = False
        self.pieces: list[bytes] = []
        self.size = 0
        self._parser = httptools.HttpRequestParser(self)
        self.feed(head.raw.encode("latin-1"))

    def feed(self, data: bytes) -> None:
        """More of it.

        Raises:
            BadHeadError: it is none.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer that nobody has to take
        except httptools.HttpParserError as problem:
            if not self.complete:
                raise BadHeadError(400, f"the body isn't chunked as it should be: {problem}") from problem
            self.excess = True

    def release(self) -> None:
        """It is read: part with the parser, which refers back here."""
        self._parser = _NOBODYS

    def on_message_begin(self) -> None:
        """A second one can only be another request."""
        self.excess = self.complete

    def on_body(self, body: bytes) -> None:
        """A part of a chunk. Trailers aren't asked for: none of them means anything here."""
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
    end = buffer.find(b"\r\n\r\n", scanned - 3 if scanned > 3 else 0)
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
    text = raw.decode("latin-1")
    found = _HEAD.fullmatch(text)
    if found is None:
        raise _what_is_wrong(text)
    method, target, minor, block = found.groups()
    old = minor == "0"
    fields: dict[str, str] = {}
    lines = block.split("\r\n")  # whose values hold neither character, as the grammar has it, and names no colon
    del lines[-1]
    if len(lines) > most_headers:
        raise BadHeadError(431, f"more than {most_headers} header fields")
    for line in lines:
        name, _, value = line.partition(":")
        name = name.lower()
        if name not in fields:
            fields[name] = value.strip(" \t")
        elif name in _SINGLE:
            raise BadHeadError(400, f"'{name}' is there twice")
        else:
            fields[name] += ", " + value.strip(" \t")
    if method == "CONNECT":
        raise BadHeadError(405, "this is no proxy")
    if target[0] != "/":
        target, fields["host"] = _whole_url(target)
    host = fields.get("host")
    if host is None:
        if not old:
            raise BadHeadError(400, "a request needs a Host")
    elif not _HOST.fullmatch(host):
        raise BadHeadError(400, "this is no Host")
    if "#" in target:
        raise BadHeadError(400, "this is no target of a request")
    expected = fields.get("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise BadHeadError(417, "only 100-continue can be expected")
    connection = fields.get("connection")
    keep_alive = not old if connection is None else _keeps(connection, old=old)
    path, _, query = target.partition("?")
    return RequestHead(method, path, query, fields, old, keep_alive, _length(fields, old=old), text)


def _what_is_wrong(text: str) -> BadHeadError:
    if text.startswith("PRI * HTTP/2"):
        return BadHeadError(505, "this service speaks HTTP/1.1, and no HTTP/2")
    if not text.count("\n") == text.count("\r") == text.count("\r\n"):
        return BadHeadError(400, _BARE)
    if _OTHER_VERSION.match(text) and " HTTP/1.1\r\n" not in text and " HTTP/1.0\r\n" not in text:
        return BadHeadError(505, "this service speaks HTTP/1.1")
    return BadHeadError(400, "this is no HTTP request")


def _keeps(connection: str, *, old: bool) -> bool:
    connection = connection.lower()
    if connection == "keep-alive":
        return True
    options = [option.strip() for option in connection.split(",")]
    return "keep-alive" in options if old else "close" not in options


def _whole_url(target: str) -> tuple[str, str]:
    """Target and host; a whole URL's host counts instead of the field (RFC 9112, 3.2.2)."""
    scheme, found, rest = target.partition("://")
    authority, slash, rest = rest.partition("/")
    if not found or scheme.lower() not in {"http", "https"} or set(authority) & set("@?#"):
        raise BadHeadError(400, "this is no target of a request")
    return (slash or "/") + rest, authority


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
    if not (length.isascii() and length.isdecimal() and len(length) <= _LENGTH_DIGITS):
        raise BadHeadError(400, "this is no Content-Length")
    return int(length)

"""A forward-only view of a file's head that holds one small chunk at a time.

The parser sees bytes through ``fetch(offset, length)``, which its caller provides: a ``pread`` of a local file, a
range request, or a slice of ``bytes`` in a test. So this room does no I/O, a header of any size costs one chunk
of memory, and bytes that are skipped (vocabularies, scores) are never read.

A chunk is copied rather than mapped: a file that another process truncates while it is being read then gives a
short chunk and an ordinary error, where touching a mapping would kill the process with SIGBUS.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from terazi.errors import ModelFileError

#: ``fetch(offset, length)`` gives the bytes from *offset* on, fewer than *length* only at the end of the file.
Fetch: TypeAlias = Callable[[int, int], bytes]

#: Bytes fetched at a time. Small enough to stay in the processor's cache, large enough that calls don't count.
CHUNK_BYTES: Final = 256 * 1024
#: A header may not be longer. The largest known (260k tokens with merges and scores) are about 20 MB.
HEADER_LIMIT_BYTES: Final = 256 * 1024**2

_U32: Final = Struct("<I").unpack_from
_U64: Final = Struct("<Q").unpack_from


def display(text: str) -> str:
    """*text* (a path, a name out of a file) as it may be shown: one line, no control characters, valid UTF-8.

    Bytes of a file name that aren't text and characters that don't print become visible escapes.
    """
    if text.isprintable():
        return text
    try:
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a pair of surrogates, which JSON may spell
        text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Window:
    """A cursor over the head of a file.

    ``buffer[position:]`` is what has been fetched and not consumed; ``base`` is the file offset of
    ``buffer[0]``. Hot loops may read and advance these themselves. ``subject`` names what is being read, for
    the message when the file ends inside it.
    """

    __slots__ = ("_fetch", "base", "buffer", "label", "limit", "position", "size", "subject")

    def __init__(self, fetch: Fetch, size: int, label: str) -> None:
        self._fetch = fetch
        self.size = size
        self.limit = min(size, HEADER_LIMIT_BYTES)
        self.label = label
        self.base = 0
        self.buffer = b""
        self.position = 0
        self.subject = "the file's first bytes"

    def tell(self) -> int:
        """File offset of the next byte."""
        return self.base + self.position

    def need(self, length: int) -> None:
        """Make sure that the next *length* bytes are in the buffer.

        Raises:
            ModelFileError: the file, or the permitted header, is shorter.
        """
        if len(self.buffer) - self.position >= length:
            return
        if self.tell() + length > self.limit:
            raise self.too_short()
        self.refill()
        if len(self.buffer) < length:
            raise ModelFileError(
                f"{self.label} became shorter while it was being read.",
                hint="Wait until the download or copy has finished, then try again.",
            )

    def refill(self, look_back: int = 0) -> None:
        """Fetch the chunk at the cursor, keeping *look_back* bytes before it (as far as there are any)."""
        here = self.tell()
        start = max(0, here - look_back)
        self.buffer = (
            self._fetch(start, min(CHUNK_BYTES + look_back, self.limit - start)) if start < self.limit else b""
        )
        self.base = start
        self.position = here - start

    def seek(self, offset: int) -> None:
        """Continue at a file offset; nothing between is read."""
        if offset > self.limit:
            raise self.too_short()
        if self.base <= offset <= self.base + len(self.buffer):
            self.position = offset - self.base
        else:
            self.base, self.buffer, self.position = offset, b"", 0

    def skip(self, length: int) -> None:
        """Pass over *length* bytes, which must exist."""
        self.seek(self.tell() + length)

    def u32(self) -> int:
        """The next little-endian 32-bit number."""
        self.need(4)
        (value,) = _U32(self.buffer, self.position)
        self.position += 4
        return int(value)

    def u64(self) -> int:
        """The next little-endian 64-bit number."""
        self.need(8)
        (value,) = _U64(self.buffer, self.position)
        self.position += 8
        return int(value)

    def take(self, length: int) -> bytes:
        """The next *length* bytes; the caller has bounded *length*."""
        if length <= CHUNK_BYTES:
            self.need(length)
            start = self.position
            self.position += length
            return self.buffer[start : start + length]
        parts = []
        while length:
            step = min(length, CHUNK_BYTES)
            parts.append(self.take(step))
            length -= step
        return b"".join(parts)

    def too_short(self) -> ModelFileError:
        """The error for a header that would go on beyond the file or beyond the limit."""
        if self.size > self.limit:
            return ModelFileError(
                f"{self.label} has a header of more than {HEADER_LIMIT_BYTES // 1024**2} MiB, "
                f"by {display(self.subject)}.",
                hint="No real model has one; the file is damaged or not meant to be read.",
            )
        return ModelFileError(
            f"{self.label} is cut off: it ends after {self.size:,} bytes, inside {display(self.subject)}.",
            hint="Download or copy it again; compare its size with the one on the page it came from.",
        )

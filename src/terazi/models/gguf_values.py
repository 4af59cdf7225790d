"""Reads and skips GGUF metadata values: every type, arrays, arrays of arrays.

Layout: ``ggml/include/gguf.h`` and the GGUF specification in ggml's ``docs/gguf.md``. Short values are kept,
long ones (vocabularies) are skipped over and kept as ``ArrayInfo`` alone.
"""

from struct import Struct, unpack_from
from typing import Final

from terazi.errors import ModelFileError
from terazi.models.gguf_window import Window, display
from terazi.models.spec import ArrayInfo, MetadataValue, Scalar

STRING: Final = 8
ARRAY: Final = 9
UINT32: Final = 4
#: Fixed-size types: number → (struct format, bytes, name). Names are those of ``gguf_type_name``.
FIXED: Final = {
    0: ("B", 1, "u8"),
    1: ("b", 1, "i8"),
    2: ("H", 2, "u16"),
    3: ("h", 2, "i16"),
    4: ("I", 4, "u32"),
    5: ("i", 4, "i32"),
    6: ("f", 4, "f32"),
    7: ("?", 1, "bool"),
    10: ("Q", 8, "u64"),
    11: ("q", 8, "i64"),
    12: ("d", 8, "f64"),
}
#: Arrays up to this length are kept (per-layer arrays; llama.cpp allows 512 layers).
KEPT_ELEMENTS: Final = 1024
#: A string of more bytes, or an array of strings of more bytes in all, is described and not kept.
KEPT_STRING_BYTES: Final = 1024**2
KEPT_STRINGS_BYTES: Final = 64 * 1024
#: All kept texts together.
KEPT_TOTAL_BYTES: Final = 16 * 1024**2
#: Strings in all arrays of one file. Vocabularies have at most a million tokens and twice as many merges.
STRINGS_LIMIT: Final = 2**22
#: Arrays inside arrays (none are known; llama.cpp refuses them).
NESTED_LIMIT: Final = 2**16
NESTED_DEPTH: Final = 4

_U64: Final = Struct("<Q").unpack_from
#: What stands before nearly every key that follows a vocabulary: the high bytes of the key's length, then
#: the first part of its name.
_NEXT_KEY: Final = b"\0\0\0\0\0\0\0tokenizer."
#: What keys are made of: segments in lower case with dots; architectures bring hyphens, some tools capitals.
KEY_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz0123456789._-ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: Bytes before a candidate that are kept in the buffer to look at the string that ends there.
_LOOK_BACK: Final = 512


class ValueReader:
    """Reads values from a window. One reader serves one file: its budgets are for the whole header.

    ``guessed`` becomes True once the end of an array was found by search (see ``_search_end``).
    """

    __slots__ = ("_kept", "_nested", "_search", "_strings", "_window", "guessed")

    def __init__(self, window: Window, *, search: bool) -> None:
        self._window = window
        self._search = search
        self._kept = 0
        self._strings = 0
        self._nested = 0
        self.guessed = False

    def value(self, kind: int) -> MetadataValue:
        """The value of type number *kind* at the cursor.

        Raises:
            ModelFileError: unknown type, or the value doesn't fit the file or the budgets.
        """
        window = self._window
        if kind in FIXED:
            code, size, _ = FIXED[kind]
            window.need(size)
            scalar: Scalar = unpack_from("<" + code, window.buffer, window.position)[0]
            window.position += size
            return scalar
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array(0)
        raise self._bad(f"has the unknown type {kind}")

    def text(self, length: int) -> str:
        """*length* bytes as text. Bytes that aren't UTF-8 become visible escapes, as in ``\\xff``."""
        self._kept += length
        if self._kept > KEPT_TOTAL_BYTES:
            raise self._bad(f"brings the metadata to more than {KEPT_TOTAL_BYTES // 1024**2} MiB of text")
        return self._window.take(length).decode("utf-8", "backslashreplace")

    def _string(self) -> MetadataValue:
        length = self._window.u64()
        if length > KEPT_STRING_BYTES:
            self._window.skip(length)
            return ArrayInfo(element_type="char", length=length)
        if self._window.tell() + length > self._window.limit:
            raise self._window.too_short()
        return self.text(length)

    def _array(self, depth: int) -> MetadataValue:
        window = self._window
        kind, length = window.u32(), window.u64()
        if kind in FIXED:
            code, size, name = FIXED[kind]
            if length > KEPT_ELEMENTS:
                window.skip(length * size)
                return ArrayInfo(element_type=name, length=length)
            window.need(length * size)
            values = unpack_from(f"<{length}{code}", window.buffer, window.position)
            window.position += length * size
            return values
        if kind == STRING:
            return self._strings_array(length)
        if kind == ARRAY:
            self._nested += length
            if depth >= NESTED_DEPTH or self._nested > NESTED_LIMIT:
                raise self._bad("nests arrays too deeply or too often")
            for _ in range(length):
                self._array(depth + 1)
            return ArrayInfo(element_type="arr", length=length)
        raise self._bad(f"is an array of the unknown type {kind}")

    def _strings_array(self, length: int) -> MetadataValue:
        window = self._window
        if window.tell() + 8 * length > window.limit:
            raise window.too_short()
        self._strings += length
        if self._strings > STRINGS_LIMIT:
            raise self._bad(f"brings the strings in arrays to more than {STRINGS_LIMIT:,}")
        if length > KEPT_ELEMENTS:
            if not (self._search and self._search_end(length)):
                self._walk(length)
            return ArrayInfo(element_type="str", length=length)
        start = window.tell()
        self._walk(length)
        end = window.tell()
        if end - start > KEPT_STRINGS_BYTES:
            return ArrayInfo(element_type="str", length=length)
        window.seek(start)
        return tuple(self.text(window.u64()) for _ in range(length))

    def _walk(self, count: int) -> None:
        """Skip *count* strings one by one, exactly."""
        window = self._window
        while count:
            window.need(8)
            buffer, position, last = window.buffer, window.position, len(window.buffer) - 8
            for _ in range(count):
                if position > last:
                    break
                position += 8 + _U64(buffer, position)[0]
                count -= 1
            window.skip(position - window.position)

    def _search_end(self, count: int) -> bool:
        r"""Skip *count* strings by searching for the key that follows them; False if that isn't conclusive.

        A walk in Python costs some 50 ns a string: 20 ms for the 400,000 strings of a 128k vocabulary with its
        merges, many times what reading the bytes costs. A search runs at the speed of memory.

        Why the place that is found is the end of the array. Call a string *plain* if it contains no zero byte;
        all strings of a tokenizer are. Among plain strings, seven zero bytes in a row occur only as the upper
        bytes of a length below 256. So the first hit ``L 00×7 tokenizer.`` is either the length and key of the
        next entry, which is what we want, or the length and text of an element that itself begins with
        ``tokenizer.``. In that second case the parser takes the following element's length for the entry's
        type and its text for the value; the next key's length then contains bytes of plain text in its upper
        half (or, after empty elements, is zero or at least 2^24), which is beyond the permitted length of a
        key, and the parse fails. The caller then parses again with exact walks. Only the first hit is taken:
        one that looks wrong says that the elements are unusual, and a later one could be a later key. No hit
        can lie in the first ``8 * count`` bytes, the least that the lengths alone take, so those are not read.

        Elements that do contain zero bytes can only mislead the search if they spell a complete header: valid
        keys and types up to the last tensor, and sizes that fill the file to its last byte (the caller checks
        that more strictly after a search). A file that does so on purpose gets the reading that it asks for,
        bounded and checked like any other.
        """
        window = self._window
        start = window.tell()
        first = start + 8 * count
        # The mean length of an element is below 56 bytes in any vocabulary; a search beyond that would only
        # read weights, so it stops there.
        stop = min(start + 64 * count, window.limit)
        window.seek(first)
        window.refill(_LOOK_BACK)
        while True:
            buffer = window.buffer
            hit = buffer.find(_NEXT_KEY, window.position + 1)
            if hit > 0:
                length = buffer[hit - 1]
                key = buffer[hit + 7 : hit + 7 + length]
                if key and not key.translate(None, KEY_LETTERS) and _string_ends_at(buffer, hit - 1):
                    window.position = hit - 1
                    self.guessed = True
                    return True
                break
            end = window.base + len(buffer)
            if end >= stop:
                break
            window.position = max(window.position, len(buffer) - len(_NEXT_KEY) - 1)
            window.refill(_LOOK_BACK)
            if window.base + len(window.buffer) <= end:
                break
        window.seek(start)
        return False

    def _bad(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._window.label} is damaged or hostile: {display(self._window.subject)} {what}.",
            hint="Download it again from where it was published.",
        )


def _string_ends_at(buffer: bytes, end: int) -> bool:
    """Whether the last length before *end* says that its string ends there (a check against chance hits)."""
    zeros = buffer.rfind(b"\0\0\0\0\0\0\0", 0, end)
    return zeros > 0 and zeros + 7 + buffer[zeros - 1] == end

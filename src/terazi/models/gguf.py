"""Reads a GGUF header (versions 2 and 3) with the checks that the engine makes when it loads the file.

In: ``fetch``, which gives bytes of the file. Out: ``GgufHeader``: every key (long arrays described, not kept) and
every tensor with its exact size. The rules are those of ``gguf_init_from_reader`` in ``ggml/src/gguf.cpp`` and
of ``llama_tensor_weight`` in ``src/llama-model-loader.h``, llama.cpp build b11434. Any byte string gives a
header or a ``ModelFileError``, in bounded time and memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name shadows everything
from typing import Final

from terazi.errors import ModelFileError
from terazi.models.foreign import describe_foreign
from terazi.models.ggml_types import REMOVED, TYPE_BY_ID
from terazi.models.gguf_values import KEY_LETTERS, UINT32, ValueReader
from terazi.models.gguf_window import Fetch, Window, display
from terazi.models.spec import MetadataValue, Tensor

MAGIC: Final = b"GGUF"
DEFAULT_ALIGNMENT: Final = 32
#: Keys, and tensors of one file. Mixtures with unmerged experts have some 70,000 tensors; others about 1,000.
KEYS_LIMIT: Final = 2**16
TENSORS_LIMIT: Final = 2**18
#: Bytes of a key (GGUF specification) and of a tensor's name (``GGML_MAX_NAME`` less the final zero).
KEY_BYTES_LIMIT: Final = 2**16 - 1
NAME_BYTES_LIMIT: Final = 63
#: The least that a key with its value, and a tensor's entry, take in the file.
_KEY_BYTES_MIN: Final = 8 + 1 + 4 + 1
_TENSOR_BYTES_MIN: Final = 8 + 4 + 4 + 8
_TENSOR_BYTES_MAX: Final = 8 + NAME_BYTES_LIMIT + 4 + 4 * 8 + 4 + 8

_U64: Final = Struct("<Q").unpack_from
_U32: Final = Struct("<I").unpack_from
#: By number of dimensions: the dimensions and the type.
_SHAPES: Final = tuple(Struct(f"<{n}QI") for n in range(5))
_SIGNED_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """One file's header. Offsets of tensors count from ``data_offset``, as in the file; sizes in bytes."""

    path: str
    size_bytes: int
    version: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[Tensor, ...]


def read_header(fetch: Fetch, size: int, path: str, *, file_index: int = 0) -> GgufHeader:
    """Read the header of the GGUF file *path*, which has *size* bytes.

    Args:
        fetch: gives bytes of the file; only the header's are asked for, plus at most one chunk.
        size: of the file.
        path: where it is; used in messages and in the result, never opened.
        file_index: this file's place in a split model.

    Raises:
        ModelFileError: the file is foreign, truncated, hostile, or breaks a rule of the format.
    """
    quick = _Parser(fetch, size, path, file_index, search=True)
    try:
        return quick.parse()
    except ModelFileError:
        if not quick.values.guessed:
            raise
    # The end of an array was found by search and something later is wrong: let exact walks decide.
    return _Parser(fetch, size, path, file_index, search=False).parse()


class _Parser:
    __slots__ = ("_file_index", "_path", "_window", "values")

    def __init__(self, fetch: Fetch, size: int, path: str, file_index: int, *, search: bool) -> None:
        self._path = path
        self._file_index = file_index
        self._window = Window(fetch, size, display(path))
        self.values = ValueReader(self._window, search=search)

    def parse(self) -> GgufHeader:
        window = self._window
        version = self._version()
        tensor_count, key_count = window.u64(), window.u64()
        room = window.size - window.tell()
        if key_count > KEYS_LIMIT or key_count * _KEY_BYTES_MIN > room:
            raise self._bad(f"claims {key_count:,} keys")
        if tensor_count > TENSORS_LIMIT or tensor_count * _TENSOR_BYTES_MIN > room:
            raise self._bad(f"claims {tensor_count:,} tensors")
        metadata, alignment = self._metadata(key_count)
        tensors, data_bytes = self._tensors(tensor_count, alignment)
        end = window.tell()
        data_offset = -(-end // alignment) * alignment if tensors else end
        self._check_extent(tensors, data_offset, data_bytes)
        if self.values.guessed:
            self._check_guess(metadata, tensors, window.size - data_offset - data_bytes)
        return GgufHeader(
            path=self._path,
            size_bytes=window.size,
            version=version,
            alignment=alignment,
            data_offset=data_offset,
            metadata=metadata,
            tensors=tensors,
        )

    def _version(self) -> int:
        window = self._window
        if window.size:
            window.refill()
        if window.buffer[:4] != MAGIC:
            what = describe_foreign(window.buffer[:512])
            raise ModelFileError(f"{window.label} is not a GGUF file: {what.looks_like}.", hint=what.hint)
        window.subject = "the GGUF header"
        window.skip(4)
        version = window.u32()
        if version in {2, 3}:
            return version
        if version and not version & 0xFFFF:  # 3 read in the other byte order is 0x03000000
            raise ModelFileError(
                f"{window.label} is a big-endian GGUF file, which llama.cpp can't load on this kind of processor.",
                hint="Get the ordinary (little-endian) file of this model, or convert it with gguf-convert-endian.",
            )
        if version == 1:
            raise ModelFileError(
                f"{window.label} is a GGUF version 1 file, which llama.cpp no longer loads.",
                hint="Download a current file of this model, or convert it again.",
            )
        raise ModelFileError(
            f"{window.label} has GGUF version {version}; versions 2 and 3 are known.",
            hint="Update Terazi if the file is newer; else it is damaged: download it again.",
        )

    def _metadata(self, count: int) -> tuple[dict[str, MetadataValue], int]:
        window, values = self._window, self.values
        metadata: dict[str, MetadataValue] = {}
        alignment_kind = UINT32
        for i in range(count):
            window.subject = f"key {i + 1} of {count}"
            length = window.u64()
            if not 0 < length <= KEY_BYTES_LIMIT:
                raise self._bad(f"has a key of {length:,} bytes ({window.subject})")
            key = values.text(length)
            window.subject = f"the value of {key}" if length < 100 else window.subject
            if key in metadata:
                raise self._bad(f"has the key {key} twice")
            kind = window.u32()
            if key == "general.alignment":
                alignment_kind = kind
            metadata[key] = values.value(kind)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            alignment_kind != UINT32
            or not isinstance(alignment, int)
            or alignment <= 0
            or alignment & (alignment - 1)
        ):
            raise self._bad("has a general.alignment that isn't a power of two stored as u32")
        return metadata, alignment

    def _tensors(self, count: int, alignment: int) -> tuple[tuple[Tensor, ...], int]:
        """The tensor entries, and the length of the data that they describe."""
        window, file_index = self._window, self._file_index
        tensors: list[Tensor] = []
        names: set[str] = set()
        # Layers repeat each other: what follows from the bytes of a shape and a type is worked out once.
        payloads: dict[bytes, tuple[tuple[int, ...], str, int]] = {}
        prefix, block = "", None
        expected = 0
        mask = alignment - 1
        window.subject = "the list of tensors"
        for _ in range(count):
            if len(window.buffer) - window.position < _TENSOR_BYTES_MAX:
                window.refill()
            buffer, position = window.buffer, window.position
            try:
                (length,) = _U64(buffer, position)
                if length > NAME_BYTES_LIMIT:
                    raise self._bad(f"has a tensor name of {length:,} bytes")
                start = position + 8 + length
                name = buffer[position + 8 : start].decode("utf-8", "backslashreplace")
                (dimensions,) = _U32(buffer, start)
                if dimensions > 4:
                    raise self._bad(f"gives tensor {name} {dimensions:,} dimensions")
                end = start + 8 + 8 * dimensions
                (offset,) = _U64(buffer, end)
            except StructError:
                raise window.too_short() from None
            window.position = end + 8
            if name in names:
                raise self._bad(f"has the tensor {name} twice")
            names.add(name)
            key = buffer[start:end]
            payload = payloads.get(key)
            if payload is None:
                payload = payloads[key] = self._payload(name, key)
            shape, dtype, n_bytes = payload
            if offset != expected:
                raise self._bad(f"puts tensor {name} at offset {offset:,} instead of {expected:,}")
            expected += (n_bytes + mask) & ~mask
            if not prefix or not name.startswith(prefix):
                prefix, block = _block_of(name)
            tensors.append(Tensor(name, shape, dtype, n_bytes, offset, file_index, block))
        return tuple(tensors), expected

    def _payload(self, name: str, entry: bytes) -> tuple[tuple[int, ...], str, int]:
        """Shape, type name and bytes from the part of an entry between the name and the offset."""
        dimensions = len(entry) // 8 - 1
        *shape, kind = _SHAPES[dimensions].unpack_from(entry, 4)
        known = TYPE_BY_ID.get(kind)
        if known is None:
            what = REMOVED.get(kind)
            raise ModelFileError(
                f"{self._window.label} stores tensor {display(name)} in "
                + (f"the type {what}." if what else f"the unknown type {kind}."),
                hint="Get a current file of this model."
                if what
                else "Update Terazi if the file is newer than it; else the file is damaged: download it again.",
            )
        _, dtype, block_size, block_bytes = known
        elements = 1
        for extent in shape:
            elements *= extent
        n_bytes = elements // block_size * block_bytes
        # A dimension of 0 makes the product 0 whatever the others are, so these are looked at as well.
        if max(n_bytes, elements, *shape, 0) >= _SIGNED_LIMIT:
            raise self._bad(f"gives tensor {name} the impossible shape {shape}")
        if (shape[0] if shape else 1) % block_size:
            raise self._bad(f"gives tensor {name} rows that aren't whole blocks of {block_size} ({dtype})")
        return tuple(shape) or (1,), dtype, n_bytes

    def _check_extent(self, tensors: tuple[Tensor, ...], data_offset: int, data_bytes: int) -> None:
        size, label = self._window.size, self._window.label
        if data_offset + data_bytes <= size:
            return
        for tensor in tensors:  # the padding behind the last tensor may be absent
            if data_offset + tensor.offset + tensor.n_bytes > size:
                missing = data_offset + data_bytes - size
                raise ModelFileError(
                    f"{label} is cut off: tensor {display(tensor.name)} ends beyond the file's {size:,} bytes; "
                    f"about {missing:,} bytes are missing.",
                    hint="Download or copy it again, or let the download finish.",
                )

    def _check_guess(self, metadata: Mapping[str, MetadataValue], tensors: tuple[Tensor, ...], rest: int) -> None:
        """Doubt a reading that rests on a search: unusual names, or data that doesn't end with the file."""
        plain = all(key.isascii() and not key.encode().translate(None, KEY_LETTERS) for key in metadata)
        if not (plain and all(tensor.name for tensor in tensors) and rest <= 0):
            raise self._bad("has unusual names")

    def _bad(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._window.label} is damaged or hostile: it {display(what)}.",
            hint="Download it again from where it was published.",
        )


def _block_of(name: str) -> tuple[str, int | None]:
    """The prefix ``blk.N.`` and N, as the loader's ``sscanf("blk.%d.")`` finds it; else an empty prefix.

    The two halves of T5 name their blocks ``enc.blk.N.`` and ``dec.blk.N.``; block N of each lies with the other.
    """
    start = 8 if name.startswith(("enc.blk.", "dec.blk.")) else 4
    if start == 4 and not name.startswith("blk."):
        return "", None
    end = name.find(".", start)
    number = name[start:end]
    if end < 0 or not (number.isdecimal() and number.isascii() and len(number) < 10):
        return "", None
    return name[: end + 1], int(number)


def header_from_bytes(data: bytes, path: str = "model.gguf", size: int | None = None) -> GgufHeader:
    """Read a header that is in memory already; *size* is that of the whole file (default: of *data*)."""
    return read_header(
        lambda offset, length: data[offset : offset + length], len(data) if size is None else size, path
    )

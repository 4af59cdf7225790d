"""Reads a safetensors header with the checks that the ``safetensors`` library makes when it opens the file.

In: ``fetch``, which gives bytes of the file, and is asked at most twice. Out: ``SafetensorsHeader``. The rules are
those of ``Metadata::validate`` and ``SafeTensors::read_metadata`` in ``safetensors/src/tensor.rs``, version 0.8.
Any byte string gives a header or a ``ModelFileError``, in time and memory that follow the header's real length.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from terazi.errors import ModelFileError
from terazi.models.bounded_json import Json, parse_object
from terazi.models.foreign import describe_foreign
from terazi.models.gguf_window import Fetch, display
from terazi.models.spec import Tensor

#: Bytes of the JSON text (``MAX_HEADER_SIZE`` of the library).
HEADER_LIMIT_BYTES: Final = 100_000_000
#: Asked for first: holds the whole header of nearly every shard (2,000 tensors take some 250 KB).
FIRST_BYTES: Final = 512 * 1024
_LENGTH_BYTES: Final = 8
_SIGNED_LIMIT: Final = 2**63

#: Bits of one element, by the name that the file gives (``Dtype::bitsize``).
DTYPE_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

_BLOCK: Final = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d{1,4})\.")
#: Parts of a model whose layers are not the language model's own.
_OTHER_TOWERS: Final = re.compile(r"vision|visual|audio|image|speech|projector|resampler|^mtp$|talker|code2wav")


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """One file's header. Tensors in the order of their data; offsets count from ``data_offset``; sizes in bytes."""

    path: str
    size_bytes: int
    data_offset: int
    metadata: Mapping[str, str]
    tensors: tuple[Tensor, ...]


def read_header(fetch: Fetch, size: int, path: str, *, file_index: int = 0) -> SafetensorsHeader:
    """Read the header of the safetensors file *path*, which has *size* bytes.

    Args:
        fetch: gives bytes of the file: its first ``FIRST_BYTES``, and once more what of the header lies beyond.
        size: of the file.
        path: where it is; used in messages and in the result, never opened.
        file_index: this file's place in a sharded model.

    Raises:
        ModelFileError: the file is foreign, truncated or hostile.
    """
    label = display(path)
    head = fetch(0, min(size, FIRST_BYTES))
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if len(head) <= _LENGTH_BYTES or head[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        raise _foreign(head, label)
    if length > HEADER_LIMIT_BYTES:
        raise _bad(label, f"claims a header of {length:,} bytes")
    data_offset = _LENGTH_BYTES + length
    if data_offset > size:
        raise _cut_off(label, size, "inside its header")
    if len(head) < data_offset:
        head += fetch(len(head), data_offset - len(head))
    if len(head) < data_offset:
        raise ModelFileError(
            f"{label} became shorter while it was being read.",
            hint="Wait until the download or copy has finished, then try again.",
        )
    entries = parse_object(head[_LENGTH_BYTES:data_offset], label, what="its header", unique=True)
    metadata = entries.pop("__metadata__", None)
    return SafetensorsHeader(
        path=path,
        size_bytes=size,
        data_offset=data_offset,
        metadata=_texts(metadata, label),
        tensors=_tensors(entries, size - data_offset, label, file_index),
    )


def header_from_bytes(data: bytes, path: str = "model.safetensors", size: int | None = None) -> SafetensorsHeader:
    """Read a header that is in memory already; *size* is that of the whole file (default: of *data*)."""
    return read_header(
        lambda offset, length: data[offset : offset + length], len(data) if size is None else size, path
    )


def block_of(name: str) -> int | None:
    """The language model's layer that the tensor *name* belongs to, else None (embeddings, other towers)."""
    found = _BLOCK.search(name)
    if found is None or _OTHER_TOWERS.search(name[: found.start()]):
        return None
    return int(found[1])


def _tensors(entries: Mapping[str, Json], data_bytes: int, label: str, file_index: int) -> tuple[Tensor, ...]:
    spans: list[tuple[int, int, str, str, tuple[int, ...]]] = []
    # Layers repeat each other: what a dtype and a shape take is worked out once.
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, entry in entries.items():
        dtype, shape, start, end = _entry(name, entry, label)
        n_bytes = known.get((dtype, shape))
        if n_bytes is None:
            n_bytes = known[dtype, shape] = _payload(name, dtype, shape, label)
        if end - start != n_bytes:
            raise _bad(label, f"gives tensor {name} {end - start:,} bytes instead of {n_bytes:,}")
        spans.append((start, end, name, dtype, shape))
    spans.sort()
    expected = 0
    for start, end, name, _, _ in spans:
        if start != expected:
            raise _bad(label, f"puts tensor {name} at offset {start:,} instead of {expected:,}")
        expected = end
    if expected > data_bytes:
        raise _cut_off(label, data_bytes, f"{expected - data_bytes:,} bytes before the end of its tensors")
    if expected < data_bytes:
        raise _bad(label, f"has {data_bytes - expected:,} bytes that belong to no tensor")
    return tuple(
        Tensor(name, shape, dtype, end - start, start, file_index, block_of(name))
        for start, end, name, dtype, shape in spans
    )


def _entry(name: str, entry: Json, label: str) -> tuple[str, tuple[int, ...], int, int]:
    if isinstance(entry, dict):
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if isinstance(dtype, str) and _counts(shape) and _counts(offsets) and len(offsets) == 2:
            start, end = offsets
            if start <= end:
                return dtype, tuple(shape), start, end
    raise _bad(label, f"has no sensible entry for tensor {name}")


def _payload(name: str, dtype: str, shape: tuple[int, ...], label: str) -> int:
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise ModelFileError(
            f"{label} stores tensor {display(name)} in the unknown type {display(dtype[:40])}.",
            hint="Update Terazi if the file is newer than it; else the file is damaged: download it again.",
        )
    for extent in shape:
        bits *= extent
        if bits >= _SIGNED_LIMIT:
            raise _bad(label, f"gives tensor {name} an impossible shape")
    if bits % 8:
        raise _bad(label, f"gives tensor {name} a size that isn't whole bytes")
    return bits // 8


def _counts(value: Json) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < _SIGNED_LIMIT for v in value)


def _texts(value: Json, label: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if isinstance(value, dict):
        texts = {key: text for key, text in value.items() if isinstance(text, str)}
        if len(texts) == len(value):
            return texts
    raise _bad(label, "has a __metadata__ that isn't made of texts")


def _foreign(head: bytes, label: str) -> ModelFileError:
    what = describe_foreign(head[:512])
    if head[:4] == b"GGUF":
        return ModelFileError(f"{label} is a GGUF file under another name.", hint="Rename it to end in .gguf.")
    return ModelFileError(f"{label} is not a safetensors file: {what.looks_like}.", hint=_again(what.looks_like))


def _again(looks_like: str) -> str:
    if "LFS" in looks_like:
        return "Run `git lfs pull` in that repository, or download the file itself."
    return "Download it again; the link may need a login or lead to a page about the file."


def _cut_off(label: str, size: int, where: str) -> ModelFileError:
    return ModelFileError(
        f"{label} is cut off: it ends after {size:,} bytes, {where}.",
        hint="Download or copy it again, or let the download finish.",
    )


def _bad(label: str, what: str) -> ModelFileError:
    return ModelFileError(
        f"{label} is damaged or hostile: it {display(what)}.",
        hint="Download it again from where it was published.",
    )


def in_order(headers: Sequence[SafetensorsHeader]) -> tuple[Tensor, ...]:
    """All tensors of a sharded model, shard after shard.

    Raises:
        ModelFileError: two shards hold the same tensor.
    """
    names: set[str] = set()
    tensors: list[Tensor] = []
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in names:
                raise ModelFileError(
                    f"{display(header.path)} holds tensor {display(tensor.name)}, which an earlier file holds too.",
                    hint="Files of different downloads are mixed; keep those of one in the folder.",
                )
            names.add(tensor.name)
            tensors.append(tensor)
    return tuple(tensors)

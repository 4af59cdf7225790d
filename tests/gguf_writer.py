"""A small GGUF writer for tests: a real header, and a hole where the weights would be.

``write_gguf`` makes a *sparse twin* of a model of any size within milliseconds and with a few MB on disk; the
engine's ``llama-fit-params`` reads it like the real thing. ``header`` gives the bytes alone, for tests that
must not touch a file.
"""

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from terazi.models.ggml_types import TYPE_BY_NAME

#: Metadata type numbers (``enum gguf_type`` in ``ggml/include/gguf.h``).
UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_FORMAT = {
    UINT8: "B", INT8: "b", UINT16: "H", INT16: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "?",
    UINT64: "Q", INT64: "q", FLOAT64: "d",
}  # fmt: skip

TensorRow: TypeAlias = tuple[str, Sequence[int], str]


class Typed(NamedTuple):
    """A metadata value with an explicit type number; ``element`` is the type of an array's elements."""

    type: int
    value: object
    element: int = INT32


def string(text: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def guess(value: object) -> Typed:
    """Pick the type that converters write: u32 for counts, f32, i32 arrays."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed(BOOL, value)
    if isinstance(value, int):
        if 0 <= value < 2**32:
            return Typed(UINT32, value)
        return Typed(INT32 if -(2**31) <= value < 0 else INT64 if value < 2**63 else UINT64, value)
    if isinstance(value, float):
        return Typed(FLOAT32, value)
    if isinstance(value, str | bytes):
        return Typed(STRING, value)
    if isinstance(value, Sequence):
        return Typed(
            ARRAY, value, guess(value[0]).type if value and not isinstance(value[0], int) else _ints(value)
        )
    raise TypeError(type(value).__name__)


def _ints(values: Sequence[object]) -> int:
    return BOOL if values and isinstance(values[0], bool) else INT32


def value_bytes(typed: Typed) -> bytes:
    """A value without its type number."""
    if typed.type == STRING:
        assert isinstance(typed.value, str | bytes)
        return string(typed.value)
    if typed.type == ARRAY:
        assert isinstance(typed.value, Sequence)
        head = struct.pack("<IQ", typed.element, len(typed.value))
        if typed.element in _FORMAT:
            return head + struct.pack(f"<{len(typed.value)}{_FORMAT[typed.element]}", *typed.value)
        return head + b"".join(value_bytes(v if isinstance(v, Typed) else Typed(STRING, v)) for v in typed.value)
    return struct.pack("<" + _FORMAT[typed.type], typed.value)


def tensor_bytes(shape: Sequence[int], dtype: str) -> int:
    """Payload of one tensor."""
    kind = TYPE_BY_NAME[dtype]
    n = 1
    for d in shape:
        n *= d
    assert shape[0] % kind.block_size == 0, (shape, dtype)
    return n // kind.block_size * kind.block_bytes


def vocabulary(size: int, model: str = "gpt2", *, merges: int = 0) -> dict[str, object]:
    """A tokenizer that llama.cpp accepts: true array lengths, made-up tokens."""
    tokens = [f"t{i}" for i in range(size)]
    types = [1] * size
    keys: dict[str, object] = {"tokenizer.ggml.model": model}
    if model == "llama":  # SentencePiece needs its byte tokens
        tokens[:3] = ["<unk>", "<s>", "</s>"]
        types[:3] = [2, 3, 3]
        tokens[3:259] = [f"<0x{b:02X}>" for b in range(256)]
        types[3:259] = [6] * 256
        keys["tokenizer.ggml.tokens"] = tokens
        keys["tokenizer.ggml.scores"] = Typed(ARRAY, [-float(i) for i in range(size)], FLOAT32)
        keys["tokenizer.ggml.token_type"] = types
    else:
        keys["tokenizer.ggml.pre"] = "default"
        keys["tokenizer.ggml.tokens"] = tokens
        keys["tokenizer.ggml.token_type"] = types
        keys["tokenizer.ggml.merges"] = [f"t {i}" for i in range(max(merges, 1))]
    keys["tokenizer.ggml.bos_token_id"] = 1
    keys["tokenizer.ggml.eos_token_id"] = 2
    return keys


def header(
    metadata: Mapping[str, object],
    tensors: Iterable[TensorRow] = (),
    *,
    version: int = 3,
    alignment: int = 32,
) -> tuple[bytes, int]:
    """The header's bytes, padded to where the data begins, and the length of the data."""
    infos, offset = [], 0
    for name, shape, dtype in tensors:
        infos.append(
            string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPE_BY_NAME[dtype].id, offset)
        )
        offset += -(-tensor_bytes(shape, dtype) // alignment) * alignment
    pairs = [string(key) + struct.pack("<I", (t := guess(v)).type) + value_bytes(t) for key, v in metadata.items()]
    raw = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    return raw + bytes(-len(raw) % alignment), offset


def write_gguf(
    path: Path,
    arch: str,
    metadata: Mapping[str, object],
    tensors: Iterable[TensorRow],
    *,
    sparse: bool = True,
    version: int = 3,
    vocab_size: int | None = None,
    tokenizer: str = "gpt2",
    merges: int = 0,
    alignment: int = 32,
) -> Path:
    """Write a GGUF file.

    Args:
        path: where to.
        arch: ``general.architecture``.
        metadata: key → value; a key that starts with a dot is put behind the architecture (``.block_count``).
            Plain values get the type that converters use; wrap in ``Typed`` to choose it.
        tensors: (name, shape in ggml order, ggml type name).
        sparse: leave a hole for the data (else write zeros).
        version: GGUF version.
        vocab_size: add a tokenizer of this many made-up tokens.
        tokenizer: ``gpt2`` or ``llama``.
        merges: number of merges of a ``gpt2`` tokenizer.
        alignment: of the data; other than 32 also writes ``general.alignment``.
    """
    keys: dict[str, object] = {"general.architecture": arch}
    if alignment != 32:
        keys["general.alignment"] = alignment
    keys.update((arch + k if k.startswith(".") else k, v) for k, v in metadata.items())
    if vocab_size is not None:
        keys.update(vocabulary(vocab_size, tokenizer, merges=merges))
    raw, data = header(keys, tensors, version=version, alignment=alignment)
    with path.open("wb") as file:
        file.write(raw)
        if not sparse:
            file.write(bytes(data))
    if sparse:
        os.truncate(path, len(raw) + data)
    return path

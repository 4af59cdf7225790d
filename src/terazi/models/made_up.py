"""A made-up llama model: a file that an engine loads and computes with, of any size and any tensor type.

In: a shape and a type. Out: the file's header and what its tensors are filled with. It says nothing sensible, but a
kernel takes as long over it as over a real model's weights, so a machine can be measured before any model is there.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from terazi.models.ggml_types import TYPE_BY_NAME, row_bytes

_ALIGNMENT: Final = 32
#: Value types of ``enum gguf_type`` in ``ggml/include/gguf.h``.
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
#: One small number in each floating-point type: a sum of products of it neither overflows nor goes subnormal, which
#: would slow a CPU down.
_NUMBERS: Final = {
    "f32": struct.pack("<f", 2.0**-7),
    "f16": struct.pack("<e", 2.0**-7),
    "bf16": struct.pack("<f", 2.0**-7)[2:],
}
#: Bytes of a quantised block: its 16-bit scale is then small and finite whatever place it has in the block. An
#: 8-bit exponent (mxfp4) would be subnormal, and gets one of about 1.
_BLOCK: Final = bytes((7 * n * n + 3 * n + 1) % 16 for n in range(251))
_EXPONENT: Final = b"\x7b"
_PIECE: Final = 1024 * 1024


class MadeUpTensor(NamedTuple):
    """Name, shape in ggml's order, and type of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Payload."""
        rows = 1
        for length in self.shape[1:]:
            rows *= length
        return rows * row_bytes(self.dtype, self.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpModel:
    """The shape of a llama model whose blocks are of one type.

    Args:
        dtype: ggml's name of the type of the blocks' matrices.
        layers, embedding, feed_forward, heads, kv_heads: as in the header.
        vocab: rows of the embedding and of the output.
        vocab_dtype: type of both.
        tokenizer: whether a server can take text: a table of made-up words.
        context: what the header says that it was trained on.
    """

    dtype: str
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocab: int = 32
    vocab_dtype: str = "f16"
    tokenizer: bool = False
    context: int = 8192

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.embedding // self.heads

    def tensors(self) -> tuple[MadeUpTensor, ...]:
        """All tensors, in the file's order (names: ``LLM_TENSOR_NAMES`` in ``src/llama-arch.cpp``)."""
        n, f, kv, d = self.embedding, self.feed_forward, self.kv_heads * self.head, self.dtype
        found = [
            MadeUpTensor("token_embd.weight", (n, self.vocab), self.vocab_dtype),
            MadeUpTensor("output_norm.weight", (n,), "f32"),
            MadeUpTensor("output.weight", (n, self.vocab), self.vocab_dtype),
        ]
        for i in range(self.layers):
            found += [
                MadeUpTensor(f"blk.{i}.attn_norm.weight", (n,), "f32"),
                MadeUpTensor(f"blk.{i}.attn_q.weight", (n, n), d),
                MadeUpTensor(f"blk.{i}.attn_k.weight", (n, kv), d),
                MadeUpTensor(f"blk.{i}.attn_v.weight", (n, kv), d),
                MadeUpTensor(f"blk.{i}.attn_output.weight", (n, n), d),
                MadeUpTensor(f"blk.{i}.ffn_norm.weight", (n,), "f32"),
                MadeUpTensor(f"blk.{i}.ffn_gate.weight", (n, f), d),
                MadeUpTensor(f"blk.{i}.ffn_up.weight", (n, f), d),
                MadeUpTensor(f"blk.{i}.ffn_down.weight", (f, n), d),
            ]
        return tuple(found)

    @property
    def block_bytes(self) -> int:
        """Bytes of the blocks' matrices together."""
        return sum(t.n_bytes for t in self.tensors() if t.name.startswith("blk.") and len(t.shape) > 1)

    @property
    def block_rows(self) -> int:
        """Rows of the blocks' matrices together."""
        return sum(t.shape[1] for t in self.tensors() if t.name.startswith("blk.") and len(t.shape) > 1)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file, but for its header."""
        return sum(_padded(t.n_bytes) for t in self.tensors())


def header(model: MadeUpModel) -> bytes:
    """The file's beginning, up to where the tensors' bytes begin."""
    infos, offset = [], 0
    for t in model.tensors():
        shape = struct.pack(f"<I{len(t.shape)}Q", len(t.shape), *t.shape)
        infos.append(_string(t.name) + shape + struct.pack("<IQ", TYPE_BY_NAME[t.dtype].id, offset))
        offset += _padded(t.n_bytes)
    pairs = [_string(key) + value for key, value in _metadata(model).items()]
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    return raw + bytes(-len(raw) % _ALIGNMENT)


def file_pieces(model: MadeUpModel) -> Iterator[bytes]:
    """The whole file, in pieces of a megabyte at most."""
    yield header(model)
    for t in model.tensors():
        unit = _EXPONENT if t.dtype == "mxfp4" else _NUMBERS.get(t.dtype, _BLOCK)
        piece = unit * (_PIECE // len(unit))
        left = _padded(t.n_bytes)
        while left > 0:
            yield piece[:left]
            left -= len(piece)


def _metadata(model: MadeUpModel) -> Mapping[str, bytes]:
    found = {
        "general.architecture": _text("llama"),
        "llama.context_length": _count(model.context),
        "llama.embedding_length": _count(model.embedding),
        "llama.block_count": _count(model.layers),
        "llama.feed_forward_length": _count(model.feed_forward),
        "llama.attention.head_count": _count(model.heads),
        "llama.attention.head_count_kv": _count(model.kv_heads),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", _FLOAT32, 1e-5),
        "llama.vocab_size": _count(model.vocab),
    }
    if not model.tokenizer:
        return {**found, "tokenizer.ggml.model": _text("no_vocab")}
    words = b"".join(_string(f"t{i} ") for i in range(model.vocab))
    kinds = struct.pack(f"<{model.vocab}i", *[1] * model.vocab)
    return {
        **found,
        "tokenizer.ggml.model": _text("gpt2"),
        "tokenizer.ggml.pre": _text("default"),
        "tokenizer.ggml.tokens": struct.pack("<IIQ", _ARRAY, _STRING, model.vocab) + words,
        "tokenizer.ggml.token_type": struct.pack("<IIQ", _ARRAY, _INT32, model.vocab) + kinds,
        "tokenizer.ggml.merges": struct.pack("<IIQ", _ARRAY, _STRING, 1) + _string("t 0"),
        "tokenizer.ggml.bos_token_id": _count(1),
        "tokenizer.ggml.eos_token_id": _count(2),
    }


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _string(text)


def _count(n: int) -> bytes:
    return struct.pack("<II", _UINT32, n)

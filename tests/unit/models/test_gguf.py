"""The GGUF reader on handmade bytes: every type, every rule of the engine, hostile and truncated headers."""

import struct
import time
from collections.abc import Mapping, Sequence

import pytest

from gguf_writer import (
    ARRAY,
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    TensorRow,
    Typed,
    header,
    string,
)
from terazi.errors import ModelFileError
from terazi.models.gguf import GgufHeader, header_from_bytes, read_header
from terazi.models.gguf_window import CHUNK_BYTES
from terazi.models.spec import ArrayInfo, MetadataValue

KEYS: dict[str, object] = {"general.architecture": "llama", "llama.block_count": 2}
TENSORS: list[TensorRow] = [
    ("token_embd.weight", (64, 10), "q8_0"),
    ("blk.0.attn_norm.weight", (3,), "f32"),
    ("blk.11.ffn_gate_exps.weight", (256, 2, 3), "q4_K"),
    ("blk.x.odd", (1, 1, 1, 2), "f16"),
]


def whole(
    keys: Mapping[str, object], tensors: Sequence[TensorRow] = (), *, version: int = 3, alignment: int = 32
) -> bytes:
    raw, data = header(keys, tensors, version=version, alignment=alignment)
    return raw + bytes(data)


def raw_header(
    pairs: bytes = b"", infos: bytes = b"", *, keys: int = 0, tensors: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + pairs + infos


def pair(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def info(name: str, shape: Sequence[int], kind: int, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def refusal(data: bytes, size: int | None = None) -> ModelFileError:
    start = time.perf_counter()
    with pytest.raises(ModelFileError) as caught:
        header_from_bytes(data, "dir/m.gguf", size)
    assert time.perf_counter() - start < 2
    assert caught.value.message.startswith("dir/m.gguf ")
    assert caught.value.message.count("\n") == 0
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_and_sizes(version: int) -> None:
    read = header_from_bytes(whole(KEYS, TENSORS, version=version))
    assert read.version == version
    assert read.metadata == {"general.architecture": "llama", "llama.block_count": 2}
    assert [(t.name, t.shape, t.dtype, t.n_bytes, t.offset, t.block) for t in read.tensors] == [
        ("token_embd.weight", (64, 10), "q8_0", 680, 0, None),
        ("blk.0.attn_norm.weight", (3,), "f32", 12, 704, 0),
        ("blk.11.ffn_gate_exps.weight", (256, 2, 3), "q4_K", 864, 736, 11),
        ("blk.x.odd", (1, 1, 1, 2), "f16", 4, 1600, None),
    ]
    assert read.data_offset % 32 == 0
    assert read.data_offset + 1632 == read.size_bytes


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (Typed(UINT8, 255), 255),
        (Typed(INT8, -128), -128),
        (Typed(UINT16, 65535), 65535),
        (Typed(INT16, -2), -2),
        (Typed(UINT32, 2**32 - 1), 2**32 - 1),
        (Typed(INT32, -(2**31)), -(2**31)),
        (Typed(FLOAT32, 0.5), 0.5),
        (Typed(BOOL, True), True),
        (Typed(STRING, "gâteau"), "gâteau"),
        (Typed(STRING, b"a\xffb\0"), "a\\xffb\0"),
        (Typed(STRING, ""), ""),
        (Typed(UINT64, 2**64 - 1), 2**64 - 1),
        (Typed(INT64, -(2**63)), -(2**63)),
        (Typed(FLOAT64, 1e300), 1e300),
        (Typed(ARRAY, [1, -2], INT32), (1, -2)),
        (Typed(ARRAY, [True, False], BOOL), (True, False)),
        (Typed(ARRAY, [], FLOAT32), ()),
        (Typed(ARRAY, [7] * 1024, UINT32), (7,) * 1024),
        (Typed(ARRAY, [7] * 1025, UINT32), ArrayInfo(element_type="u32", length=1025)),
        (Typed(ARRAY, ["en", "ünï", ""], STRING), ("en", "ünï", "")),
        (Typed(ARRAY, ["x" * 3000] * 30, STRING), ArrayInfo(element_type="str", length=30)),
        (Typed(ARRAY, ["x"] * 1025, STRING), ArrayInfo(element_type="str", length=1025)),
        (
            Typed(ARRAY, [Typed(ARRAY, [1, 2], INT16), Typed(ARRAY, ["a"], STRING)], ARRAY),
            ArrayInfo(element_type="arr", length=2),
        ),
        (Typed(STRING, "y" * (2**20 + 1)), ArrayInfo(element_type="char", length=2**20 + 1)),
    ],
)
def test_every_metadata_type(typed: Typed, expected: MetadataValue) -> None:
    read = header_from_bytes(whole({"before": 1, "it": typed, "after": "z"}, TENSORS))
    assert read.metadata == {"before": 1, "it": expected, "after": "z"}
    assert type(read.metadata["it"]) is type(expected)
    assert len(read.tensors) == 4


def test_truncation_at_every_byte_is_refused() -> None:
    data = whole(
        {**KEYS, "tags": ["a", "bc"], "n": Typed(ARRAY, [Typed(ARRAY, [1], UINT8)], ARRAY), "f": 1.5}, TENSORS
    )
    last = header_from_bytes(data).tensors[-1]
    end = header_from_bytes(data).data_offset + last.offset + last.n_bytes
    assert end < len(data)
    for cut in range(end):
        error = refusal(data[:cut])
        assert cut < 4 or "cut off" in error.message or "claims" in error.message
    assert header_from_bytes(data[:end]).tensors[-1] == last  # the padding behind the last tensor may be absent


def test_file_that_shrinks_while_it_is_read() -> None:
    data = whole(KEYS, TENSORS)
    assert "became shorter" in refusal(data[:60], size=len(data)).message


@pytest.mark.parametrize("count", [2**60, 2**63, 2**64 - 1, 70_000, 5])
@pytest.mark.parametrize("what", ["keys", "tensors"])
def test_hostile_counts(what: str, count: int) -> None:
    data = raw_header(keys=count) if what == "keys" else raw_header(tensors=count)
    assert f"claims {count:,} {what}" in refusal(data).message
    if count > 2**20:  # the same in a file that would have room for some of them
        assert "claims" in refusal(data + bytes(64), size=2**42).message


@pytest.mark.parametrize("length", [2**62, 2**64 - 1, 2**40, 300_000_000])
@pytest.mark.parametrize("kind", [UINT8, FLOAT64, STRING, ARRAY, 77])
@pytest.mark.parametrize("size", [None, 2**45])
def test_hostile_array_lengths(kind: int, length: int, size: int | None) -> None:
    data = raw_header(pair("k", ARRAY, struct.pack("<IQ", kind, length)) + bytes(999), keys=1)
    refusal(data, size)


@pytest.mark.parametrize("length", [2**62, 2**63, 2**64 - 1, 2**33, 300_000_000, 5000])
def test_hostile_string_lengths(length: int) -> None:
    tail = struct.pack("<Q", length) + bytes(99)
    for data in (
        raw_header(tail, keys=1),
        raw_header(pair("k", STRING, tail), keys=1),
        raw_header(pair("k", ARRAY, struct.pack("<IQ", STRING, 2) + tail), keys=1),
        raw_header(pair("k", ARRAY, struct.pack("<IQ", STRING, 2001) + bytes(16000) + tail), keys=1),
        raw_header(tail, tensors=1),
    ):
        refusal(data)
        if length > 5000:
            refusal(data + bytes(CHUNK_BYTES), size=2**45)


def test_many_strings_and_deep_arrays_stop_early() -> None:
    chunk = bytes(2**20)

    def zeros(head: bytes) -> GgufHeader:
        def fetch(offset: int, length: int) -> bytes:
            return (head[offset : offset + length] + chunk * (length // len(chunk) + 1))[:length]

        return read_header(fetch, 2**40, "m.gguf")

    start = time.perf_counter()
    with pytest.raises(ModelFileError, match="strings in arrays"):
        zeros(raw_header(pair("k", ARRAY, struct.pack("<IQ", STRING, 2**24)), keys=1))
    deep = struct.pack("<IQ", ARRAY, 1) * 100
    with pytest.raises(ModelFileError, match="nests arrays"):
        zeros(raw_header(pair("k", ARRAY, deep), keys=1))
    wide = struct.pack("<IQ", ARRAY, 2**17)
    with pytest.raises(ModelFileError, match="nests arrays"):
        zeros(raw_header(pair("k", ARRAY, wide), keys=1))
    assert time.perf_counter() - start < 2


def test_text_of_all_keys_is_bounded() -> None:
    keys: dict[str, object] = {f"k{i}": "x" * 2**20 for i in range(17)}
    assert "16 MiB of text" in refusal(whole(keys)).message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (raw_header(version=1), "version 1"),
        (raw_header(version=4), "version 4"),
        (raw_header(version=0), "version 0"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (raw_header(pair("", UINT8, b"\1") + bytes(9), keys=1), "key of 0 bytes"),
        (raw_header(pair("a" * 70_000, UINT8, b"\1"), keys=1), "key of 70,000 bytes"),
        (raw_header(pair("a", UINT8, b"\1") * 2, keys=2), "key a twice"),
        (raw_header(pair("a", 13, bytes(9)), keys=1), "unknown type 13"),
        (raw_header(pair("a", ARRAY, struct.pack("<IQ", 99, 1) + bytes(9)), keys=1), "unknown type 99"),
        (whole({"general.alignment": 0}), "general.alignment"),
        (whole({"general.alignment": 48}), "general.alignment"),
        (whole({"general.alignment": Typed(UINT64, 32)}), "general.alignment"),
        (whole({"general.alignment": "32"}), "general.alignment"),
        (raw_header(infos=info("a", (4,), 0) + info("a", (4,), 0, 32), tensors=2) + bytes(99), "tensor a twice"),
        (raw_header(infos=info("a" * 64, (4,), 0), tensors=1) + bytes(99), "tensor name of 64 bytes"),
        (raw_header(infos=info("a", (1, 1, 1, 1, 1), 0), tensors=1) + bytes(99), "5 dimensions"),
        (raw_header(infos=info("a", (2**62, 4), 0), tensors=1) + bytes(99), "impossible shape"),
        (raw_header(infos=info("a", (2**63, 0), 0), tensors=1) + bytes(99), "impossible shape"),
        (raw_header(infos=info("a", (2**62,), 0), tensors=1) + bytes(99), "impossible shape"),
        (raw_header(infos=info("a", (33,), 8), tensors=1) + bytes(99), "whole blocks of 32 (q8_0)"),
        (raw_header(infos=info("a", (32,), 31), tensors=1) + bytes(99), "Q4_0_4_4 (removed"),
        (raw_header(infos=info("a", (32,), 43), tensors=1) + bytes(99), "unknown type 43"),
        (raw_header(infos=info("a", (4,), 0, 32), tensors=1) + bytes(99), "offset 32 instead of 0"),
        (raw_header(infos=info("a", (4,), 0) + info("b", (4,), 0, 16), tensors=2) + bytes(99), "16 instead of 32"),
        (raw_header(infos=info("a", (10**6,), 0), tensors=1) + bytes(99), "tensor a ends beyond"),
    ],
)
def test_rules_of_the_format(data: bytes, words: str) -> None:
    assert words in refusal(data).message


def test_alignment_moves_data_and_offsets() -> None:
    read = header_from_bytes(whole({"general.alignment": 128}, TENSORS, alignment=128))
    assert read.alignment == 128
    assert read.data_offset % 128 == 0
    assert [t.offset for t in read.tensors] == [0, 768, 896, 1792]


def test_no_tensors_and_no_keys() -> None:
    assert header_from_bytes(raw_header()).tensors == ()
    assert header_from_bytes(raw_header()).data_offset == 24


def test_scalar_and_empty_tensors() -> None:
    infos = info("s", (), 0) + info("e", (0, 5), 0, 32) + info("f", (2,), 0, 32)
    read = header_from_bytes(raw_header(infos=infos, tensors=3) + bytes(99))
    assert [(t.shape, t.n_bytes) for t in read.tensors] == [((1,), 4), ((0, 5), 0), ((2,), 8)]


def test_odd_path_bytes_are_shown_as_escapes() -> None:
    with pytest.raises(ModelFileError) as caught:
        header_from_bytes(b"junk", b"d/\xff\xfe.gguf".decode("utf-8", "surrogateescape"))
    assert caught.value.message.startswith("d/\\xff\\xfe.gguf ")


def test_control_characters_of_names_are_shown_as_escapes() -> None:
    infos = info("\x1b[2J", (2**62, 4), 0)
    assert "tensor \\x1b[2J the" in refusal(raw_header(infos=infos, tensors=1) + bytes(99)).message
    keys = {"general.architecture": "a", "\x1b[31m": Typed(ARRAY, [], 99)}
    assert "\\x1b[31m" in refusal(whole(keys)).message


WORDS = [f"w{i}" for i in range(3000)]
NULS = [b"\0", b"\0" * 7, b"a\0\0\0\0\0\0\0\0tokenizer.ggml.x", b"\x10" + b"\0" * 7 + b"tokenizer.ggml.x\4\0\0\0"]


@pytest.mark.parametrize(
    "elements",
    [
        WORDS,
        [""] * 3000,
        ["tokenizer.", *WORDS],
        [*WORDS, "tokenizer.ggml.merges"],
        [*WORDS[:1500], "tokenizer.ggml.merges", "\x04", *WORDS[1500:]],
        [*WORDS, "tokenizer.x", "", ""],
        [*WORDS, "tokenizer.x", *[""] * 9],
        ["y" * 256, *WORDS, "y" * 70_000],
        ["z" * 300] * 2000,
        [w * 100 for w in WORDS],
        NULS * 1000,
        [*WORDS, *NULS],
        [*WORDS, b"\0" * 700_000, "end"],
    ],
    ids=range(13),
)
@pytest.mark.parametrize("next_key", ["tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id", "other.key", None])
def test_long_arrays_of_strings_end_where_they_end(elements: list[str | bytes], next_key: str | None) -> None:
    keys: dict[str, object] = {"general.architecture": "x", "tokenizer.ggml.tokens": Typed(ARRAY, elements, STRING)}
    if next_key is not None:
        keys[next_key] = 5
    read = header_from_bytes(whole(keys, TENSORS))
    assert read.metadata["tokenizer.ggml.tokens"] == ArrayInfo(element_type="str", length=len(elements))
    assert list(read.metadata) == list(keys)
    assert len(read.tensors) == 4


def test_a_long_vocabulary_is_not_read_whole_and_no_weights_are() -> None:
    asked: list[tuple[int, int]] = []
    raw, data = header(
        {
            "tokenizer.ggml.tokens": [f"token{i}" for i in range(150_000)],
            "tokenizer.ggml.scores": Typed(ARRAY, [0.0] * 150_000, FLOAT32),
            "tokenizer.ggml.bos_token_id": 1,
        },
        [("a", (2**30,), "f32")],
    )

    def fetch(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return raw[offset : offset + length]

    read = read_header(fetch, len(raw) + data, "m.gguf")
    assert read.data_offset == len(raw)
    assert max(length for _, length in asked) <= CHUNK_BYTES + 512
    assert sum(length for _, length in asked) < len(raw)
    assert max(offset for offset, _ in asked) < len(raw)

"""Whatever the bytes: a header or one clear error, soon; and skipping an array ends exactly where it ends."""

import struct
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_writer import ARRAY, BOOL, FLOAT32, INT64, STRING, UINT16, Typed, header
from terazi.errors import ModelFileError
from terazi.models.from_gguf import build_spec
from terazi.models.gguf import header_from_bytes
from terazi.models.spec import ArrayInfo

RAW, DATA = header(
    {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 4096,
        "llama.embedding_length": 64,
        "llama.attention.head_count": [4, 8],
        "general.tags": ["a", "bc"],
        "flags": Typed(ARRAY, [True, False, True], BOOL),
        "nested": Typed(ARRAY, [Typed(ARRAY, [1, 2, 3], UINT16), Typed(ARRAY, ["x"], STRING)], ARRAY),
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(1100)],
        "tokenizer.ggml.scores": Typed(ARRAY, [0.5] * 1100, FLOAT32),
        "tokenizer.ggml.merges": ["t 1"] * 1100,
        "tokenizer.ggml.bos_token_id": Typed(INT64, 1),
    },
    [("token_embd.weight", (64, 50), "q8_0"), ("blk.0.ffn_up.weight", (256, 2), "q4_K"), ("blk.1.x", (3,), "f32")],
)
WHOLE = RAW + bytes(DATA)
#: Places where a changed byte matters most: everything but the inside of the long arrays.
VITAL = [i for i in range(len(RAW)) if not (700 < i < len(RAW) - 500)]


def check(data: bytes, size: int) -> None:
    start = time.perf_counter()
    refused: ModelFileError | None = None
    try:
        model = build_spec([header_from_bytes(data, "m.gguf", size)])
    except ModelFileError as error:
        refused = error
    if refused is not None:
        assert "\n" not in refused.message
        assert refused.message.endswith(".")
        assert refused.hint
    else:
        assert len(model.head_count) == len(model.head_count_kv) == model.block_count
        for tensor in model.tensors:
            assert model.files[0].data_offset + tensor.offset + tensor.n_bytes <= size
    assert time.perf_counter() - start < 2


@given(
    flips=st.lists(st.tuples(st.sampled_from(VITAL), st.integers(0, 255)), max_size=6),
    cut=st.none() | st.integers(0, len(WHOLE)),
    claimed=st.sampled_from([0, 1, 2**40]),
)
@settings(max_examples=400)
def test_changed_and_cut_headers(flips: list[tuple[int, int]], cut: int | None, claimed: int) -> None:
    data = bytearray(WHOLE)
    for position, value in flips:
        data[position] = value
    short = bytes(data[:cut])
    check(short, len(short) + claimed)


@given(st.binary(max_size=400), st.integers(0, 5), st.integers(0, 5), st.sampled_from([0, 2**40]))
@settings(max_examples=200)
def test_random_bodies(body: bytes, tensors: int, keys: int, claimed: int) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body
    check(data, len(data) + claimed)


ELEMENTS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([f"w{i}".encode() for i in range(2000)]),
        st.sampled_from([b"", b"tokenizer.", b"tokenizer.ggml.merges", b"\0" * 7 + b"tokenizer.x\4\0\0\0\0\0\0\0"]),
        st.integers(0, 700).map(lambda n: b"q" * n),
    ),
    min_size=1,
    max_size=12,
)


@given(
    pattern=ELEMENTS,
    tail=ELEMENTS,
    repeat=st.integers(90, 400),
    following=st.lists(
        st.sampled_from(["tokenizer.ggml.merges", "tokenizer.x", "other", "general.y"]), unique=True
    ),
)
def test_skipping_ends_where_the_array_ends(
    pattern: list[bytes], tail: list[bytes], repeat: int, following: list[str]
) -> None:
    elements = pattern * repeat + tail
    keys: dict[str, object] = {"tokenizer.ggml.tokens": Typed(ARRAY, elements, STRING)}
    keys.update((key, f"value of {key}") for key in following)
    raw, data = header(keys, [("a", (4,), "f32")])
    read = header_from_bytes(raw + bytes(data))
    value = read.metadata["tokenizer.ggml.tokens"]
    if len(elements) > 1024 or isinstance(value, ArrayInfo):
        assert value == ArrayInfo(element_type="str", length=len(elements))
    else:
        assert value == tuple(e.decode("utf-8", "backslashreplace") for e in elements)
    assert {k: v for k, v in read.metadata.items() if k != "tokenizer.ggml.tokens"} == {
        key: f"value of {key}" for key in following
    }
    assert read.data_offset == len(raw)

"""Safetensors headers, against the library that defines them."""

import json
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from safetensors_writer import entries, head, tiny_rows
from terazi.errors import ModelFileError
from terazi.models.safetensors import FIRST_BYTES, HEADER_LIMIT_BYTES, block_of, header_from_bytes, read_header


def file(header: object, data_bytes: int = 0, *, pad: int = 0) -> bytes:
    return head(header, pad=pad) + bytes(data_bytes)


def one(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object) -> dict[str, object]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


def library(data: bytes) -> dict[str, dict[str, Any]] | None:
    """What the library reads, by tensor; None if it refuses."""
    try:
        return dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]  # the library has no types
    except safetensors.SafetensorError:
        return None


def both_refuse(data: bytes) -> ModelFileError:
    assert library(data) is None
    with pytest.raises(ModelFileError) as caught:
        header_from_bytes(data)
    assert caught.value.hint
    return caught.value


def test_reads_what_the_library_reads() -> None:
    rows, size = entries(
        {**tiny_rows(), "x.weight": ("F8_E4M3", (3, 5)), "empty": ("F32", (0, 7)), "scalar": ("F32", ())}
    )
    data = file({"__metadata__": {"format": "pt"}, **rows}, size, pad=5)
    ours = header_from_bytes(data)
    theirs = library(data)
    assert theirs is not None
    assert {t.name for t in ours.tensors} == set(theirs)
    for tensor in ours.tensors:
        assert tensor.dtype == theirs[tensor.name]["dtype"]
        assert list(tensor.shape) == theirs[tensor.name]["shape"]
        assert tensor.n_bytes == len(theirs[tensor.name]["data"])
    assert ours.metadata == {"format": "pt"}
    assert ours.data_offset + sum(t.n_bytes for t in ours.tensors) == len(data)


REFUSED = {
    "too short": b"\0" * 4,
    "no brace": (2).to_bytes(8, "little") + b"[]",
    "not JSON": file(b'{"a": '),
    "trailing comma": file(b'{"a": {},}'),
    "no UTF-8": file(b'{"\xff": 1}'),
    "a number for an entry": file({"a": 5}),
    "missing offsets": file({"a": {"dtype": "F32", "shape": [0]}}),
    "unknown type": file(one("F128", (1,), (0, 16)), 16),
    "wrong length": file(one(offsets=(0, 4)), 8),
    "negative extent": file(one(shape=(-2,)), 8),
    "fractional extent": file(one(shape=(2.0,)), 8),
    "backwards": file(one(offsets=(8, 0)), 8),
    "a hole at the start": file(one(offsets=(4, 12)), 12),
    "data beyond the file": file(one(), 4),
    "data that belongs to nothing": file(one(), 9),
    "impossible product": file(one(shape=(2**40, 2**40)), 8),
    "half a byte": file(one("F4", (3,), (0, 1)), 1),
    "metadata that is no text": file({"__metadata__": {"a": 1}, **one()}, 8),
    "depth": file(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_refuses_what_the_library_refuses(data: bytes) -> None:
    both_refuse(data)


def test_overlapping_tensors_are_refused() -> None:
    pair = {**one(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}
    assert "offset" in both_refuse(file(pair, 12)).message


def test_a_name_given_twice_is_refused() -> None:
    entry = json.dumps(one()["a"]).encode()
    with pytest.raises(ModelFileError, match="twice"):
        header_from_bytes(file(b'{"a":' + entry + b',"a":' + entry + b"}", 8))


def test_a_lying_length_is_refused_without_reading_on() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return (HEADER_LIMIT_BYTES + 1).to_bytes(8, "little") + b"{" + bytes(100)

    with pytest.raises(ModelFileError, match="claims a header"):
        read_header(fetch, 2**40, "m.safetensors")
    assert asked == [(0, FIRST_BYTES)]


def test_a_long_header_costs_two_requests_and_no_byte_of_the_data() -> None:
    rows, size = entries({f"model.layers.{i}.weight": ("BF16", (1024, 1024)) for i in range(9000)})
    data = head(rows)
    assert len(data) > FIRST_BYTES
    asked: list[tuple[int, int]] = []

    def fetch(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return data[offset : offset + length]

    read = read_header(fetch, len(data) + size, "m.safetensors")
    assert len(read.tensors) == 9000
    assert asked == [(0, FIRST_BYTES), (FIRST_BYTES, len(data) - FIRST_BYTES)]


def test_a_flood_of_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(ModelFileError, match="more than"):
        header_from_bytes(file(b'{"a":[' + b"[]," * 2_000_000 + b"[]]}"))


@pytest.mark.parametrize(
    ("start", "says"),
    [(b"GGUF\x03\0\0\0", "GGUF"), (b"version https://git-lfs.github.com", "LFS"), (b"<!doctype html>", "web page")],
)
def test_foreign_files_are_named(start: bytes, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        header_from_bytes(start + bytes(600))


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.17.mlp.down_proj.weight", 17),
        ("transformer.h.3.attn.c_attn.weight", 3),
        ("model.language_model.layers.2.self_attn.q_proj.weight", 2),
        ("backbone.layers.0.mixer.A_log", 0),
        ("layers.5.attention.wq.weight", 5),
        ("vision_tower.encoder.layers.4.mlp.fc1.weight", None),
        ("visual.blocks.4.attn.qkv.weight", None),
        ("mtp.layers.0.input_layernorm.weight", None),
        ("model.embed_tokens.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_layer_of_a_tensor(name: str, block: int | None) -> None:
    assert block_of(name) == block


@given(st.data())
def test_agrees_with_the_library_on_mutated_files(data: st.DataObject) -> None:
    """Whatever byte is changed: what the library opens, we read; what it refuses, we refuse."""
    rows, size = entries({"a.weight": ("F16", (2, 3)), "b": ("F32", (1,)), "c": ("U8", (4,))})
    mutated = bytearray(file(rows, size))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(mutated) - size - 1))
        mutated[place] = data.draw(st.sampled_from(b'0123456789"{}[],: aF\\\x00\xff'))
    opened = library(bytes(mutated)) is not None
    try:
        header_from_bytes(bytes(mutated))
        refused = ""
    except ModelFileError as error:
        refused = error.message
    # a name that is there twice is the one thing that the library lets pass
    assert opened is not bool(refused) or (opened and "twice" in refused)

"""Files that aren't GGUF are named for what they seem to be."""

import io
import json
import pickle
import struct
import zipfile
import zlib

import pytest

from terazi.errors import ModelFileError
from terazi.models.foreign import describe_foreign
from terazi.models.gguf import header_from_bytes


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", "x")
    return buffer.getvalue()


def _safetensors() -> bytes:
    head = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(4)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b"GG", "first four bytes"),
        (_zip(), "zip"),
        (_safetensors(), "safetensors"),
        (pickle.dumps({"a": 1}, protocol=2), "pickle"),
        (zlib.compress(b"x" * 99, wbits=31), "gzip"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\n  <html lang=en>", "web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', "web page"),
        (b"\x7fELF\2\1\1" + bytes(99), "ELF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS"),
        (b'{"error": "Invalid username or password."}', "JSON"),
        (b"tjgg\3\0\0\0", "GGJT"),
        (bytes(4096), "zeros"),
        (b"Entry not found", "plain text"),
        (b"\x93\x01\x02\x03\xff", "93 01 02 03"),
    ],
)
def test_what_it_looks_like(data: bytes, word: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        header_from_bytes(data, "m.gguf")
    assert "m.gguf is not a GGUF file: it " in caught.value.message
    assert word in caught.value.message
    assert caught.value.hint == describe_foreign(data).hint

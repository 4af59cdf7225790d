"""Says what a file that isn't GGUF seems to be, from its first bytes."""

from typing import Final, NamedTuple


class Foreign(NamedTuple):
    """``looks_like`` completes "is not a GGUF file: …"; ``hint`` says what to do."""

    looks_like: str
    hint: str


_GET_GGUF: Final = "Get this model as a .gguf file, or convert it with llama.cpp's convert_hf_to_gguf.py."
_UNPACK: Final = "Unpack it first; the .gguf file inside is what is needed."
_AGAIN: Final = "Download it again; the link may need a login or lead to a page about the file."
_RECONVERT: Final = "Download a current .gguf file of this model; llama.cpp no longer loads this format."

_SIGNATURES: Final = (
    (b"version https://git-lfs", "it is a Git LFS pointer, a few lines of text that stand for the file",
     "Run `git lfs pull` in that repository, or download the file itself."),
    (b"PK\x03\x04", "it looks like a zip archive (a PyTorch checkpoint is one)", _GET_GGUF),
    (b"\x80\x02", "it looks like a Python pickle (an old PyTorch checkpoint)", _GET_GGUF),
    (b"\x89HDF\r\n", "it looks like an HDF5 file (Keras weights)", _GET_GGUF),
    (b"\x1f\x8b", "it looks like a gzip archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "it looks like a zstd archive", _UNPACK),
    (b"\xfd7zXZ\x00", "it looks like an xz archive", _UNPACK),
    (b"BZh", "it looks like a bzip2 archive", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "it looks like a 7-Zip archive", _UNPACK),
    (b"Rar!", "it looks like a RAR archive", _UNPACK),
    (b"\x7fELF", "it looks like a program (ELF)", "Give the model's .gguf file."),
    (b"MZ", "it looks like a Windows program", "Give the model's .gguf file."),
    (b"\xcf\xfa\xed\xfe", "it looks like a program (Mach-O)", "Give the model's .gguf file."),
    (b"#!", "it looks like a script", "Give the model's .gguf file."),
    (b"\x89PNG", "it looks like a picture (PNG)", "Give the model's .gguf file."),
    (b"%PDF", "it looks like a PDF", "Give the model's .gguf file."),
    (b"lmgg", "it is a GGML file of 2022/23", _RECONVERT),
    (b"fmgg", "it is a GGMF file of 2023", _RECONVERT),
    (b"tjgg", "it is a GGJT file of 2023", _RECONVERT),
    (b"algg", "it is an old GGLA adapter", _RECONVERT),
)  # fmt: skip


def describe_foreign(head: bytes) -> Foreign:
    """What a file whose first bytes (a few hundred are enough) are *head* looks like."""
    if not head:
        return Foreign("it is empty", "Download or copy it again.")
    if len(head) < 4 and b"GGUF".startswith(head):
        return Foreign("it ends inside the first four bytes", "Download or copy it again.")
    for signature, looks_like, hint in _SIGNATURES:
        if head.startswith(signature):
            return Foreign(looks_like, hint)
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**30:
        return Foreign("it looks like a safetensors file", _GET_GGUF)
    if not head.strip(b"\0"):
        return Foreign(
            "it begins with zeros, like a file that was reserved but not filled", "Let the download finish."
        )
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<error")):
        return Foreign("it looks like a web page or an error answer", _AGAIN)
    if start.startswith((b"{", b"[")):
        return Foreign("it looks like JSON text", _AGAIN)
    if head.isascii() and all(b >= 32 or b in b"\t\r\n\f" for b in head):
        return Foreign("it looks like plain text", _AGAIN)
    return Foreign(f"it begins with the bytes {head[:4].hex(' ')}", _GET_GGUF)

"""Bytes, seconds and watts inside; GiB and ms only when a person reads them.

In: numbers and size texts. Out: numbers and texts. No I/O, no imports from other rooms.
"""

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
TIB: Final = 1024**4

_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
#: Compiled when first used (``re`` keeps it): many commands read no size.
_SIZE: Final = r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*"


def parse_size_bytes(text: str, *, binary: bool = False) -> int:
    """Read ``64GiB``, ``12 GB``, ``512M`` or ``1048576`` as bytes.

    ``GiB`` is 1024³ and ``GB`` is 1000³, unless *binary* says that this field sells 1024³ as "GB"
    (memory modules and graphics cards do).

    Raises:
        ValueError: if *text* is not a size.
    """
    match = re.fullmatch(_SIZE, text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"not a size: {text!r}")
    number, prefix, i, _ = match.groups()
    scale = (_BINARY if i or binary else _DECIMAL)[prefix.lower()]
    return round(float(number) * scale)


def pad(n: int, multiple: int) -> int:
    """The smallest multiple of *multiple* that is not below *n*."""
    return -(-n // multiple) * multiple


def format_bytes(n: float) -> str:
    """``1536`` → ``1.50 KiB``; always binary, two decimals at most, sign kept."""
    size, suffix = float(n), "B"
    for step in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < KIB:
            break
        size, suffix = size / KIB, step
    return f"{size:.0f} {suffix}" if suffix == "B" else f"{size:.2f} {suffix}"


def format_seconds(seconds: float) -> str:
    """``0.0123`` → ``12.3 ms``; from a second on in seconds."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"

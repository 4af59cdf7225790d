"""Bytes, seconds and watts inside; GiB and ms only when a person reads them.

In: numbers. Out: numbers and texts. No I/O, no imports from other rooms.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
TIB: Final = 1024**4


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


def format_figure(value: float) -> str:
    """Three digits that count, and no powers of ten: ``178600`` → ``179,000``, ``0.5049`` → ``0.505``."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.3g}"

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
    return f"{format_figure(seconds * 1000)} ms" if seconds < 1 else f"{format_figure(seconds)} s"


def format_figure(value: float) -> str:
    """*value* to three significant digits, large ones written out: ``0.0211``, ``5.4``, ``127,000``."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):,.0f}"

"""What stands between the program's texts and the terminal: missing streams, narrow encodings, hostile characters.

A model file or an engine may bring any text: names with escape sequences, file names that are no text at all. What
is shown to a person passes through ``harmless``; what a stream's encoding lacks is written in plain letters.
"""

import codecs
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

_HANDLER: Final = "terazi-plain"
#: The page's own signs for an encoding that lacks them; the legend goes through here too, so it stays true.
_PLAIN: Final = {
    "█": "W", "▓": "K", "▒": "S", "░": "c", "·": ".", "…": "...", "–": "-", "→": "->", "×": "x",
    "“": '"', "”": '"', "’": "'", "≤": "<=", "≥": ">=",
}  # fmt: skip
#: C0 but newline and tab, DEL, and C1, as they can be typed in a shell's $'…'.
_CONTROLS: Final = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}


def prepare_streams() -> None:
    """Make stdout and stderr usable whatever the shell gave: closed ones lead nowhere, narrow ones don't raise."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # else a socket or a pipe of ours gets this number, and a stray print goes into it
    os.close(fd)
    codecs.register_error(_HANDLER, _in_plain_letters)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - it stays open
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_HANDLER)


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in missing), error.end


def harmless(text: str) -> str:
    """*text* with its control characters spelled out, except newlines and tabs."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """``harmless``, and no new line either: for names inside a line."""
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def tell(lines: Iterable[str]) -> None:
    """Lines for people, on stderr. That nobody reads them any more is no reason to stop what is being done."""
    with suppress(OSError, ValueError):
        print(*map(harmless, lines), sep="\n", file=sys.stderr, flush=True)

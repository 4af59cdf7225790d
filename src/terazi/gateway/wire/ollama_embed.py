"""Texts that are too long to be embedded: Ollama cuts them unless it is told not to; the engine refuses them."""

import re
from collections.abc import Sequence
from typing import Final

from terazi.gateway.wire.errors import Fault

#: What llama-server says (b11434, ``server-context.cpp:update_slots``); the last figure is what fits.
_SAID: Final = (
    re.compile(r"too large to process.*current batch size: (\d+)"),
    re.compile(r"larger than the max context size \((\d+) tokens\)"),
    re.compile(r"exceeds the available context size \((\d+) tokens\)"),
)


def limit_of(fault: Fault) -> int | None:
    """Tokens that one text may have, if *fault* says that one had too many."""
    for pattern in _SAID:
        found = pattern.search(fault.message)
        if found:
            return int(found[1])
    return None


def texts_of(given: str | list[str]) -> list[str]:
    """One text or several, as several."""
    return [given] if isinstance(given, str) else given


def cut_texts(texts: Sequence[str], tokens: Sequence[Sequence[int]], limit: int) -> list[str | list[int]]:
    """*texts*, those of more than *limit* tokens as their first *limit* token ids.

    One fewer is kept: a context that can be split must have room for a token after the text.
    """
    return [
        text if len(ids) < limit else list(ids[: max(1, limit - 1)])
        for text, ids in zip(texts, tokens, strict=True)
    ]

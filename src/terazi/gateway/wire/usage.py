"""How many tokens an answer took, read once out of its two ends when it is over.

llama-server (b11434, ``server-task.cpp``) writes ``usage`` into whole answers, after ``choices`` but before an
embedding's ``data``, and into the last event of a stream whose client asked for it; ``timings`` come in the last
event of every stream, asked for or not. So the client's stream is never touched for the sake of counting.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer; None is not known.

    Args:
        prompt_tokens: of the prompt, those that a cache held too.
        output_tokens: that were generated.
        cached_tokens: of the prompt, that a cache held.
        prefill_s, decode_s: how long the engine worked on each.
        finish: ``stop``, ``length`` or ``tool_calls``.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    finish: str | None = None


def read_usage(head: bytes, tail: bytes) -> Usage:
    """What the first and last bytes of an answer say. Whatever they hold, this raises nothing."""
    usage, timings = _last(tail, b'"usage":'), _last(tail, b'"timings":')
    if not usage:
        usage = _last(head, b'"usage":')
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    evaluated, reused = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
    prompt = _first(_count(usage.get("prompt_tokens")), _count(usage.get("input_tokens")))
    if prompt is None and evaluated is not None:
        prompt = evaluated + (reused or 0)
    output = _first(_count(usage.get("completion_tokens")), _count(usage.get("output_tokens")))
    return Usage(
        prompt_tokens=prompt,
        output_tokens=_first(output, _count(timings.get("predicted_n"))),
        cached_tokens=_first(cached, reused),
        prefill_s=_seconds(timings.get("prompt_ms")),
        decode_s=_seconds(timings.get("predicted_ms")),
        finish=_finish(tail),
    )


def _last(data: bytes, key: bytes) -> Mapping[str, object]:
    """The last object under *key* in *data* that is whole.

    A model may write such a key into its text, but there its quotes are escaped.
    """
    end = len(data)
    while (found := data.rfind(key, 0, end)) >= 0:
        text = data[found + len(key) :].decode("utf-8", "replace").lstrip()
        if text.startswith("{"):
            try:
                value, _ = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                return value
        end = found
    return {}


def _finish(tail: bytes) -> str | None:
    end = len(tail)
    while (found := tail.rfind(b'"finish_reason":', 0, end)) >= 0:
        said = tail[found + 16 : found + 48].lstrip()
        if said.startswith(b'"'):
            return said[1:].partition(b'"')[0].decode("utf-8", "replace")
        end = found
    return None


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(ms: object) -> float | None:
    return ms / 1000 if isinstance(ms, int | float) and not isinstance(ms, bool) and ms >= 0 else None

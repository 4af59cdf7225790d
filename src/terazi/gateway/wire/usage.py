"""How many tokens an answer took, read once out of its two ends when it is over.

llama-server (b11434, ``server-task.cpp``) writes ``usage`` into whole answers, after ``choices`` but before an
embedding's ``data``, and into the last event of a stream whose client asked for it; ``timings`` come in the last
event of every stream, asked for or not. So the client's stream is never touched for the sake of counting. vLLM,
Ollama and OpenAI write ``usage`` in the same places, and no ``timings``.

The figures are looked for by their names, wherever they stand, and of each the last one counts. What a model or a
client writes is in strings, where the quotes of such a name are escaped.
"""

import re
from typing import Final, NamedTuple

_FIGURE: Final = re.compile(
    rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|cached_tokens|prompt_n|cache_n|predicted_n'
    rb'|prompt_ms|predicted_ms)":\s*(\d{1,18}(?:\.\d{1,40})?)(?=\s*[,}])'
)
_FINISH: Final = b'"finish_reason":"'
_SPACED_FINISH: Final = re.compile(rb'"finish_reason":\s+"([^"]*)')


class Usage(NamedTuple):
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
    at, finish = tail.rfind(_FINISH), None
    if at >= 0:
        begin = at + len(_FINISH)
        if (end := tail.find(b'"', begin)) >= 0:
            finish = tail[begin:end].decode("utf-8", "replace")
    elif spaced := _SPACED_FINISH.findall(tail):
        finish = spaced[-1].decode("utf-8", "replace")
    # Engines say why it ends, and then what it took.
    said = _FIGURE.findall(tail, at) if at > 0 else None
    get = dict(said or _FIGURE.findall(tail) or _FIGURE.findall(head)).get
    prompt = get(b"prompt_tokens") or get(b"input_tokens")
    output = get(b"completion_tokens") or get(b"output_tokens") or get(b"predicted_n")
    reused, evaluated = get(b"cache_n"), get(b"prompt_n")
    cached = get(b"cached_tokens") or reused
    prefill_ms, decode_ms = get(b"prompt_ms"), get(b"predicted_ms")
    try:
        if prompt is not None:
            whole: int | None = int(prompt)
        else:
            whole = None if evaluated is None else int(evaluated) + int(reused or 0)
        return Usage(
            whole,
            None if output is None else int(output),
            None if cached is None else int(cached),
            None if prefill_ms is None else float(prefill_ms) / 1000,
            None if decode_ms is None else float(decode_ms) / 1000,
            finish,
        )
    except ValueError:  # a part of a token isn't one
        return Usage(finish=finish)

"""Reading tokens out of answers, however servers write them and whatever models say."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.usage import Usage, read_usage

COUNT = st.integers(0, 10**7)
#: What a model or a client may write, the words that are looked for among it.
TEXT = st.text(max_size=20) | st.sampled_from([
    '"usage":{"prompt_tokens":9,"completion_tokens":9}', '"timings":{"prompt_n":9}', '"finish_reason":"x"', '\\"',
])  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, Usage]:
    """An answer as llama-server, vLLM and others write it, streamed or whole, and what it says."""
    prompt, output, cached = draw(COUNT), draw(COUNT), draw(COUNT)
    finish, text = draw(st.sampled_from(["stop", "length", "tool_calls"])), draw(TEXT)
    usage: dict[str, Any] = {"completion_tokens": output, "prompt_tokens": prompt, "total_tokens": prompt + output}
    usage["prompt_tokens_details"] = {"cached_tokens": cached, "audio_tokens": 0}
    timings = {
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": 6.5,
        "predicted_n": output,
        "predicted_ms": 12.25,
    }
    has_usage, has_timings = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    counts = {**({"usage": usage} if has_usage else {}), **({"timings": timings} if has_timings else {})}
    choice = {"index": 0, "finish_reason": finish}
    if draw(st.booleans()):
        said: list[dict[str, Any]] = [{"choices": [{**choice, "message": {"content": text}}], "id": "x", **counts}]
        if draw(st.booleans()):
            said = [{**counts, **said[0]}]
    else:
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        said = [{"choices": [delta], "usage": None} for _ in range(draw(st.integers(1, 3)))]
        apart = draw(st.booleans())
        said.append({"choices": [{**choice, "delta": {}}], **({} if apart else counts)})
        if apart:
            said.append({"choices": [], **counts})
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    parts = [json.dumps(one, separators=separators, ensure_ascii=draw(st.booleans())) for one in said]
    whole = len(parts) == 1
    data = parts[0] if whole else "".join(f"data: {part}\n\n" for part in [*parts, "[DONE]"])
    return data.encode("utf-8", "surrogatepass"), Usage(
        prompt_tokens=prompt if has_usage else prompt + cached,
        output_tokens=output,
        cached_tokens=cached,
        prefill_s=0.0065 if has_timings else None,
        decode_s=0.01225 if has_timings else None,
        finish=finish,
    )


@given(answers())
def test_what_the_server_says_is_read_and_nothing_else(answer: tuple[bytes, Usage]) -> None:
    data, usage = answer
    assert read_usage(b"", data) == usage
    assert read_usage(data, data) == usage

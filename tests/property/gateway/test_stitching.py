"""Cut an answer anywhere, stitch it, cut it again: the client's text is the engine's, whole and once."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.stitch import DivergedError, Stitcher, ending, seam
from terazi.gateway.wire.transcript import Transcript
from terazi.policy.resume import CHAT, TEXT

NATIVE = "/completion"
NAMES = st.sampled_from(
    ["choices", "delta", "content", "text", "usage", "timings", "finish_reason", "stop", "tokens"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
PIECES = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=12)


def event(body: object) -> bytes:
    """One event, as engines write it."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def stream(
    path: str, pieces: list[str], *, reasoning: int = 0, prompt: int = 7, id_: str = "one", echo: str = "length"
) -> list[bytes]:
    """An engine's events for *pieces*, of which the first few are reasoning."""
    base = {"id": id_, "created": len(id_), "model": id_}
    n = len(pieces)
    usage = {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n}
    timings = {"cache_n": 3, "prompt_n": prompt - 3, "predicted_n": n, "predicted_ms": 10.0 * n}
    if path == CHAT:
        names = ["reasoning_content" if i < reasoning else "content" for i in range(n)]
        deltas = [{"role": "assistant", "content": None}, *({k: p} for k, p in zip(names, pieces, strict=True))]
        out = [event({"choices": [{"index": 0, "delta": d, "finish_reason": None}], **base}) for d in deltas]
        out.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": echo}], **base}))
        return [*out, event({"choices": [], **base, "usage": usage, "timings": timings}), b"data: [DONE]\n\n"]
    if path == TEXT:
        out = [event({"choices": [{"index": 0, "text": p, "finish_reason": None}], **base}) for p in pieces]
        last = {"choices": [{"index": 0, "text": "", "finish_reason": echo}], **base, "usage": usage}
        return [*out, event(last), b"data: [DONE]\n\n"]
    more = {"stop": False, "tokens_evaluated": prompt}
    out = [event({"content": p, "tokens": [i], "tokens_predicted": i + 1, **more}) for i, p in enumerate(pieces)]
    end = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": n}
    return [
        *out,
        event({**end, "tokens_evaluated": prompt, "timings": timings}),
    ]


def read(path: str, data: bytes) -> Transcript:
    """What a client makes of it."""
    script = Transcript(path)
    script.feed(data)
    return script


def bodies(data: bytes) -> list[dict[str, Any]]:
    """Its JSON events."""
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]


@given(path=st.sampled_from([CHAT, TEXT, NATIVE]), pieces=PIECES, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_continued_text_is_whole_and_once(path: str, pieces: list[str], cuts: list[int]) -> None:
    sent, done, resumed = b"", 0, 0
    for cut in cuts:
        part = stream(path, pieces[done:], prompt=7 + done, id_=f"engine{cut}{done}")
        keep = min(cut, len(pieces) - done)
        head = b"".join(part[: keep + (1 if path == CHAT and keep else 0)])
        sent += pass_on(path, sent, head, spent=done, resumed=resumed)
        if keep:
            resumed += bool(done)
            done += keep
    rest = b"".join(stream(path, pieces[done:], prompt=7 + done, id_="last"))
    sent += pass_on(path, sent, rest, spent=done, resumed=resumed + 1)
    script = read(path, sent)
    assert script.content == "".join(pieces)
    assert script.ended
    said = bodies(sent)
    assert len({(b.get("id"), b.get("created"), b.get("model")) for b in said}) == 1
    if path == CHAT:
        assert sum("role" in c["delta"] for b in said for c in b["choices"]) == 1
        timings = said[-1]["timings"]
        assert timings["predicted_n"] == len(pieces)
        assert timings["prompt_n"] + timings["cache_n"] >= 7
    if path == NATIVE:
        assert (said[-1]["tokens_predicted"], said[-1]["tokens_evaluated"]) == (len(pieces), 7)
    else:
        usage = next(b["usage"] for b in said if b.get("usage"))
        assert usage == {"prompt_tokens": 7, "completion_tokens": len(pieces), "total_tokens": 7 + len(pieces)}


def pass_on(path: str, before: bytes, data: bytes, *, spent: int, resumed: int) -> bytes:
    """What a relay writes for *data* of another engine after *before* was sent."""
    script = read(path, before)
    if not script.begun:
        return data
    out = Stitcher(script, spent=spent, resumed=resumed).feed(data)
    return seam(script) + out if out and spent else out


@given(
    path=st.sampled_from([CHAT, TEXT, NATIVE]),
    pieces=PIECES,
    cut=st.integers(1, 12),
    other=PIECES,
    reasoning=st.integers(0, 4),
)
def test_a_replay_gives_the_rest_or_says_that_it_differs(
    path: str, pieces: list[str], cut: int, other: list[str], reasoning: int
) -> None:
    whole = stream(path, pieces, reasoning=reasoning if path == CHAT else 0)
    cut = min(cut, len(pieces))
    sent = b"".join(whole[: cut + (path == CHAT)])
    script = read(path, sent)
    # the same text, cut into other pieces
    rest = Stitcher(script, replay=True).feed(b"".join(stream(path, pieces, reasoning=reasoning, id_="two")))
    both = read(path, sent + rest)
    assert (both.content, both.reasoning) == (
        read(path, b"".join(whole)).content,
        read(path, b"".join(whole)).reasoning,
    )
    assert both.ended
    # another text: either it begins with what was sent, or that is said
    try:
        rest = Stitcher(script, replay=True).feed(b"".join(stream(path, other, id_="two")))
    except DivergedError:
        assert script.reasoning or not "".join(other).startswith(script.content)
    else:
        assert not script.reasoning
        assert read(path, sent + rest).content == "".join(other)


@given(path=st.sampled_from([CHAT, TEXT, NATIVE]), pieces=PIECES, missing=st.integers(0, 3))
def test_an_end_is_completed(path: str, pieces: list[str], missing: int) -> None:
    whole = stream(path, pieces)
    ends = {CHAT: 3, TEXT: 2, NATIVE: 1}[path]
    sent = b"".join(whole[: len(whole) - min(missing, ends)])
    last = ending(read(path, sent), reason="length", resumed=0)
    script = read(path, sent + last)
    assert script.ended
    assert script.finish_reason in {"length", "limit"}
    assert script.content == "".join(pieces)
    assert (sent + last).count(b"[DONE]") == (path != NATIVE)
    assert last == b"" or missing


@given(st.binary(max_size=200), st.lists(st.integers(1, 200), max_size=5))
def test_any_bytes_are_read_without_harm(data: bytes, cuts: list[int]) -> None:
    script, begin = Transcript(CHAT), 0
    for cut in [*sorted(cuts), len(data)]:
        script.feed(data[begin:cut])
        begin = max(begin, cut)
    Stitcher(script).feed(b"data: " + data.replace(b"\n", b"") + b"\n\n")


@given(body=JSON, path=st.sampled_from([CHAT, TEXT, NATIVE]), replay=st.booleans())
def test_any_json_is_passed_on_or_used(body: object, path: str, replay: bool) -> None:
    script = read(path, stream(path, ["a"])[0] + stream(path, ["a"])[1])
    try:
        Stitcher(script, replay=replay).feed(event(body))
    except DivergedError:
        assert replay
    read(path, event(body))

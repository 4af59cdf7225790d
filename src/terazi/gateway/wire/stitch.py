"""Makes the events of a second engine continue those of a first: one answer, as if there had been one engine.

The same id, time and model; one event with the role; usage summed up. What a client may like to know stands in a
comment at the seam and in the field ``terazi`` of the last events, which clients that don't know it ignore.
"""

import json
from typing import Any, Final

from terazi.gateway.wire.sse import EventReader
from terazi.gateway.wire.transcript import REASONING, Transcript
from terazi.policy.resume import CHAT, TEXT

DONE: Final = b"data: [DONE]\n\n"


class DivergedError(Exception):
    """A replay came out differently from what was sent."""


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def seam(script: Transcript) -> bytes:
    """The comment at the place where one engine's text ends and another's begins."""
    return f": resumed after {len(script.content) + len(script.reasoning)} characters\n\n".encode()


class Stitcher:
    """Takes whole events of the new engine, gives those for the client.

    Args:
        script: what the client has been sent until now. It isn't changed.
        spent: tokens of it that the new engine took as prompt.
        resumed: how often the answer was resumed, this time included.
        replay: the new engine starts at the beginning; what equals *script* is kept back.
    """

    def __init__(self, script: Transcript, *, spent: int = 0, resumed: int = 1, replay: bool = False) -> None:
        self._script = script
        self._spent = 0 if replay else spent
        self._mark = {"resumed": resumed, "characters": len(script.content) + len(script.reasoning)}
        self._events = EventReader()
        self._due = {"reasoning": script.reasoning, "content": script.content} if replay else {}

    def feed(self, data: bytes) -> bytes:
        """What the client gets for *data*, which holds whole events.

        Raises:
            DivergedError: of a replay; nothing of it may be used then.
        """
        out = []
        for raw in self._events.feed(data):
            if raw == b"[DONE]":
                if any(self._due.values()):
                    raise DivergedError
                out.append(DONE)
                continue
            try:
                body = json.loads(raw)
                wanted = self._keep(body)
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
                out.append(b"data: " + raw + b"\n\n")  # whatever it is, it isn't text of the answer
                continue
            if wanted:
                out.append(event(body))
        return b"".join(out)

    def _keep(self, body: dict[str, Any]) -> bool:
        body |= self._script.opening
        if self._script.path == CHAT:
            wanted = self._chat(body)
        elif self._script.path == TEXT:
            ends = any(choice.get("finish_reason") for choice in body.get("choices", ()))
            wanted = all(self._text(choice, "text", ends=ends) for choice in body.get("choices", ()))
        else:
            wanted = self._native(body)
        if isinstance(usage := body.get("usage"), dict):
            body["usage"] = self._summed(usage)
            body["terazi"] = self._mark
        if isinstance(timings := body.get("timings"), dict):
            body["timings"] = self._stretched(timings)
        return wanted

    def _chat(self, body: dict[str, Any]) -> bool:
        if not body.get("choices"):
            return True
        wanted = False
        for choice in body["choices"]:
            delta = choice.get("delta") or {}
            ends = bool(choice.get("finish_reason"))
            if "role" in delta and self._script.role_sent:
                del delta["role"]
            for name in REASONING:
                if delta.get(name):
                    self._take(delta, name, "reasoning")
            if delta.get("content"):
                if self._due.get("reasoning"):
                    raise DivergedError
                self._take(delta, "content", "content")
            if any(self._due.values()) and (ends or delta.get("tool_calls")):
                raise DivergedError
            if self._script.role_sent:
                delta = {name: value for name, value in delta.items() if value is not None and value != ""}
                choice["delta"] = delta
            if ends:
                body["terazi"] = self._mark
            wanted = wanted or ends or bool(delta)
        return wanted

    def _text(self, choice: dict[str, Any], name: str, *, ends: bool) -> bool:
        had = bool(choice.get(name))
        if had:
            self._take(choice, name, "content")
        if ends and self._due.get("content"):
            raise DivergedError
        return ends or bool(choice.get(name)) or not (had or self._due.get("content"))

    def _native(self, body: dict[str, Any]) -> bool:
        ends = body.get("stop") is True
        wanted = self._text(body, "content", ends=ends)
        if isinstance(body.get("tokens_predicted"), int):
            body["tokens_predicted"] += self._spent
        if isinstance(body.get("tokens_evaluated"), int):
            body["tokens_evaluated"] = max(body["tokens_evaluated"] - self._spent, 0)
        if ends:
            body["terazi"] = self._mark
            if isinstance(body.get("prompt"), str) and self._spent:
                body["prompt"] = body["prompt"].removesuffix(self._script.content)
        return wanted

    def _take(self, holder: dict[str, Any], name: str, channel: str) -> None:
        """Of a replay: keep back the part of the text that was sent already."""
        due = self._due.get(channel)
        if not due:
            return
        text = holder[name]
        if not (due.startswith(text) or text.startswith(due)):
            raise DivergedError
        self._due[channel] = due[len(text) :]
        holder[name] = text[len(due) :]
        holder.pop("tokens", None)

    def _summed(self, usage: dict[str, Any]) -> dict[str, Any]:
        """What was written before the seam was prompt to the new engine; it is completion to the client."""
        prompt, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(written, int):
            return usage
        spent = min(self._spent, prompt)
        return {**usage, "prompt_tokens": prompt - spent, "completion_tokens": written + spent}

    def _stretched(self, timings: dict[str, Any]) -> dict[str, Any]:
        """llama-server's timings for the whole answer, the first part at the second's pace."""
        written, took_ms = timings.get("predicted_n"), timings.get("predicted_ms")
        cached, read = timings.get("cache_n"), timings.get("prompt_n")
        if not (isinstance(written, int) and isinstance(took_ms, int | float) and isinstance(read, int)):
            return timings
        all_ms = took_ms * (written + self._spent) / written if written else took_ms
        more = self._spent - min(self._spent, read)
        kept = {"cache_n": max(cached - more, 0)} if isinstance(cached, int) else {}
        return {**timings, **kept, "prompt_n": max(read - self._spent, 0), "predicted_n": written + self._spent,
                "predicted_ms": all_ms}  # fmt: skip


def ending(script: Transcript, *, reason: str, resumed: int) -> bytes:
    """The end of an answer whose text was all sent: what is missing of its last events.

    An event with the usage isn't made up: nobody has counted the prompt.

    Args:
        reason: why it ended, if the client wasn't told yet.
    """
    out = []
    if script.finish_reason is None:
        mark = {"resumed": resumed, "characters": len(script.content) + len(script.reasoning)}
        choice: dict[str, Any] = {"finish_reason": reason, "index": 0}
        if script.path == CHAT:
            last: dict[str, Any] = {"choices": [{**choice, "delta": {}}]}
        elif script.path == TEXT:
            last = {"choices": [{**choice, "text": "", "logprobs": None}]}
        else:
            kind = "limit" if reason == "length" else "eos"
            last = {"index": 0, "content": "", "tokens": [], "stop": True, "stop_type": kind}
        out.append(event({**last, **script.opening, "terazi": mark}))
    if script.path in {CHAT, TEXT} and not script.ended:
        out.append(DONE)
    return b"".join(out)

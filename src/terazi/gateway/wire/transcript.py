"""What a client has been told of a streamed answer, read back from the events that were sent to it."""

import json
from typing import Any

from terazi.gateway.wire.sse import EventReader
from terazi.policy.resume import CHAT, TEXT, Told

#: The names under which engines stream reasoning: llama.cpp and DeepSeek, and vLLM of late.
REASONING = ("reasoning_content", "reasoning")


class Transcript:
    """Feed it what was sent, whole events; it is read only when an engine broke, or when much has come together.

    Of an answer in several choices only the first is followed: those can't be continued anyway.

    Attributes:
        path: the engine's path, which says what the events look like.
        opening: the fields that all events of the answer share, as in its first event.
        role_sent: the event with the role was.
        content, reasoning: the text so far; ``reasoning_name`` is the field that it came under.
        pieces: events with text; about as many tokens. ``length``: characters of text.
        ids: the tokens of ``content``, if the engine says them and they are all there; else None.
        finish_reason, usage: of the end, if they were sent.
        ended: nothing is missing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.opening: dict[str, Any] = {}
        self.role_sent = False
        self.reasoning_name = REASONING[0]
        self.pieces = self.length = 0
        self.tool_calls = False
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.ended = False
        self.unreadable = False
        self.begun = False
        self._events = EventReader()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._ids: list[int] = []
        self._ids_flushed = 0
        self._ids_complete = path not in {CHAT, TEXT}

    @property
    def content(self) -> str:
        """The text that was sent."""
        return _joined(self._content)

    @property
    def reasoning(self) -> str:
        """The reasoning that was sent."""
        return _joined(self._reasoning)

    @property
    def ids(self) -> list[int] | None:
        """The tokens of the text."""
        return self._ids[: self._ids_flushed] if self._ids_complete and self._ids else None

    def told(self, *, lost_track: bool = False) -> Told:
        """What of it matters for what to do next."""
        return Told(
            begun=self.begun,
            content=any(self._content),
            reasoning=any(self._reasoning),
            tool_calls=self.tool_calls,
            finished=self.finish_reason is not None,
            lost_track=lost_track or self.unreadable,
        )

    def feed(self, sent: bytes) -> None:
        """More of what was sent."""
        for data in self._events.feed(sent):
            if data == b"[DONE]":
                self.ended = True
                continue
            try:
                event = json.loads(data)
                self._read(event)
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
                self.unreadable = True

    def _read(self, event: dict[str, Any]) -> None:
        self.begun = True
        if not self.opening:
            names = ("id", "created", "model", "object", "system_fingerprint")
            self.opening = {name: event[name] for name in names if name in event}
        if event.get("usage"):
            self.usage = event["usage"]
        if self.path == CHAT:
            self._read_chat(event)
        elif self.path == TEXT:
            for choice in event.get("choices", ())[:1]:
                self._add(self._content, choice.get("text"))
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
        else:
            self._read_native(event)

    def _read_chat(self, event: dict[str, Any]) -> None:
        for choice in event.get("choices", ())[:1]:
            delta = choice.get("delta") or {}
            self.role_sent = self.role_sent or "role" in delta
            self._add(self._content, delta.get("content"))
            for name in REASONING:
                if delta.get(name):
                    self.reasoning_name = name
                    self._add(self._reasoning, delta[name])
                    break
            self.tool_calls = self.tool_calls or bool(delta.get("tool_calls") or delta.get("function_call"))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _read_native(self, event: dict[str, Any]) -> None:
        self._add(self._content, event.get("content"))
        self._ids += event.get("tokens") or ()
        if event.get("content"):
            # an engine that holds text back (half of a stop string) lets all of it go with the next that it sends
            self._ids_flushed = len(self._ids)
        if event.get("stop") is True:
            self.finish_reason = str(event.get("stop_type") or "stop")
            self.ended = True
        elif event.get("tokens_predicted") != len(self._ids):
            self._ids_complete = False  # tokens of half a character have no event of their own

    def _add(self, to: list[str], text: str | None) -> None:
        if text:
            to.append(text)
            self.pieces += 1
            self.length += len(text)


def _joined(parts: list[str]) -> str:
    if len(parts) > 1:
        parts[:] = ["".join(parts)]
    return parts[0] if parts else ""

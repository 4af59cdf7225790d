"""Builds a chat for the engine out of another API's pieces, so that chat templates take it.

Many templates want one system message, at the beginning, and users and assistants in turn. Clients of other APIs
send instructions wherever they like and several messages of one role in a row.
"""

from collections.abc import Sequence
from typing import Final

Part = dict[str, object]
Content = str | list[Part]

_JOINED: Final = {"system", "user", "assistant"}


class Turns:
    """Messages in OpenAI's shape, under construction. Neighbours of one role become one message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []

    def say(
        self, role: str, content: Content, *, thinking: str = "", calls: Sequence[dict[str, object]] = ()
    ) -> None:
        """The next message. A system message that comes late is said by the user."""
        if role == "system" and any(message["role"] != "system" for message in self.messages):
            role = "user"
        entry: dict[str, object] = {"role": role, "content": content}
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != role or role not in _JOINED:
            self.messages.append(entry)
            last = entry
        else:
            last["content"] = _joined(last["content"], content, glue="" if role == "assistant" else "\n")
        if thinking:
            last["reasoning_content"] = str(last.get("reasoning_content", "")) + thinking
        if calls:
            known = last.get("tool_calls")
            last["tool_calls"] = [*(known if isinstance(known, list) else []), *calls]

    def answer(self, call_id: str, content: Content) -> None:
        """What came of a tool call."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})


def text_part(text: str) -> Part:
    """A text as a content part."""
    return {"type": "text", "text": text}


def image_part(url: str) -> Part:
    """An image as a content part."""
    return {"type": "image_url", "image_url": {"url": url}}


def plain(parts: list[Part], *, glue: str = "\n") -> Content:
    """One text if *parts* hold nothing else: every engine and every template takes that."""
    if all(part["type"] == "text" for part in parts):
        return glue.join(str(part["text"]) for part in parts)
    return parts


def function_call(call_id: str, name: str, arguments: str) -> dict[str, object]:
    """A tool call as an assistant's message has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _joined(before: object, after: Content, *, glue: str) -> Content:
    if isinstance(before, str) and isinstance(after, str):
        return before + (glue if before and after else "") + after
    both: list[Part] = []
    for content in (before, after):
        both += content if isinstance(content, list) else [text_part(str(content))] if content else []
    return both

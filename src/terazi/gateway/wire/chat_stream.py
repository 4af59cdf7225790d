"""Reads an engine's answer, event by event or whole: what each adds, and what all of it came to.

Whoever translates an answer into another API reads it here, so that the engines' habits are known in one place:
tool calls in fragments, several of them with one index (ollama#15457), token counts in a last event, in each event,
or in none; chats, texts of ``/v1/completions``, and llama-server's own shape, as ``/infill`` answers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from terazi.gateway.wire.errors import WireError, engine_cut, engine_fault

#: The end of an OpenAI stream.
DONE: Final = b"[DONE]"


@dataclass(slots=True, kw_only=True)
class CallPiece:
    """What one event adds to a tool call. ``number`` counts the answer's calls from 0, in their order."""

    number: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class Piece:
    """What one event adds to an answer."""

    text: str = ""
    thinking: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one answer. ``cached`` ones are part of ``prompt``."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


class ChatReader:
    """Feed each event's data; ``finish``, ``counts``, ``usage`` and ``timings`` are true of what was read so far.

    Counts are the engine's own (``usage``, else llama-server's ``timings`` or ``prompt_progress``); only an answer
    that is broken off before any of them came has its output counted by events, of which each is a token or more.
    """

    def __init__(self) -> None:
        self.finish: str | None = None
        self.counts = TokenCounts()
        #: As the engine said them last; empty until then.
        self.usage: Mapping[str, object] = {}
        self.timings: Mapping[str, object] = {}
        self._events = 0
        self._calls: list[CallPiece] = []
        self._numbers: dict[object, int] = {}

    def read(self, data: bytes) -> Piece:
        """What *data*, one event's, adds.

        Raises:
            WireError: the engine reported an error, or wrote what isn't JSON.
        """
        if data == DONE:
            return Piece()
        event = load(data)
        if event.get("error"):
            raise WireError(engine_fault(502, data))
        choices = event.get("choices")
        if not isinstance(choices, list):  # llama-server's own shape
            if event.get("stop") is True:
                self.finish = "length" if event.get("stop_type") == "limit" else "stop"
            piece = Piece(text=text_of(event.get("content")))
            self._count(event, written=bool(piece.text))
            return piece
        choice = mapping(choices[0]) if choices else {}
        said = mapping(choice.get("delta")) or mapping(choice.get("message")) or {"content": choice.get("text")}
        self.finish = text_of(choice.get("finish_reason")) or self.finish
        piece = Piece(
            text=text_of(said.get("content")),
            thinking=text_of(said.get("reasoning_content")) or text_of(said.get("reasoning")),
            calls=[self._call(mapping(fragment)) for fragment in listed(said.get("tool_calls"))],
            logprobs=listed(mapping(choice.get("logprobs")).get("content")),
        )
        self._count(event, written=bool(piece.text or piece.thinking or piece.calls))
        return piece

    def check_end(self) -> None:
        """Whether the engine said why it stopped.

        Raises:
            WireError: it didn't, so the answer was cut.
        """
        if self.finish is None:
            raise WireError(engine_cut())

    def _call(self, fragment: Mapping[str, object]) -> CallPiece:
        function, given = mapping(fragment.get("function")), text_of(fragment.get("id"))
        index = fragment.get("index", 0)
        if not isinstance(index, int | str):
            index = 0
        number = self._numbers.get(index)
        # a new id is a new call, whatever its index says
        if number is None or (given and self._calls[number].id not in {"", given}):
            number = self._numbers[index] = len(self._calls)
            self._calls.append(CallPiece(number=number))
        known = self._calls[number]
        known.id = known.id or given
        return CallPiece(
            number=number,
            id=known.id,
            name=text_of(function.get("name")),
            arguments=text_of(function.get("arguments")),
        )

    def _count(self, event: Mapping[str, object], *, written: bool) -> None:
        self._events += written
        counts, usage, timings = self.counts, mapping(event.get("usage")), mapping(event.get("timings"))
        progress = mapping(event.get("prompt_progress"))
        self.usage, self.timings = usage or self.usage, timings or self.timings
        if usage:
            counts.prompt = number_of(usage.get("prompt_tokens")) or counts.prompt
            counts.cached = number_of(mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
            counts.output = number_of(usage.get("completion_tokens"))
        elif timings:
            counts.cached = number_of(timings.get("cache_n"))
            counts.prompt = counts.cached + number_of(timings.get("prompt_n"))
            counts.output = number_of(timings.get("predicted_n"))
        elif progress:
            counts.cached, counts.prompt = number_of(progress.get("cache")), number_of(progress.get("total"))
        elif written:
            counts.output = max(counts.output, self._events)


def load(data: bytes) -> Mapping[str, object]:
    """*data* as a JSON object.

    Raises:
        WireError: it isn't one.
    """
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise WireError(engine_cut(f"the engine wrote something that is not JSON: {data[:80]!r}")) from problem
    if not isinstance(loaded, dict):
        raise WireError(engine_cut("the engine wrote something that is not an object"))
    return loaded


def mapping(value: object) -> Mapping[str, object]:
    """*value* if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[object]:
    """*value* if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: object) -> str:
    """*value* if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number_of(value: object) -> int:
    """*value* if it is a whole number, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

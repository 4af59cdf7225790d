"""The engine's answers turned into Anthropic's: named events of a stream, or the message that they add up to."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from terazi.gateway.backend import ModelCard
from terazi.gateway.wire.chat_stream import CallPiece, ChatReader, TokenCounts
from terazi.gateway.wire.errors import Fault, WireError
from terazi.gateway.wire.stops import StopMatcher

Event = dict[str, object]

#: It may come at any time and says that somebody is there.
PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
_STOP_REASONS: Final = {"stop": "end_turn", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessageTranslator:
    """Reads the engine's chat stream, event by event, and says Anthropic's.

    Args:
        message_id: of the answer.
        model: the name that the client used; it is given back.
        stops: the client's stop sequences. When ``stopped`` is true, the engine need not go on.
        max_tokens: what the client asked for, to tell its limit from the context's.
    """

    def __init__(
        self, *, message_id: str, model: str, stops: Sequence[str] = (), max_tokens: int | None = None
    ) -> None:
        self._id = message_id
        self._model = model
        self._max_tokens = max_tokens
        self._reader = ChatReader()
        self._stops = StopMatcher(stops)
        self._begun = False
        self._blocks = -1  # index of the block that is open or was last
        self._open: str | None = None
        self._call = -1  # number of the call that is open

    @property
    def stopped(self) -> bool:
        """One of the client's stop sequences was found."""
        return self._stops.matched is not None

    @property
    def counts(self) -> TokenCounts:
        """Tokens so far."""
        return self._reader.counts

    def feed(self, data: bytes) -> list[Event]:
        """Anthropic's events for one of the engine's.

        Raises:
            WireError: the engine reported an error, or wrote what makes no sense.
        """
        if self.stopped:
            return []
        piece = self._reader.read(data)
        events = self._begin()
        if piece.thinking:
            events += self._add("thinking", {"type": "thinking_delta", "thinking": piece.thinking})
        if piece.text and (text := self._stops.feed(piece.text)):
            events += self._add("text", {"type": "text_delta", "text": text})
        if not self.stopped:
            for call in piece.calls:
                events += self._add_call(call)
        return events

    def end(self) -> list[Event]:
        """The last events.

        Raises:
            WireError: the stream ended before the engine said why it stopped.
        """
        if not self.stopped:
            self._reader.check_end()
        events = self._begin()
        if not self.stopped:
            events += self._release()
        events += self._close()
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stops.matched}
        events.append({"type": "message_delta", "delta": delta, "usage": self._usage()})
        events.append({"type": "message_stop"})
        return events

    def _begin(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        message: Event = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _add(self, kind: str, delta: Event) -> list[Event]:
        events: list[Event] = []
        if self._open != kind:
            if kind != "text":
                events += self._release()
            events += self._close()
            empty = {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""}
            events.append(self._start({"type": kind, **empty}))
        return [*events, {"type": "content_block_delta", "index": self._blocks, "delta": delta}]

    def _add_call(self, call: CallPiece) -> list[Event]:
        events: list[Event] = []
        if call.number != self._call or self._open != "tool_use":
            if call.number <= self._call:
                message = "the engine went on with a tool call after it had begun another block"
                raise WireError(Fault(status=502, message=message, kind="engine_error"))
            events += self._release()
            events += self._close()
            self._call = call.number
            given = call.id or f"toolu_{self._id.removeprefix('msg_')}_{call.number}"
            events.append(self._start({"type": "tool_use", "id": given, "name": call.name, "input": {}}))
        if call.arguments:
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            events.append({"type": "content_block_delta", "index": self._blocks, "delta": delta})
        return events

    def _release(self) -> list[Event]:
        """Text that was held back for a stop sequence that didn't come."""
        text = self._stops.flush()
        return self._add("text", {"type": "text_delta", "text": text}) if text else []

    def _start(self, block: Event) -> Event:
        self._blocks += 1
        self._open = str(block["type"])
        return {"type": "content_block_start", "index": self._blocks, "content_block": block}

    def _close(self) -> list[Event]:
        kind, self._open = self._open, None
        if kind is None:
            return []
        events: list[Event] = []
        if kind == "thinking":  # clients wait for a signature; there is nobody here to sign
            delta = {"type": "signature_delta", "signature": ""}
            events.append({"type": "content_block_delta", "index": self._blocks, "delta": delta})
        return [*events, {"type": "content_block_stop", "index": self._blocks}]

    def _stop_reason(self) -> str:
        if self.stopped:
            return "stop_sequence"
        finish = self._reader.finish or "stop"
        if finish == "length":
            limited = self._max_tokens is not None and self.counts.output >= self._max_tokens
            return "max_tokens" if limited else "model_context_window_exceeded"
        if finish == "stop" and self._call >= 0:
            return "tool_use"
        return _STOP_REASONS.get(finish, "end_turn")

    def _usage(self) -> Event:
        counts = self.counts
        return {
            "input_tokens": counts.prompt - counts.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": counts.cached,
            "output_tokens": counts.output,
        }


def encode(events: Sequence[Event]) -> bytes:
    """Events as they are sent: each with its name."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (str(e["type"]).encode(), _dump(e)) for e in events)


def message_of(events: Sequence[Event]) -> Event:
    """The message that *events*, all of one answer, add up to.

    Raises:
        WireError: a tool's arguments aren't a JSON object.
    """
    message: Event = {}
    content: list[dict[str, object]] = []
    arguments: dict[int, str] = {}
    for event in events:
        kind, index = event["type"], event.get("index")
        if kind == "message_start":
            message = dict(_object(event["message"]))
        elif kind == "content_block_start":
            content.append(dict(_object(event["content_block"])))
        elif kind == "content_block_delta" and isinstance(index, int):
            delta = _object(event["delta"])
            if delta["type"] == "input_json_delta":
                arguments[index] = arguments.get(index, "") + str(delta["partial_json"])
            else:
                name = str(delta["type"]).removesuffix("_delta")
                content[index][name] = str(content[index][name]) + str(delta[name])
        elif kind == "message_delta":
            message |= dict(_object(event["delta"]))
            message["usage"] = event["usage"]
    if message.get("stop_reason") == "tool_use":  # else a limit cut them off, and they are of no use
        for index, text in arguments.items():
            content[index]["input"] = _arguments(text, str(content[index]["name"]))
    return {**message, "content": content}


def model_entry(card: ModelCard) -> Event:
    """One model as Anthropic's list has it."""
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": card.modified,
        "max_input_tokens": card.context_length,
        "max_tokens": card.context_length,
    }


def model_list(cards: Sequence[ModelCard]) -> Event:
    """The answer of ``GET /v1/models`` to Anthropic's clients: one page has them all."""
    ids = [card.id for card in cards]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"data": [model_entry(card) for card in cards], "has_more": False, "first_id": first, "last_id": last}


def _arguments(text: str, name: str) -> dict[str, object]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        message = f"the model's call of '{name}' has arguments that are not a JSON object"
        raise WireError(Fault(status=502, message=message, kind="engine_error"))
    return arguments


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _dump(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()

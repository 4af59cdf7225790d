"""The engine's answers turned into OpenAI's responses: the named events of a stream, and the response itself."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from terazi.gateway.wire.chat_stream import CallPiece, ChatReader, TokenCounts
from terazi.gateway.wire.errors import Fault, WireError
from terazi.gateway.wire.responses_request import custom_input

Event = dict[str, object]
_CODES: Final = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


@dataclass(slots=True, kw_only=True)
class _Open:
    """The output item under construction."""

    kind: str  # message, reasoning, function_call or custom_tool_call
    id: str
    text: str = ""
    name: str = ""
    call_id: str = ""
    number: int = -1


class ResponseTranslator:
    """Reads the engine's chat stream, event by event, and says that of ``/v1/responses``.

    Args:
        key: what the ids of the response and of its items are made of.
        created_s: Unix seconds.
        echo: the request's own settings that a response gives back, ``model`` among them.
        custom: names of tools whose input is any text.
    """

    #: No client of this API can ask for stop sequences.
    stopped = False

    def __init__(
        self, *, key: str, created_s: int, echo: Mapping[str, object], custom: frozenset[str] = frozenset()
    ) -> None:
        self._key = key
        self._created_s = created_s
        self._echo = echo
        self._custom = custom
        self._reader = ChatReader()
        self._sequence = -1
        self._open: _Open | None = None
        self._output: list[dict[str, object]] = []
        self._logprobs: list[object] = []
        self._thoughts = 0
        self._call = -1
        self._status = "in_progress"
        self._error: dict[str, object] | None = None

    @property
    def id(self) -> str:
        """The response's."""
        return f"resp_{self._key}"

    @property
    def counts(self) -> TokenCounts:
        """Tokens so far."""
        return self._reader.counts

    @property
    def output(self) -> Sequence[Mapping[str, object]]:
        """The items that are complete."""
        return self._output

    def feed(self, data: bytes) -> list[Event]:
        """The events for one of the engine's.

        Raises:
            WireError: the engine reported an error, or wrote what makes no sense.
        """
        piece = self._reader.read(data)
        events = self._begin()
        if piece.thinking:
            self._thoughts += 1
            events += self._add_text("reasoning", piece.thinking)
        if piece.text:
            events += self._add_text("message", piece.text, piece.logprobs)
        for call in piece.calls:
            events += self._add_call(call)
        return events

    def end(self) -> list[Event]:
        """The last events.

        Raises:
            WireError: the stream ended before the engine said why it stopped.
        """
        self._reader.check_end()
        cut = self._reader.finish == "length"
        events = self._begin() + self._close("incomplete" if cut else "completed")
        self._status = "incomplete" if cut else "completed"
        return [*events, self._event(f"response.{self._status}", response=self.response())]

    def fail(self, fault: Fault) -> list[Event]:
        """The end of a stream that broke off."""
        self._open = None
        self._status = "failed"
        self._error = {"code": _CODES.get(fault.status, "server_error"), "message": fault.message}
        return [*self._begin(), self._event("response.failed", response=self.response())]

    def response(self) -> dict[str, object]:
        """The response as it is now."""
        cut = self._status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_s,
            "status": self._status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            **self._echo,
            "output": list(self._output),
            "usage": None if self._status == "in_progress" else self._usage(),
        }

    def _usage(self) -> dict[str, object]:
        counts = self.counts
        return {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
            "output_tokens": counts.output,
            # engines don't count them apart; each event of reasoning is a token or more
            "output_tokens_details": {"reasoning_tokens": min(self._thoughts, counts.output)},
            "total_tokens": counts.prompt + counts.output,
        }

    def _begin(self) -> list[Event]:
        if self._sequence >= 0:
            return []
        events = []
        for name in ("response.created", "response.in_progress"):
            status, self._status = self._status, "in_progress"
            events.append(self._event(name, response=self.response() | {"output": [], "error": None}))
            self._status = status
        return events

    def _add_text(self, kind: str, text: str, logprobs: Sequence[object] = ()) -> list[Event]:
        events: list[Event] = []
        item = self._open
        if item is None or item.kind != kind:
            events += self._close()
            item = self._open = _Open(kind=kind, id=self._item_id("rs" if kind == "reasoning" else "msg"))
            events.append(self._item_event("added", self._item(item, "in_progress", empty=True)))
            events.append(
                self._in_item("response.content_part.added", item, part=self._part(item), content_index=0)
            )
        item.text += text
        self._logprobs += logprobs
        if kind == "reasoning":
            events.append(self._in_item("response.reasoning_text.delta", item, delta=text, content_index=0))
        else:
            more = {"delta": text, "logprobs": list(logprobs), "content_index": 0}
            events.append(self._in_item("response.output_text.delta", item, **more))
        return events

    def _add_call(self, call: CallPiece) -> list[Event]:
        events: list[Event] = []
        item = self._open
        if item is None or item.number != call.number:
            if call.number <= self._call:
                message = "the engine went on with a tool call after it had begun another item"
                raise WireError(Fault(status=502, message=message, kind="engine_error"))
            events += self._close()
            self._call = call.number
            custom = call.name in self._custom
            item = self._open = _Open(
                kind="custom_tool_call" if custom else "function_call",
                id=self._item_id("ctc" if custom else "fc"),
                name=call.name,
                call_id=call.id or f"call_{self._key}_{call.number}",
                number=call.number,
            )
            events.append(self._item_event("added", self._item(item, "in_progress", empty=True)))
        item.text += call.arguments
        if call.arguments and item.kind == "function_call":  # a custom tool's input is known at its end
            events.append(self._in_item("response.function_call_arguments.delta", item, delta=call.arguments))
        return events

    def _close(self, status: str = "completed") -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        events: list[Event] = []
        if item.kind == "function_call":
            said = {"arguments": item.text, "name": item.name}
            events.append(self._in_item("response.function_call_arguments.done", item, **said))
        elif item.kind == "custom_tool_call":
            given = custom_input(item.text)
            events.append(self._in_item("response.custom_tool_call_input.delta", item, delta=given))
            events.append(self._in_item("response.custom_tool_call_input.done", item, input=given))
        else:
            kind = "reasoning_text" if item.kind == "reasoning" else "output_text"
            more: dict[str, object] = {} if item.kind == "reasoning" else {"logprobs": list(self._logprobs)}
            events.append(self._in_item(f"response.{kind}.done", item, text=item.text, content_index=0, **more))
            events.append(self._in_item("response.content_part.done", item, part=self._part(item), content_index=0))
        done = self._item(item, status)
        events.append(self._item_event("done", done))
        self._output.append(done)
        self._logprobs = []
        return events

    def _item(self, item: _Open, status: str, *, empty: bool = False) -> dict[str, object]:
        shaped: dict[str, object] = {"id": item.id, "type": item.kind, "status": status}
        if item.kind == "function_call":
            return shaped | {"call_id": item.call_id, "name": item.name, "arguments": "" if empty else item.text}
        if item.kind == "custom_tool_call":
            given = "" if empty else custom_input(item.text)
            return shaped | {"call_id": item.call_id, "name": item.name, "input": given}
        content = [] if empty else [self._part(item)]
        if item.kind == "reasoning":
            return shaped | {"summary": [], "content": content}
        return shaped | {"role": "assistant", "content": content}

    def _part(self, item: _Open) -> dict[str, object]:
        if item.kind == "reasoning":
            return {"type": "reasoning_text", "text": item.text}
        return {"type": "output_text", "annotations": [], "logprobs": list(self._logprobs), "text": item.text}

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._key}_{len(self._output)}"

    def _item_event(self, what: str, item: dict[str, object]) -> Event:
        return self._event(f"response.output_item.{what}", output_index=len(self._output), item=item)

    def _in_item(self, kind: str, item: _Open, /, **more: object) -> Event:
        return self._event(kind, item_id=item.id, output_index=len(self._output), **more)

    def _event(self, kind: str, /, **more: object) -> Event:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **more}


def encode(events: Sequence[Event]) -> bytes:
    """Events as they are sent: each with its name."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (str(e["type"]).encode(), json.dumps(e, separators=(",", ":")).encode())
        for e in events
    )


def echo(raw: Mapping[str, object], *, model: str, stored: bool) -> dict[str, object]:
    """What a response gives back of its request, with the defaults of what wasn't said.

    Args:
        raw: the request as the client wrote it.
        model: the name that the client used.
    """
    defaults: dict[str, object] = {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "user": None,
    }
    said = {name: raw[name] for name in defaults if raw.get(name) is not None}
    return {"model": model, "store": stored, **defaults, **said}

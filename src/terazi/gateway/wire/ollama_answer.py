"""The engine's answers, turned into Ollama's objects: one at once, or NDJSON lines of a stream."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from terazi.gateway.wire.errors import Fault, WireError, engine_cut, engine_fault
from terazi.gateway.wire.ollama_request import Shape

_NS_PER_MS: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class Piece:
    """What one event of the engine adds to an answer."""

    text: str = ""
    thinking: str = ""
    logprobs: list[object] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    """A tool call under construction: the engine sends its arguments in fragments."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class Translator:
    """Reads an engine's answer, event by event or whole, and writes Ollama's objects.

    Args:
        shape: chat or generate.
        model: the name that the client used; it is given back.
    """

    def __init__(self, *, shape: Shape, model: str) -> None:
        self._shape = shape
        self._model = model
        self._calls: list[_Call] = []
        self._numbers: dict[int, int] = {}  # the engine's index of a call: where it is in the list
        self._usage: Mapping[str, object] = {}
        self._timings: Mapping[str, object] = {}
        self._finish: str | None = None

    def feed(self, data: bytes, *, created_at: str) -> bytes:
        """NDJSON for one event's data (often one line, sometimes none).

        Raises:
            WireError: the engine reported an error, or wrote what isn't JSON.
        """
        if data == b"[DONE]":
            return b""
        piece = self._read(_load(data))
        if not (piece.text or piece.thinking or piece.logprobs):
            return b""
        return _line(self._object(piece, created_at))

    def waiting(self, *, created_at: str) -> bytes:
        """A line that adds nothing: NDJSON knows no comments, and every client takes an empty piece."""
        return _line(self._object(Piece(), created_at))

    def end(self, *, created_at: str, total_ns: int, first_ns: int) -> bytes:
        """The last lines of a stream: the tool calls if there are any, then ``done``.

        Args:
            first_ns: from the request's arrival until the answer began.

        Raises:
            WireError: the stream ended before the engine said why it stopped.
        """
        if self._finish is None:
            raise WireError(engine_cut())
        lines = b""
        if self._calls:
            lines = _line(self._object(Piece(), created_at, calls=self._tool_calls()))
        return lines + _line(self._object(Piece(), created_at) | self._done(total_ns, first_ns))

    def whole(self, body: bytes, *, created_at: str, total_ns: int) -> dict[str, object]:
        """The one object of an answer that isn't streamed.

        Raises:
            WireError: the engine's answer isn't one.
        """
        piece = self._read(_load(body))
        calls = self._tool_calls() if self._calls else None
        work = sum(_duration_ns(self._timings.get(part)) or 0 for part in ("prompt_ms", "predicted_ms"))
        return self._object(piece, created_at, calls=calls) | self._done(total_ns, total_ns, work_ns=work)

    def loaded(self, *, created_at: str, reason: str = "load") -> dict[str, object]:
        """The answer to an empty request, which only asks for the model to be there, or gone (``unload``)."""
        return self._object(Piece(), created_at) | {"done": True, "done_reason": reason}

    def _read(self, event: Mapping[str, object]) -> Piece:
        if event.get("error"):
            raise WireError(engine_fault(502, json.dumps(event).encode()))
        self._usage = _mapping(event.get("usage")) or self._usage
        self._timings = _mapping(event.get("timings")) or self._timings
        choices = event.get("choices")
        if not isinstance(choices, list):  # llama-server's own shape, as /infill answers
            if event.get("stop") is True:
                self._finish = "length" if event.get("stop_type") == "limit" else "stop"
            return Piece(text=_text(event.get("content")))
        if not choices:
            return Piece()
        choice = _mapping(choices[0])
        said = _mapping(choice.get("delta")) or _mapping(choice.get("message")) or {"content": choice.get("text")}
        self._finish = _text(choice.get("finish_reason")) or self._finish
        for fragment in _list(said.get("tool_calls")):
            self._add_call(_mapping(fragment))
        return Piece(
            text=_text(said.get("content")),
            thinking=_text(said.get("reasoning_content")),
            logprobs=_list(_mapping(choice.get("logprobs")).get("content")),
        )

    def _add_call(self, fragment: Mapping[str, object]) -> None:
        index, given = fragment.get("index", 0), _text(fragment.get("id"))
        number = self._numbers.get(index) if isinstance(index, int) else None
        # a new id is a new call, whatever its index says: some engines give every call the same one (ollama#15457)
        if number is None or (given and self._calls[number].id not in {"", given}):
            number = len(self._calls)
            self._calls.append(_Call())
            if isinstance(index, int):
                self._numbers[index] = number
        call, function = self._calls[number], _mapping(fragment.get("function"))
        call.id = call.id or given
        call.name += _text(function.get("name"))
        call.arguments += _text(function.get("arguments"))

    def _tool_calls(self) -> list[dict[str, object]]:
        shaped: list[dict[str, object]] = []
        for index, call in enumerate(self._calls):
            try:
                arguments = json.loads(call.arguments or "{}")
            except (ValueError, RecursionError):
                arguments = None
            if not isinstance(arguments, dict):
                message = f"the model's call of '{call.name}' has arguments that are not a JSON object"
                raise WireError(Fault(status=502, message=message, kind="engine_error"))
            function = {"index": index, "name": call.name, "arguments": arguments}
            shaped.append({"id": call.id, "function": function})
        return shaped

    def _object(
        self, piece: Piece, created_at: str, *, calls: list[dict[str, object]] | None = None
    ) -> dict[str, object]:
        shaped: dict[str, object] = {"model": self._model, "created_at": created_at}
        thinking = {"thinking": piece.thinking} if piece.thinking else {}
        if self._shape is Shape.CHAT:
            message: dict[str, object] = {"role": "assistant", "content": piece.text, **thinking}
            if calls:
                message["tool_calls"] = calls
            shaped["message"] = message
        else:
            shaped |= {"response": piece.text, **thinking}
        if piece.logprobs:
            shaped["logprobs"] = piece.logprobs
        shaped["done"] = False
        return shaped

    def _done(self, total_ns: int, first_ns: int, *, work_ns: int | None = None) -> dict[str, object]:
        """The figures of the last object. What the engine didn't work was waiting, for the model or in a queue."""
        cached, evaluated = self._timings.get("cache_n"), self._timings.get("prompt_n")
        prompt = evaluated + cached if isinstance(evaluated, int) and isinstance(cached, int) else evaluated
        counts = {
            "prompt_eval_count": self._usage.get("prompt_tokens", prompt),
            "prompt_eval_duration": _duration_ns(self._timings.get("prompt_ms")),
            "eval_count": self._usage.get("completion_tokens", self._timings.get("predicted_n")),
            "eval_duration": _duration_ns(self._timings.get("predicted_ms")),
        }
        busy = (_duration_ns(self._timings.get("prompt_ms")) or 0) if work_ns is None else work_ns
        return {
            "done": True,
            "done_reason": "length" if self._finish == "length" else "stop",
            "total_duration": total_ns,
            "load_duration": max(0, first_ns - busy),
            **{key: value for key, value in counts.items() if value is not None},
        }


def embeddings(body: bytes) -> list[list[float]]:
    """The vectors of an embeddings answer, in the order of the inputs.

    Raises:
        WireError: the engine's answer isn't one.
    """
    vectors: dict[int, list[float]] = {}
    for row in map(_mapping, _list(_load(body).get("data"))):
        index, vector = row.get("index"), row.get("embedding")
        if not isinstance(index, int) or not isinstance(vector, list):
            raise WireError(engine_cut("the engine's answer holds something that is not an embedding"))
        vectors[index] = vector
    return [vectors[index] for index in sorted(vectors)]


def shortened(vector: list[float], dimensions: int | None) -> list[float]:
    """The first *dimensions* of it, of length 1 again: what Ollama does with models that were trained for it."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    kept = vector[:dimensions]
    length = math.sqrt(sum(x * x for x in kept))
    return [x / length for x in kept] if length else kept


def embed_answer(
    vectors: list[list[float]], body: bytes, *, model: str, total_ns: int, load_ns: int
) -> dict[str, object]:
    """The answer of ``/api/embed``."""
    shaped: dict[str, object] = {
        "model": model,
        "embeddings": vectors,
        "total_duration": total_ns,
        "load_duration": load_ns,
    }
    count = _mapping(_load(body).get("usage")).get("prompt_tokens") if body else 0
    return shaped | ({"prompt_eval_count": count} if isinstance(count, int) else {})


def _line(shaped: dict[str, object]) -> bytes:
    return json.dumps(shaped, separators=(",", ":")).encode() + b"\n"


def _load(data: bytes) -> Mapping[str, object]:
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise WireError(engine_cut(f"the engine wrote something that is not JSON: {data[:80]!r}")) from problem
    if not isinstance(loaded, dict):
        raise WireError(engine_cut("the engine wrote something that is not an object"))
    return loaded


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _duration_ns(ms: object) -> int | None:
    return round(ms * _NS_PER_MS) if isinstance(ms, int | float) else None

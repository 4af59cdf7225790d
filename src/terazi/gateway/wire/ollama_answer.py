"""The engine's answers, turned into Ollama's objects: one at once, or NDJSON lines of a stream."""

import json
import math
from typing import Final

from terazi.gateway.wire.chat_stream import CallPiece, ChatReader, Piece, listed, load, mapping
from terazi.gateway.wire.errors import Fault, WireError, engine_cut
from terazi.gateway.wire.ollama_request import Shape

_NS_PER_MS: Final = 1_000_000


class Translator:
    """Reads an engine's answer, event by event or whole, and writes Ollama's objects.

    Args:
        shape: chat or generate.
        model: the name that the client used; it is given back.
    """

    def __init__(self, *, shape: Shape, model: str) -> None:
        self._shape = shape
        self._model = model
        self._reader = ChatReader()
        self._calls: list[CallPiece] = []

    def feed(self, data: bytes, *, created_at: str) -> bytes:
        """NDJSON for one event's data (often one line, sometimes none).

        Raises:
            WireError: the engine reported an error, or wrote what isn't JSON.
        """
        piece = self._read(data)
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
        self._reader.check_end()
        lines = b""
        if self._calls:
            lines = _line(self._object(Piece(), created_at, calls=self._tool_calls()))
        return lines + _line(self._object(Piece(), created_at) | self._done(total_ns, first_ns))

    def whole(self, body: bytes, *, created_at: str, total_ns: int) -> dict[str, object]:
        """The one object of an answer that isn't streamed.

        Raises:
            WireError: the engine's answer isn't one.
        """
        piece = self._read(body)
        calls = self._tool_calls() if self._calls else None
        work = sum(_duration_ns(self._reader.timings.get(part)) or 0 for part in ("prompt_ms", "predicted_ms"))
        return self._object(piece, created_at, calls=calls) | self._done(total_ns, total_ns, work_ns=work)

    def loaded(self, *, created_at: str, reason: str = "load") -> dict[str, object]:
        """The answer to an empty request, which only asks for the model to be there, or gone (``unload``)."""
        return self._object(Piece(), created_at) | {"done": True, "done_reason": reason}

    def _read(self, data: bytes) -> Piece:
        """What *data* adds; tool calls are put together until they are whole."""
        piece = self._reader.read(data)
        for part in piece.calls:
            if part.number == len(self._calls):
                self._calls.append(CallPiece(number=part.number))
            call = self._calls[part.number]
            call.id = part.id
            call.name += part.name
            call.arguments += part.arguments
        return piece

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
        cached, evaluated = self._reader.timings.get("cache_n"), self._reader.timings.get("prompt_n")
        prompt = evaluated + cached if isinstance(evaluated, int) and isinstance(cached, int) else evaluated
        counts = {
            "prompt_eval_count": self._reader.usage.get("prompt_tokens", prompt),
            "prompt_eval_duration": _duration_ns(self._reader.timings.get("prompt_ms")),
            "eval_count": self._reader.usage.get("completion_tokens", self._reader.timings.get("predicted_n")),
            "eval_duration": _duration_ns(self._reader.timings.get("predicted_ms")),
        }
        busy = (_duration_ns(self._reader.timings.get("prompt_ms")) or 0) if work_ns is None else work_ns
        return {
            "done": True,
            "done_reason": "length" if self._reader.finish == "length" else "stop",
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
    for row in map(mapping, listed(load(body).get("data"))):
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
    count = mapping(load(body).get("usage")).get("prompt_tokens") if body else 0
    return shaped | ({"prompt_eval_count": count} if isinstance(count, int) else {})


def _line(shaped: dict[str, object]) -> bytes:
    return json.dumps(shaped, separators=(",", ":")).encode() + b"\n"


def _duration_ns(ms: object) -> int | None:
    return round(ms * _NS_PER_MS) if isinstance(ms, int | float) else None

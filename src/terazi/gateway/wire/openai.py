"""OpenAI's shapes: the envelope of a request, the model list, and how a stream must end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from terazi.gateway.backend import ModelCard
from terazi.gateway.wire.errors import WireError, bad_request
from terazi.gateway.wire.json_body import read_json

#: Bytes of a stream's end that ``is_complete`` needs: the last event, or an error event.
TAIL_BYTES = 512


@dataclass(slots=True)
class Envelope:
    """What the gateway reads of a request: which model is meant (``None``: not said), and if it streams.

    ``fields`` is the whole body, parsed.
    """

    model: str | None
    stream: bool
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_envelope(raw: bytes) -> Envelope:
    """Read the body once; everything but the envelope is the engine's business.

    Raises:
        WireError: 400, it isn't a JSON object, or ``model`` isn't a text.
    """
    try:
        body = read_json(raw)
    except RecursionError as problem:
        raise WireError(bad_request("the body is nested too deeply")) from problem
    except ValueError as problem:  # JSONDecodeError, UnicodeDecodeError and over-long integers
        raise WireError(bad_request(f"the body is not valid JSON: {problem}")) from problem
    if not isinstance(body, dict):
        raise WireError(bad_request("the body must be a JSON object"))
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise WireError(bad_request("'model' must be a text"))
    return Envelope(model or None, body.get("stream") is True, body)


def model_entry(card: ModelCard) -> dict[str, object]:
    """One model, with the few extra figures that clients use to size their prompts."""
    meta = {
        "n_ctx": card.context_length,
        "n_ctx_train": card.training_context_length,
        "n_embd": card.embedding_length,
        "n_params": card.parameter_count,
        "size": card.size_bytes,
        "ftype": card.quantisation,
    }
    return {
        "id": card.id,
        "object": "model",
        "created": card.created_s,
        "owned_by": "terazi",
        "aliases": list(card.aliases),
        "meta": {key: value for key, value in meta.items() if value is not None},
    }


def is_complete(tail: bytes) -> bool:
    """Whether a stream that ends with *tail* said all it had to say.

    llama-server (b11434, ``server-context.cpp``) ends a good stream with ``[DONE]``, and one that failed inside
    the engine with an error event and nothing more. A killed engine's stream has neither.
    """
    return tail.rstrip().endswith(b"data: [DONE]") or b'data: {"error"' in tail

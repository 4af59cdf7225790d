"""What a request needs that not every model has: eyes, ears."""

from collections.abc import Mapping
from typing import Final

from terazi.gateway.backend import ModelCard
from terazi.gateway.wire.errors import Fault, WireError

#: Content parts of OpenAI's chat, and the capability that they need, in Ollama's words.
_NEEDS: Final = {"image_url": "vision", "input_audio": "audio"}
_CALLED: Final = {"vision": "images", "audio": "audio"}


def check_modalities(fields: Mapping[str, object], card: ModelCard) -> None:
    """Turn away what the model can't take in, before the engine is asked: llama-server's word for it is a 500.

    Of an engine that somebody else runs nobody knows, and it has the word itself.

    Args:
        fields: a chat request in OpenAI's shape.

    Raises:
        WireError: 400 with what is missing.
    """
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else None
                if isinstance(kind, str) and kind in _NEEDS:
                    _check(_NEEDS[kind], card)


def _check(need: str, card: ModelCard) -> None:
    if need not in card.capabilities and not card.engine.startswith("attached"):
        message = f"'{card.id}' takes no {_CALLED[need]}: it was loaded without a projector for them"
        raise WireError(Fault(status=400, message=message, code="unsupported_content"))

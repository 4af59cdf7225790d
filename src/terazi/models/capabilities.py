"""What a model can be asked for, in Ollama's words, by its header alone.

The rules are Ollama's (``server/images.go``, ``Model.Capabilities``): a pooling type makes it an embedding model,
and its template tells the rest. Fill-in-the-middle is told by the tokens for it, since llama-server's ``/infill``
refuses a vocabulary without them (b11434, ``server-context.cpp``).
"""

from collections.abc import Mapping
from typing import Final

#: Keys of the token before a gap's beginning; the second is the older name (``llama-vocab.cpp``, b11434).
_INFILL: Final = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")
#: What templates of models that reason have in them.
_REASONS: Final = ("enable_thinking", "reasoning_content", "</think>", "reasoning_effort", "thinking")


def capabilities(
    metadata: Mapping[str, object], architecture: str, *, projector: Mapping[str, object] | None = None
) -> tuple[str, ...]:
    """``completion`` or ``embedding``, and what it has of ``tools insert thinking vision audio``.

    Args:
        metadata: the header's.
        projector: the header's of the one that it is loaded with.
    """
    pooling = metadata.get(f"{architecture}.pooling_type", 0)
    if isinstance(pooling, int) and pooling > 0:
        return ("embedding",)
    given = metadata.get("tokenizer.chat_template")
    template = given if isinstance(given, str) else ""
    has = {
        "completion": True,
        "tools": "tools" in template or "tool_call" in template,
        "insert": any(key in metadata for key in _INFILL),
        "thinking": any(word in template for word in _REASONS),
        "vision": projector is not None and projector.get("clip.has_vision_encoder") is True,
        "audio": projector is not None and projector.get("clip.has_audio_encoder") is True,
    }
    return tuple(name for name, there in has.items() if there)

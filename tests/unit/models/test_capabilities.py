"""What a model can be asked for."""

import pytest

from terazi.models.capabilities import capabilities

QWEN3 = "{%- if tools %}<tools>{% endif %}{% if enable_thinking is false %}<think></think>{% endif %}"
TEMPLATE = "tokenizer.chat_template"
BOTH: dict[str, object] = {TEMPLATE: QWEN3, "tokenizer.ggml.fim_pre_token_id": 1}


@pytest.mark.parametrize(
    ("metadata", "architecture", "expected"),
    [
        ({}, "llama", ("completion",)),
        ({TEMPLATE: "{{ messages }}"}, "llama", ("completion",)),
        ({TEMPLATE: QWEN3}, "qwen3", ("completion", "tools", "thinking")),
        (BOTH, "qwen3", ("completion", "tools", "insert", "thinking")),
        ({"tokenizer.ggml.prefix_token_id": 1}, "starcoder2", ("completion", "insert")),
        ({"bert.pooling_type": 2, TEMPLATE: QWEN3}, "bert", ("embedding",)),
        ({"qwen3.pooling_type": 3}, "qwen3", ("embedding",)),
        ({"llama.pooling_type": 0}, "llama", ("completion",)),
        ({TEMPLATE: 7}, "llama", ("completion",)),
    ],
)
def test_by_header(metadata: dict[str, object], architecture: str, expected: tuple[str, ...]) -> None:
    assert capabilities(metadata, architecture) == expected


def test_a_projector_gives_eyes() -> None:
    assert capabilities({}, "gemma3", projector={"clip.has_vision_encoder": True}) == ("completion", "vision")
    both = {"clip.has_vision_encoder": True, "clip.has_audio_encoder": True}
    assert capabilities({}, "gemma3n", projector=both) == ("completion", "vision", "audio")
    assert capabilities({}, "gemma3", projector={"clip.has_vision_encoder": False}) == ("completion",)

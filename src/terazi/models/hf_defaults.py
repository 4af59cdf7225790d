"""What a config leaves out because it equals its class's default.

Only families are here whose published configs really leave such keys out (most write every key). Source: the
configuration classes of ``transformers`` 5.19.
"""

from collections.abc import Mapping
from typing import Final

_GEMMA3: Final = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "sliding_window": 4096, "tie_word_embeddings": True, "sliding_window_pattern": 6,
}  # fmt: skip
_MISTRAL: Final = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
}  # fmt: skip
_LLAMA: Final = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048,
}  # fmt: skip
_GEMMA2: Final = {
    "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
    "sliding_window": 4096, "tie_word_embeddings": True,
}  # fmt: skip

DEFAULTS: Final[Mapping[str, Mapping[str, int | bool]]] = {
    "gemma": {
        "vocab_size": 256_000, "hidden_size": 3072, "intermediate_size": 24_576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window_pattern": 4},
    "starcoder2": {"tie_word_embeddings": True},
    "gpt2": {
        "vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "tie_word_embeddings": True,
    },
    "mamba": {"tie_word_embeddings": True},
    "granitemoehybrid": {"tie_word_embeddings": False},
    "qwen3_next": {"full_attention_interval": 4},
    "qwen3_5_text": {"full_attention_interval": 4},
    "qwen3_5_moe_text": {"full_attention_interval": 4},
    "lfm2": {"tie_word_embeddings": True},
}  # fmt: skip

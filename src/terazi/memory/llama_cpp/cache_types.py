"""The types that a KV cache may have: ``kv_cache_types`` of ``common/arg.cpp``, b11434."""

from terazi.models.ggml_types import TYPE_BY_NAME

#: By ggml's name, as ``--cache-type-k`` spells it.
CACHE_TYPES = {
    name: TYPE_BY_NAME[name] for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
}


def is_quantised_cache(name: str) -> bool:
    """Whether a cache of type *name* is stored in blocks."""
    return CACHE_TYPES[name].block_size > 1

"""What vLLM makes of a config: which layers keep what kind of cache, and the sizes that ranks divide.

In: ``ModelSpec`` of a safetensors model or a config. Out: ``VllmModel``. Sources (vLLM 0.32.0):
``transformers_utils/model_arch_config_convertor.py``, ``model_executor/layers/attention/attention.py`` (windows),
``model_executor/models/*.py:get_mamba_state_shape_from_config``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from terazi.memory.vllm.state import StateShape, state_shape
from terazi.models.hf_config import HfConfig
from terazi.models.spec import ModelSpec

#: Where a model of several parts keeps its language model.
_PREFIXES: Final = ("thinker_config.text_config", "text_config", "llm_config", "language_config")
#: ``ModelArchConfigConvertorBase.is_deepseek_mla``: families that cache one latent vector a token.
_LATENT: Final = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2", "kimi_linear",
    "longcat_flash", "pangu_ultra_moe", "bailing_hybrid",
})  # fmt: skip
#: Families whose caches have rules of their own that aren't here (sparse indexers, compressed or shared caches).
_NOT_KNOWN: Final = {
    "deepseek_v32": "its indexer keeps a cache of its own",
    "glm_moe_dsa": "its indexer keeps a cache of its own",
    "deepseek_v4": "its caches are compressed by layer",
    "longcat_flash": "it has two attentions a layer",
    "kimi_linear": "its delta attention isn't known here",
    "whisper": "its decoder also caches the encoder's keys and values",
}
#: Layer kinds with a recurrent state.
_RECURRENT: Final = frozenset({"mamba", "linear_attention", "conv"})
#: Families whose every layer has both a recurrent state and attention.
_BOTH: Final = frozenset({"falcon_h1"})
#: ``derive_max_model_len_and_key``: the smallest of these counts.
_LENGTH_KEYS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
#: Kinds of RoPE scaling whose factor is in the length already.
_SCALED_ALREADY: Final = frozenset({
    "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "",
})  # fmt: skip
_DEFAULT_LENGTH: Final = 2048


class CacheKind(StrEnum):
    """How a layer's cache grows with a sequence."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    LATENT = "latent"  # MLA: one vector a token, the same on every tensor-parallel rank
    STATE = "state"  # recurrent: one state a sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The cache of one attention or recurrent module of layer ``layer``.

    Args:
        heads: KV heads of the whole model; ranks divide them.
        head_size, value_size: elements of a key and of a value; a latent vector has no value.
        window: tokens of a sliding window or of a chunk.
        state: of a recurrent layer.
    """

    layer: int
    kind: CacheKind
    heads: int = 0
    head_size: int = 0
    value_size: int = 0
    window: int = 0
    state: StateShape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModel:
    """The shape of a model as vLLM sees it.

    ``unknown`` says why its caches aren't known, or is empty. ``length_key`` is the config's key that bounds the
    length, ``max_length`` what vLLM derives from it.
    """

    config: HfConfig
    layers: int
    hidden_size: int
    vocab_size: int
    attention_heads: int
    kv_heads: int
    head_size: int
    caches: tuple[LayerCache, ...]
    latent: bool
    chunked: bool
    hybrid: bool
    attention_free: bool
    tied: bool
    max_length: int
    length_key: str
    unknown: str = ""

    @property
    def model_type(self) -> str:
        """The family of the language model."""
        return self.config.text_type


def config_of(spec: ModelSpec) -> HfConfig:
    """The config that *spec* came with, as its own kind of noun again."""
    keys = ("hidden_size", "num_hidden_layers", "model_type")
    prefix = next((f"{p}." for p in _PREFIXES if any(f"{p}.{key}" in spec.metadata for key in keys)), "")
    return HfConfig(label=spec.name, metadata=spec.metadata, prefix=prefix)


def read_model(spec: ModelSpec) -> VllmModel:
    """What vLLM makes of *spec*'s config.

    Raises:
        ModelFileError: a list in the config is shorter than the model.
    """
    config = config_of(spec)
    kind = config.text_type
    latent = kind in _LATENT and config.value("kv_lora_rank") is not None
    heads = max(spec.head_count, default=0)
    kv_heads = 1 if latent else config.number("num_key_value_heads", heads)
    if config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        kv_heads = 1
    head_size = _head_size(config, spec, latent=latent)
    kinds = config.layer_kinds(spec.block_count)
    caches: list[LayerCache] = []
    for layer, layer_kind in enumerate(kinds):
        caches += _layer_caches(config, layer, layer_kind, kv_heads, head_size, latent=latent)
    caches = _without_shared(config, caches, spec.block_count)
    recurrent = any(c.kind is CacheKind.STATE for c in caches)
    attention = any(c.kind is not CacheKind.STATE for c in caches)
    length, key = _derived_length(config)
    return VllmModel(
        config=config,
        layers=spec.block_count,
        hidden_size=spec.embedding_length,
        vocab_size=spec.vocab_size,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        caches=tuple(caches),
        latent=latent,
        chunked=config.value("attention_chunk_size") is not None,
        hybrid=recurrent and attention,
        attention_free=not attention,
        tied=_is_tied(config, spec),
        max_length=length,
        length_key=key,
        unknown=_NOT_KNOWN.get(kind, "") or ("" if caches else "it has no layer whose cache is known"),
    )


def _head_size(config: HfConfig, spec: ModelSpec, *, latent: bool) -> int:
    if latent:
        return config.number("kv_lora_rank") + config.number("qk_rope_head_dim", 0)
    said = config.number("head_dim", 0)
    heads = max(spec.head_count, default=0)
    return said or (spec.embedding_length // heads if heads else 0)


def _layer_caches(
    config: HfConfig, layer: int, kind: str, kv_heads: int, head_size: int, *, latent: bool
) -> list[LayerCache]:
    if kind in _RECURRENT:
        return [LayerCache(layer=layer, kind=CacheKind.STATE, state=state_shape(config, kind))]
    if kind in {"mlp", "moe", "none"}:
        return []
    if latent:
        return [LayerCache(layer=layer, kind=CacheKind.LATENT, heads=1, head_size=head_size)]
    window = _window(config, kind)
    cache_kind = CacheKind.FULL
    if window:
        cache_kind = CacheKind.CHUNKED if kind == "chunked_attention" else CacheKind.SLIDING
    heads, size = kv_heads, head_size
    if config.text_type in {"gemma4", "gemma4_text"} and kind == "full_attention":
        size = config.number("global_head_dim", head_size)
        if config.flag("attention_k_eq_v"):
            heads = config.number("num_global_key_value_heads", kv_heads)
    attention = LayerCache(
        layer=layer, kind=cache_kind, heads=heads, head_size=size, value_size=size, window=window
    )
    if config.text_type in _BOTH:
        return [attention, LayerCache(layer=layer, kind=CacheKind.STATE, state=state_shape(config, "mamba"))]
    return [attention]


def _window(config: HfConfig, kind: str) -> int:
    """A layer's window: of its kind, or the one of all layers where the config names no kinds.

    ``EngineArgs.create_engine_config`` sets ``CacheConfig.sliding_window`` only where layers aren't told apart.
    """
    if kind == "chunked_attention":
        return config.number("attention_chunk_size", 0)
    if kind == "sliding_attention":
        return config.number("sliding_window", 0)
    told_apart = config.value("layer_types", "sliding_window_pattern", "_sliding_window_pattern") is not None
    if told_apart or config.text_type in {"gemma2", "gemma3", "gemma3_text"}:
        return 0
    if config.value("use_sliding_window") is False:
        return 0
    value = config.value("sliding_window")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _without_shared(config: HfConfig, caches: list[LayerCache], layers: int) -> list[LayerCache]:
    """Without the last layers of Gemma 3n and 4, which read the cache of an earlier one."""
    shared = config.number("num_kv_shared_layers", 0)
    return [c for c in caches if c.layer < layers - shared]


def _is_tied(config: HfConfig, spec: ModelSpec) -> bool:
    said = config.value("tie_word_embeddings", "tie_embedding")
    if isinstance(said, bool):
        return said
    if spec.tensors:
        return not any("lm_head" in t.name or t.name == "output.weight" for t in spec.tensors)
    return True  # ``PretrainedConfig.tie_word_embeddings``


def _derived_length(config: HfConfig) -> tuple[int, str]:
    found = [(n, key) for key in _LENGTH_KEYS if (n := config.value(key)) is not None and isinstance(n, int)]
    if not found:
        return _DEFAULT_LENGTH, ""
    length, key = min(found)
    own = config.value("model_max_length")
    if isinstance(own, int):
        length, key = own, "model_max_length"
    kind = config.value("rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type")
    factor = config.value("rope_scaling.factor", "rope_parameters.factor")
    scaled = isinstance(kind, str) and kind not in _SCALED_ALREADY and "gemma3" not in config.text_type
    if scaled and isinstance(factor, int | float):
        length = int(length * factor)
    original = config.value("original_max_position_embeddings")
    if kind == "longrope" and isinstance(original, int):
        length = original
    return length, key

"""Reads a Hugging Face ``config.json`` (or Mistral's ``params.json``) into hyperparameters.

In: the file's bytes. Out: ``HfConfig``: every key, flattened, and the shape that the common ones describe. Families
spell the same thing in many ways and leave out what equals their class's default; both are tables here. Sources:
the configuration classes of ``transformers`` 5.19.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from terazi.errors import ModelFileError
from terazi.models.bounded_json import Json, parse_object
from terazi.models.gguf_window import display
from terazi.models.hf_defaults import DEFAULTS
from terazi.models.spec import ArrayInfo, MetadataValue, Scalar

#: Bytes of a config; lists of unquantised modules make the largest known ones (some 500 KB).
CONFIG_LIMIT_BYTES: Final = 8 * 1024**2
#: Longer lists are described, not kept.
_LIST_LIMIT: Final = 2**16
#: As in a GGUF header: a file that claims more layers is broken.
BLOCKS_LIMIT: Final = 1024

#: Where a model of several parts keeps its language model, most specific first.
_TEXT_CONFIGS: Final = (
    "thinker_config.text_config", "text_config", "llm_config", "language_config", "language_model", "llm_cfg",
)  # fmt: skip

#: What is asked for → how families spell it. The first that is there counts.
_SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "model_dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"),
    "num_key_value_heads": (
        "num_key_value_heads", "n_kv_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num",
    ),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "hidden_dim"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "d_head"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "context": (
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx",
        "model_max_length", "max_seqlen",
    ),
    "experts": (
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts",
        "moe.num_experts", "ffn_config.moe_num_experts",
    ),
    "experts_used": (
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k_experts",
        "moe_top_k", "num_selected_experts", "moe.num_experts_per_tok", "ffn_config.moe_top_k",
    ),
    "expert_intermediate_size": (
        "moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size", "ffn_config.ffn_hidden_size",
        "moe.expert_hidden_dim",
    ),
    "sliding_window": (
        "sliding_window", "sliding_window_size", "attention_chunk_size", "local_attention_window_size",
    ),
    "window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
}  # fmt: skip

#: Layer kinds without a cache of keys and values.
_NO_CACHE: Final = frozenset({
    "linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "feed_forward", "ssm", "kda",
})  # fmt: skip
_AGAIN: Final = "Download a current config.json of this model."


@dataclass(frozen=True, slots=True, kw_only=True)
class HfConfig:
    """One config.

    Args:
        label: names the file in messages.
        metadata: every key, nested ones joined by dots; entries of lists of objects by their index. A null is left
            out; a list longer than 65,536 is described by an ``ArrayInfo``.
        prefix: what stands before the language model's own keys, e.g. ``text_config.``; empty in most models.
    """

    label: str
    metadata: Mapping[str, MetadataValue]
    prefix: str

    @property
    def model_type(self) -> str:
        """The family of the whole model."""
        value = self.metadata.get("model_type")
        return value if isinstance(value, str) else ""

    @property
    def text_type(self) -> str:
        """The family of the language model in it."""
        value = self.metadata.get(f"{self.prefix}model_type")
        return value if isinstance(value, str) else self.model_type

    def value(self, *names: str) -> MetadataValue | None:
        """The first of *names* that is there: in the language model's part, the whole, its class's defaults."""
        for name in names:
            found = self.metadata.get(self.prefix + name)
            if found is None and self.prefix:
                found = self.metadata.get(name)
            if found is not None:
                return found
        defaults = DEFAULTS.get(self.text_type, {})
        return next((defaults[name] for name in names if name in defaults), None)

    def number(self, what: str, default: int | None = None) -> int:
        """A whole number under any spelling of *what*; of a list, its largest.

        Raises:
            ModelFileError: it is missing and has no *default*, or is no count.
        """
        names = _SPELLINGS.get(what, (what,))
        value = self.value(*names)
        if isinstance(value, tuple) and value:
            return max(self._count(v, what) for v in value)
        if value is None:
            if default is None:
                raise ModelFileError(f"{self.label} does not say {names[0]}.", hint=_AGAIN)
            return default
        return self._count(value, what)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A switch; null and absence are *default*."""
        value = self.value(name)
        return value if isinstance(value, bool) else default

    def per_layer(self, what: str, blocks: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """One number for each layer, from a list or from one number for all.

        Raises:
            ModelFileError: a list has another length, or it holds something else than counts.
        """
        value = self.value(*_SPELLINGS.get(what, (what,)))
        if value is None:
            return default
        if isinstance(value, tuple) and value:
            if len(value) < blocks:
                raise ModelFileError(
                    f"{self.label} has {len(value)} entries under {what} for its {blocks} layers.", hint=_AGAIN
                )
            return tuple(self._count(v, what) for v in value[:blocks])
        return (self._count(value, what),) * blocks

    def layer_kinds(self, blocks: int) -> tuple[str, ...]:
        """What each layer is: ``full_attention``, ``sliding_attention``, ``linear_attention``, ``mamba`` …"""
        from terazi.models.hf_layers import layer_kinds

        return layer_kinds(self, blocks)

    def _count(self, value: MetadataValue, what: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32:
            return value
        raise ModelFileError(
            f"{self.label} has the senseless value {display(str(value)[:40])} under {what}.", hint=_AGAIN
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HfShape:
    """The hyperparameters that ``ModelSpec`` names, as this config states them."""

    block_count: int
    context_length: int
    embedding_length: int
    vocab_size: int
    head_count: tuple[int, ...]
    head_count_kv: tuple[int, ...]
    feed_forward_length: tuple[int, ...]
    key_length: int
    value_length: int
    expert_count: int
    expert_used_count: int
    sliding_window: int | None


def parse_config(data: bytes, label: str) -> HfConfig:
    """Read the ``config.json`` (or ``params.json``) *data*; *label* names it in messages.

    Raises:
        ModelFileError: it is no config, or too large to be one.
    """
    if len(data) > CONFIG_LIMIT_BYTES:
        raise ModelFileError(
            f"{label} is larger than {CONFIG_LIMIT_BYTES // 1024**2} MiB, so it is no model's config.json.",
            hint="Give the config.json that comes with the model.",
        )
    document = parse_object(data, label, what="the config")
    if "peft_type" in document:
        base = document.get("base_model_name_or_path")
        raise ModelFileError(
            f"{label} describes an adapter, not a model.",
            hint=f"Give its base model{f', {display(base[:80])}' if isinstance(base, str) else ''}.",
        )
    metadata = dict(_flatten("", document, 0))
    prefix = next((f"{name}." for name in _TEXT_CONFIGS if any(_has(metadata, name))), "")
    return HfConfig(label=label, metadata=metadata, prefix=prefix)


def shape_of(config: HfConfig) -> HfShape:
    """The hyperparameters of *config*.

    Raises:
        ModelFileError: what every language model has is missing or makes no sense (it is named).
    """
    blocks = config.number("num_hidden_layers")
    if not 0 < blocks <= BLOCKS_LIMIT:
        raise ModelFileError(
            f"{config.label} has the senseless value {blocks:,} under num_hidden_layers.", hint=_AGAIN
        )
    width = config.number("hidden_size")
    if not width:
        raise ModelFileError(f"{config.label} has the senseless value 0 under hidden_size.", hint=_AGAIN)
    heads = config.per_layer("num_attention_heads", blocks, (0,) * blocks)
    per_head = width // heads[0] if heads[0] else 0
    key = value = config.number("head_dim", per_head)
    if config.value("kv_lora_rank") is not None:  # latent attention: what a head sees, not what is cached
        key = config.number("qk_nope_head_dim", 0) + config.number("qk_rope_head_dim", 0) or key
        value = config.number("v_head_dim", value)
    kinds = config.layer_kinds(blocks)
    shared = (1,) * blocks if config.flag("multi_query") else heads
    kv_heads = config.per_layer("num_key_value_heads", blocks, shared)
    inner = config.per_layer("intermediate_size", blocks, (0,) * blocks)
    return HfShape(
        block_count=blocks,
        context_length=config.number("context", 0),
        embedding_length=width,
        vocab_size=config.number("vocab_size", 0),
        head_count=heads,
        head_count_kv=tuple(0 if kind in _NO_CACHE else n for kind, n in zip(kinds, kv_heads, strict=True)),
        feed_forward_length=inner,
        key_length=key,
        value_length=value,
        expert_count=config.number("experts", 0),
        expert_used_count=min(config.number("experts_used", 0), config.number("experts", 0)),
        sliding_window=_window(config, kinds),
    )


def quantisation_of(config: HfConfig) -> str | None:
    """How the weights are stored, as people call it: ``FP8``, ``AWQ 4-bit``, ``MXFP4``; None if it isn't said."""
    method = next((v for k in ("quant_method", "quant_algo") if isinstance(v := _quantised(config, k), str)), None)
    if method is None:
        return None
    if method == "compressed-tensors":
        bits, form = _quantised(config, "config_groups.group_0.weights.num_bits"), _quantised(config, "format")
        return f"{form} {bits}-bit" if isinstance(form, str) and isinstance(bits, int) else "compressed-tensors"
    bits = _quantised(config, "bits")
    return f"{method.upper()} {bits}-bit" if isinstance(bits, int) else method.upper()


def _quantised(config: HfConfig, key: str) -> MetadataValue | None:
    return config.value(f"quantization_config.{key}", f"quantization.{key}", f"compression_config.{key}")


def _window(config: HfConfig, kinds: tuple[str, ...]) -> int | None:
    if config.value("use_sliding_window") is False:
        return None
    everywhere = all(kind in _NO_CACHE or kind == "full_attention" for kind in kinds)
    if everywhere and config.value("layer_types") is not None:
        return None
    return config.number("sliding_window", 0) or None


def _flatten(prefix: str, value: Json, depth: int) -> Iterator[tuple[str, MetadataValue]]:
    """*value* as dotted keys; the text's own nesting bounds the depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flatten(f"{prefix}.{name}" if prefix else name, inner, depth + 1)
    elif isinstance(value, list):
        scalars = tuple(v for v in value if isinstance(v, Scalar))
        if len(scalars) == len(value):
            if len(scalars) > _LIST_LIMIT:
                yield prefix, ArrayInfo(element_type=type(scalars[0]).__name__, length=len(scalars))
            else:
                yield prefix, scalars
        else:
            for i, inner in enumerate(value):
                yield from _flatten(f"{prefix}.{i}", inner, depth + 1)
    elif value is not None:
        yield prefix, value


def _has(metadata: Mapping[str, MetadataValue], name: str) -> Iterator[bool]:
    keys = ("hidden_size", "num_hidden_layers", "model_type", "n_embd", "d_model")
    return (f"{name}.{key}" in metadata for key in keys)

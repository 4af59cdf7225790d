"""Says what each layer of a config is, for families that mix kinds of layers.

In: ``HfConfig``. Out: for each layer ``full_attention``, ``sliding_attention``, ``chunked_attention``,
``linear_attention``, ``mamba``, ``conv``, ``mlp`` or ``moe``. Sources: the configuration classes of
``transformers`` 5.19, and of the repositories that bring their own (Jamba, Nemotron-H, Kimi Linear, MiniMax).
"""

from typing import TYPE_CHECKING

from terazi.errors import ModelFileError

if TYPE_CHECKING:
    from terazi.models.hf_config import HfConfig

#: Letters of ``hybrid_override_pattern``.
_LETTERS = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
_NAMES = {
    "attention": "full_attention",
    "attn": "full_attention",
    "hybrid": "full_attention",  # Zamba2: a shared attention block beside the mamba one
    "linear": "linear_attention",
    "sliding": "sliding_attention",
    "mamba2": "mamba",
}
#: Families whose every layer is recurrent.
_RECURRENT = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv6", "rwkv7", "xlstm"})


def layer_kinds(config: "HfConfig", blocks: int) -> tuple[str, ...]:
    """What each of the *blocks* layers is.

    Raises:
        ModelFileError: a list of kinds is shorter than the model.
    """
    said = _list(config, blocks) or _pattern(config, blocks) or _indices(config, blocks) or _period(config, blocks)
    if said is not None:
        return said
    return ("mamba" if config.text_type in _RECURRENT else "full_attention",) * blocks


def _list(config: "HfConfig", blocks: int) -> tuple[str, ...] | None:
    value = config.value("layer_types", "layers_block_type", "attn_type_list", "block_types", "layer_block_type")
    if not isinstance(value, tuple) or not value:
        return None
    if len(value) < blocks:
        # RecurrentGemma repeats a short list
        if config.value("block_types") is not None:
            return tuple(_name(value[i % len(value)]) for i in range(blocks))
        raise ModelFileError(
            f"{config.label} has {len(value)} layer kinds for its {blocks} layers.",
            hint="Download a current config.json of this model.",
        )
    return tuple(_name(kind) for kind in value[:blocks])


def _name(kind: object) -> str:
    if isinstance(kind, int):  # MiniMax: 1 is attention, 0 is lightning attention
        return "full_attention" if kind else "linear_attention"
    return _NAMES.get(str(kind), str(kind))


def _pattern(config: "HfConfig", blocks: int) -> tuple[str, ...] | None:
    value = config.value("hybrid_override_pattern")
    if not isinstance(value, str) or len(value) < blocks:
        return None
    return tuple(_LETTERS.get(letter, "mlp") for letter in value[:blocks])


def _indices(config: "HfConfig", blocks: int) -> tuple[str, ...] | None:
    """Lists of the attention layers; Kimi's count from 1."""
    for key, first, other in (
        ("linear_attn_config.full_attn_layers", 1, "linear_attention"),
        ("full_attn_idxs", 0, "conv"),
        ("attn_layer_indices", 0, "mamba"),
        ("hybrid_layer_ids", 0, "mamba"),
    ):
        value = config.value(key)
        if isinstance(value, tuple) and value:
            return tuple("full_attention" if i + first in value else other for i in range(blocks))
    return None


def _period(config: "HfConfig", blocks: int) -> tuple[str, ...] | None:
    """Every n-th layer is different."""
    if config.value("attn_layer_period") is not None:  # Jamba
        period, offset = config.number("attn_layer_period"), config.number("attn_layer_offset", 0)
        return _every(blocks, period, offset, rest="mamba")
    if config.value("full_attention_interval") is not None:  # Qwen3-Next
        period = config.number("full_attention_interval")
        return _every(blocks, period, period - 1, rest="linear_attention")
    if config.number("window_pattern", 0) and config.value("sliding_window"):
        period = config.number("window_pattern")
        return _every(blocks, period, period - 1, rest="sliding_attention")
    if config.text_type == "gemma2":
        return _every(blocks, 2, 1, rest="sliding_attention")
    return None


def _every(blocks: int, period: int, offset: int, *, rest: str) -> tuple[str, ...] | None:
    if period < 1:
        return None
    return tuple("full_attention" if i % period == offset else rest for i in range(blocks))

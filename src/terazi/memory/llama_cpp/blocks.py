"""Which blocks of a model keep a cache of K and V, which a recurrent state, and which are drafts beside the model.

Sources, b11434: ``src/llama-model.cpp:create_memory`` (filters), ``load_arch_hparams`` of each family in
``src/models/`` (``is_recr_impl``).
"""

from dataclasses import replace
from typing import NamedTuple

from terazi.models.spec import ModelSpec


class Recurrent(NamedTuple):
    """Blocks that carry a state from token to token instead of, or beside, a cache of all tokens.

    Args:
        mixer: what such a block is: ``mamba``, ``mamba2``, ``short_convolution`` or ``delta_net``.
        layers: which blocks: ``all``; those ``without_kv`` heads; those ``without_kv_and_ff``, where a block is
            either that, attention or feed-forward; ``spaced``, all but every fourth (or as the file says); or all
            ``beside`` their attention.
        interval: of the others, where they are ``spaced`` and the file doesn't say.
        ffn_norm: name of the norm before the feed-forward half; None if blocks have none.
        output_norm: name of the last norm.
        select_after_norm: outputs are picked after the last norm instead of inside the last block.
        positions: numbers that say where a token stands.
        repeats_heads: the first file of a kind: heads of queries and keys are repeated before a delta net.
    """

    mixer: str
    layers: str = "without_kv"
    ffn_norm: str | None = "ffn_norm"
    output_norm: str = "output_norm"
    select_after_norm: bool = False
    positions: int = 1
    repeats_heads: bool = False
    interval: int = 4


#: These leave the draft blocks (NextN, MTP) in the file unless speculation with them is asked for. Some load parts
#: of them all the same, see below.
_DRAFTS = """
    bailingmoe2 bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 dots3note exaone-moe exaone4 glm-dsa glm4
    glm4moe glm5-next hy_v3 mimo2 nemotron_h nemotron_h_moe qwen35 qwen35moe qwen3next qwen4exp step35
"""
_DRAFTING = frozenset(_DRAFTS.split())
#: These filter nothing by the length of the trunk: their draft blocks keep a cache in the model's own context too.
_CACHED_DRAFTS = frozenset({"bailingmoe3", "nemotron_h", "nemotron_h_moe"})
#: What is left out of a draft block where the engine asks for the rest of it without ``TENSOR_SKIP``.
_LEFT_OUT = (
    *("attn_norm.", "attn_q.", "attn_k.", "attn_v.", "attn_qkv.", "attn_output.", "ffn_norm."),
    *("nextn.eh_proj.", "nextn.enorm.", "nextn.hnorm."),
)
_LEFT_OUT_OF = {"step35": _LEFT_OUT, "hy_v3": (*_LEFT_OUT, "attn_q_norm.", "attn_k_norm.")}
#: What is loaded of a draft block all the same: mostly tensors that another block may do without.
_KEPT_OF = {
    "deepseek32": ("exp_probs_b.bias",),
    "glm-dsa": ("exp_probs_b.bias",),
    "cohere2moe": ("nextn.embed_tokens.", "nextn.shared_head_head.", "nextn.shared_head_norm."),
}


def loop_count(spec: ModelSpec) -> int:
    """How often the blocks run, one after the other, each time with caches of their own."""
    loops = spec.metadata.get("nanbeige.num_loops", 1) if spec.architecture == "nanbeige" else 1
    return loops if isinstance(loops, int) else 1


def unrolled(spec: ModelSpec) -> ModelSpec:
    """*spec* with the blocks that the engine counts, where the file's run several times."""
    loops = loop_count(spec)
    if loops == 1:
        return spec
    return replace(
        spec,
        block_count=spec.block_count * loops,
        head_count=spec.head_count * loops,
        head_count_kv=spec.head_count_kv * loops,
        feed_forward_length=spec.feed_forward_length * loops,
    )


def trunk_length(spec: ModelSpec) -> int:
    """Blocks that run; those behind them guess tokens ahead (``llama_hparams::n_layer``)."""
    drafts = spec.metadata.get(f"{spec.architecture}.nextn_predict_layers", 0)
    return spec.block_count - (drafts if isinstance(drafts, int) else 0)


def loaded_blocks(spec: ModelSpec) -> int:
    """Blocks that are loaded where nobody asks for guesses (``TENSOR_SKIP``)."""
    return trunk_length(spec) if spec.architecture in _DRAFTING else spec.block_count


def kept_of_drafts(architecture: str, name: str) -> bool:
    """Whether the tensor *name* of a draft block is loaded although nobody asks for guesses."""
    part = name.split(".", 2)[-1]
    if architecture in _LEFT_OUT_OF:
        return not part.startswith(_LEFT_OUT_OF[architecture])
    return part.startswith(_KEPT_OF.get(architecture, ("?",)))


def recurrent_blocks(spec: ModelSpec, recurrent: Recurrent | None) -> tuple[bool, ...]:
    """For each block: does it keep a recurrent state? (``is_recr_impl`` and the filters of ``create_memory``)"""
    if recurrent is None:
        return (False,) * spec.block_count
    trunk = trunk_length(spec)
    flags = _recurs(spec, recurrent.layers, recurrent.interval)
    return tuple(flag and block < trunk for block, flag in enumerate(flags))


def _recurs(spec: ModelSpec, layers: str, usual: int) -> tuple[bool, ...]:
    if layers in {"all", "beside"}:
        return (True,) * spec.block_count
    if layers == "spaced":
        flags = spec.metadata.get(f"{spec.architecture}.attention.recurrent_layers")
        if isinstance(flags, tuple) and len(flags) >= spec.block_count:
            return tuple(bool(flag) for flag in flags[: spec.block_count])
        interval = spec.metadata.get(f"{spec.architecture}.full_attention_interval", usual)
        period = interval if isinstance(interval, int) and interval > 0 else usual
        return tuple((block + 1) % period != 0 for block in range(spec.block_count))
    return tuple(
        heads == 0 and (layers != "without_kv_and_ff" or width == 0)
        for heads, width in zip(spec.head_count_kv, spec.feed_forward_length, strict=True)
    )


def attention_blocks(spec: ModelSpec, recurrent: Recurrent | None) -> tuple[bool, ...]:
    """For each block: may it keep K and V? (It does if it has heads for them.)"""
    trunk = trunk_length(spec)
    flags: tuple[bool, ...] = (True,) * spec.block_count
    if recurrent and recurrent.layers == "without_kv_and_ff":
        # these filters don't leave draft blocks out
        return tuple(width == 0 for width in spec.feed_forward_length)
    if recurrent and recurrent.layers != "beside":
        flags = tuple(not recurs for recurs in recurrent_blocks(spec, recurrent))
    keeps = spec.architecture in _CACHED_DRAFTS
    return tuple(flag and (keeps or block < trunk) for block, flag in enumerate(flags))

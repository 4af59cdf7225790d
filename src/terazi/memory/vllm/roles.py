"""How vLLM cuts a checkpoint's tensor up among tensor-parallel ranks, told from the tensor's name.

In: a tensor's name. Out: ``Part``. The names are those that published safetensors files use; the cuts are those of
``ColumnParallelLinear``, ``RowParallelLinear``, ``QKVParallelLinear``, ``MergedColumnParallelLinear``,
``VocabParallelEmbedding`` and ``FusedMoE`` as ``model_executor/models/*.py`` of vLLM 0.32.0 use them.
"""

import re
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple


class Cut(Enum):
    """Along what a weight is divided."""

    WHOLE = "whole"  # every rank has all of it
    OUTPUT = "output"  # rows of the result: column-parallel
    INPUT = "input"  # inputs of the product: row-parallel
    KEYS = "keys"  # by KV heads, which are copied where there are fewer of them than ranks
    QUERIES_KEYS = "queries and keys"  # queries, keys and values in one matrix
    VOCAB = "vocabulary"
    HEADS = "heads"  # one number a head or channel
    STATE_INPUT = "state input"  # Mamba 2's input projection or convolution: groups are copied like KV heads


class Part(NamedTuple):
    """A tensor, understood.

    Args:
        cut: of the weight that it belongs to.
        parameter: what of the layer it is: ``weight``, ``bias``, ``qweight``, ``scales`` …
        expert: whether it belongs to routed experts.
        stacked: whether it holds all experts in one tensor.
        linear: whether it belongs to a linear layer, which ``--quantization`` would quantise.
        known: False if the name is of no kind known here; it is then counted whole on every rank.
        tower: whether it belongs to a vision or audio part.
    """

    cut: Cut
    parameter: str
    expert: bool = False
    stacked: bool = False
    linear: bool = False
    known: bool = True
    tower: bool = False


_PARAMETER: Final = re.compile(
    r"(?P<module>.*)\.(?P<parameter>weight|bias|qweight|qzeros|scales|g_idx|weight_packed|weight_scale|weight_shape"
    r"|weight_scale_inv|weight_scale_2|weight_global_scale|weight_zero_point|input_global_scale|input_scale|k_scale"
    r"|v_scale|q_scale|perm|weight_g_idx)"
)
_EXPERT: Final = re.compile(r"(?:^|\.)experts\.\d+\.")
_STACKED: Final = re.compile(
    r"(?:^|\.)experts\.(?P<leaf>gate_up_proj|down_proj|gate_proj|up_proj|w1|w2|w3)(?P<kind>_blocks|_scales|_bias"
    r"|_weight_scale|\.weight)?$"
)
_TOWER: Final = re.compile(
    r"(?:^|\.)(?:vision_\w+|visual|vision|audio_\w+|multi_modal_projector|mm_projector|embed_vision|embed_audio"
    r"|image_newline|vit|mlp1|talker|code2wav|token2wav)\."
)

_OUTPUT: Final = frozenset({
    "q_proj", "gate_proj", "up_proj", "w1", "w3", "gate_up_proj", "q_b_proj", "kv_b_proj", "c_fc", "fc1", "wi",
    "fc_in", "in_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
    "dt_proj", "dense_h_to_4h", "wq", "input_linear", "g_proj", "linear_fc1",
})  # fmt: skip
_INPUT: Final = frozenset({
    "o_proj", "down_proj", "w2", "out_proj", "c_proj", "fc2", "wo", "dense_4h_to_h", "x_proj", "fc_out", "dense",
    "output_linear", "linear_fc2",
})  # fmt: skip
_KEYS: Final = frozenset({"k_proj", "v_proj", "wk", "wv"})
_FUSED: Final = frozenset({"qkv_proj", "query_key_value", "Wqkv", "c_attn", "wqkv"})
_VOCAB: Final = frozenset({
    "embed_tokens", "lm_head", "wte", "embeddings", "tok_embeddings", "word_embeddings", "embed_in", "embed_out",
    "output", "embedding",
})  # fmt: skip
_WHOLE: Final = frozenset({
    "gate", "router", "layer", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa", "wg", "position_embeddings",
    "wpe",
})  # fmt: skip
#: Whole on every rank, and a linear layer all the same.
_WHOLE_LINEAR: Final = frozenset({"q_a_proj", "kv_a_proj_with_mqa"})
_HEADS: Final = re.compile(r"(?:^|\.)(?:A_log|D|dt_bias|sinks|A)$")


#: The number of a layer or of an expert.
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")


def pattern_of(name: str) -> str:
    """*name* without the numbers of its layer and expert: what all its likes are called."""
    return _NUMBER.sub("0", name)


@lru_cache(maxsize=4096)
def part_of(name: str, *, mamba2: bool) -> Part:
    """What the tensor *name* is, or all tensors of a pattern; *mamba2* if the recurrent layers are Mamba 2."""
    if _TOWER.search(name):
        return Part(Cut.WHOLE, "weight", tower=True)
    stacked = _STACKED.search(name)
    if stacked:
        leaf, kind = stacked["leaf"], (stacked["kind"] or "").lstrip("._") or "weight"
        side = Cut.INPUT if leaf in {"down_proj", "w2"} else Cut.OUTPUT
        return Part(side, kind, expert=True, stacked=True, linear=kind == "weight")
    if _HEADS.search(name):
        return Part(Cut.HEADS, name.rpartition(".")[2])
    match = _PARAMETER.fullmatch(name)
    if match is None:
        known = name.endswith("e_score_correction_bias") or "norm" in name
        return Part(Cut.WHOLE, name.rpartition(".")[2], known=known)
    module, parameter = match["module"], match["parameter"]
    leaf = module.rpartition(".")[2]
    expert = bool(_EXPERT.search(name))
    cut = _cut(module, leaf, mamba2=mamba2)
    if cut is None:
        return Part(Cut.WHOLE, parameter, expert=expert, known="norm" in leaf.lower() or leaf.startswith("ln_"))
    stacked_moe = leaf in {"input_linear", "output_linear"} and "block_sparse_moe" in module
    linear = (cut not in {Cut.VOCAB, Cut.WHOLE} and "conv" not in leaf) or leaf in _WHOLE_LINEAR
    return Part(cut, parameter, expert=expert or stacked_moe, stacked=stacked_moe, linear=linear)


def _cut(module: str, leaf: str, *, mamba2: bool) -> Cut | None:
    if leaf in _VOCAB:
        return Cut.VOCAB
    recurrent = re.search(r"(?:^|\.)(?:mamba|mixer|linear_attn|short_conv|conv)(?:\.|$)", module)
    if recurrent and mamba2 and leaf in {"in_proj", "conv1d"} and "linear_attn" not in module:
        return Cut.STATE_INPUT
    if leaf in {"conv1d", "conv"} and recurrent:
        return Cut.OUTPUT
    if leaf == "norm" and mamba2 and re.search(r"(?:mamba|mixer)\.norm$", module):
        return Cut.HEADS
    for cut, names in (
        (Cut.OUTPUT, _OUTPUT),
        (Cut.INPUT, _INPUT),
        (Cut.KEYS, _KEYS),
        (Cut.QUERIES_KEYS, _FUSED),
        (Cut.WHOLE, _WHOLE),
    ):
        if leaf in names:
            return cut
    return None

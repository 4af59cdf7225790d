"""Each rank's part of a checkpoint."""

from dataclasses import replace
from math import prod

import pytest

from terazi.memory.vllm.model import read_model
from terazi.memory.vllm.roles import Cut, part_of
from terazi.memory.vllm.weights import (
    NO_ROUNDING,
    IndivisibleError,
    Ranks,
    RankWeights,
    Rounding,
    rank_weights,
    rounding_of,
)
from terazi.models.spec import ModelSpec, Tensor
from vllm_cases import CARD, CONFIGS, llama, spec

SMOL = llama(CONFIGS["smollm2-135m"])
EIGHT = llama(CONFIGS["llama-3.1-8b"])


def held(spec: ModelSpec, tensor: int = 1, *, layers: range | None = None, first: bool = True, last: bool = True,
         online: str | None = None) -> RankWeights:  # fmt: skip
    model = read_model(spec)
    ranks = Ranks(tensor, 1, layers or range(model.layers), first, last)
    return rank_weights(spec, model, ranks, model_bytes=2, online=online)


def test_one_rank_of_smollm2_holds_what_the_real_worker_has() -> None:
    """269,030,016 bytes of parameters in vLLM's model; the tied head is no second matrix."""
    assert held(SMOL).total_bytes == 269_030_016


def test_a_vocabulary_is_padded_to_sixty_four_rows() -> None:
    config = CONFIGS["smollm2-135m"] | {"vocab_size": 49_153}
    assert held(llama(config)).embedding_bytes == (49_152 + 64) * 576 * 2


def test_key_heads_are_copied_where_there_are_more_ranks_than_heads() -> None:
    """32 ranks, 8 KV heads: each rank has one, so four have the same."""
    layer = "model.layers.0.self_attn.k_proj.weight"
    tensor = next(t for t in EIGHT.tensors if t.name == layer)
    one = held(EIGHT, 32).total_bytes
    keys_and_values = 2 * 128 * tensor.shape[1] * 2 * read_model(EIGHT).layers
    by_division = sum(
        t.n_bytes // (32 if len(t.shape) > 1 else 1)
        for t in EIGHT.tensors
        if not t.name.endswith(("k_proj.weight", "v_proj.weight"))
    )
    assert one == by_division + keys_and_values


def test_norms_are_whole_on_every_rank() -> None:
    norms = sum(t.n_bytes for t in EIGHT.tensors if len(t.shape) == 1)
    whole, half = held(EIGHT).total_bytes, held(EIGHT, 2).total_bytes
    assert 2 * half - whole == norms


def test_stages_share_the_layers_and_the_ends_have_the_matrices() -> None:
    first = held(EIGHT, layers=range(2), last=False)
    last = held(EIGHT, layers=range(2, 6), first=False)
    assert first.total_bytes + last.total_bytes == held(EIGHT).total_bytes
    assert first.embedding_bytes == last.embedding_bytes == 128_256 * 4096 * 2


def test_a_tied_matrix_is_on_both_ends() -> None:
    first = held(SMOL, layers=range(15), last=False)
    last = held(SMOL, layers=range(15, 30), first=False)
    assert first.embedding_bytes == last.embedding_bytes > 0


def test_quantising_while_loading_halves_linear_layers_only() -> None:
    plain, online = held(EIGHT), held(EIGHT, online="fp8")
    matrices = sum(t.n_bytes for t in EIGHT.tensors if t.name.endswith("_proj.weight"))
    assert plain.total_bytes - online.total_bytes == matrices // 2


def test_a_size_that_does_not_divide_is_said() -> None:
    with pytest.raises(IndivisibleError, match=r"\d+ of .* among 5 ranks"):
        held(EIGHT, 5)


@pytest.mark.parametrize(
    ("name", "cut", "expert"),
    [
        ("model.layers.3.self_attn.q_proj.weight", Cut.OUTPUT, False),
        ("model.layers.3.self_attn.v_proj.bias", Cut.KEYS, False),
        ("model.layers.3.self_attn.qkv_proj.weight", Cut.QUERIES_KEYS, False),
        ("model.layers.3.self_attn.o_proj.qweight", Cut.INPUT, False),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", Cut.WHOLE, False),
        ("model.layers.3.mlp.gate.weight", Cut.WHOLE, False),
        ("model.layers.3.mlp.gate_proj.weight", Cut.OUTPUT, False),
        ("model.layers.3.mlp.experts.17.down_proj.weight_scale_inv", Cut.INPUT, True),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", Cut.INPUT, False),
        ("model.layers.3.block_sparse_moe.experts.0.w1.weight", Cut.OUTPUT, True),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", Cut.OUTPUT, True),
        ("model.layers.3.self_attn.sinks", Cut.HEADS, False),
        ("backbone.layers.3.mixer.in_proj.weight", Cut.STATE_INPUT, False),
        ("lm_head.weight", Cut.VOCAB, False),
        ("model.norm.weight", Cut.WHOLE, False),
    ],
)
def test_names_tell_the_cut(name: str, cut: Cut, expert: bool) -> None:
    part = part_of(name, mamba2=True)
    assert (part.cut, part.expert, part.known) == (cut, expert, True)


def test_a_name_of_no_known_kind_is_counted_whole_and_said() -> None:
    assert not part_of("model.layers.0.mystery.weight", mamba2=False).known
    assert part_of("vision_tower.blocks.0.attn.qkv.weight", mamba2=False).tower


def test_mxfp4_experts_are_padded_to_what_the_kernel_wants() -> None:
    """gpt-oss: 2880 becomes 3072 by 2944 for Marlin; nothing on the CPU; each rank's slice is padded on its own."""
    rows = {
        "model.layers.0.mlp.experts.gate_up_proj_blocks": (32, 5760, 90, 16),
        "model.layers.0.mlp.experts.gate_up_proj_scales": (32, 5760, 90),
        "model.layers.0.mlp.experts.down_proj_blocks": (32, 2880, 90, 16),
        "model.layers.0.mlp.experts.down_proj_scales": (32, 2880, 90),
    }
    tensors = tuple(Tensor(name, shape, "U8", prod(shape), 0, 0, 0) for name, shape in rows.items())
    oss = spec(CONFIGS["gpt-oss"] | {"quantization_config": {"quant_method": "mxfp4"}}, tensors)
    model = read_model(oss)

    def experts(rounding: Rounding, tensor: int = 1) -> int:
        ranks = Ranks(tensor, 1, range(6), first=True, last=True)
        return rank_weights(oss, model, ranks, model_bytes=2, rounding=rounding).expert_bytes

    assert experts(NO_ROUNDING) == sum(t.n_bytes for t in tensors)
    marlin = rounding_of(replace(CARD, capability=89))
    packed = 3 * 3072 * 2944 * 32
    assert experts(marlin) == packed // 2 + packed // 32
    assert experts(marlin, 2) == 3 * 3072 * 1536 * 32 * 17 // 32

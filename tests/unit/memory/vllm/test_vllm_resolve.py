"""Defaults by device, model and use."""

import pytest

from terazi.errors import UsageError
from terazi.memory.vllm.target import Platform, Target, capability_of
from terazi.units import GIB
from vllm_cases import CARD, CONFIGS, CPU, resolved

SMALL_CARD = Target(platform=Platform.CUDA, capability=86, memory_bytes=24 * GIB, name="NVIDIA GeForce RTX 3090")


@pytest.mark.parametrize(
    ("target", "settings", "seqs", "tokens"),
    [
        (SMALL_CARD, {}, 256, 2048),
        (SMALL_CARD, {"served_by_api": False}, 256, 8192),
        (CARD, {}, 1024, 8192),
        (Target(platform=Platform.CUDA, memory_bytes=80 * GIB, name="NVIDIA A100-SXM4-80GB"), {}, 256, 2048),
        (Target(platform=Platform.CUDA, memory_bytes=179 * GIB, name="NVIDIA B200"), {}, 1024, 16_384),
        (CPU, {}, 128, 2048),
        (CPU, {"tensor_parallel": 2}, 256, 4096),
        (SMALL_CARD, {"max_num_batched_tokens": 64}, 64, 64),
    ],
)
def test_limits_of_a_step_follow_the_device(
    target: Target, settings: dict[str, int], seqs: int, tokens: int
) -> None:
    r = resolved(CONFIGS["llama-3.1-8b"], target, **settings)
    assert (r.max_num_seqs, r.max_num_batched_tokens) == (seqs, tokens)


def test_a_card_without_bfloat16_gets_float16() -> None:
    old = Target(platform=Platform.CUDA, capability=75, memory_bytes=16 * GIB, name="Tesla T4")
    assert resolved(CONFIGS["llama-3.1-8b"], old).dtype == "float16"
    assert resolved(CONFIGS["llama-3.1-8b"], SMALL_CARD).dtype == "bfloat16"
    assert resolved(CONFIGS["mamba-2.8b"], SMALL_CARD).dtype == "bfloat16"  # a float32 model is cast down


def test_blocks_are_sixteen_tokens_on_cards_and_as_large_as_a_state_in_hybrids() -> None:
    assert resolved(CONFIGS["llama-3.1-8b"], SMALL_CARD).block_size == 16
    assert resolved(CONFIGS["llama-3.1-8b"], CPU).block_size == 128
    hybrid = resolved(CONFIGS["qwen3-next-80b"], SMALL_CARD)
    assert len({p.spec.page_bytes for p in hybrid.caches}) == 1
    assert hybrid.block_size % 16 == 0


def test_steps_overlap_on_cards_and_their_tokens_count_twice() -> None:
    assert resolved(CONFIGS["llama-3.1-8b"], SMALL_CARD).limits.in_flight_tokens == 4096
    assert resolved(CONFIGS["llama-3.1-8b"], SMALL_CARD, async_scheduling=False).limits.in_flight_tokens == 2048


def test_layers_left_over_go_to_the_middle_stages() -> None:
    """``get_pp_indices``: neither to the first, with the embeddings, nor to the last, with the head."""
    config = CONFIGS["llama-3.1-8b"] | {"num_hidden_layers": 6}
    assert [len(s) for s in resolved(config, CARD, pipeline_parallel=4).stages] == [1, 2, 2, 1]
    said = resolved(config, CARD, pipeline_parallel=2, layer_partition=(5, 1))
    assert [len(s) for s in said.stages] == [5, 1]
    with pytest.raises(UsageError, match="VLLM_PP_LAYER_PARTITION"):
        resolved(config, CARD, pipeline_parallel=2, layer_partition=(5, 2))


@pytest.mark.parametrize("settings", [{"dtype": "int8"}, {"kv_cache_dtype": "q8_0"}])
def test_types_that_are_none_of_vllms_are_named(settings: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings.values()))):
        resolved(CONFIGS["llama-3.1-8b"], CPU, **settings)


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA GeForce RTX 3090", 86),
        ("GeForce RTX 4090", 89),
        ("NVIDIA GeForce RTX 5090", 120),
        ("NVIDIA H100 80GB HBM3", 90),
        ("NVIDIA A100-SXM4-80GB", 80),
        ("Tesla V100-SXM2-32GB", 70),
        ("Tesla T4", 75),
        ("NVIDIA B200", 100),
        ("NVIDIA L40S", 89),
        ("NVIDIA RTX A6000", 86),
        ("NVIDIA RTX 6000 Ada Generation", 89),
        ("Tesla P40", 61),
        ("Something of 2031", None),
    ],
)
def test_compute_capability_by_name(name: str, capability: int | None) -> None:
    assert capability_of(name) == capability

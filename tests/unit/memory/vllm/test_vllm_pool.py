"""Blocks and tokens against figures that vLLM itself printed, and the published vectors."""

from typing import Any

import pytest

from terazi.memory.vllm.cache import CacheSpec, Limits
from terazi.memory.vllm.model import CacheKind
from terazi.memory.vllm.pool import KvPool, MixedPagesError, Placed, group_caches, plan_pool
from terazi.memory.vllm.resolve import Resolved
from terazi.units import GIB, MIB
from vllm_cases import CARD, CONFIGS, resolved


def pool(r: Resolved, available: int) -> KvPool:
    return plan_pool(
        r.caches, r.stages, [available] * len(r.stages), r.limits, one_table=r.one_table, fit_length=r.fit_length
    )


@pytest.mark.parametrize(
    ("name", "settings", "available", "blocks", "tokens"),
    [
        # a real engine's log: "CPU KV cache size: 46,592 tokens"
        ("smollm2-135m", {}, GIB, 364, 46_592),
        # vLLM 0.32.0's own functions
        ("gemma-3-270m", {}, GIB, 2730, 247_802),
        ("lfm2-1.2b", {}, 8 * GIB, 5461, 696_223),
    ],
)
def test_blocks_and_tokens_are_what_vllm_says(
    name: str, settings: dict[str, Any], available: int, blocks: int, tokens: int
) -> None:
    found = pool(resolved(CONFIGS[name], **settings), available)
    assert (found.blocks, found.tokens) == (blocks, tokens)


def test_a_window_in_every_layer_holds_more_than_its_blocks() -> None:
    """vLLM's own figures for Mistral 7B v0.1 and 8 GiB: 512 blocks of 128 tokens, reported as 342,392 tokens."""
    found = pool(resolved(CONFIGS["mistral-7b-v0.1"] | {"num_hidden_layers": 32}), 8 * GIB)
    assert (found.blocks, found.tokens) == (512, 342_392)


def test_eight_layers_halved_hold_what_the_real_engine_printed() -> None:
    """8 layers, 4 KV heads of 64, -tp 2, 1 GiB each: "CPU KV cache size: 262,144 tokens"."""
    tiny = CONFIGS["smollm2-135m"] | {
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 16_384,
    }
    found = pool(resolved(tiny, tensor_parallel=2), GIB)
    assert (found.tokens, found.concurrency) == (262_144, 16.0)


def test_deepseek_v3_takes_70272_bytes_a_token_on_every_rank() -> None:
    """61 layers of one latent vector, 512 + 64 halves: replicated, however many ranks there are."""
    config = CONFIGS["deepseek-v3"] | {"num_hidden_layers": 61}
    for ranks in (1, 8):
        r = resolved(config, CARD, tensor_parallel=ranks)
        found = pool(r, 8 * GIB)
        assert found.block_bytes == (70_272 * r.block_size,)


def test_gpt_oss_takes_73728_bytes_a_token_without_the_hybrid_cache() -> None:
    """36 layers of 8 KV heads of 64 (gpt-oss-120b); with it, half of the layers forget what left their window."""
    config = CONFIGS["gpt-oss"] | {
        "num_hidden_layers": 36,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "num_local_experts": 128,
    }
    whole = pool(resolved(config, CARD, hybrid_kv_cache=False), 8 * GIB)
    assert whole.block_bytes == (73_728 * 16,)
    hybrid = pool(resolved(config, CARD), 8 * GIB)
    assert hybrid.tokens > 1.7 * whole.tokens


def test_the_stage_with_the_least_memory_a_block_decides() -> None:
    r = resolved(CONFIGS["llama-3.1-8b"], pipeline_parallel=2, max_model_len=4096)
    even = plan_pool(r.caches, r.stages, [GIB, GIB], r.limits)
    uneven = plan_pool(r.caches, r.stages, [GIB, 8 * GIB], r.limits)
    assert uneven.blocks == even.blocks
    assert plan_pool(r.caches, r.stages, [GIB, GIB // 2], r.limits).blocks == even.blocks // 2


def test_the_longest_sequence_really_fits_and_one_block_more_does_not() -> None:
    r = resolved(CONFIGS["llama-3.1-8b"])
    found = pool(r, 256 * MIB)
    assert not found.fits
    fitted = resolved(CONFIGS["llama-3.1-8b"], max_model_len=found.longest)
    assert pool(fitted, 256 * MIB).fits
    longer = resolved(CONFIGS["llama-3.1-8b"], max_model_len=found.longest + 1)
    assert not pool(longer, 256 * MIB).fits


def test_an_automatic_length_is_cut_to_what_fits() -> None:
    found = pool(resolved(CONFIGS["llama-3.1-8b"], max_model_len=-1), 256 * MIB)
    assert found.fits
    assert found.max_model_len == pool(resolved(CONFIGS["llama-3.1-8b"]), 256 * MIB).longest


def test_no_room_for_one_block_is_no_pool() -> None:
    found = pool(resolved(CONFIGS["llama-3.1-8b"]), 1000)
    assert (found.blocks, found.longest, found.fits) == (0, 0, False)
    assert found.checked_bytes < 0


def test_latent_pages_that_do_not_divide_are_refused() -> None:
    latent = CacheSpec(kind=CacheKind.LATENT, block_size=16, token_bytes=1000)
    window = CacheSpec(kind=CacheKind.SLIDING, block_size=16, token_bytes=1536, window=128)
    with pytest.raises(MixedPagesError):
        group_caches([Placed(0, latent), Placed(1, window)])


def test_a_rarest_kind_sets_the_size_of_groups() -> None:
    """Thirteen full and twelve windows are padded to two groups; ten and thirty make four groups of ten."""
    full = CacheSpec(kind=CacheKind.FULL, block_size=16, token_bytes=64)
    window = CacheSpec(kind=CacheKind.SLIDING, block_size=16, token_bytes=64, window=128)
    near = [Placed(i, full if i % 2 == 0 else window) for i in range(25)]
    assert [len(g.members) for g in group_caches(near)] == [13, 12]
    far = [Placed(i, full if i % 4 == 0 else window) for i in range(40)]
    assert [len(g.members) for g in group_caches(far)] == [10, 10, 10, 10]


def test_a_window_may_begin_inside_a_block() -> None:
    window = CacheSpec(kind=CacheKind.SLIDING, block_size=16, token_bytes=64, window=128)
    limits = Limits(max_model_len=100_000, in_flight_tokens=2048)
    assert window.pages_of_a_sequence(limits) == (128 - 1 + 2048 + 15) // 16 + 1

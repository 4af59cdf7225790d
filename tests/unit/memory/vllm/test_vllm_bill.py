"""The whole bill of an engine, on CPU and on cards."""

from dataclasses import replace
from typing import Any

import pytest

from terazi.memory.bill import HOST, LineBasis, Term
from terazi.memory.vllm.bill import Appraisal, appraise, weigh
from terazi.memory.vllm.settings import Speculation, VllmSettings
from terazi.units import GIB, MIB
from vllm_cases import CONFIGS, HOST_MACHINE, card, llama, spec

SMOL = llama(CONFIGS["smollm2-135m"])
EIGHT = llama(CONFIGS["llama-3.1-8b"])


def on_cards(count: int, memory: int = 24 * GIB, **settings: Any) -> Appraisal:
    return appraise(EIGHT, VllmSettings(**settings), [card(i, memory) for i in range(count)], HOST_MACHINE)


def codes(appraisal: Appraisal) -> list[str]:
    return [o.code for o in appraisal.objections]


def test_an_explicit_cache_on_cpu_is_exact() -> None:
    appraisal = appraise(SMOL, VllmSettings(kv_cache_memory_bytes=GIB), [], HOST_MACHINE)
    kv = next(line for line in appraisal.bill.lines if line.term is Term.KV)
    assert kv.basis is LineBasis.EXACT
    assert appraisal.pool is not None
    assert kv.bytes == 364 * 30 * 98_304
    assert appraisal.pool.tokens == 46_592
    assert codes(appraisal) == []


def test_two_ranks_on_cpu_each_hold_their_own_cache() -> None:
    tiny = llama(CONFIGS["smollm2-135m"] | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64})
    one = weigh(tiny, VllmSettings(kv_cache_memory_bytes=GIB), [], HOST_MACHINE)
    two = weigh(tiny, VllmSettings(kv_cache_memory_bytes=GIB, tensor_parallel=2), [], HOST_MACHINE)
    assert two.on(HOST).kv_bytes > 1.9 * one.on(HOST).kv_bytes


def test_a_card_is_filled_to_its_share_and_the_context_lies_beside_it() -> None:
    appraisal = on_cards(1)
    held = appraisal.bill.on("CUDA0")
    budget = 0.92 * 24 * GIB
    assert budget - 16 * MIB < held.total_bytes - 246 * MIB <= budget + 1


def test_tensor_parallel_ranks_hold_the_same() -> None:
    appraisal = on_cards(2, tensor_parallel=2)
    assert appraisal.bill.on("CUDA0").weights_bytes == appraisal.bill.on("CUDA1").weights_bytes
    assert codes(appraisal) == []


def test_the_smaller_card_decides_how_many_blocks_both_get() -> None:
    cards = [card(0), card(1, 12 * GIB)]
    appraisal = appraise(EIGHT, VllmSettings(tensor_parallel=2), cards, HOST_MACHINE)
    small = appraise(EIGHT, VllmSettings(tensor_parallel=2), [card(0, 12 * GIB), card(1, 12 * GIB)], HOST_MACHINE)
    assert appraisal.pool is not None
    assert small.pool is not None
    assert appraisal.pool.blocks == small.pool.blocks


@pytest.mark.parametrize(
    ("settings", "count", "code"),
    [
        ({"tensor_parallel": 3}, 3, "heads"),
        ({"tensor_parallel": 4}, 2, "cards"),
        ({"pipeline_parallel": 7}, 8, "layers"),
        ({"max_model_len": 200_000}, 1, "length"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, 1, "batch"),
        ({"gpu_memory_utilization": 0.999}, 1, "free"),
        ({"quantization": "q4_k"}, 1, "quantization"),
    ],
)
def test_what_vllm_would_refuse(settings: dict[str, Any], count: int, code: str) -> None:
    assert codes(on_cards(count, **settings))[0] == code


def test_an_old_card_refuses_bfloat16_and_mxfp4() -> None:
    old = [card(0, 32 * GIB, "Tesla V100-SXM2-32GB")]
    said = appraise(EIGHT, VllmSettings(dtype="bfloat16"), old, HOST_MACHINE)
    assert "dtype" in codes(said)
    quantised = spec(CONFIGS["llama-3.1-8b"] | {"quantization_config": {"quant_method": "awq", "bits": 4}})
    assert "quantization" in codes(appraise(quantised, VllmSettings(), old, HOST_MACHINE))


def test_stages_on_cpu_die_at_the_first_request() -> None:
    settings = VllmSettings(kv_cache_memory_bytes=GIB, pipeline_parallel=2)
    assert codes(appraise(SMOL, settings, [], HOST_MACHINE)) == ["pipeline"]


def test_a_cache_that_is_too_small_names_the_length_that_fits() -> None:
    """A real engine with --kv-cache-memory-bytes 100M said: estimated maximum model length is 4352."""
    appraisal = appraise(SMOL, VllmSettings(kv_cache_memory_bytes=100 * MIB), [], HOST_MACHINE)
    assert codes(appraisal) == ["cache"]
    assert appraisal.pool is not None
    assert appraisal.pool.longest == 4352
    assert "--max-model-len 4352" in appraisal.objections[0].hint


def test_a_model_larger_than_the_card_leaves_nothing_for_blocks() -> None:
    assert "blocks" in codes(on_cards(1, 4 * GIB))


def test_offloaded_weights_are_pinned_on_the_host() -> None:
    moved = on_cards(1, cpu_offload_bytes=GIB).bill
    kept = on_cards(1).bill
    assert moved.on(HOST).weights_bytes == GIB
    assert kept.on("CUDA0").weights_bytes - moved.on("CUDA0").weights_bytes == GIB


def test_without_graphs_there_is_more_room_for_tokens() -> None:
    eager, graphs = on_cards(1, enforce_eager=True).pool, on_cards(1).pool
    assert eager is not None
    assert graphs is not None
    assert eager.tokens > graphs.tokens


def test_a_gguf_file_is_none_of_vllms() -> None:
    assert codes(appraise(replace(SMOL, format="gguf"), VllmSettings(), [card(0)], HOST_MACHINE))[0] == "format"


def test_ngram_guessing_costs_no_memory_that_a_bill_knows() -> None:
    guess = Speculation(method="ngram", tokens=4)
    settings = VllmSettings(kv_cache_memory_bytes=GIB, speculation=guess)
    plain = weigh(SMOL, VllmSettings(kv_cache_memory_bytes=GIB), [], HOST_MACHINE)
    assert weigh(SMOL, settings, [], HOST_MACHINE).total_bytes == plain.total_bytes


def test_a_model_without_a_class_of_its_own_is_not_called_exact() -> None:
    named = replace(SMOL, metadata={**SMOL.metadata, "architectures": ("NobodyForCausalLM",)})
    bill = weigh(named, VllmSettings(kv_cache_memory_bytes=GIB), [], HOST_MACHINE)
    assert not bill.exact
    assert weigh(SMOL, VllmSettings(kv_cache_memory_bytes=GIB), [], HOST_MACHINE).exact


def test_a_bill_is_the_sum_of_its_lines() -> None:
    bill = on_cards(2, tensor_parallel=2).bill
    assert bill.total_bytes == sum(bill.on(d).total_bytes for d in bill.devices())
    assert all(line.bytes > 0 for line in bill.lines)


def test_a_draft_model_shares_the_blocks_and_brings_its_own_weights() -> None:
    """A real engine with SmolLM2, a draft of 8 layers and 1 GiB said: CPU KV cache size: 34,304 tokens."""
    draft = llama(
        CONFIGS["llama-3.1-8b"]
        | {
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "vocab_size": 49_152,
        }
    )
    settings = VllmSettings(
        kv_cache_memory_bytes=GIB, speculation=Speculation(method="draft_model", tokens=3, model="d")
    )
    appraisal = appraise(SMOL, settings, [], HOST_MACHINE, draft)
    assert appraisal.pool is not None
    assert appraisal.pool.tokens == 34_304
    extra = next(line for line in appraisal.bill.lines if line.part == "draft")
    assert extra.bytes == draft.weights_bytes


def test_the_draft_lies_on_the_last_stage() -> None:
    settings = VllmSettings(pipeline_parallel=2, speculation=Speculation(method="draft_model", tokens=3, model="d"))
    bill = appraise(EIGHT, settings, [card(0), card(1)], HOST_MACHINE, SMOL).bill
    assert [line.device for line in bill.lines if line.part == "draft"] == ["CUDA1"]

"""What holds for every model and every setting of vLLM."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from terazi.memory.vllm.bill import appraise
from terazi.memory.vllm.model import read_model
from terazi.memory.vllm.objections import divides_heads
from terazi.memory.vllm.pool import KvPool, plan_pool
from terazi.memory.vllm.resolve import Resolved
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.vllm.weights import Ranks, rank_weights
from terazi.units import GIB, MIB
from vllm_cases import CARD, CONFIGS, CPU, HOST_MACHINE, card, llama, resolved

NAMES = st.sampled_from(sorted(name for name in CONFIGS if "mamba" not in name))
TARGETS = st.sampled_from([CPU, CARD])
ROOM = st.integers(1, 64 * 1024).map(lambda mib: mib * MIB)


@st.composite
def llamas(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    return CONFIGS["llama-3.1-8b"] | {
        "num_hidden_layers": draw(st.integers(1, 6)),
        "num_attention_heads": kv_heads * draw(st.sampled_from([1, 2, 4])),
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([64, 128])),
        "hidden_size": 512,
        "intermediate_size": 64 * draw(st.integers(1, 32)),
        "vocab_size": draw(st.integers(100, 50_000)),
        "tie_word_embeddings": draw(st.booleans()),
    }


def pool(r: Resolved, available: int) -> KvPool:
    return plan_pool(r.caches, r.stages, [available] * len(r.stages), r.limits, one_table=r.one_table)


@given(NAMES, TARGETS, ROOM, st.integers(0, 4096))
def test_more_memory_never_holds_fewer_tokens(name: str, target: Any, available: int, more: int) -> None:
    r = resolved(CONFIGS[name], target)
    small, large = pool(r, available), pool(r, available + more * MIB)
    assert large.blocks >= small.blocks
    assert large.tokens >= small.tokens
    assert large.longest >= small.longest


@given(NAMES, TARGETS, ROOM)
def test_a_pool_lies_within_its_memory_and_one_block_more_would_not(name: str, target: Any, available: int) -> None:
    found = pool(resolved(CONFIGS[name], target), available)
    size = found.block_bytes[0]
    assert found.blocks * size <= available < (found.blocks + 1) * size


@given(NAMES, TARGETS, ROOM)
def test_it_fits_exactly_up_to_the_longest_length(name: str, target: Any, available: int) -> None:
    found = pool(resolved(CONFIGS[name], target), available)
    assert found.fits == (found.longest == found.max_model_len)


@given(NAMES, TARGETS, st.integers(1, 131_072), st.integers(1, 4096))
def test_a_longer_sequence_never_takes_fewer_blocks(name: str, target: Any, length: int, more: int) -> None:
    short = pool(resolved(CONFIGS[name], target, max_model_len=length), 8 * GIB)
    long = pool(resolved(CONFIGS[name], target, max_model_len=length + more), 8 * GIB)
    assert long.blocks_per_sequence >= short.blocks_per_sequence


@given(llamas(), st.sampled_from([2, 4, 8]))
def test_ranks_together_hold_at_least_the_whole_and_none_more_than_it(config: dict[str, Any], ranks: int) -> None:
    spec = llama(config)
    model = read_model(spec)
    assume(divides_heads(model, ranks) and config["intermediate_size"] % ranks == 0)

    def held(tensor: int) -> int:
        each = Ranks(tensor, 1, range(model.layers), first=True, last=True)
        return rank_weights(spec, model, each, model_bytes=2).total_bytes

    assert held(1) <= ranks * held(ranks)
    assert held(ranks) <= held(1)


@given(llamas(), st.integers(1, 4), st.integers(8, 80))
def test_stages_hold_every_layer_once(config: dict[str, Any], stages: int, gib: int) -> None:
    spec = llama(config)
    settings = VllmSettings(pipeline_parallel=stages)
    appraisal = appraise(spec, settings, [card(i, gib * GIB) for i in range(stages)], HOST_MACHINE)
    if stages > config["num_hidden_layers"]:
        assert [o.code for o in appraisal.objections][:1] == ["layers"]
        return
    layers = [layer for stage in appraisal.resolved.stages for layer in stage]
    assert layers == list(range(config["num_hidden_layers"]))
    assert appraisal.bill.total_bytes == sum(line.bytes for line in appraisal.bill.lines)

"""The bill as a whole: overhead, growth, reasons, bases."""

from dataclasses import replace

import pytest

from terazi.errors import ModelFileError
from terazi.memory.bill import HOST, Bill, LineBasis, Term
from terazi.memory.llama_cpp.architectures import known_to_engine
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.units import MIB
from tiny_models import device, llama

SPEC = llama()
NO_FLAGS: frozenset[str] = frozenset()


def test_output_buffer_holds_a_row_of_logits_a_slot() -> None:
    bill = weigh(SPEC, LlamaCppSettings(n_ctx=4096), (), NO_FLAGS)
    assert bill.on(HOST).overhead_bytes == 4 * 4 * SPEC.vocab_size


def test_driver_context_is_counted_for_cards_only() -> None:
    card = device("CUDA0", backend="cuda", context_mib=300)
    bill = weigh(SPEC, LlamaCppSettings(n_ctx=512), (card,), NO_FLAGS)
    (line,) = [line for line in bill.lines if line.formula == "driver-context"]
    assert (line.device, line.bytes, line.basis) == ("CUDA0", 300 * MIB, LineBasis.CATALOGUE)
    remote = device("RPC0", context_mib=300)
    assert not [
        x for x in weigh(SPEC, LlamaCppSettings(), (remote,), NO_FLAGS).lines if x.formula == "driver-context"
    ]


def growth_of(bill: Bill) -> dict[str, int]:
    return {line.formula: line.bytes for line in bill.growth}


def test_a_prompt_cache_without_a_limit_of_bytes_keeps_a_context_of_tokens() -> None:
    bill = weigh(SPEC, LlamaCppSettings(n_ctx=512, cache_ram_mib=-1), (), NO_FLAGS)
    assert growth_of(bill)["prompt-cache"] == bill.on(HOST).kv_bytes + 512 * 12


def test_prompt_cache_is_growth_and_not_in_the_total() -> None:
    bill = weigh(SPEC, LlamaCppSettings(n_ctx=512), (), NO_FLAGS)
    assert growth_of(bill)["prompt-cache"] == 8192 * MIB
    assert bill.total_bytes < 100 * MIB
    without = weigh(SPEC, LlamaCppSettings(n_ctx=512, cache_ram_mib=0), (), NO_FLAGS)
    assert set(growth_of(without)) == {"cpu-work"}
    assert weigh(SPEC, LlamaCppSettings(n_ctx=512, tool="llama-fit-params"), (), NO_FLAGS).growth == ()


def test_bases_say_how_sure_a_line_is() -> None:
    alone = weigh(SPEC, LlamaCppSettings(n_ctx=512), (), NO_FLAGS)
    assert {line.basis for line in alone.lines} == {LineBasis.EXACT}
    card = weigh(SPEC, LlamaCppSettings(n_ctx=512), (device("CUDA0", backend="cuda"),), NO_FLAGS)
    assert {line.basis for line in card.lines if line.term is Term.COMPUTE} == {LineBasis.MODELLED}


def test_a_device_that_the_engine_would_refit_is_said() -> None:
    small = (device("RPC0", free_gib=1.0),)
    bill = weigh(SPEC, LlamaCppSettings(n_ctx=512), small, NO_FLAGS)
    assert not bill.exact
    assert any("RPC0" in reason and "--fit" in reason for reason in bill.reasons)
    for settings in (
        LlamaCppSettings(n_ctx=512, fit=False),
        LlamaCppSettings(n_ctx=512, n_gpu_layers=99),
        LlamaCppSettings(n_ctx=512, tool="llama-fit-params"),
    ):
        assert weigh(SPEC, settings, small, NO_FLAGS).exact


def test_unknown_architecture_is_bounded_and_said() -> None:
    bill = weigh(replace(SPEC, architecture="hrm_text"), LlamaCppSettings(n_ctx=512), (), NO_FLAGS)
    assert not bill.exact
    assert "hrm_text" in bill.reasons[0]
    assert bill.total_bytes > weigh(SPEC, LlamaCppSettings(n_ctx=512), (), NO_FLAGS).total_bytes


def test_the_engine_knows_its_architectures_and_no_others() -> None:
    assert all(known_to_engine(name) for name in ("llama", "gemma3", "qwen3next", "deepseek2", "gpt-oss"))
    assert not any(known_to_engine(name) for name in ("", "clip", "(unknown)", "llama5", "LLAMA"))


def test_a_model_without_a_tensor_that_it_needs_is_no_model() -> None:
    broken = replace(SPEC, tensors=tuple(t for t in SPEC.tensors if t.name != "blk.2.ffn_up.weight"))
    with pytest.raises(ModelFileError, match=r"blk\.2\.ffn_up\.weight"):
        weigh(broken, LlamaCppSettings(n_ctx=512), (), NO_FLAGS)


def test_cuda_needs_room_for_half_precision_copies_of_a_quantised_cache() -> None:
    card = (device("CUDA0", backend="cuda"),)
    plain, quantised = (
        weigh(SPEC, LlamaCppSettings(n_ctx=65536, n_parallel=1, type_k=t, type_v=t), card, NO_FLAGS).on("CUDA0")
        for t in ("f16", "q8_0")
    )
    copies = 2 * 65536 * SPEC.head_count_kv[0] * (SPEC.key_length + SPEC.value_length)
    assert quantised.compute_bytes - plain.compute_bytes == pytest.approx(copies, rel=0.2)
    assert quantised.kv_bytes < plain.kv_bytes


def test_host_weights_are_staged_on_a_card_that_takes_large_batches_over() -> None:
    card = (device("CUDA0", backend="cuda"),)
    settings = LlamaCppSettings(n_ctx=512, n_gpu_layers=0)
    assert weigh(SPEC, settings, card, NO_FLAGS).on("CUDA0").compute_bytes > 0
    assert weigh(SPEC, replace(settings, op_offload=False), card, NO_FLAGS).on("CUDA0").compute_bytes == 0
    assert weigh(SPEC, settings, (device("RPC0"),), NO_FLAGS).on("RPC0").compute_bytes == 0


@pytest.mark.parametrize("architecture", ["rwkv6", "rwkv7", "minimax-m3"])
def test_a_model_without_what_its_architecture_divides_by_is_one_sentence(architecture: str) -> None:
    with pytest.raises(ModelFileError, match="what its architecture"):
        weigh(replace(SPEC, architecture=architecture), LlamaCppSettings(n_ctx=512), (), NO_FLAGS)

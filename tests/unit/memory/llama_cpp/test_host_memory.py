"""What kind of host memory a line is, what is held only while loading, and what work buffers come later."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.hardware.machine import Device
from terazi.memory.bill import ELASTIC, HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.units import GIB, MIB
from tiny_models import device, llama

AVX2 = frozenset({"avx2"})
CUDA, RPC, METAL = (device(name, backend=name[:-1].lower()) for name in ("CUDA0", "RPC0", "Metal0"))
MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")


def bill_of(mode: str, *devices: Device, spec: ModelSpec | None = None, **settings: Any) -> Bill:
    made = LlamaCppSettings(load_mode=mode, n_ctx=512, fit=False)
    return weigh(spec or llama(), replace(made, **settings), devices, AVX2)


def kinds(bill: Bill, device: str = HOST) -> dict[str, Memory]:
    return {line.formula: line.memory for line in bill.lines if line.device == device}


@pytest.mark.parametrize(
    ("mode", "plain"),
    [
        ("auto", Memory.PAGE_CACHE),
        ("mmap", Memory.PAGE_CACHE),
        ("none", Memory.ANONYMOUS),
        ("dio", Memory.ANONYMOUS),
        ("mlock", Memory.PINNED),
        ("mmap+mlock", Memory.PINNED),
    ],
)
def test_load_mode_decides_the_kind_of_plain_weights_only(mode: str, plain: Memory) -> None:
    found = kinds(bill_of(mode))
    assert found["weights.plain"] is plain
    assert found["weights.repack"] is Memory.ANONYMOUS
    assert found["kv.full"] is Memory.ANONYMOUS
    assert found["compute.replay"] is Memory.ANONYMOUS


def test_locked_gaps_are_part_of_the_total() -> None:
    """The kernel can't drop what is locked, read or not."""
    mapped, locked = bill_of("mmap"), bill_of("mmap+mlock")
    (gap,) = mapped.page_cache
    assert not locked.page_cache
    assert locked.total_bytes == mapped.total_bytes + gap.bytes
    assert locked.held(HOST).page_cache_bytes == sum(
        line.bytes for line in locked.process if line.memory is Memory.PAGE_CACHE
    )


def test_buffers_of_the_host_beside_a_cuda_card_are_pinned() -> None:
    found = kinds(bill_of("none", CUDA, n_gpu_layers=2))
    assert found["compute.replay"] is found["output-buffer"] is found["weights.pinned"] is Memory.PINNED
    assert kinds(bill_of("auto", CUDA, kv_offload=False))["kv.full"] is Memory.ANONYMOUS
    assert kinds(bill_of("auto", RPC, n_gpu_layers=2))["compute.replay"] is Memory.ANONYMOUS
    # with the output on the CPU its buffer is the CPU's
    assert kinds(bill_of("auto", CUDA, n_gpu_layers=0))["output-buffer"] is Memory.ANONYMOUS


@pytest.mark.parametrize(("dtype", "pinned"), [("q4_K", True), ("q8_0", True), ("tq1_0", False)])
def test_the_input_table_is_pinned_if_the_card_can_look_up_its_rows(dtype: str, pinned: bool) -> None:
    found = kinds(bill_of("none", CUDA, spec=llama(dtype=dtype)))
    assert ("weights.pinned" in found, "weights.plain" in found) == (pinned, not pinned)


def test_integrated_cards_turn_mapping_off_unless_it_is_asked_for() -> None:
    shared = replace(CUDA, unified_memory=True)
    assert kinds(bill_of("auto", shared, no_host=True))["weights.plain"] is Memory.ANONYMOUS
    assert kinds(bill_of("mmap", shared, no_host=True))["weights.plain"] is Memory.PAGE_CACHE


def test_uploads_to_a_card_go_through_four_small_buffers() -> None:
    def loading(mode: str, **settings: Any) -> list[tuple[str, int, Memory]]:
        return [(x.formula, x.bytes, x.memory) for x in bill_of(mode, CUDA, **settings).loading]

    assert loading("auto") == []
    assert loading("none") == [("upload-staging", 4 * MIB, Memory.PINNED)]
    assert loading("dio") == [("upload-staging", 4 * (64 * MIB + 8192), Memory.PINNED)]
    largest = max(t.n_bytes for t in llama().tensors)
    assert loading("none", check_tensors=True) == [("read-buffer", largest, Memory.ANONYMOUS)]


def test_rpc_sends_a_tensor_as_one_message() -> None:
    largest = max(t.n_bytes for t in llama().tensors)
    mapped = {(x.device, x.formula): x.bytes for x in bill_of("mmap", RPC).loading}
    assert mapped == {(HOST, "rpc-message"): largest + 305, ("RPC0", "rpc-message"): largest + 305}
    read = {(x.device, x.formula): x.bytes for x in bill_of("none", RPC).loading}
    assert read[HOST, "read-buffer"] == 2 * largest + 305


def test_repacked_weights_are_read_into_a_buffer_first_unless_mapped() -> None:
    assert not bill_of("auto").loading
    (line,) = bill_of("none").loading
    assert line.bytes == max(t.n_bytes for t in llama().tensors if t.name != "token_embd.weight")
    assert not bill_of("none", repack=False).loading


def test_the_tool_that_estimates_loads_nothing() -> None:
    bill = bill_of("none", RPC, tool="llama-fit-params")
    assert (bill.loading, bill.process, bill.growth) == ((), (), ())


def test_work_buffers_follow_the_micro_batch() -> None:
    """``ggml_graph_plan``: q8_K rows of the widest product, 512 tokens of 14336 at 292 bytes for 256."""
    spec = llama(width=4096, heads=32, kv_heads=8, inner=14336, blocks=1)
    growth = {x.formula: x.bytes for x in bill_of("auto", spec=spec, n_ctx=4096, repack=False).growth}
    assert growth["cpu-work"] == 512 * 14336 // 256 * 292 + 64 * 32
    half = {x.formula: x.bytes for x in bill_of("auto", spec=spec, n_ctx=4096, n_ubatch=256).growth}
    assert half["cpu-work"] == pytest.approx(growth["cpu-work"] / 2, rel=0.4)


def test_without_flash_attention_the_cpu_turns_its_weights_to_half_precision() -> None:
    bill = bill_of("auto", n_ctx=32768, n_parallel=1, flash_attn="off")
    growth = {x.formula: x.bytes for x in bill.growth}
    assert growth["cpu-work"] == 2 * 8 * 32768 * 512 + 64 * 32


def test_a_cuda_pool_is_sure_growth_of_its_device() -> None:
    bill = bill_of("auto", CUDA)
    pool = next(x for x in bill.growth if x.formula == "cuda-pool")
    assert (pool.device, pool.memory, pool.basis) == ("CUDA0", Memory.DEVICE, LineBasis.UPPER_BOUND)
    assert bill.needed_bytes("CUDA0") == bill.on("CUDA0").total_bytes + pool.bytes


@given(st.sampled_from(MODES), st.sampled_from([(), (CUDA,), (RPC,), (METAL,), (CUDA, RPC)]), st.integers(0, 5))
def test_kinds_add_up_to_what_is_held(mode: str, devices: tuple[Device, ...], layers: int) -> None:
    bill = bill_of(mode, *devices, n_gpu_layers=layers)
    for name in bill.devices():
        held = bill.held(name)
        assert sum(held) == bill.on(name).total_bytes + bill.process_bytes(name)
        assert sum(held) <= bill.peak_bytes(name) <= bill.needed_bytes(name)
        if name == HOST:
            assert held.device_bytes == 0
            assert held.unswappable_bytes + held.page_cache_bytes == sum(held)
    assert {line.memory for line in bill.page_cache} <= {Memory.PAGE_CACHE}


def line(term: Term, size: int, formula: str = "x") -> BillLine:
    return BillLine(
        term=term, device=HOST, bytes=size, formula=formula, basis=LineBasis.EXACT, memory=Memory.ANONYMOUS
    )


def test_staging_is_held_beside_the_weights_not_beside_the_caches() -> None:
    held = (line(Term.WEIGHTS, 10 * GIB), line(Term.KV, 3 * GIB))
    small = Bill(engine="e", build="b", lines=held, loading=(line(Term.OVERHEAD, 2 * GIB),))
    large = replace(small, loading=(line(Term.OVERHEAD, 5 * GIB),), process=(line(Term.OVERHEAD, GIB),))
    assert small.peak_bytes(HOST) == 13 * GIB
    assert large.peak_bytes(HOST) == 16 * GIB


def test_elastic_growth_is_not_needed_and_other_growth_is() -> None:
    elastic = [line(Term.OVERHEAD, GIB, formula) for formula in sorted(ELASTIC)]
    bill = Bill(engine="e", build="b", lines=(line(Term.KV, GIB),), growth=(*elastic, line(Term.OVERHEAD, 7)))
    assert bill.needed_bytes(HOST) == GIB + 7

"""Which buffer a tensor goes to, on backends that the measured cases don't have."""

from dataclasses import replace

import pytest

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer, weight_buffers
from terazi.memory.llama_cpp.weights import BufferKind, place_tensors
from terazi.models.spec import ModelSpec, Tensor
from tiny_models import device, llama

AVX2 = frozenset({"avx2"})
CUDA = (device("CUDA0", backend="cuda"),)


def buffers(
    spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...] = (), isa: frozenset[str] = AVX2
) -> dict[tuple[str, BufferKind], WeightBuffer]:
    resolved = resolve(spec, settings, devices)
    placements = place_tensors(spec, settings, resolved, isa)
    return {(b.device, b.kind): b for b in weight_buffers(placements, settings, resolved, isa)}


def test_mapped_buffer_spans_from_its_first_to_its_last_tensor() -> None:
    spec = llama(rope_factors=True)
    got = buffers(spec, LlamaCppSettings())
    plain, repacked = got[HOST, BufferKind.PLAIN], got[HOST, BufferKind.REPACK]
    last = spec.tensors[-1]
    assert plain.mapped
    assert plain.buffer_bytes == last.offset + last.n_bytes  # the embedding is first, the rope factors last
    products = [t for t in spec.tensors if len(t.shape) == 2 and t.name != "token_embd.weight"]
    assert repacked.buffer_bytes == sum(t.n_bytes for t in products)
    assert plain.tensor_bytes == sum(-(-t.n_bytes // 32) * 32 for t in spec.tensors if t not in products)


def test_nothing_is_mapped_when_told_so() -> None:
    plain = buffers(llama(), LlamaCppSettings(load_mode="none", repack=False))[HOST, BufferKind.PLAIN]
    assert not plain.mapped
    assert plain.buffer_bytes == llama().weights_bytes


def test_each_part_of_a_split_file_has_its_own_span() -> None:
    spec = llama()
    half = len(spec.tensors) // 2
    start = spec.tensors[half].offset
    moved = tuple(
        replace(t, offset=t.offset - start, file_index=1) if i >= half else t for i, t in enumerate(spec.tensors)
    )
    split = buffers(replace(spec, tensors=moved), LlamaCppSettings(repack=False))
    assert split[HOST, BufferKind.PLAIN].buffer_bytes == pytest.approx(spec.weights_bytes, abs=64)


def test_flags_of_the_cpu_decide_what_is_repacked() -> None:
    kinds = {
        ("q4_K", AVX2): True,
        ("q4_K", frozenset[str]()): False,
        ("q6_K", AVX2): False,
        ("q6_K", frozenset({"asimd", "asimddp"})): True,
        ("q2_K", AVX2): False,
        ("q2_K", frozenset({"avx512f"})): True,
        ("q8_0", frozenset({"asimd", "i8mm"})): True,
        ("f16", AVX2): False,
    }
    for (dtype, isa), expected in kinds.items():
        got = buffers(llama(dtype=dtype), LlamaCppSettings(), isa=isa)
        assert ((HOST, BufferKind.REPACK) in got) is expected, (dtype, isa)


def test_rows_that_dont_fill_the_kernel_are_not_repacked() -> None:
    odd = llama(vocab=1001)
    with_head = buffers(llama(vocab=1000), LlamaCppSettings())[HOST, BufferKind.REPACK].buffer_bytes
    without = buffers(odd, LlamaCppSettings())[HOST, BufferKind.REPACK].buffer_bytes
    assert with_head - without == next(t for t in llama().tensors if t.name == "output.weight").n_bytes


def test_amx_keeps_its_own_format() -> None:
    isa = frozenset({"avx2", "amx_int8", "avx512_vnni"})
    spec = llama(dtype="q8_0", vocab=1024)
    amx = buffers(spec, LlamaCppSettings(), isa=isa)[HOST, BufferKind.AMX]
    products = [t for t in spec.tensors if len(t.shape) == 2 and t.name != "token_embd.weight"]
    # four bytes more for each block of 34
    assert amx.buffer_bytes == sum(t.n_bytes // 34 * 38 for t in products)


def test_tied_embedding_is_held_twice_only_across_buffers() -> None:
    tied = llama(tied=True, dtype="q8_0")
    embedding = tied.tensors[0].n_bytes
    alone = buffers(tied, LlamaCppSettings(load_mode="none"))
    assert alone[HOST, BufferKind.PLAIN].buffer_bytes == tied.weights_bytes
    split = buffers(tied, LlamaCppSettings(load_mode="none"), (device("RPC0"),))
    assert split[HOST, BufferKind.PLAIN].buffer_bytes == embedding
    assert split["RPC0", BufferKind.DEVICE].buffer_bytes == tied.weights_bytes


def test_every_device_gets_its_own_rope_factors() -> None:
    devices = (device("RPC0"), device("RPC1"))
    spec = llama(rope_factors=True)
    resolved = resolve(spec, LlamaCppSettings(), devices)
    where = [p.device for p in place_tensors(spec, LlamaCppSettings(), resolved, AVX2) if "rope" in p.tensor.name]
    assert where == ["RPC0", "RPC1"]


def test_pinned_host_memory_keeps_cuda_hosts_from_repacking() -> None:
    settings = LlamaCppSettings(n_gpu_layers=2)
    assert (HOST, BufferKind.REPACK) not in buffers(llama(), settings, CUDA)
    assert (HOST, BufferKind.PINNED) in buffers(llama(), replace(settings, load_mode="none"), CUDA)
    assert (HOST, BufferKind.REPACK) in buffers(llama(), replace(settings, no_host=True), CUDA)
    assert (HOST, BufferKind.REPACK) in buffers(llama(), settings, (device("RPC0"),))


def test_cuda_pads_quantised_rows_and_aligns_to_128() -> None:
    spec = llama(width=256, heads=4, inner=512, dtype="q8_0")
    got = buffers(spec, LlamaCppSettings(), CUDA)["CUDA0", BufferKind.DEVICE]
    expected = 0
    for tensor in spec.tensors[1:]:
        size = tensor.n_bytes
        if tensor.dtype == "q8_0" and tensor.shape[0] == 256:
            size += 256 // 32 * 34
        expected += -(-size // 128) * 128
    assert got.buffer_bytes == expected


def test_overrides_go_by_the_first_match_and_by_endpoint() -> None:
    devices = (device("RPC0"), device("RPC1"))
    settings = LlamaCppSettings(
        rpc=("a:1", "b:2"),
        override_tensor=((r"blk\.0\.ffn_.*", "RPC0[b:2]"), (r"ffn_down", "CPU"), (r"ffn_down", "RPC0[a:1]")),
    )
    resolved = resolve(llama(), settings, devices)
    found = {p.tensor.name: p.device for p in place_tensors(llama(), settings, resolved, AVX2)}
    assert found["blk.0.ffn_down.weight"] == "RPC1"
    assert found["blk.1.ffn_down.weight"] == HOST
    with pytest.raises(UsageError, match="CUDA7"):
        place_tensors(llama(), LlamaCppSettings(override_tensor=(("ffn", "CUDA7"),)), resolved, AVX2)


def test_experts_of_the_first_blocks_stay_on_the_host() -> None:
    spec = llama(experts=4)
    settings = LlamaCppSettings(n_cpu_moe=2)
    resolved = resolve(spec, settings, (device("RPC0"),))
    on_host = {p.tensor.name for p in place_tensors(spec, settings, resolved, AVX2) if p.device == HOST}
    experts = {t.name for t in spec.tensors if "_exps" in t.name and t.block in {0, 1}}
    assert on_host == experts | {"token_embd.weight"}
    everywhere = place_tensors(spec, LlamaCppSettings(cpu_moe=True), resolved, AVX2)
    assert {p.tensor.block for p in everywhere if "_exps" in p.tensor.name and p.device == HOST} == {0, 1, 2, 3}


def per_layer_table(rows: int) -> ModelSpec:
    last = llama().tensors[-1]
    table = Tensor(
        "per_layer_token_embd.weight", (9216, rows), "f16", 2 * 9216 * rows, last.offset + last.n_bytes, 0, None
    )
    return replace(llama(), architecture="gemma4", tensors=(*llama().tensors, table))


@pytest.mark.parametrize("load_mode", ["auto", "none"])
def test_a_table_of_more_than_4_gib_stays_in_the_file(load_mode: str) -> None:
    """As in the log of a load: ``per_layer_token_embd.weight (size = 4608 MiB) lazy read enabled``."""
    lazy = buffers(per_layer_table(262144), LlamaCppSettings(load_mode=load_mode), CUDA)[HOST, BufferKind.LAZY]
    assert lazy.mapped
    assert lazy.tensor_bytes == lazy.buffer_bytes == 4608 << 20


def test_a_smaller_table_is_loaded_and_so_is_any_for_the_estimate() -> None:
    assert (HOST, BufferKind.LAZY) not in buffers(per_layer_table(65536), LlamaCppSettings())
    assert (HOST, BufferKind.LAZY) not in buffers(
        per_layer_table(262144), LlamaCppSettings(tool="llama-fit-params")
    )


@pytest.mark.parametrize("load_mode", ["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"])
def test_lazy_mode_maps_marked_tables_whatever_the_load_mode(load_mode: str) -> None:
    """And the mapping that spans such a table doesn't count it a second time."""
    first, *rest = llama().tensors
    table = Tensor("per_layer_token_embd.weight", (256, 65536), "f16", 512 * 65536, first.n_bytes, 0, None)
    moved = [replace(t, offset=t.offset + table.n_bytes) for t in rest]
    spec = replace(llama(), architecture="gemma4", tensors=(first, table, *moved))
    settings = LlamaCppSettings(load_mode=load_mode, repack=False)
    on, auto, off = (buffers(spec, replace(settings, lazy_mode=lazy)) for lazy in ("on", "auto", "off"))
    assert auto == off
    assert (HOST, BufferKind.LAZY) not in off
    lazy, plain = on[HOST, BufferKind.LAZY], on[HOST, BufferKind.PLAIN]
    assert lazy.mapped
    assert lazy.tensor_bytes == table.n_bytes
    assert lazy.tensor_bytes + plain.tensor_bytes == off[HOST, BufferKind.PLAIN].tensor_bytes
    assert plain.buffer_bytes == off[HOST, BufferKind.PLAIN].buffer_bytes - (0 if plain.mapped else table.n_bytes)
    assert plain.gap_bytes < 32 * len(spec.tensors)


def test_an_integrated_card_turns_automatic_laziness_off() -> None:
    shared = (replace(CUDA[0], unified_memory=True),)
    spec = per_layer_table(262144)
    assert (HOST, BufferKind.LAZY) in buffers(spec, LlamaCppSettings(), CUDA)
    assert (HOST, BufferKind.LAZY) not in buffers(spec, LlamaCppSettings(), shared)
    assert (HOST, BufferKind.LAZY) in buffers(spec, LlamaCppSettings(lazy_mode="on"), shared)

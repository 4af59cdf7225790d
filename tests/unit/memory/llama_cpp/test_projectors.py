"""Projectors: sizes that real engines printed on cards, where they go, and bounds that hold."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import projector_twins as twins
from specs import card, smollm2
from terazi.errors import ModelFileError, UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, LineBasis, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.image_ops import made
from terazi.memory.llama_cpp.projector import encoders
from terazi.memory.llama_cpp.projector_bill import projector_device
from terazi.memory.llama_cpp.projector_bound import encoder_bound_bytes
from terazi.memory.llama_cpp.projector_tensors import loaded_tensors
from terazi.memory.llama_cpp.scheduler import Scheduler
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.tower import Picture

MIB = 1024 * 1024
METAL = replace(card(), id="MTL0", backend="metal")
RPC = replace(card(), id="RPC0", backend="rpc")
ISA = frozenset({"avx2"})
SETTINGS = LlamaCppSettings(n_ctx=2048)


def bill_of(
    companion: Companion, *devices: Device, width: int = twins.TEXT, settings: LlamaCppSettings = SETTINGS
) -> Bill:
    model = replace(smollm2(), embedding_length=width) if width != twins.TEXT else smollm2()
    return weigh(model, settings, devices, ISA, (companion,))


def encoder_mib(bill: Bill, device: str, term: Term = Term.COMPUTE) -> float:
    return round(
        sum(line.bytes for line in bill.of("mmproj") if (line.device, line.term) == (device, term)) / MIB, 2
    )


@pytest.mark.parametrize(("flash_attn", "mib"), [("auto", 121.25), ("off", 1132.00)])
def test_gemma3_12b_on_metal(flash_attn: str, mib: float) -> None:
    # printed by llama-server in ggml-org/llama.cpp#16837, with fused attention and before it
    settings = replace(SETTINGS, flash_attn=flash_attn, n_gpu_layers=0)
    bill = bill_of(twins.companion(twins.gemma3_12b()), METAL, width=3840, settings=settings)
    assert encoder_mib(bill, "MTL0") == mib
    assert encoder_mib(bill, HOST) == 9.19


def test_qwen35_4b_on_cuda() -> None:
    # printed by llama-server in a log of ggml-org/llama.cpp#22673
    bill = bill_of(
        twins.companion(twins.qwen35_4b()), card(), width=2560, settings=replace(SETTINGS, n_gpu_layers=0)
    )
    assert encoder_mib(bill, "CUDA0", Term.WEIGHTS) == 644.26
    assert encoder_mib(bill, "CUDA0") == 223.30


def test_a_projector_goes_whole_to_the_first_card() -> None:
    devices = (RPC, card(0), card(1))
    assert projector_device(SETTINGS, devices) == card(0)
    # neither the split nor the main card of the model moves it
    moved = replace(SETTINGS, split_mode="none", main_gpu=1, tensor_split=(0.0, 0.0, 1.0), n_gpu_layers=0)
    assert projector_device(moved, devices) == card(0)
    assert projector_device(replace(SETTINGS, devices=("CUDA1", "CUDA0")), devices) == card(1)
    assert projector_device(replace(SETTINGS, mmproj_device="rpc0"), devices) == RPC
    assert projector_device(replace(SETTINGS, devices=("none",)), devices) is None
    assert projector_device(replace(SETTINGS, devices=("none",), mmproj_device="CUDA0"), devices) == card(0)
    assert projector_device(replace(SETTINGS, mmproj_offload=False), devices) is None
    assert projector_device(SETTINGS, ()) is None
    with pytest.raises(UsageError, match="CUDA7"):
        projector_device(replace(SETTINGS, mmproj_device="CUDA7"), devices)


def test_an_integrated_card_is_taken_last() -> None:
    shared = replace(card(0, unified=True), id="Vulkan0", backend="vulkan")
    assert projector_device(SETTINGS, (RPC, shared)) == RPC
    assert projector_device(SETTINGS, (shared,)) == shared


def test_a_card_for_the_projector_alone_has_its_drivers_context_too() -> None:
    settings = replace(SETTINGS, split_mode="none", main_gpu=1)
    bill = bill_of(twins.companion(twins.gemma3()), card(0), card(1), settings=settings)
    assert [line.part for line in bill.lines if line.formula == "driver-context"] == ["", "mmproj"]
    there = bill.on("CUDA0")
    assert there.total_bytes == there.beside_bytes
    assert there.beside_bytes == sum(line.bytes for line in bill.of("mmproj") if line.device == "CUDA0")


def test_what_a_card_lacks_the_host_runs() -> None:
    def buffers(lacks: Callable[[Node], bool] | None) -> list[int]:
        weight = g.leaf(g.F32, 1024, 1024)
        weight.home, weight.is_weight = 0, True
        x = g.mul_mat(weight, g.leaf(g.F32, 1024, 256))
        x = g.mul_mat(weight, made("im2col", g.F32, (1024, 256), x))
        graph = g.Graph()
        graph.expand(x)
        return Scheduler(graph, backends=2, lacks=lacks).reserve(lambda node, _: node.n_bytes)

    assert buffers(None)[1] == 0
    # what goes in is copied to the host, and what comes out back
    assert buffers(lambda node: node.op == "im2col") == [2 * MIB, 2 * MIB]


def test_where_a_card_lacks_fused_attention_both_attempts_stay() -> None:
    # heads of 16 are none of CUDA's: the first attempt runs them on the host, the second without fusion
    companion = twins.companion(twins.gemma3())
    settings = replace(SETTINGS, n_gpu_layers=0)
    auto, off = (
        bill_of(companion, card(), settings=replace(settings, flash_attn=mode)) for mode in ("auto", "off")
    )
    assert encoder_mib(auto, "CUDA0") == encoder_mib(off, "CUDA0")
    assert encoder_mib(auto, HOST) >= encoder_mib(off, HOST)


def test_a_larger_image_only_ever_adds() -> None:
    small, large = (
        bill_of(twins.companion(twins.qwen2vl()), settings=replace(SETTINGS, image_max_tokens=tokens))
        for tokens in (100, 4000)
    )
    assert encoder_mib(small, HOST) < encoder_mib(large, HOST)
    assert any(line.formula == "compute.large-image" for line in large.growth)
    assert not any(
        line.formula == "compute.large-image" for line in bill_of(twins.companion(twins.gemma3())).growth
    )


def test_without_warming_up_the_graph_comes_later() -> None:
    companion = twins.companion(twins.qwen2vl())
    warm, cold = bill_of(companion), bill_of(companion, settings=replace(SETTINGS, warmup=False))
    assert encoder_mib(cold, HOST) == 0
    both = [
        sum(line.bytes for line in (*bill.lines, *bill.growth) if line.part == "mmproj") for bill in (warm, cold)
    ]
    assert both[0] == both[1]


def test_an_image_seen_in_both_directions_fits_one_micro_batch() -> None:
    spec = twins.companion(twins.gemma4v()).spec
    wide = next(encoders(spec, SETTINGS, 512))
    narrow = next(encoders(spec, SETTINGS, 121))
    tokens = [
        (side[0] * side[1]) // (16 * 3) ** 2 for side in (wide.warmup, wide.largest, narrow.warmup, narrow.largest)
    ]
    assert tokens == [256, 512, 121, 121]


@pytest.mark.parametrize("name", sorted(twins.TWINS))
def test_the_bound_of_unknown_kinds_would_hold_for_all_that_are_known(name: str) -> None:
    companion = twins.companion(twins.TWINS[name]())
    width = twins.WIDER if name == "minicpmv" else twins.TEXT
    for flash_attn in ("on", "off"):
        settings = replace(SETTINGS, flash_attn=flash_attn, n_gpu_layers=0)
        bill = bill_of(companion, METAL, width=width, settings=settings)
        bounds: dict[str, int] = {}
        for encoder in encoders(companion.spec, settings, 512):
            tensors = loaded_tensors(encoder, companion.spec.tensors)
            assert tensors
            found = encoder_bound_bytes(encoder, tensors, Picture(*encoder.warmup), ["MTL0", HOST])
            bounds = {where: bounds.get(where, 0) + size for where, size in found.items()}
        for line in bill.of("mmproj"):
            if line.term is Term.COMPUTE:
                assert line.bytes <= bounds[line.device], line


def test_an_unknown_kind_is_a_labelled_bound() -> None:
    keys, rows = twins.gemma3()
    bill = bill_of(twins.companion(({**keys, "clip.projector_type": "cogvlm2"}, rows)))
    assert not bill.exact
    assert len(bill.reasons) == 2
    assert all("cogvlm2" in reason for reason in bill.reasons)
    assert {line.basis for line in bill.of("mmproj")} == {LineBasis.UPPER_BOUND}


def test_tensors_that_nobody_asks_for_stay_in_the_file() -> None:
    keys, rows = twins.gemma3()
    plain = bill_of(twins.companion((keys, rows)))
    more = bill_of(
        twins.companion((keys, [*rows, ("v.blk.3.ln1.weight", (64,), "f32"), ("v.other", (64,), "f32")]))
    )
    assert more.of("mmproj") == plain.of("mmproj")


def test_a_projector_of_another_width_is_refused() -> None:
    with pytest.raises(UsageError, match=r"576 values.*takes 640"):
        bill_of(twins.companion(twins.gemma3()), width=640)


@pytest.mark.parametrize("key", ["clip.vision.patch_size", "clip.vision.embedding_length", "clip.projector_type"])
@pytest.mark.parametrize("value", [None, 0, -1, "x", 2**31])
def test_senseless_keys_are_named(key: str, value: object) -> None:
    keys, rows = twins.gemma3()
    changed = {name: value if name == key else old for name, old in keys.items()}
    if value is None:
        del changed[key]
    if key == "clip.projector_type" and value == "x":
        assert not bill_of(twins.companion((changed, rows))).exact
        return
    with pytest.raises(ModelFileError):
        bill_of(twins.companion((changed, rows)))

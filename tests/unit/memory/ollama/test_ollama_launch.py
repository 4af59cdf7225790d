"""How Ollama starts llama-server; vectors of ``sched_test.go`` and ``llama_server_test.go`` where it says them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs import card, host, llama_spec
from terazi.hardware.machine import Device
from terazi.memory.ollama.launch import Beside, Launch, default_context, launch, shorter_context
from terazi.memory.ollama.settings import OllamaSettings
from terazi.models.spec import ModelFile, ModelSpec
from terazi.units import GIB, MIB

GB = 10**9


def model(size: int = 0, *, architecture: str = "llama", context: int = 131_072, **keys: object) -> ModelSpec:
    """A model whose cache Ollama believes to be next to nothing, in a file of *size* bytes."""
    file = ModelFile(path="/m.gguf", size_bytes=size, data_offset=0, alignment=32)
    spec = llama_spec(layers=2, embedding=64, heads=32, kv_heads=1, architecture=architecture, context=context)
    heads = {"attention.head_count": 64, "attention.head_count_kv": 1, **keys}
    metadata = {f"{architecture}.{key}": value for key, value in heads.items()}
    return replace(spec, files=(file,), metadata=metadata)  # type: ignore[arg-type]  # any value


def started(
    spec: ModelSpec | None = None,
    *devices: Device,
    ram_gib: float = 64,
    projector_bytes: int | None = None,
    draft: bool = False,
    **asked: Any,
) -> Launch:
    settings = OllamaSettings(**asked)
    beside = Beside(projector_bytes=projector_bytes, draft=draft)
    return launch(spec or model(), devices, host(gib=ram_gib), settings, beside)


def gpu(number: int, free: int, *, backend: str = "CUDA", unified: bool = False) -> Device:
    device = card(number, unified=unified)
    return replace(
        device, id=f"{backend}{number}", backend=backend, memory_free_bytes=free, memory_total_bytes=max(free, GIB)
    )


@pytest.mark.parametrize(
    ("gib", "context"),
    [(0, 4096), (8, 4096), (22.9, 4096), (23, 32_768), (24, 32_768), (47, 262_144), (80, 262_144)],
)
def test_context_by_the_cards_memory(gib: float, context: int) -> None:
    # server/routes.go: tiers of 23 and 47 GiB
    assert default_context([card(gib=gib)] if gib else [], 0) == context


def test_the_overhead_lowers_the_tier_once_a_card() -> None:
    assert default_context([card(0, gib=12), card(1, gib=12)], GIB) == 4096
    assert default_context([card(0, gib=12), card(1, gib=12)], 0) == 32_768


def test_who_says_the_context() -> None:
    assert started().n_ctx_seq == 4096
    assert started(context_length=16_384).n_ctx_seq == 16_384
    assert started(context_length=16_384, num_ctx=2048).n_ctx_seq == 2048
    assert started(model(context=1024), num_ctx=8192).n_ctx_seq == 1024, "never beyond the training"
    assert started(num_ctx=1).n_ctx_seq == 4
    assert started(num_ctx=512, projector_bytes=MIB).n_ctx_seq == 2048, "pictures need room"


def test_the_second_try() -> None:
    assert [shorter_context(n) for n in (262_144, 32_768, 4097, 4096, 512)] == [32_768, 4096, 4096, None, None]
    assert any("once more with 32768" in reason for reason in started(model(), gpu(0, 80 * GIB)).reasons)
    assert not any("once more" in reason for reason in started(model(), gpu(0, 80 * GIB), num_ctx=8192).reasons)


def test_slots() -> None:
    assert started(num_parallel=4).slots == 4
    for one in ("qwen35", "lfm2", "nemotron_h"):
        assert started(model(architecture=one), num_parallel=4).slots == 1
    embedding = started(model(architecture="bert", context=512, pooling_type=1), num_parallel=4)
    assert (embedding.slots, embedding.embedding, embedding.batch) == (1, True, 512)


PLACEMENTS = {
    "compacts onto the largest of one backend": ([gpu(0, 10 * GB), gpu(1, 20 * GB)], 8 * GB, {}, ["CUDA1"], 0),
    "main_gpu chooses the group where it is best": (
        [gpu(0, 10 * GB), gpu(0, 20 * GB, backend="ROCm"), gpu(1, 24 * GB, backend="ROCm")],
        8 * GB, {"main_gpu": 1}, ["ROCm1"], 0,
    ),
    "an integrated card has no more than the RAM": (
        [gpu(0, 32 * GB, backend="Metal", unified=True), gpu(1, 16 * GB, backend="Metal")],
        12 * GB, {}, ["Metal1"], 0,
    ),
    "a discrete card comes first": (
        [gpu(0, 32 * GB, backend="Vulkan", unified=True), gpu(1, 10 * GB, backend="Vulkan")],
        8 * GB, {}, ["Vulkan1"], 0,
    ),
    "spreading takes all": (
        [gpu(0, 10 * GB), gpu(1, 20 * GB)], 8 * GB, {"sched_spread": True}, ["CUDA0", "CUDA1"], None,
    ),
    "no card is enough": (
        [gpu(0, 10 * GB), gpu(1, 18 * GB), gpu(0, 12 * GB, backend="ROCm")], 30 * GB, {}, ["CUDA0", "CUDA1"], None,
    ),
    "the CPU alone sees all and takes none": (
        [gpu(0, 10 * GB), gpu(1, 20 * GB)], 8 * GB, {"num_gpu": 0}, ["CUDA0", "CUDA1"], None,
    ),
    "a number that no card has goes on": (
        [gpu(0, 10 * GB), gpu(1, 20 * GB)], 8 * GB, {"main_gpu": 7}, ["CUDA0", "CUDA1"], 7,
    ),
    "one card is one card": ([gpu(0, 10 * GB)], 30 * GB, {}, ["CUDA0"], None),
}  # fmt: skip


@pytest.mark.parametrize(("devices", "size", "asked", "chosen", "main_gpu"), PLACEMENTS.values(), ids=PLACEMENTS)
def test_placement(
    devices: list[Device], size: int, asked: dict[str, Any], chosen: list[str], main_gpu: int | None
) -> None:
    # Ollama adds 4096 bytes of cache for 512 tokens of this model, and the vectors are exact
    made = started(model(size - 4096), *devices, ram_gib=14 * GB / GIB, num_ctx=512, **asked)
    assert [d.id for d in made.devices] == chosen
    assert made.main_gpu == main_gpu


def test_flash_attention() -> None:
    assert started(model(), card()).flash_attention == "auto"
    assert started(model(), card(), flash_attention=False).flash_attention == "off"
    assert started(model(), card(), flash_attention=True).flash_attention == "on"
    assert started(model(), gpu(0, GIB, backend="SYCL")).flash_attention == "off"


@pytest.mark.parametrize(
    ("devices", "ram_gb", "size_gb", "asked", "mode"),
    [
        ((), 64, 1, {}, "none"),
        ((gpu(0, 80 * GB),), 64, 1, {"num_gpu": 0}, "none"),
        ((gpu(0, 80 * GB),), 50, 45, {}, "none"),  # RAM is short beside the file
        ((gpu(0, 80 * GB),), 50, 45, {"use_mmap": True}, None),
        ((gpu(0, 80 * GB),), 50, 20, {}, None),
        ((gpu(0, 80 * GB),), 50, 70, {}, None),  # tight on the card: mapping stays
        ((gpu(0, 80 * GB),), 50, 20, {"use_mmap": False}, "none"),
        ((gpu(0, 80 * GB, unified=True),), 50, 45, {}, "dio"),
        ((gpu(0, 80 * GB, backend="Metal", unified=True),), 90, 45, {}, None),
        ((gpu(0, 80 * GB, backend="Metal", unified=True),), 90, 45, {"num_gpu": 1}, "none"),
    ],
)
def test_load_mode(
    devices: tuple[Device, ...], ram_gb: int, size_gb: int, asked: dict[str, Any], mode: str | None
) -> None:
    assert started(model(size_gb * GB), *devices, ram_gib=ram_gb * GB / GIB, num_ctx=512, **asked).load_mode == mode


def test_projectors() -> None:
    large = started(model(), gpu(0, 20 * GIB), projector_bytes=600 * MIB)
    assert (large.projector_offload, large.fit_target_bytes) == (True, 1624 * MIB)
    small = started(model(), gpu(0, GIB), projector_bytes=600 * MIB)
    assert (small.projector_offload, small.fit_target_bytes) == (False, 1024 * MIB)
    assert not started(model(), gpu(0, 20 * GIB), projector_bytes=MIB, num_gpu=1).projector_offload
    assert started(model(), gpu(0, 20 * GIB), projector_bytes=MIB, fit_target_mib=100).fit_target_bytes == 100 * MIB


def test_drafts() -> None:
    assert started(draft=True).draft_tokens == 4
    assert started(draft=True, draft_num_predict=7).draft_tokens == 7
    assert started(draft=True, draft_num_predict=-1).draft_tokens == 0
    assert started().draft_tokens == 0


def test_what_it_believes_is_said() -> None:
    made = started(model(8 * GB), gpu(0, 40 * GB), num_ctx=65_536)
    assert made.batch == 2048
    assert made.predicted_bytes == 8 * GB + 2 * 2 * 1 * 1 * 65_536 * 2 + 2 * GIB
    assert "believes" in made.reasons[0]


ASKED = st.fixed_dictionaries(
    {
        "num_parallel": st.integers(-2, 20),
        "num_ctx": st.none() | st.integers(-1, 2**31),
        "num_gpu": st.integers(-1, 200),
        "main_gpu": st.none() | st.integers(-3, 5),
    }
)


@given(free=st.lists(st.integers(0, 100), max_size=4), size=st.integers(0, 200), asked=ASKED)
def test_whatever_is_asked_something_starts(free: list[int], size: int, asked: dict[str, Any]) -> None:
    devices = [gpu(i, gib * GIB) for i, gib in enumerate(free)]
    made = started(model(size * GB), *devices, **asked)
    assert made.slots >= 1
    assert 1 <= made.n_ctx_seq <= 131_072
    assert made.batch >= 1
    assert set(made.devices) <= set(devices)
    assert bool(made.devices) == bool(devices)
    assert made.main_gpu in {None, 0, asked["main_gpu"]}

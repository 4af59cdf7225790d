"""Ollama's estimate and its batches, with the vectors of Ollama's own ``server/sched_test.go`` (commit fb30760)."""

from dataclasses import replace

import pytest

from specs import card, llama_spec
from terazi.hardware.machine import Device
from terazi.memory.ollama.predict import batch_surcharge, generation_batch, predict_bytes
from terazi.models.spec import ModelFile, ModelSpec
from terazi.units import GIB, MIB


def of_file(size: int, **keys: object) -> ModelSpec:
    """A model in a file of *size* bytes whose header has *keys*."""
    file = ModelFile(path="/m.gguf", size_bytes=size, data_offset=0, alignment=32)
    metadata = {f"llama.{key}": value for key, value in keys.items()}
    return replace(llama_spec(layers=32), files=(file,), metadata=metadata)  # type: ignore[arg-type]  # any value


def test_the_estimate_is_the_file_and_a_full_f16_cache() -> None:
    spec = of_file(10**9, **{"attention.head_count": 32, "attention.head_count_kv": 8})
    assert predict_bytes(spec, 8192) == 10**9 + 2 * 32 * 8 * (4096 // 32) * 8192 * 2


def test_the_estimate_takes_the_layer_with_the_fewest_heads() -> None:
    spec = of_file(0, **{"attention.head_count": (32, 16), "attention.head_count_kv": (0, 8)})
    assert predict_bytes(spec, 1) == 2 * 32 * 1 * (4096 // 32) * 2, "none counts as one"
    assert predict_bytes(of_file(0), 1) == 2 * 32 * 1 * 4096 * 2, "without keys it is one head"


@pytest.mark.parametrize(
    ("n_ctx", "predicted", "available", "batch"),
    [
        (4096, 0, 0, 512),
        (32_768, 0, 0, 1024),
        (131_072, 8 * GIB, 14 * GIB, 2048),
        (131_072, 9 * GIB, 14 * GIB, 1024),
        (131_072, 8 * GIB, 11 * GIB, 1024),
        (32_768, 8500 * MIB, 11 * GIB, 512),
    ],
)
def test_batches_by_context_and_headroom(n_ctx: int, predicted: int, available: int, batch: int) -> None:
    assert generation_batch(n_ctx, predicted, available, (), flash_attention=True) == batch


@pytest.mark.parametrize(("devices", "batch"), [((card(gib=14),), 512), ((card(gib=6),), 256), ((), 2048)])
def test_batches_without_flash_attention(devices: tuple[Device, ...], batch: int) -> None:
    assert generation_batch(131_072, 0, 0, devices, flash_attention=False) == batch


def test_what_a_batch_is_said_to_cost() -> None:
    assert [batch_surcharge(size) for size in (256, 512, 1024, 2047, 2048, 4096)] == [
        0, 0, 768 * MIB, 768 * MIB, 2 * GIB, 2 * GIB,
    ]  # fmt: skip

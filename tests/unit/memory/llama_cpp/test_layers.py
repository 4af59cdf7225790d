"""Which device gets which layer. Expected maps are those that the engine logged for the same flags."""

import pytest

from terazi.errors import UsageError
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.layers import ALL_LAYERS, assign_layers, select_devices
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from tiny_models import device

TWO = (device("RPC0"), device("RPC1"))
THREE = (*TWO, device("RPC2"))


def counts(settings: LlamaCppSettings, devices: tuple[str, ...], blocks: int) -> list[int]:
    chosen = tuple(d for d in THREE if d.id in devices)
    layers = assign_layers(settings, chosen, blocks)
    return [layers.count(name) for name in (HOST, *devices)]


def test_without_devices_all_is_on_the_host() -> None:
    assert assign_layers(LlamaCppSettings(n_gpu_layers=99), (), 32) == (HOST,) * 33


@pytest.mark.parametrize(
    ("ngl", "split", "devices", "blocks", "expected"),
    [
        # Llama 3.1 8B: the output is a layer too, and goes first
        (999, (1.0, 1.0), ("RPC0", "RPC1"), 32, [0, 17, 16]),
        (21, (3.0, 1.0), ("RPC0", "RPC1"), 32, [12, 16, 5]),
        (999, (2.0, 1.0), ("RPC0", "RPC1"), 32, [0, 22, 11]),
        # SmolLM2: 30 blocks
        (20, (3.0, 1.0), ("RPC0", "RPC1"), 30, [11, 15, 5]),
        (1, (), ("RPC0",), 30, [30, 1]),
        (0, (), ("RPC0",), 30, [31, 0]),
        (None, (), ("RPC0",), 30, [0, 31]),
        (ALL_LAYERS, (), ("RPC0",), 30, [0, 31]),
        # a device without a share
        (999, (1.0, 0.0), ("RPC0", "RPC1"), 32, [0, 33, 0]),
        (999, (0.0, 1.0), ("RPC0", "RPC1"), 32, [0, 0, 33]),
        # fewer shares than devices: the rest gets none
        (999, (1.0,), ("RPC0", "RPC1"), 32, [0, 33, 0]),
    ],
)
def test_split(
    ngl: int | None, split: tuple[float, ...], devices: tuple[str, ...], blocks: int, expected: list[int]
) -> None:
    assert counts(LlamaCppSettings(n_gpu_layers=ngl, tensor_split=split), devices, blocks) == expected


def test_free_memory_decides_without_a_split() -> None:
    uneven = (device("CUDA0", free_gib=24), device("CUDA1", free_gib=8))
    layers = assign_layers(LlamaCppSettings(), uneven, 31)
    assert [layers.count(d.id) for d in uneven] == [24, 8]


def test_thirds_are_compared_in_single_precision() -> None:
    """2/3 as a 32-bit float lies above 22/33 computed the same way only by rounding: both round alike here."""
    layers = assign_layers(LlamaCppSettings(tensor_split=(1.0, 1.0, 1.0)), THREE, 32)
    assert [layers.count(d.id) for d in THREE] == [11, 11, 11]


def test_no_free_memory_anywhere_is_refused() -> None:
    with pytest.raises(UsageError, match="free memory"):
        assign_layers(LlamaCppSettings(), (device("CUDA0", free_gib=0), device("CUDA1", free_gib=0)), 8)


def test_single_device_mode_keeps_the_main_gpu() -> None:
    chosen = select_devices(LlamaCppSettings(split_mode="none", main_gpu=1), TWO)
    assert [d.id for d in chosen] == ["RPC1"]
    assert select_devices(LlamaCppSettings(split_mode="none", main_gpu=-1), TWO) == ()
    with pytest.raises(UsageError, match="beyond"):
        select_devices(LlamaCppSettings(split_mode="none", main_gpu=2), TWO)


def test_named_devices_in_the_order_named() -> None:
    assert [d.id for d in select_devices(LlamaCppSettings(devices=("rpc1", "RPC0")), TWO)] == ["RPC1", "RPC0"]
    assert select_devices(LlamaCppSettings(devices=("none",)), TWO) == ()
    with pytest.raises(UsageError, match="CUDA0") as caught:
        select_devices(LlamaCppSettings(devices=("CUDA0",)), TWO)
    assert "RPC0, RPC1" in caught.value.hint

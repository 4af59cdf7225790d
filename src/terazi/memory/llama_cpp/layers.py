"""Which device gets which layer: llama.cpp's own rule, in its own precision.

Sources, b11434: ``src/llama-model.cpp:load_tensors``, ``src/llama.cpp:llama_prepare_model_devices``.
The engine compares 32-bit floats, so the split points are rounded to them here too: with thirds and a layer
count that they divide, one bit decides where a layer goes.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.settings import LlamaCppSettings

#: ``-ngl all``: more than any model has.
ALL_LAYERS = 2**31 - 1


def select_devices(settings: LlamaCppSettings, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices that the model may use, in the engine's order, after ``-dev``, ``-sm none`` and ``-mg``.

    Raises:
        UsageError: for a device that isn't there, or a main GPU beyond the last.
    """
    if settings.devices == ("none",):
        return ()
    chosen = devices
    if settings.devices:
        chosen = tuple(find_device(name, devices) for name in settings.devices)
    if settings.split_mode == "none" and chosen:
        if settings.main_gpu < 0:
            return ()
        if settings.main_gpu >= len(chosen):
            raise UsageError(
                f"Main GPU {settings.main_gpu} is beyond the {len(chosen)} device(s) of this machine.",
                hint=f"Use -mg 0 to {len(chosen) - 1}.",
            )
        chosen = (chosen[settings.main_gpu],)
    return chosen


def find_device(name: str, devices: Sequence[Device]) -> Device:
    """The device *name*, in any case.

    Raises:
        UsageError: if it isn't there.
    """
    for device in devices:
        if device.id.casefold() == name.casefold():
            return device
    raise UsageError(
        f"The machine has no device {name}.",
        hint=f"It has: {', '.join(device.id for device in devices) or 'no accelerator'}.",
    )


def gpu_layers(settings: LlamaCppSettings, block_count: int) -> int:
    """``-ngl`` as the model sees it; not given (or ``auto``) means all blocks and the output layer."""
    if settings.n_gpu_layers is None or settings.n_gpu_layers < 0:
        return block_count + 1
    return settings.n_gpu_layers


def assign_layers(settings: LlamaCppSettings, devices: tuple[Device, ...], block_count: int) -> tuple[str, ...]:
    """The device id (or ``HOST``) of each block, and of the output layer as the last entry.

    *devices* are those that :func:`select_devices` left.
    """
    layers = block_count + 1
    if not devices:
        return (HOST,) * layers
    offloaded = min(gpu_layers(settings, block_count), layers)
    start = layers - offloaded
    points = _split_points(settings, devices)
    ids = [HOST] * start
    for index in range(offloaded):
        ids.append(devices[bisect_right(points, round_to_float(index / offloaded))].id)
    return tuple(ids)


def _split_points(settings: LlamaCppSettings, devices: tuple[Device, ...]) -> list[float]:
    """Cumulative shares, as 32-bit floats; by free memory where ``-ts`` says nothing."""
    shares = [round_to_float(share) for share in settings.tensor_split[: len(devices)]]
    shares += [0.0] * (len(devices) - len(shares))
    if not any(shares):
        shares = [round_to_float(device.memory_free_bytes) for device in devices]
    total = 0.0
    points = []
    for share in shares:
        total = round_to_float(total + share)
        points.append(total)
    if total <= 0:
        raise UsageError(
            "No device reports free memory, so the layers can't be shared out.",
            hint="Say how with -ts, e.g. -ts 1,1.",
        )
    return [round_to_float(point / total) for point in points]


def round_to_float(value: float) -> float:
    """*value* as a 32-bit float."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded

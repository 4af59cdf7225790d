"""A plan as it would be on stand-in devices: one ``ggml-rpc-server`` of this host for each accelerator.

In: settings and machine of a plan. Out: the same settings said for ``RPC0``, ``RPC1`` …, and the devices that they
then mean. A stand-in is a CPU: what only a card's driver does (padding, its own copies, pinned host memory) is not
asked this way, and the caller says so.
"""

from dataclasses import dataclass, replace

from terazi.errors import UsageError
from terazi.hardware.machine import Basis, Device, Figure
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.layers import select_devices
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec

#: ``GGML_SCHED_MAX_BACKENDS`` of ``ggml-backend.cpp``, less the CPU.
MOST = 15
_UNKNOWN = Figure(value=None, basis=Basis.ASSUMED, note="a stand-in")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodIn:
    """A plan's settings for stand-ins.

    Args:
        settings: with ``--rpc`` naming the stand-ins and nothing left to be chosen by free memory.
        devices: what the engine then sees.
        names: device id of the plan → of the stand-in.
    """

    settings: LlamaCppSettings
    devices: tuple[Device, ...]
    names: dict[str, str]


def stand_in(
    spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...], endpoints: tuple[str, ...]
) -> StoodIn:
    """*settings* for the machine's *devices*, said for as many *endpoints* (``host:port``).

    Raises:
        UsageError: for settings that llama.cpp itself refuses, or more devices than it can use at once.
    """
    if len(devices) > MOST:
        raise UsageError(
            f"{len(devices)} devices can't be stood in for: llama.cpp uses at most {MOST} at once.",
            hint="Name fewer with --device.",
        )
    names = {device.id: f"RPC{index}" for index, device in enumerate(devices)}
    stood = tuple(
        _stand_in(device, names[device.id], endpoint) for device, endpoint in zip(devices, endpoints, strict=True)
    )
    folded = {name.casefold(): stand for name, stand in names.items()}
    chosen = select_devices(settings, devices)
    shares = settings.tensor_split
    if not any(shares[: len(chosen)]) and len(chosen) > 1:
        # the engine splits by free memory, and a stand-in has this host's
        shares = tuple(float(device.memory_free_bytes) for device in chosen)
    spoken = settings.speculation

    def names_of(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(folded.get(name.casefold(), name) for name in given)

    def buffers_of(given: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((pattern, _buffer(target, settings, names, endpoints)) for pattern, target in given)

    said = replace(
        settings,
        n_ctx=settings.n_ctx or _context(spec, settings, devices),
        tensor_split=shares,
        rpc=endpoints,
        devices=names_of(settings.devices),
        override_tensor=buffers_of(settings.override_tensor),
        mmproj_device=folded.get(settings.mmproj_device.casefold(), settings.mmproj_device),
        speculation=replace(
            spoken, devices=names_of(spoken.devices), override_tensor=buffers_of(spoken.override_tensor)
        ),
        fit=False,
    )
    return StoodIn(settings=said, devices=stood, names={**names, HOST: HOST})


def _stand_in(device: Device, name: str, endpoint: str) -> Device:
    return Device(
        id=name,
        name=f"stand-in for {device.name} at {endpoint}",
        vendor="rpc",
        backend="rpc",
        memory_total_bytes=device.memory_total_bytes,
        memory_free_bytes=device.memory_free_bytes,
        memory_bandwidth=_UNKNOWN,
        flops_fp16=_UNKNOWN,
        tdp_w=_UNKNOWN,
    )


def _context(spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> int:
    """``-c 0`` in figures: with --fit on, each stream would get a whole training context."""
    fitted = settings.fit and settings.tool != "llama-fit-params"
    return spec.context_length * (resolve(spec, settings, devices).n_stream if fitted else 1)


def _buffer(target: str, settings: LlamaCppSettings, names: dict[str, str], endpoints: tuple[str, ...]) -> str:
    """A buffer type of ``-ot``: every server calls its first device RPC0, and the endpoint tells them apart."""
    if target.endswith("_Host"):
        return "CPU"
    _, _, endpoint = target.removesuffix("]").partition("[")
    device = f"RPC{settings.rpc.index(endpoint)}" if endpoint in settings.rpc else target
    stand = names.get(device)
    return target if stand is None else f"RPC0[{endpoints[int(stand.removeprefix('RPC'))]}]"

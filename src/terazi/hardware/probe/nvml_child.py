"""Asks the NVIDIA driver, in a process of its own: a driver call can hang for ever, and no signal handler or thread
of Python's gets out of that.

Run by path. Prints one JSON object a line and flushes each, so that what came before a hang isn't lost. The first
argument is a number of seconds after which the kernel ends this process, should its parent have died.
"""

import json
import signal
import sys
from collections.abc import Callable
from typing import Final

import pynvml

#: nvmlDeviceGetP2PStatus's capability indices. Plain numbers, because the package's own NVML_P2P_CAPS_INDEX_READ is
#: a tuple by mistake (nvidia-ml-py 13.615).
_READ: Final = 0
_NVLINK: Final = 2
_MAX_GPUS: Final = 64


def _tell(**item: object) -> None:
    sys.stdout.write(json.dumps(item) + "\n")
    sys.stdout.flush()


def _ask(call: Callable[..., object], *args: object) -> object:
    """The answer, or ``None`` if this driver or this card doesn't know the call."""
    try:
        value = call(*args)
    except pynvml.NVMLError as error:
        if error.value in {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}:
            raise
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _ask_memory(handle: object) -> dict[str, object]:
    """Version 2 counts the driver's reserve apart from what is used; old drivers have only version 1."""
    for version in (getattr(pynvml, "nvmlMemory_v2", None), None):
        try:
            info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=version)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            continue
        return {
            "memory_total": info.total,
            "memory_free": info.free,
            "memory_used": info.used,
            "memory_reserved": getattr(info, "reserved", None),
        }
    return {}


def _tell_gpu(index: int, handle: object) -> None:
    pci = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    bus_id = getattr(pci, "busId", None)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    _tell(
        kind="gpu",
        index=index,
        name=_ask(pynvml.nvmlDeviceGetName, handle),
        uuid=_ask(pynvml.nvmlDeviceGetUUID, handle),
        pci_address=bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id,
        power_limit_mw=_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        power_draw_mw=_ask(pynvml.nvmlDeviceGetPowerUsage, handle),
        compute_capability=_ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        pcie_gen_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        pcie_width_current=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        slowed=_ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        mig=isinstance(mig, list | tuple) and bool(mig) and mig[0] == 1,
        **_ask_memory(handle),
    )
    _tell_processes(index, handle)


def _tell_processes(index: int, handle: object) -> None:
    """Who computes there, and how much each holds; drivers that lack the call are left in peace."""
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except (pynvml.NVMLError, getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)):
        return
    for process in found:
        _tell(kind="process", index=index, pid=process.pid, memory_used=process.usedGpuMemory)


def main() -> None:
    """Print driver, cards and pairs, then ``end``."""
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _tell(kind="error", text=f"NVIDIA driver can't be asked: {error}")
        _tell(kind="end")
        return
    _tell(kind="driver", version=_ask(pynvml.nvmlSystemGetDriverVersion))
    handles: dict[int, object] = {}
    for index in range(min(pynvml.nvmlDeviceGetCount(), _MAX_GPUS)):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            _tell_gpu(index, handle)
        except pynvml.NVMLError as error:
            _tell(kind="error", text=f"NVIDIA GPU {index} doesn't answer: {error}")
        else:
            handles[index] = handle
    for a, first in handles.items():
        for b, second in handles.items():
            if a < b:
                p2p = _ask(pynvml.nvmlDeviceGetP2PStatus, first, second, _READ)
                nvlink = _ask(pynvml.nvmlDeviceGetP2PStatus, first, second, _NVLINK)
                _tell(kind="pair", a=a, b=b, p2p=p2p, nvlink=nvlink)
    _tell(kind="end")


if __name__ == "__main__":
    main()

"""From a catalogue row to the figures of a ``Device``: what the driver shows, keeps and takes.

In: ``GpuRecord``, sizes that a driver reported. Out: ``Figure``s with basis and note, reserves in bytes.
Shared by presets and by the probe, so that both say the same about the same card.
"""

from typing import Final

from terazi.hardware.catalogue import GpuRecord
from terazi.hardware.machine import Basis, Figure, PcieLink
from terazi.units import GIB, MIB

#: llama.cpp's device names by backend (b11434: GGML_CUDA_NAME in ggml-cuda.h, GGML_SYCL_NAME, GGML_VK_NAME,
#: ggml-metal-device.m, ggml-rpc.cpp), in the order in which it lists them (ggml-backend-reg.cpp; llama.cpp puts
#: RPC servers first).
DEVICE_NAMES: Final = {
    "rpc": "RPC",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "metal": "MTL",
    "sycl": "SYCL",
    "vulkan": "Vulkan",
}
#: The backend that llama.cpp's own documentation recommends for each vendor's cards.
BACKENDS: Final = {"nvidia": "cuda", "amd": "rocm", "apple": "metal", "intel": "sycl"}

#: A CUDA context takes 107 MiB on a 4060 Ti (34 SMs) and 555 MiB on an RTX PRO 6000 (188 SMs)
#: (llama.cpp issue 23604); the line through both is 2.9 MiB an SM, rounded up here.
_CONTEXT_PER_SM: Final = 3 * MIB
_CONTEXT_UNKNOWN_CARD: Final = 300 * MIB
#: GB10 idles at 4 W, an RTX 3090 at 22 of 350 W; the latter's share stands for cards without a figure.
_IDLE_SHARE: Final = 22 / 350


def driver_reserve_bytes(total_bytes: int) -> int:
    """What an idle driver keeps of a card's total: 384 MiB, from 28 GiB on 512 MiB, from 60 GiB on 640 MiB.

    A stated default, from NVIDIA cards. Together with ``context_figure`` it is at or above what public llama.cpp
    logs showed as not free on idle cards: 594 MiB (3090), 565 (4090), 474 (L4), 1019 (5090), 1007 (H100 80 GB).
    """
    if total_bytes >= 60 * GIB:
        return 640 * MIB
    return (512 if total_bytes >= 28 * GIB else 384) * MIB


def preset_total_bytes(record: GpuRecord, memory_bytes: int | None) -> int:
    """What the driver would show as the total: as seen where the catalogue has it, else the nominal size in GiB.

    Unified memory has the size that the machine was bought with (*memory_bytes*), which is the host's RAM too.
    """
    if record.driver_total_bytes is not None:
        return record.driver_total_bytes
    return record.memory_min_bytes if memory_bytes is None else memory_bytes


def metal_working_set_bytes(ram_bytes: int) -> int:
    """How much of unified memory Metal recommends as a working set (``recommendedMaxWorkingSetSize``).

    Two thirds up to 16 GiB (11453 MB of 16 GiB in public llama.cpp logs), three quarters above (24.96 of 32 and
    28.1 of 36 GiB were seen with newer systems, so this is the cautious end). ``sysctl iogpu.wired_limit_mb``
    changes it.
    """
    return ram_bytes * 2 // 3 if ram_bytes <= 16 * GIB else ram_bytes * 3 // 4


def bandwidth_figure(record: GpuRecord) -> Figure:
    """Peak memory bandwidth, bytes per second."""
    return Figure(value=record.bandwidth_bytes_per_s, basis=Basis.CATALOGUE, note=f"data sheet of {record.name}")


def flops_figure(record: GpuRecord) -> Figure:
    """Dense FP16 rate, FLOP per second."""
    return Figure(value=record.flops_fp16, basis=Basis.CATALOGUE, note=record.flops_note)


def tdp_figure(record: GpuRecord) -> Figure:
    """Board power limit as sold, watts."""
    note = f"data sheet of {record.name}" if record.tdp_w is not None else "not published"
    return Figure(value=record.tdp_w, basis=Basis.CATALOGUE, note=note)


def idle_figure(record: GpuRecord) -> Figure:
    """Watts with nothing loaded."""
    if record.tdp_w is None or record.unified:
        return Figure(value=None, basis=Basis.ASSUMED, note="not published")
    return Figure(value=round(record.tdp_w * _IDLE_SHARE, 1), basis=Basis.ASSUMED, note="6 % of the board power")


def context_figure(backend: str, record: GpuRecord | None) -> Figure:
    """What the driver takes for one process before its first tensor, bytes; known for CUDA only."""
    if backend != "cuda":
        return Figure(value=None, basis=Basis.ASSUMED, note="not known for this backend")
    if record is None or record.sm_count is None:
        note = "CUDA context: 107 to 555 MiB were seen on other cards"
        return Figure(value=_CONTEXT_UNKNOWN_CARD, basis=Basis.ASSUMED, note=note)
    note = f"CUDA context: 3 MiB for each of {record.sm_count} SMs, fitted to two cards"
    return Figure(value=record.sm_count * _CONTEXT_PER_SM, basis=Basis.ASSUMED, note=note)


def card_link(record: GpuRecord) -> PcieLink | None:
    """The fastest link that the card itself can hold, or ``None`` if it isn't on PCIe."""
    if record.pcie_generation is None or record.pcie_lanes is None:
        return None
    return PcieLink(generation=record.pcie_generation, lanes=record.pcie_lanes, basis=Basis.CATALOGUE)


def narrower(a: PcieLink | None, b: PcieLink | None, basis: Basis) -> PcieLink | None:
    """What both ends can do together."""
    if a is None or b is None:
        return a or b
    return PcieLink(generation=min(a.generation, b.generation), lanes=min(a.lanes, b.lanes), basis=basis)


def nvlink_rate(record: GpuRecord, cards_joined: int) -> float | None:
    """Bytes per second one way between two cards; in a mesh each card's links are shared by three neighbours."""
    if record.nvlink_bytes_per_s is None or record.nvlink_topology != "mesh" or cards_joined <= 2:
        return record.nvlink_bytes_per_s
    return record.nvlink_bytes_per_s / 3


def unknown_figure(note: str) -> Figure:
    """A figure that can't be known here, and why."""
    return Figure(value=None, basis=Basis.ASSUMED, note=note)

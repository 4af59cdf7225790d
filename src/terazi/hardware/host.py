"""Stated defaults for a host that nobody measured: RAM bandwidth, arithmetic rate, memory that the system keeps.

In: instruction sets, cores, memory type. Out: ``Figure``s and bytes, each with its reason.
"""

from collections.abc import Set as AbstractSet
from typing import Final

from terazi.hardware.machine import Basis, Figure
from terazi.units import GIB, MIB

#: FP32 operations per cycle and core: lanes × two FMA pipes × 2 (multiply and add), from vendors' manuals.
#: The widest set that a core has comes first. Zen 4 runs AVX-512 at half this rate, so the figure is a ceiling.
_FLOP_PER_CYCLE: Final = (("avx512f", 64), ("sve", 32), ("avx2", 32), ("avx", 16), ("neon", 16), ("sse2", 8))
_CLOCK_GUESS_HZ: Final = 2.5e9

#: JEDEC transfer rates in MT/s that are commonly sold; the lower end of what today's boards run.
_DEFAULT_RATE: Final = {3: 1600, 4: 3200, 5: 4800}
_BYTES_PER_TRANSFER: Final = 8


def cpu_flops(isa: AbstractSet[str], cores: int) -> Figure:
    """FP32 FLOP per second of *cores* cores, from the widest instruction set and a 2.5 GHz guess under load."""
    for name, per_cycle in _FLOP_PER_CYCLE:
        if name in isa:
            note = f"{cores} cores × {per_cycle} FLOP a cycle ({name}) × 2.5 GHz, a ceiling"
            return Figure(value=cores * per_cycle * _CLOCK_GUESS_HZ, basis=Basis.ASSUMED, note=note)
    return Figure(value=None, basis=Basis.ASSUMED, note="the CPU's instruction sets aren't known")


def ram_bandwidth(
    *, ddr: int | None = None, transfers_m_per_s: int | None = None, channels: int | None = None
) -> Figure:
    """Peak RAM bandwidth, bytes per second: channels × 8 bytes × transfers. Two channels of DDR4-3200 unless said.

    The basis is ``catalogue`` only if both the type and the channels were said.
    """
    kind = ddr or 4
    rate = transfers_m_per_s or _DEFAULT_RATE.get(kind, _DEFAULT_RATE[4])
    lanes = channels or 2
    said = ddr is not None and channels is not None
    note = f"{lanes} channels of DDR{kind}-{rate}, peak" + ("" if said else ", assumed and not measured")
    return Figure(
        value=float(lanes * _BYTES_PER_TRANSFER * rate * 10**6),
        basis=Basis.CATALOGUE if said else Basis.ASSUMED,
        note=note,
    )


def system_reserve_bytes(ram_bytes: int) -> int:
    """What an idle system uses, on a machine that can't be asked: 4 %, at least 512 MiB, at most 4 GiB."""
    return min(ram_bytes, max(512 * MIB, min(4 * GIB, ram_bytes // 25)))


def assumed_ram_bytes(device_memory_bytes: int) -> int:
    """RAM of a preset that names none: the power of two at or above half of the cards' memory, at least 32 GiB."""
    ram = 32 * GIB
    while ram < device_memory_bytes // 2:
        ram *= 2
    return ram

"""Watts around the accelerators: CPU, memory, fans, the power supply's loss, its headroom, and the heat.

In: the machine, how busy its CPU is, what its owner knows of it (``Supply``). Out: watts at the wall. Hardly any of
this can be read from a computer, so each default is a stated assumption, and an owner's own figure replaces it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from terazi.hardware.machine import Device, Machine
from terazi.performance.efficiency import CardClass, classify
from terazi.performance.power import Draw
from terazi.units import GIB

#: Board, disk, network and fans of an idle desktop (assumed; whole idle desktops draw about 60 W).
_BOARD_W: Final = 35.0
#: A mini computer with unified memory has little around its chip (assumed).
_MINI_BOARD_W: Final = 10.0
#: DIMMs of 8 to 16 GB take about 3 W each, server DIMMs of 64 GB and more some 6 W (assumed, makers' guides).
_RAM_W_PER_GIB: Final = (0.3, 0.1)
_SMALL_RAM_GIB: Final = 64
#: A core at full load: 24 cores of an i9-13900K have 253 W, 96 of an EPYC 9654 have 360 W.
_CORE_W: Final = (8.0, 4.0)
_FEW_CORES: Final = 16
#: While cards work, one core spins and the board is awake.
_FEEDING_W: Final = 20.0
#: Fans, switches and network of a server for data-centre cards, as a share of their board power: a DGX H100 is sold
#: with 10.2 kW for 5.6 kW of GPUs; a third to a half of the difference is assumed, idle and at work.
_SERVER_SHARE: Final = (0.25, 0.40)
#: How far off the host's figure may be, each way (a judgement).
HOST_SPREAD: Final = (0.6, 1.5)
#: 80 PLUS Gold at 115 V: share of the wall's power that comes out at a fifth, half and all of the rating.
_GOLD: Final = ((0.2, 0.87), (0.5, 0.90), (1.0, 0.87))
_EFFICIENCY: Final = 0.90

#: Largest measured draw of some milliseconds over the board power. RTX 4090: 619 of 450 W (Hardware Busters, 2022);
#: RTX 5090: 901 of 575 W below 1 ms (Igor's Lab, in slashgear.com, July 2025); RTX 3090: 464 of 350 W were seen
#: (ecoenergygeek.com), and up to 500 W are advised.
_TRANSIENTS: Final = (("RTX 50", 1.57), ("RTX 40", 1.38), ("RTX 30", 1.43))
_TRANSIENT_BY_CLASS: Final = {CardClass.GEFORCE: 1.43, CardClass.PRO: 1.4, CardClass.AMD: 1.5, CardClass.HBM: 1.3}
_TRANSIENT: Final = 1.4  # assumed
#: A supply should carry no more than this of its rating all the time (common practice).
CONTINUOUS: Final = 0.8
#: ATX 3.x supplies must ride through 180 % of their rating for a millisecond (Intel design guide 336521); older
#: ones may trip from 110 % on.
ATX3_SPIKE: Final = 1.8
OLD_SPIKE: Final = 1.1
_SIZES_W: Final = (450, 550, 650, 750, 850, 1000, 1200, 1300, 1500, 1600, 2000)
BTU_H_PER_W: Final = 3.412


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What the owner says about power; ``None`` is for what isn't known.

    Args:
        psu_w: the supply's rating.
        atx3: whether it is an ATX 3.x supply.
        efficiency: share of the wall's power that it gives, instead of 80 PLUS Gold.
        host_idle_w, host_load_w: the computer without its cards, idle and while it serves, behind the supply.
    """

    psu_w: float | None = None
    atx3: bool = False
    efficiency: float | None = None
    host_idle_w: float | None = None
    host_load_w: float | None = None


class HostWatts(NamedTuple):
    """The computer around the cards, idle and while it serves, with what that rests on."""

    idle_w: float
    load_w: float
    words: str


def host_watts(machine: Machine, supply: Supply, *, cpu_busy: float = 0.0) -> HostWatts:
    """Watts of all but the cards; *cpu_busy* is the share of the time that the CPU computes layers."""
    host = machine.host
    unified = any(d.unified_memory for d in machine.devices)
    ram = 0.0
    if not unified:
        gib = host.ram_total_bytes / GIB
        ram = _RAM_W_PER_GIB[0] * min(gib, _SMALL_RAM_GIB) + _RAM_W_PER_GIB[1] * max(0.0, gib - _SMALL_RAM_GIB)
    servers = sum(d.tdp_w.value or 0.0 for d in machine.devices if classify(d) is CardClass.HBM)
    idle = (_MINI_BOARD_W if unified else _BOARD_W) + ram + _SERVER_SHARE[0] * servers
    cores = _CORE_W[0] * min(host.cores, _FEW_CORES) + _CORE_W[1] * max(0, host.cores - _FEW_CORES)
    load = idle + max(0.0 if unified else _FEEDING_W, cpu_busy * cores)
    load += (_SERVER_SHARE[1] - _SERVER_SHARE[0]) * servers
    words = [f"host {idle:.0f} W idle, {load:.0f} W at work: assumed from its RAM and cores"]
    if supply.host_idle_w is not None or supply.host_load_w is not None:
        idle = supply.host_idle_w if supply.host_idle_w is not None else min(idle, supply.host_load_w or idle)
        load = supply.host_load_w if supply.host_load_w is not None else max(load, idle)
        words = [f"host {idle:.0f} W idle, {load:.0f} W at work, as you said"]
    return HostWatts(idle, max(idle, load), words[0])


def wall_w(inside_w: float, supply: Supply) -> float:
    """What the meter sees for *inside_w* behind the power supply."""
    return inside_w / efficiency(inside_w, supply)


def efficiency(inside_w: float, supply: Supply) -> float:
    """Share of the wall's power that arrives: as said, else 80 PLUS Gold at this load, else 0.90."""
    if supply.efficiency is not None:
        return supply.efficiency
    if supply.psu_w is None:
        return _EFFICIENCY
    load = inside_w / supply.psu_w
    points = list(_GOLD)
    if load <= points[0][0]:
        return points[0][1]
    for (low, at_low), (high, at_high) in pairwise(points):
        if load <= high:
            return at_low + (at_high - at_low) * (load - low) / (high - low)
    return points[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PsuCheck:
    """Whether a power supply holds. ``verdict`` is ``holds``, ``tight``, ``too small``, or ``not given``.

    ``sustained_w`` is every card at its limit and the host at work; ``spike_w`` the cards' milliseconds above it,
    all at once, as tensor parallelism makes them. ``suggested_w`` and ``suggested_old_w`` are the smallest common
    sizes that hold both, of an ATX 3.x supply and of an older one; ``None`` is beyond one supply of a desktop.
    """

    verdict: str
    sustained_w: float
    spike_w: float
    rating_w: float | None
    suggested_w: float | None
    suggested_old_w: float | None
    words: str


def check_psu(machine: Machine, draws: Mapping[str, Draw], host_load_w: float, supply: Supply) -> PsuCheck:
    """The supply's headroom against sustained draw and transients of *draws*, the cards that the plan uses."""
    by_id = {d.id: d for d in machine.devices}
    sustained = host_load_w + sum(d.limit_w for d in draws.values())
    spike = host_load_w + sum(transient(by_id[name]) * max(d.limit_w, d.tdp_w) for name, d in draws.items())
    rating = supply.psu_w
    verdict, words = "not given", "say the supply's rating (--psu) to have it judged"
    if rating is not None:
        limit = rating * (ATX3_SPIKE if supply.atx3 else OLD_SPIKE)
        kind = "an ATX 3.x supply rides through" if supply.atx3 else "an older supply may trip from"
        if sustained > rating:
            verdict, words = "too small", f"{sustained:.0f} W all the time are more than its {rating:.0f} W"
        elif spike > limit:
            verdict = "tight"
            words = f"cards may spike to {spike:.0f} W for a millisecond, and {kind} {limit:.0f} W"
        elif sustained > CONTINUOUS * rating:
            verdict = "tight"
            words = f"{sustained:.0f} W all the time are {sustained / rating:.0%} of it; {CONTINUOUS:.0%} is usual"
        else:
            verdict, words = "holds", f"{sustained:.0f} W all the time, {spike:.0f} W for milliseconds"
    return PsuCheck(
        verdict=verdict,
        sustained_w=sustained,
        spike_w=spike,
        rating_w=rating,
        suggested_w=_size(max(sustained / CONTINUOUS, spike / ATX3_SPIKE)),
        suggested_old_w=_size(max(sustained / CONTINUOUS, spike / OLD_SPIKE)),
        words=words,
    )


def transient(device: Device) -> float:
    """Milliseconds' peak over the board power, by the card's generation, else its class."""
    for word, factor in _TRANSIENTS:
        if word in device.name:
            return factor
    return _TRANSIENT_BY_CLASS.get(classify(device), _TRANSIENT)


def heat_btu_h(watts: float) -> float:
    """What the room gets: all of it."""
    return watts * BTU_H_PER_W


def _size(least_w: float) -> float | None:
    return next((float(size) for size in _SIZES_W if size >= least_w), None)

"""Watts of the accelerators: idle, waiting, at work, and under a power cap.

In: a device and what it does (``Load``). Out: watts, and the share of its speed that a cap leaves. The host and the
power supply's loss are added in ``host_power``.

    wanted = idle + (TDP - idle)·[(1 - busy)·waiting + busy·min(1, base + a·memory + b·compute^0.4)]
    drawn  = min(cap, wanted);  the clock falls only where the cap binds

*memory* and *compute* are shares of the data sheet's bandwidth and FP16 rate while the card works. The constants
are those of ``benchmarks/fit_power.py`` over ``benchmarks/data/measured_power.csv``.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from terazi.hardware.machine import Device
from terazi.performance.efficiency import CardClass

#: Said in the place of watts where no card works.
NO_POWER_OF_CPU: Final = "no power and no cost: no figure for this CPU"
#: Idle draw where it isn't known, as a share of the TDP (RTX 3090: 22 of 350 W).
IDLE_SHARE: Final = 0.06
#: Fitted concavity of the draw over the arithmetic rate: a few per cent of the peak already cost a third of it.
CONCAVITY: Final = 0.4
#: Of a busy card's dynamic power, what doesn't follow the core's clock: memory, its controller, leakage (assumed).
FIXED_SHARE: Final = 0.2
#: Core power goes with clock·voltage², and voltage with the clock, down to a floor: cubic to this share of the
#: clock, linear below, which is the cliff of small caps (RTX 3090 at 100 W: a sixth of its speed).
VOLTAGE_FLOOR: Final = 0.8
#: Share of the time that follows the core's clock: all of a prompt, this of a decode step, whose rest is memory.
DECODE_CORE_SHARE: Final = 0.65
#: Measured over predicted joules a token that eight rows of ten stay within, given the speed.
POWER_SPREAD: Final = (0.86, 1.30)


class Shape(NamedTuple):
    """How a class of cards draws, as shares of (TDP - idle): waiting while loaded, at work, per memory and compute.

    The waiting share is assumed; no table has it.
    """

    waiting: float
    base: float
    memory: float
    compute: float


#: GeForce cards under llama.cpp unpack quantised weights and draw nearly all they may, whatever the model
#: (RTX 3090, 4090, 5060 Ti: 0.86 to 0.95). HBM cards under vLLM are fitted to H100 rows of sixteen models; an
#: A100 at batch 1 drew .74, .60 and .44 of its TDP on two, four and eight cards, where this says .67, .61 and .56
#: (Splitwise, ISCA 2024). Others were not measured, and lie between by assumption.
SHAPES: Final[Mapping[CardClass, Shape]] = {
    CardClass.GEFORCE: Shape(waiting=0.20, base=0.886, memory=0.0, compute=0.10),
    CardClass.HBM: Shape(waiting=0.15, base=0.325, memory=0.30, compute=0.913),
}
_OTHER: Final = Shape(waiting=0.20, base=0.70, memory=0.10, compute=0.30)


class Load(NamedTuple):
    """What a card does: shares of its peak bandwidth and FP16 rate while it works, and how often it works."""

    memory: float
    compute: float
    busy: float = 1.0


#: An ordinary decode step of one stream.
DECODE: Final = Load(memory=0.6, compute=0.015)
#: A prompt that keeps the card busy.
PREFILL: Final = Load(memory=0.2, compute=0.6)


class Draw(NamedTuple):
    """Watts of one card: idle, its board power as sold, the cap (or that board power), and its class's shape."""

    idle_w: float
    tdp_w: float
    limit_w: float
    shape: Shape

    def wanted_w(self, load: Load) -> float:
        """Average watts without a cap."""
        s = self.shape
        at_work = min(1.0, s.base + s.memory * load.memory + s.compute * math.pow(load.compute, CONCAVITY))
        busy = min(1.0, max(0.0, load.busy))
        return self.idle_w + (self.tdp_w - self.idle_w) * ((1 - busy) * s.waiting + busy * at_work)

    def drawn_w(self, load: Load) -> float:
        """Average watts under the cap, which limits averages: a card in a layer split rests between its turns."""
        return max(self.idle_w, min(self.limit_w, self.wanted_w(load)))

    def speed_at(self, load: Load, core_share: float) -> float:
        """The share of its speed that the cap leaves when *core_share* of the time follows the core's clock."""
        wanted = self.wanted_w(load)
        if self.limit_w >= wanted or wanted <= self.idle_w:
            return 1.0
        return slowed((self.limit_w - self.idle_w) / (wanted - self.idle_w), core_share)

    def capped(self, watts: float) -> "Draw":
        """The same card under another cap."""
        return self._replace(limit_w=watts)

    @property
    def speed(self) -> float:
        """The share of its decode speed that the cap leaves."""
        return self.speed_at(DECODE, DECODE_CORE_SHARE)

    def watts(self, busy: float) -> float:
        """Average draw of a card that decodes for the share *busy* of the time."""
        return self.drawn_w(DECODE._replace(busy=busy))


def slowed(dynamic_share: float, core_share: float) -> float:
    """Speed, as a share, with *dynamic_share* of the dynamic power that full speed wants."""
    core = max(1e-3, (dynamic_share - FIXED_SHARE) / (1 - FIXED_SHARE))
    clock = math.pow(core, 1 / 3)
    if clock < VOLTAGE_FLOOR:
        clock = VOLTAGE_FLOOR * core / VOLTAGE_FLOOR**3
    return 1 / ((1 - core_share) + core_share / min(1.0, clock))


def draw(device: Device, card_class: CardClass) -> Draw | None:
    """The card's draw, or None if its TDP isn't known."""
    tdp = device.tdp_w.value
    if not tdp:
        return None
    idle = device.idle_w.value if device.idle_w.value is not None else IDLE_SHARE * tdp
    cap = device.power_cap_w or tdp
    # a cap above the board power is a card sold or set to draw more
    shape = SHAPES.get(card_class, _OTHER)
    return Draw(idle_w=min(idle, tdp), tdp_w=max(tdp, min(cap, 1.3 * tdp)), limit_w=cap, shape=shape)


def joules_per_token(watts: float, tok_s: float) -> float:
    """Energy of one token."""
    return watts / tok_s


def kwh_per_mtok(watts: float, tok_s: float) -> float:
    """Energy of a million tokens: W / (tok/s) joules each, 3.6 MJ to the kWh."""
    return watts / (3.6 * tok_s)

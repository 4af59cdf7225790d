"""Watts and energy per token of the accelerators.

In: devices and how long each works in a step. Out: watts. The host and the power supply's loss are not included:
no figure for them is known before they are measured.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from terazi.hardware.machine import Device
from terazi.performance.efficiency import CardClass

#: Share of (TDP - idle) that a card draws while it decodes. RTX 5060 Ti: 173 of 180 W, RTX 3090: at its cap
#: (llama.cpp, club-3090 power tables); H100 on 8B: 486 of 700 W (ML.ENERGY v3, 8 streams).
DECODE_UTILISATION: Final[Mapping[CardClass, float]] = {CardClass.GEFORCE: 0.93, CardClass.HBM: 0.65}
_OTHER_UTILISATION: Final = 0.80
#: Idle draw where it isn't known, as a share of the TDP (RTX 3090: 22 of 350 W).
IDLE_SHARE: Final = 0.06
#: A cap takes speed away like ``(allowed/wanted)^p`` of the dynamic power: RTX 3090, 27B dense decode, 370 W stock:
#: 290 W keeps 93 %, 230 W 73 %; prefill at 250 W keeps 86 %. (club-3090 HARDWARE.md @4a29ab5)
CAP_EXPONENT: Final = 0.6
#: Measured over predicted: the same card drew 0.8 to 1.1 of this over the cap tables; assumed as 80 %.
POWER_SPREAD: Final = (0.75, 1.12)


class Draw(NamedTuple):
    """Watts of one card: idle, flat out while decoding, what the cap lets through, and the cap (or TDP) itself."""

    idle_w: float
    wanted_w: float
    allowed_w: float
    limit_w: float

    @property
    def speed(self) -> float:
        """The share of its speed that the cap leaves."""
        if self.allowed_w >= self.wanted_w or self.wanted_w <= self.idle_w:
            return 1.0
        left = max(0.05, (self.allowed_w - self.idle_w) / (self.wanted_w - self.idle_w))
        return float(left**CAP_EXPONENT)

    def watts(self, busy: float) -> float:
        """Average draw of a card that works for the share *busy* of the time."""
        return self.idle_w + (max(self.allowed_w, self.idle_w) - self.idle_w) * min(1.0, busy)


def draw(device: Device, card_class: CardClass) -> Draw | None:
    """The card's draw, or None if its TDP isn't known."""
    tdp = device.tdp_w.value
    if not tdp:
        return None
    idle = device.idle_w.value if device.idle_w.value is not None else IDLE_SHARE * tdp
    wanted = idle + DECODE_UTILISATION.get(card_class, _OTHER_UTILISATION) * max(0.0, tdp - idle)
    cap = device.power_cap_w or tdp
    return Draw(idle_w=idle, wanted_w=wanted, allowed_w=min(cap, wanted), limit_w=cap)


def kwh_per_mtok(watts: float, tok_s: float) -> float:
    """Energy of a million tokens: W / (tok/s) joules each, 3.6 MJ to the kWh."""
    return watts / (3.6 * tok_s)

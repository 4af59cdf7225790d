"""What the guard is told (a sample of the machine), its settings, and what it tells others to do.

Times are monotonic seconds; bytes are per device, by the names that plans use (``CUDA0``, ``Host``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

#: The device's name for RAM, as plans have it.
HOST = "Host"


class Stage(IntEnum):
    """How far it has come."""

    OPEN = 0
    PAUSED = 1
    SHEDDING = 2
    SHRINKING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a stage begins. None is never.

    Args:
        ram_free: share of RAM, or of the control group's limit, that is available.
        vram_free: share of a card's memory that is free, beyond what the plans left free.
        pressure: percent of ten seconds in which all work stood still for memory (PSI ``full avg10``).
        swap_in: bytes a second that come back from swap.
        temperature_c: of a card.
        disk_free: bytes, where the state is kept.
    """

    ram_free: float | None = None
    vram_free: float | None = None
    pressure: float | None = None
    swap_in: float | None = None
    temperature_c: float | None = None
    disk_free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The guard's settings.

    Args:
        stages: what begins each stage after ``OPEN``.
        settle_s: how long it must be better before a stage is left.
        step_s: how long a stage may work before the next one is entered.
        ease: a limit counts as passed again only this much away from it: a share of itself.
        shrink_again_s: between two times that a model is started smaller.
        throttled_s: a card that the driver slows for its heat or power for so long pauses admission; None is never.
    """

    stages: Mapping[Stage, Limits] = field(
        default_factory=lambda: {
            Stage.PAUSED: Limits(
                ram_free=0.06, vram_free=0.01, pressure=20, swap_in=32 << 20, temperature_c=95, disk_free=512 << 20
            ),
            Stage.SHEDDING: Limits(ram_free=0.04, vram_free=0.005, pressure=40, swap_in=128 << 20),
            Stage.SHRINKING: Limits(ram_free=0.02, vram_free=0.002, pressure=60, swap_in=256 << 20),
        }
    )
    settle_s: float = 10.0
    step_s: float = 3.0
    ease: float = 0.25
    shrink_again_s: float = 120.0
    throttled_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One accelerator.

    Args:
        spare_bytes: what was free once all that runs was loaded; None if nobody looked. A plan that fills a card to
            the brim does so on purpose, so it is only short when half of that has gone too.
        throttled: the driver slows it for its heat or its power.
    """

    total_bytes: int
    free_bytes: int | None = None
    temperature_c: float | None = None
    throttled: bool = False
    spare_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the machine. None is what can't be measured here.

    Args:
        at: monotonic seconds.
        ram_total_bytes, ram_available_bytes: of the system, or of the tightest control group, whichever is less.
        pressure: PSI ``full avg10`` of memory, percent.
        swap_in_per_s: bytes a second.
        oom_kills: of the engines' control groups and our own, so far.
        cards: by device.
        disk_free_bytes: where the state is kept.
    """

    at: float
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    pressure: float | None = None
    swap_in_per_s: float | None = None
    oom_kills: int | None = None
    cards: Mapping[str, Card] = field(default_factory=dict)
    disk_free_bytes: int | None = None


# --- commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAdmission:
    """Let no new request in."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAdmission:
    """Let them in again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShedIdle:
    """Unload idle models until *need* bytes are back on each device."""

    need: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Drain the model that holds most of *device*, and start it smaller: *need* bytes less."""

    need: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """A change of stage, with the figures behind it; the one place to log from."""

    stage: Stage
    reason: str


Command: TypeAlias = PauseAdmission | ResumeAdmission | ShedIdle | Shrink | Announce

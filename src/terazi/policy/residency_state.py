"""What the keeper of models in memory remembers: its limits, the units, and who waits for which model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final

from terazi.policy.eviction import Uses, worth
from terazi.policy.residency_messages import UnitKnown

#: A unit loaded for requests that wait is safe for so long, unless they come, or are gone, before.
ADMISSION_S: Final = 10.0
#: A model whose clients have given up keeps its place for so long: they often come back.
REMEMBER_S: Final = 60.0

#: What may be missing of freed bytes when they count as seen: others take and give some all the time.
SEEN_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient to be, in seconds.

    Args:
        min_stay_s: a loaded unit stays at least so long, and twice as long as its load took.
        batch_s: a model that waits is held up so long by units in use, and twice as long as its load takes;
            after that they are closed, so that they run empty.
        free_wait_s: how long the bytes of an unloaded unit may take to show up as free.
        fresh_s: a measurement is believed for so long.
        again_s: from one look at memory that isn't free yet to the next.
        cool_s, cool_most_s: a model that can't be loaded is left alone for so long, doubled for each failure.
    """

    min_stay_s: float = 10.0
    batch_s: float = 20.0
    free_wait_s: float = 30.0
    fresh_s: float = 1.0
    again_s: float = 0.25
    cool_s: float = 10.0
    cool_most_s: float = 300.0


class Residence(StrEnum):
    """Where a unit is."""

    COLD = "cold"
    PLANNING = "planning"  # ``PlanAgain`` has not been answered
    LOADING = "loading"
    READY = "ready"
    CLOSED = "closed"  # ready, and running empty
    UNLOADING = "unloading"


@dataclass(slots=True)
class Unit:
    """One of them.

    Args:
        terms: as they were said last.
        load_s: planned, then measured.
        settled: since it is ready, what is free has been measured.
        admitted: the requests that it was loaded for have come in.
        idle_since: when its last request ended, or it became ready.
        failures: in a row.
        cool_until: no load before; infinity is for good.
        asked: it is to be loaded; "evict" if others may go for it.
        out: it is to be unloaded, and why.
        forgotten: it is to be unloaded, then dropped.
        plans: how often it was planned into less room since it was last loaded.
        more_room: its last load ran out of memory, and all idle units go before the next one.
    """

    terms: UnitKnown
    load_s: float
    at: Residence = Residence.COLD
    settled: bool = True
    admitted: bool = True
    loaded_at: float = 0.0
    idle_since: float = 0.0
    in_flight: int = 0
    uses: Uses = field(default_factory=Uses)
    failures: int = 0
    cool_until: float = 0.0
    asked: bool = False
    asked_evict: bool = False
    out: str | None = None
    forgotten: bool = False
    more_room: bool = False
    plans: int = 0

    @property
    def promised(self) -> bool:
        """Its bytes are not, or may not be, in what was measured."""
        loading = self.at is Residence.LOADING
        return loading or (self.at in {Residence.READY, Residence.CLOSED} and not self.settled)

    @property
    def held(self) -> bool:
        """It has, or is getting, memory."""
        return self.at in {Residence.LOADING, Residence.READY, Residence.CLOSED, Residence.UNLOADING}

    @property
    def wanted_in(self) -> bool:
        """It is to be loaded, requests or not."""
        return (self.terms.pinned or self.asked) and self.out is None and not self.forgotten

    def worth(self, now: float) -> float:
        """Seconds that losing it will probably cost."""
        return worth(self.load_s, self.uses, now)

    def stays_until(self, limits: Limits) -> float:
        """It isn't unloaded for others before."""
        stay = self.loaded_at + max(limits.min_stay_s, 2 * self.load_s)
        return stay if self.admitted else max(stay, self.loaded_at + ADMISSION_S)


@dataclass(slots=True)
class Want:
    """Requests wait for a model that has no open unit.

    Args:
        since: the oldest one's arrival, or when the model was served last, if that was later.
        left_at: when the last of them had gone; None while some wait.
        begun: units were told to go for it: it is loaded even if its clients give up.
    """

    model: str
    waiting: int
    since: float
    priority: int
    left_at: float | None = None
    begun: bool = False

    @property
    def active(self) -> bool:
        """It still counts."""
        return self.waiting > 0 or self.begun


@dataclass(frozen=True, slots=True)
class Lingering:
    """Bytes of a unit whose process is gone; they may not show up as free at once."""

    needs: Mapping[str, int]
    until: float


@dataclass(slots=True)
class Memory:
    """What is free as it was measured last, and what should become free any moment.

    Args:
        free: per device, as in ``FreeMeasured``.
        measured_at: minus infinity if something was unloaded since.
        asked_at: of a ``Measure`` that has not been answered.
        lingering: of units that went.
        level: what would be free without any unit, as of the last measurement with nobody on the way out.
    """

    free: dict[str, int] = field(default_factory=dict)
    measured_at: float = -inf
    asked_at: float | None = None
    lingering: list[Lingering] = field(default_factory=list)
    level: dict[str, int] | None = None


@dataclass(slots=True)
class State:
    """All of it.

    Args:
        closed: until when a model is; infinity is for good.
        served_at: when a model had an open unit last. Its turn ended then: whoever waited all the time is next,
            however old the requests are that are left in its own queue.
    """

    limits: Limits
    units: dict[str, Unit] = field(default_factory=dict)
    wants: dict[str, Want] = field(default_factory=dict)
    closed: dict[str, float] = field(default_factory=dict)
    served_at: dict[str, float] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    def of(self, model: str) -> list[Unit]:
        """The units of *model*, the first first."""
        return [unit for unit in self.units.values() if unit.terms.model == model]

    def drop(self, unit: Unit) -> None:
        """Know nothing of *unit* any more."""
        del self.units[unit.terms.unit]
        if not self.of(unit.terms.model):
            self.served_at.pop(unit.terms.model, None)

    def measured(self, free: Mapping[str, int], now: float) -> None:
        """Take a measurement; bytes that were freed and are seen by now linger no more."""
        memory = self.memory
        memory.free, memory.measured_at, memory.asked_at = dict(free), now, None
        level = dict(free)
        for unit in self.units.values():
            if unit.at in {Residence.READY, Residence.CLOSED}:
                unit.settled = True
                for device, need in unit.terms.needs.items():
                    level[device] = level.get(device, 0) + need
        if any(unit.at is Residence.UNLOADING for unit in self.units.values()):
            return
        lost: dict[str, int] = {}
        for gone in memory.lingering:
            for device, need in gone.needs.items():
                lost[device] = lost.get(device, 0) + need
        before = memory.level or {}
        if all(level.get(device, 0) + SEEN_SHARE * n >= before.get(device, 0) for device, n in lost.items()):
            memory.lingering, memory.level = [], level

    def available(self) -> dict[str, int]:
        """What may be promised: measured free, less what was promised and isn't in that measurement."""
        free = dict(self.memory.free)
        for unit in self.units.values():
            if unit.promised:
                for device, need in unit.terms.needs.items():
                    free[device] = free.get(device, 0) - need
        return free

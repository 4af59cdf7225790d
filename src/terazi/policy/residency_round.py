"""One look of the keeper over all who want in: who is loaded now, who goes for them, and who must wait for what."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from terazi.policy.eviction import Candidate, choose
from terazi.policy.residency_messages import Close, Command, Load, Measure, PlanAgain, Unload
from terazi.policy.residency_state import Residence, State, Unit, Want

#: So often a unit is planned into less room before it counts as failed.
MOST_PLANS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A unit that shall be loaded.

    Args:
        want: the requests that wait for its model; None if nobody does.
        priority: its own and that of its requests.
        due_at: from then on units in use are closed for it.
        evict: others may go for it.
        hurried: a person asked: nobody's minimum stay is minded.
    """

    unit: Unit
    want: Want | None
    priority: int
    due_at: float
    evict: bool
    hurried: bool


def targets(state: State, now: float) -> list[Target]:
    """Who wants in and may, the most urgent first: the pinned, those that waited too long, then by priority."""
    found: list[Target] = []
    for want in state.wants.values():
        units = state.of(want.model)
        if not want.active or any(u.at in {Residence.READY, Residence.CLOSED, Residence.LOADING} for u in units):
            continue
        cold = next((u for u in units if _may_load(u, now)), None)
        if cold is not None:
            due_at = want.since + max(state.limits.batch_s, 2 * cold.load_s)
            priority = cold.terms.priority + want.priority
            found.append(Target(unit=cold, want=want, priority=priority, due_at=due_at, evict=True, hurried=False))
    wanted = {id(t.unit) for t in found}
    for unit in state.units.values():
        if unit.wanted_in and _may_load(unit, now) and id(unit) not in wanted:
            pinned = unit.terms.pinned
            found.append(
                Target(
                    unit=unit,
                    want=None,
                    priority=unit.terms.priority,
                    due_at=-inf if pinned else inf,
                    evict=pinned or unit.asked_evict,
                    hurried=unit.asked_evict,
                )
            )
    found.sort(key=lambda t: _urgency(t, now))
    return found


def _may_load(unit: Unit, now: float) -> bool:
    ready = unit.at is Residence.COLD and unit.terms.ours and not unit.forgotten and unit.out is None
    return ready and unit.cool_until <= now


def _urgency(target: Target, now: float) -> tuple[bool, bool, bool, float, float, str]:
    since = target.want.since if target.want is not None else inf
    due = target.due_at <= now
    return (
        not target.unit.terms.pinned,
        not due,
        target.want is None,
        0 if due else -target.priority,
        since,
        target.unit.terms.unit,
    )


class Round:
    """Goes through the targets in their order. Bytes that an earlier one waits for are not given to a later one."""

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._now = now
        self._available = state.available()
        self._coming: dict[str, int] = {}
        for unit in state.units.values():
            if unit.at is Residence.UNLOADING:
                self._add(self._coming, unit.terms.needs)
        for gone in state.memory.lingering:
            self._add(self._coming, gone.needs)
        self._claimed: dict[str, int] = {}
        self._measure = False
        #: Units that go for somebody.
        self.needed: set[str] = set()
        #: Somebody waits for a measurement, so that it isn't known who must go.
        self.unsure = False
        #: Units that don't fit, whoever goes, however they are planned.
        self.hopeless: list[Unit] = []
        self.commands: list[Command] = []

    def run(self) -> None:
        """Decide; what is to be done is in ``commands`` then."""
        for target in targets(self._state, self._now):
            self._serve(target)
        memory = self._state.memory
        if self._measure and memory.asked_at is None:
            memory.asked_at = self._now
            self.commands.append(Measure())

    def _serve(self, target: Target) -> None:
        unit, needs = target.unit, target.unit.terms.needs
        missing = self._missing(needs, coming=False)
        if unit.more_room and self._make_all_idle_go(target):
            self._claim(needs)
            return
        if not missing:
            if self._fresh():
                self._load(unit)
            else:
                self._measure_first(needs)
            return
        if not self._fresh():  # nobody goes for a figure that may be out of date
            self._measure_first(needs)
            return
        short = self._missing(needs, coming=True)
        chosen = choose(self._candidates(target), short) if short and target.evict else None
        if not short or chosen is not None:
            for name in chosen or ():
                self._let_go(self._state.units[name], target)
            if chosen and target.want is not None:
                target.want.begun = True
            self._claim(needs)
            self._look_again()
        elif not target.evict:
            unit.asked = False  # it was only to be loaded if there is room
        elif self._hopeless(target):
            self._plan_again(target)
        elif target.due_at <= self._now:
            self._claim(needs)
            self._look_again()
        else:
            self._look_again()

    def _measure_first(self, needs: Mapping[str, int]) -> None:
        self._measure = self.unsure = True
        self._claim(needs)

    def _look_again(self) -> None:
        """What was freed may show up late."""
        if (
            self._state.memory.lingering
            and self._now >= self._state.memory.measured_at + self._state.limits.again_s
        ):
            self._measure = True

    def _fresh(self) -> bool:
        return self._now - self._state.memory.measured_at <= self._state.limits.fresh_s

    def _load(self, unit: Unit) -> None:
        unit.at, unit.settled, unit.asked = Residence.LOADING, False, False
        for device, need in unit.terms.needs.items():
            self._available[device] = self._available.get(device, 0) - need
        self.commands.append(Load(unit=unit.terms.unit))

    # ---- who goes

    def _candidates(self, target: Target) -> Iterator[Candidate]:
        for unit in self._state.units.values():
            name = unit.terms.unit
            if name in self.needed or not self._may_go(unit, target):
                continue
            closed = unit.at is Residence.CLOSED
            yield Candidate(
                unit=name,
                needs=unit.terms.needs,
                priority=unit.terms.priority,
                worth=-1.0 if closed else unit.worth(self._now),  # who is going already goes on
            )

    def _may_go(self, unit: Unit, target: Target) -> bool:
        if unit.at not in {Residence.READY, Residence.CLOSED} or not unit.terms.ours or unit.terms.pinned:
            return False
        if unit.at is Residence.CLOSED:
            return True
        above = target.priority > unit.terms.priority
        if unit.in_flight and not (target.due_at <= self._now or (above and target.want is not None)):
            return False
        minded = not target.hurried or not unit.admitted
        return not minded or unit.stays_until(self._state.limits) <= self._now

    def _let_go(self, unit: Unit, target: Target) -> None:
        name, why = unit.terms.unit, f"room for {target.unit.terms.model}"
        self.needed.add(name)
        self._add(self._coming, unit.terms.needs)
        if not unit.in_flight:
            unit.at = Residence.UNLOADING
            self.commands.append(Unload(unit=name, reason=why))
        elif unit.at is Residence.READY:
            unit.at = Residence.CLOSED
            self.commands.append(Close(unit=name, reason=why))

    def _make_all_idle_go(self, target: Target) -> bool:
        """After a load that ran out of memory; whether there is somebody to wait for."""
        devices = target.unit.terms.needs
        for unit in self._state.units.values():
            shared = any(unit.terms.needs.get(device, 0) for device in devices)
            idle = unit.at is Residence.READY and not unit.in_flight and unit.admitted
            if shared and idle and unit.terms.ours and not unit.terms.pinned:
                self._let_go(unit, target)
        going = any(u.at is Residence.UNLOADING for u in self._state.units.values())
        if self._state.memory.lingering:
            self._look_again()
        return going

    # ---- when it can't be

    def _hopeless(self, target: Target) -> bool:
        """It wouldn't fit if all went that may ever go. Not to be said while bytes are under way."""
        units = self._state.units.values()
        moving = any(u.promised or u.at is Residence.UNLOADING for u in units)
        if moving or self._state.memory.lingering:
            return False
        room = self._room()
        return any(need > room.get(device, 0) for device, need in target.unit.terms.needs.items())

    def _room(self) -> dict[str, int]:
        room = self._state.available()
        for unit in self._state.units.values():
            if unit.at in {Residence.READY, Residence.CLOSED} and unit.terms.ours and not unit.terms.pinned:
                self._add(room, unit.terms.needs)
        return {device: max(0, free) for device, free in room.items()}

    def _plan_again(self, target: Target) -> None:
        unit = target.unit
        if unit.plans >= MOST_PLANS:
            self.hopeless.append(unit)
        else:
            unit.at, unit.plans = Residence.PLANNING, unit.plans + 1
            self.commands.append(PlanAgain(unit=unit.terms.unit, room=self._room()))

    # ---- sums

    def _missing(self, needs: Mapping[str, int], *, coming: bool) -> dict[str, int]:
        short = {}
        for device, need in needs.items():
            room = self._available.get(device, 0) - self._claimed.get(device, 0)
            room += self._coming.get(device, 0) if coming else 0
            if need > room and need > 0:
                short[device] = need - room
        return short

    def _claim(self, needs: Mapping[str, int]) -> None:
        self._add(self._claimed, needs)

    @staticmethod
    def _add(to: dict[str, int], needs: Mapping[str, int]) -> None:
        for device, need in needs.items():
            to[device] = to.get(device, 0) + need

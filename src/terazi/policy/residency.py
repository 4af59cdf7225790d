"""Which units are in memory: ``Keeper.step(event, now) -> commands``.

    cold ─▶ loading ─▶ ready ⇄ closed ─▶ unloading ─▶ cold
      ▲ └─ planning      └───────────────────▲
      └── (cooling down after a failure)

Promises, each a property test:

- A unit is unloaded for others only when it is ready, idle, not pinned, and has stayed a while. A loading one is
  never a victim; one that was loaded for requests that wait is safe until they came in.
- The bytes promised on a device never exceed what was measured free there. A load begins only after the bytes of
  those that went for it have been measured free; when they don't show up, that is waited for, then said.
- Nobody who waits is stranded: after a bound, units in use are closed to new requests until they are empty.
  Before it they are served on, which makes batches of each model's requests and swaps few.
- A load goes on when those who waited have given up.
- A model that can't be loaded is closed and opened again after a pause that doubles; an engine that ran out of
  memory gets one more try after all idle units have gone.
"""

from math import inf

from terazi.policy.eviction import Candidate, choose
from terazi.policy.residency_messages import (
    Close,
    CloseModel,
    Command,
    Event,
    FreeMeasured,
    LoadAsked,
    MemoryPressed,
    ModelWanted,
    Open,
    OpenModel,
    Ticked,
    UnitFailed,
    UnitForgotten,
    UnitKnown,
    UnitLoaded,
    UnitRestarting,
    UnitUnloaded,
    UnitUsed,
    Unload,
    UnloadAsked,
    WakeAt,
)
from terazi.policy.residency_round import Round
from terazi.policy.residency_state import (
    ADMISSION_S,
    REMEMBER_S,
    Limits,
    Lingering,
    Residence,
    State,
    Unit,
    Want,
)

_UP = (Residence.READY, Residence.CLOSED)


class Keeper:
    """One for all units. It keeps its state in itself; all times are monotonic seconds.

    Args:
        limits: patience.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._state = State(limits or Limits())
        self._woken_at: float | None = None
        self._calm = False

    def relimit(self, limits: Limits) -> None:
        """Be so patient from now on; a pause that has begun ends when it was said to."""
        self._state.limits = limits

    def residence(self, unit: str) -> Residence | None:
        """Where *unit* is; None if it isn't known."""
        found = self._state.units.get(unit)
        return None if found is None else found.at

    def closed_until(self, model: str) -> float | None:
        """Until when *model* can't be had; infinity is until somebody does something, None that it can."""
        return self._state.closed.get(model)

    def may_ever_go(self, unit: str) -> bool:
        """Whether *unit* is in memory, and may be unloaded for others at some time."""
        found = self._state.units.get(unit)
        return found is not None and found.at in _UP and found.terms.ours and not found.terms.pinned

    def idle_until(self, unit: str) -> float | None:
        """When *unit* is unloaded for being idle; None if it won't be, as it is now."""
        found = self._state.units.get(unit)
        until = inf if found is None else self._idle_until(found)
        return None if until == inf else until

    @property
    def moving(self) -> bool:
        """Something is being loaded or unloaded, or will be as soon as it may."""
        still = {Residence.COLD, Residence.READY}
        units = self._state.units.values()
        return any(
            u.at not in still or (u.at is Residence.COLD and u.wanted_in and u.cool_until == 0) for u in units
        )

    def step(self, event: Event, now: float) -> list[Command]:
        """Take one event at monotonic time *now*; what to do, in order."""
        if self._calm and type(event) is UnitUsed and (unit := self._state.units.get(event.unit)) is not None:
            return self._use(unit, event, now)
        commands: list[Command] = []
        for unit in self._state.units.values():
            if unit.at is Residence.READY:
                self._state.served_at[unit.terms.model] = now
        self._take(event, now, commands)
        self._expire(now, commands)
        self._leave(now, commands)
        decided = Round(self._state, now)
        decided.run()
        commands += decided.commands
        for unit in decided.hopeless:
            self._failed(unit, "there isn't enough memory for it, whatever is unloaded", now, commands)
        if not decided.unsure:
            self._open_unneeded(decided.needed, commands)
        self._set_wake(now, commands)
        self._calm = self._nothing_is_open()
        return commands

    def _nothing_is_open(self) -> bool:
        """Whether requests that come and go bring nothing about but a later moment of being idle."""
        state = self._state
        if state.wants or state.closed or state.memory.lingering or state.memory.asked_at is not None:
            return False
        return all(
            (unit.at is Residence.READY and unit.admitted) or (unit.at is Residence.COLD and not unit.wanted_in)
            for unit in state.units.values()
        )

    def _use(self, unit: Unit, event: UnitUsed, now: float) -> list[Command]:
        """What ``step`` comes to for a request that came or went while nothing else is open."""
        self._used(unit, event.in_flight, now)
        idle_at = self._idle_until(unit)
        if idle_at == inf or (self._woken_at is not None and now < self._woken_at <= idle_at):
            return []
        if idle_at <= now:  # it is idle for no time at all
            self._calm = False
            return self.step(event, now)
        self._woken_at = idle_at
        return [WakeAt(at=idle_at)]

    @staticmethod
    def _used(unit: Unit, in_flight: int, now: float) -> None:
        for _ in range(in_flight - unit.in_flight):
            unit.uses.used(now)
        unit.admitted = unit.admitted or in_flight > 0
        unit.idle_since = now if unit.in_flight and not in_flight else unit.idle_since
        unit.in_flight = in_flight

    def _open_unneeded(self, needed: set[str], commands: list[Command]) -> None:
        for unit in self._state.units.values():
            leaving = unit.forgotten or unit.out is not None
            if unit.at is Residence.CLOSED and unit.terms.unit not in needed and not leaving:
                unit.at = Residence.READY
                commands.append(Open(unit=unit.terms.unit))
                self._state.wants.pop(unit.terms.model, None)  # who waits for it comes in now

    # ---- what happened

    def _take(self, event: Event, now: float, commands: list[Command]) -> None:
        match event:
            case UnitKnown():
                self._know(event, now)
            case ModelWanted():
                self._want(event, now)
            case FreeMeasured(free=free):
                self._state.measured(free, now)
            case MemoryPressed():
                self._press(event, now, commands)
            case Ticked():
                self._woken_at = None
            case _:
                known = self._state.units.get(event.unit)
                if known is not None:
                    self._happened(known, event, now, commands)

    def _happened(self, unit: Unit, event: Event, now: float, commands: list[Command]) -> None:
        match event:
            case UnitUsed(in_flight=in_flight):
                self._used(unit, in_flight, now)
            case UnitLoaded(took_s=took_s) if unit.at is Residence.LOADING:
                self._loaded(unit, took_s, now, commands)
            case UnitRestarting() if unit.at in _UP:
                unit.at, unit.settled = Residence.LOADING, False
            case UnitFailed() if unit.at is not Residence.COLD:
                self._fail(unit, event, now, commands)
            case UnitUnloaded():
                self._gone(unit, now)
            case UnitForgotten():
                unit.forgotten = True
                if unit.at in {Residence.COLD, Residence.PLANNING}:
                    self._state.drop(unit)
            case LoadAsked(evict=evict) if unit.at not in {Residence.LOADING, *_UP}:
                unit.asked, unit.asked_evict, unit.out = True, evict, None
                unit.cool_until = 0.0 if evict else unit.cool_until
            case UnloadAsked(reason=reason):
                unit.asked = False
                unit.out = reason if unit.held else None
            case _:
                pass

    def _know(self, event: UnitKnown, now: float) -> None:
        unit = self._state.units.get(event.unit)
        if unit is None:
            unit = self._state.units[event.unit] = Unit(terms=event, load_s=event.load_s)
            unit.at = Residence.COLD if event.ours else Residence.READY
            return
        if event.load_s != unit.terms.load_s:
            unit.load_s = event.load_s
        unit.terms, unit.forgotten = event, False
        unit.cool_until = now if unit.cool_until == inf else unit.cool_until
        unit.at = Residence.COLD if unit.at is Residence.PLANNING else unit.at

    def _want(self, event: ModelWanted, now: float) -> None:
        units, want = self._state.of(event.model), self._state.wants.get(event.model)
        if event.waiting:
            if any(unit.at is Residence.READY for unit in units):
                return  # said before it was ready
            since = max(event.since, self._state.served_at.get(event.model, -inf))
            since = since if want is None else min(want.since, since)
            begun = want is not None and want.begun
            self._state.wants[event.model] = Want(
                model=event.model, waiting=event.waiting, since=since, priority=event.priority, begun=begun
            )
            return
        for unit in units:
            unit.admitted = True
        if want is not None:
            want.waiting, want.left_at = 0, now

    def _loaded(self, unit: Unit, took_s: float, now: float, commands: list[Command]) -> None:
        unit.at, unit.settled = Residence.READY, False
        unit.load_s, unit.loaded_at, unit.idle_since = took_s, now, now
        unit.failures, unit.more_room, unit.plans = 0, False, 0
        want = self._state.wants.pop(unit.terms.model, None)
        unit.admitted = want is None or not want.waiting
        self._reopen(unit.terms.model, commands)

    def _gone(self, unit: Unit, now: float) -> None:
        """Its process is no more; its bytes may take a moment."""
        memory = self._state.memory
        if unit.held:
            memory.lingering.append(Lingering(unit.terms.needs, now + self._state.limits.free_wait_s))
        memory.measured_at = -inf
        unit.at, unit.in_flight, unit.settled, unit.out = Residence.COLD, 0, True, None
        if unit.forgotten:
            self._state.drop(unit)

    def _fail(self, unit: Unit, event: UnitFailed, now: float, commands: list[Command]) -> None:
        going = unit.at is Residence.UNLOADING
        self._gone(unit, now)
        if going or unit.forgotten:
            return
        if event.no_memory and not unit.more_room:
            unit.more_room = True  # once more, with all the room that there is
            unit.asked = True
            return
        self._failed(unit, event.reason, now, commands, for_good=event.for_good)

    def _failed(
        self, unit: Unit, reason: str, now: float, commands: list[Command], *, for_good: bool = False
    ) -> None:
        limits, model = self._state.limits, unit.terms.model
        unit.at, unit.asked, unit.more_room, unit.plans = Residence.COLD, False, False, 0
        pause = min(limits.cool_s * 2.0 ** min(unit.failures, 20), limits.cool_most_s)
        unit.failures += 1
        unit.cool_until = inf if for_good else now + pause
        others = [u for u in self._state.of(model) if u is not unit]
        if any(u.at is not Residence.COLD or u.cool_until <= now for u in others):
            return
        self._state.wants.pop(model, None)
        until = min(u.cool_until for u in (unit, *others))
        self._state.closed[model] = until
        commands.append(CloseModel(model=model, reason=reason, again_at=None if until == inf else until))

    def _press(self, event: MemoryPressed, now: float, commands: list[Command]) -> None:
        idle = [
            Candidate(unit=name, needs=u.terms.needs, priority=u.terms.priority, worth=u.worth(now))
            for name, u in self._state.units.items()
            if u.at is Residence.READY and not u.in_flight and u.admitted and u.terms.ours and not u.terms.pinned
        ]
        useful = [c.unit for c in idle if any(c.needs.get(d, 0) for d, need in event.need.items() if need > 0)]
        chosen = choose(idle, event.need)
        for name in useful if chosen is None else chosen:
            self._unload(self._state.units[name], "memory is short", commands)

    # ---- what time brings

    def _expire(self, now: float, commands: list[Command]) -> None:
        state = self._state
        state.wants = {
            model: want
            for model, want in state.wants.items()
            if want.left_at is None or now < want.left_at + REMEMBER_S or (want.begun and state.of(model))
        }
        for model in [model for model, until in state.closed.items() if until <= now]:
            self._reopen(model, commands)
        for unit in state.units.values():
            unit.admitted = unit.admitted or (unit.at in _UP and now >= unit.loaded_at + ADMISSION_S)
        state.memory.lingering = [gone for gone in state.memory.lingering if now < gone.until]

    def _reopen(self, model: str, commands: list[Command]) -> None:
        if self._state.closed.pop(model, None) is not None:
            commands.append(OpenModel(model=model))

    def _leave(self, now: float, commands: list[Command]) -> None:
        """Units that go for nobody: forgotten, asked to go, or idle for too long."""
        for unit in tuple(self._state.units.values()):
            why = "it is served no more" if unit.forgotten else unit.out
            if unit.at is Residence.LOADING and why is not None:
                self._unload(unit, why, commands)
            elif unit.at in _UP and why is not None:
                if not unit.in_flight:
                    self._unload(unit, why, commands)
                elif unit.at is Residence.READY:
                    unit.at = Residence.CLOSED
                    commands.append(Close(unit=unit.terms.unit, reason=why))
            elif unit.at is Residence.READY and now >= self._idle_until(unit):
                self._unload(unit, f"idle for {unit.terms.idle_s:g} s", commands)

    @staticmethod
    def _idle_until(unit: Unit) -> float:
        terms = unit.terms
        idles = terms.idle_s is not None and terms.ours and not terms.pinned
        idles = idles and unit.at is Residence.READY and not unit.in_flight and unit.admitted
        return unit.idle_since + (terms.idle_s or 0.0) if idles else inf

    @staticmethod
    def _unload(unit: Unit, reason: str, commands: list[Command]) -> None:
        unit.at = Residence.UNLOADING
        commands.append(Unload(unit=unit.terms.unit, reason=reason))

    # ---- when to look again

    def _set_wake(self, now: float, commands: list[Command]) -> None:
        state, limits = self._state, self._state.limits
        times = list(state.closed.values())
        times += [gone.until for gone in state.memory.lingering]
        if state.memory.lingering and state.memory.asked_at is None:
            times.append(max(now, state.memory.measured_at) + limits.again_s)
        for want in state.wants.values():
            loads = [unit.load_s for unit in state.of(want.model)]
            times.append(want.since + max(limits.batch_s, 2 * max(loads, default=0.0)))
            times.append(inf if want.left_at is None or want.begun else want.left_at + REMEMBER_S)
        for unit in state.units.values():
            times += [self._idle_until(unit), unit.cool_until]
            if unit.at in _UP:
                times.append(unit.stays_until(limits) if state.wants else inf)
                times.append(unit.loaded_at + ADMISSION_S if not unit.admitted else inf)
        later = min((at for at in times if at > now), default=inf)
        if later < inf and later != self._woken_at:
            self._woken_at = later
            commands.append(WakeAt(at=later))

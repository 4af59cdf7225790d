"""A world for the keeper of models in memory, in virtual seconds: devices whose memory comes back late, engines
that take their time, requests that wait. It checks at every command what must never be commanded.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from terazi.policy.residency import Keeper
from terazi.policy.residency_messages import (
    Close,
    CloseModel,
    Command,
    Event,
    FreeMeasured,
    Load,
    Measure,
    ModelWanted,
    Open,
    OpenModel,
    PlanAgain,
    Ticked,
    UnitFailed,
    UnitKnown,
    UnitLoaded,
    UnitUnloaded,
    UnitUsed,
    Unload,
    WakeAt,
)
from terazi.policy.residency_state import Limits


@dataclass(slots=True)
class Engine:
    """One unit as it really is."""

    terms: UnitKnown
    load_s: float
    slots: int
    state: str = "cold"  # loading, ready, closed, unloading
    began: float = 0.0
    in_flight: int = 0
    loads: int = 0
    failing: list[UnitFailed] = field(default_factory=list)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """It takes *seconds* in an engine."""

    model: str
    arrived: float
    seconds: float


class World:
    """Runs a keeper. ``lag_s``: how long freed bytes stay invisible; ``others``: bytes that other programs hold."""

    def __init__(
        self,
        total: Mapping[str, int],
        limits: Limits | None = None,
        *,
        lag_s: float = 0.0,
        slots: int = 4,
        keeper: type[Keeper] = Keeper,
    ) -> None:
        self.now = 0.0
        self.keeper = keeper(limits)
        self.total = dict(total)
        self.others: Counter[str] = Counter()
        self.lag_s = lag_s
        self.slots = slots
        self.engines: dict[str, Engine] = {}
        self.ghosts: Counter[str] = Counter()  # freed, and not to be seen yet
        self.queues: dict[str, list[Request]] = {}
        self.closed: set[str] = set()
        self.served: list[tuple[Request, float]] = []
        self.turned_away: list[Request] = []
        self.log: list[tuple[float, Command]] = []
        self.went_for: dict[str, str] = {}  # a unit, and the model that it made room for
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._wake = 0

    # ---- what the test does

    def know(self, unit: str, model: str, needs: Mapping[str, int], load_s: float, **terms: object) -> None:
        """A unit that may be loaded."""
        known = UnitKnown(unit=unit, model=model, needs=needs, load_s=load_s, **terms)  # type: ignore[arg-type]
        self.engines[unit] = Engine(known, load_s, self.slots)
        self.queues.setdefault(model, [])
        self.tell(known)

    def ask(self, model: str, seconds: float) -> None:
        """A request arrives now."""
        request = Request(model, self.now, seconds)
        if model in self.closed:
            self.turned_away.append(request)
            return
        self.queues[model].append(request)
        self._dispatch(model)

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._later and self._later[0][0] <= until:
            at, _, action = heapq.heappop(self._later)
            self.now = max(self.now, at)
            action()
        self.now = max(self.now, until)

    def play(self, trace: Iterable[Request], rest: float = 3600.0) -> None:
        """Requests as they come, then *rest* seconds."""
        for request in trace:
            self.run(request.arrived)
            self.ask(request.model, request.seconds)
        self.run(self.now + rest)

    @property
    def loads(self) -> int:
        """So many were begun."""
        return sum(engine.loads for engine in self.engines.values())

    def held(self) -> Counter[str]:
        """Bytes that are, or will be, taken, by whomever."""
        found = Counter(self.others) + self.ghosts
        for engine in self.engines.values():
            if engine.state != "cold":
                found.update(engine.terms.needs)
        return found

    # ---- the two sides

    def tell(self, event: Event) -> None:
        """The keeper, and do what it says."""
        for command in self.keeper.step(event, self.now):
            self.log.append((self.now, command))
            self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case Load(unit=unit):
                self._load(self.engines[unit])
            case Close(unit=unit):
                assert self.engines[unit].state == "ready"
                self.engines[unit].state = "closed"
                self._want(self.engines[unit].terms.model)
            case Open(unit=unit):
                assert self.engines[unit].state == "closed"
                self.engines[unit].state = "ready"
                self._after(0.0, lambda: self._dispatch(self.engines[unit].terms.model))
            case Unload(unit=unit, reason=reason):
                engine = self.engines[unit]
                if reason.startswith("room for "):
                    self.went_for[unit] = reason.removeprefix("room for ")
                assert engine.state in {"ready", "closed"}, f"{unit} is unloaded while {engine.state}"
                assert engine.in_flight == 0, f"{unit} is unloaded while busy"
                engine.state = "unloading"
                self._after(0.2, lambda: self._unloaded(engine))
            case Measure():
                self._after(0.01, self._measure)
            case CloseModel(model=model):
                self.closed.add(model)
                self.turned_away += self.queues[model]
                self.queues[model] = []
            case OpenModel(model=model):
                self.closed.discard(model)
            case WakeAt(at=at):
                self._wake += 1
                this = self._wake
                self._after(at - self.now, lambda: self.tell(Ticked()) if this == self._wake else None)
            case PlanAgain(unit=unit):
                self._after(0.1, lambda: self.tell(UnitFailed(unit=unit, reason="no smaller plan")))

    def _load(self, engine: Engine) -> None:
        assert engine.state == "cold", f"{engine.terms.unit} is loaded while {engine.state}"
        other = self.went_for.pop(engine.terms.unit, None)
        self.went_for = {unit: model for unit, model in self.went_for.items() if model != engine.terms.model}
        if other is not None and not engine.terms.pinned and self.queues[other]:
            still = all(e.state == "cold" and not e.failed for e in self.engines.values() if e.terms.model == other)
            assert not still, f"{engine.terms.unit} went for {other}, and is back before it"
        engine.state, engine.began, engine.loads = "loading", self.now, engine.loads + 1
        for device, held in self.held().items():
            assert held <= self.total.get(device, 0), f"{held} promised on {device} of {self.total.get(device, 0)}"
        self._after(engine.load_s, lambda: self._loaded(engine))

    def _loaded(self, engine: Engine) -> None:
        if engine.failing:
            engine.state, engine.failed = "cold", True
            self.tell(engine.failing.pop(0))
            return
        engine.state = "ready"
        self.tell(UnitLoaded(unit=engine.terms.unit, took_s=engine.load_s))
        self._dispatch(engine.terms.model)

    def _unloaded(self, engine: Engine) -> None:
        engine.state = "cold"
        needs = Counter(engine.terms.needs)
        self.ghosts += needs

        def show() -> None:
            self.ghosts -= needs

        self._after(self.lag_s, show)
        self.tell(UnitUnloaded(unit=engine.terms.unit))

    def _measure(self) -> None:
        free = Counter(self.total)
        free.subtract(self.others)
        free.subtract(self.ghosts)
        for engine in self.engines.values():
            if engine.state in {"ready", "closed", "unloading"}:
                free.subtract(engine.terms.needs)
        self.tell(FreeMeasured(free=free))

    # ---- requests

    def _dispatch(self, model: str) -> None:
        queue = self.queues[model]
        for engine in self.engines.values():
            while (
                queue
                and engine.terms.model == model
                and engine.state == "ready"
                and engine.in_flight < engine.slots
            ):
                request = queue.pop(0)
                engine.in_flight += 1
                self.tell(UnitUsed(unit=engine.terms.unit, in_flight=engine.in_flight))
                self._after(request.seconds, lambda r=request, e=engine: self._finished(r, e))  # type: ignore[misc]
        self._want(model)

    def _finished(self, request: Request, engine: Engine) -> None:
        engine.in_flight -= 1
        self.served.append((request, self.now))
        self.tell(UnitUsed(unit=engine.terms.unit, in_flight=engine.in_flight))
        self._dispatch(engine.terms.model)

    def _want(self, model: str) -> None:
        queue = self.queues[model]
        is_open = any(e.terms.model == model and e.state == "ready" for e in self.engines.values())
        if queue and not is_open:
            self.tell(ModelWanted(model=model, waiting=len(queue), since=queue[0].arrived))

    def give_up(self, model: str) -> None:
        """All who wait for it leave."""
        if self.queues[model]:
            self.queues[model] = []
            self.tell(ModelWanted(model=model, waiting=0, since=self.now))

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now + max(0.0, seconds), next(self._order), action))

"""The fleet: executes ``policy.residency`` over all models, and tells the dispatcher which engines take requests.

It is the gateway's ``Directory`` and the seats' ``Keeper``. Loads and unloads are tasks of their own, so they go on
whoever gives up waiting for them.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator

from terazi.gateway.backend import Served, find_served
from terazi.gateway.figures import Figure
from terazi.policy.dispatch_messages import ModelClosed, ModelOpened, ReplicaGone, WantModel
from terazi.policy.lifecycle_messages import Phase
from terazi.policy.residency_messages import (
    Close,
    CloseModel,
    Command,
    Event,
    FreeMeasured,
    Load,
    LoadAsked,
    Measure,
    ModelWanted,
    Open,
    OpenModel,
    PlanAgain,
    UnitForgotten,
    Unload,
    UnloadAsked,
)
from terazi.policy.residency_state import Residence
from terazi.service.attached_models import AttachedModels
from terazi.service.config import Config
from terazi.service.deployment import Deployment
from terazi.service.dispatching import Dispatching, News
from terazi.service.engine_counts import EngineCounts, memory_figures
from terazi.service.engine_room import EngineRoom
from terazi.service.fleet_model import FleetModel, Slot
from terazi.service.keeping import Keeping, limits_of
from terazi.service.meter import Meter
from terazi.service.planning import Planned
from terazi.service.yard import Yard

_log = logging.getLogger(__name__)

_UP = (Residence.READY, Residence.CLOSED, Residence.LOADING)


class Fleet:
    """All models. Use it on one event loop.

    Args:
        yard: what engines need.
    """

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self.seats: Dispatching | None = None
        self.models: dict[str, FleetModel] = {}
        #: Those that run elsewhere.
        self.others = AttachedModels(self._tell_seats)
        self._slots: dict[str, Slot] = {}
        self._keeping = Keeping(limits_of(yard.config.memory), self._do, self._wake)
        self._keeper = self._keeping.keeper
        self.meter = Meter(yard, self._keeper, self._slots)
        self._counts = EngineCounts()
        self._engines = EngineRoom(yard, self, self._counts)
        self._generation = 0
        self.changed = asyncio.Event()

    # ---- Directory, Keeper

    def served(self) -> tuple[Served, ...]:
        """All models, in the order in which they came."""
        return (*self.models.values(), *self.others.models.values())

    def find(self, name: str) -> Served | None:
        """By id or alias; Ollama's ``:latest`` is the same model."""
        return find_served(self.served(), name)

    def figures(self) -> Iterator[Figure]:
        """What the metrics show of engines."""
        yield from self._counts.figures()
        yield from memory_figures(self.deployments())

    def want(self, wanted: WantModel) -> None:
        """Requests wait for a model that has no open replica."""
        if wanted.model in self.models:
            since, priority = wanted.since, wanted.priority
            self.tell(ModelWanted(model=wanted.model, waiting=wanted.waiting, since=since, priority=priority))

    def deployments(self) -> list[Deployment]:
        """All engines that were started, running or not."""
        return [deployment for model in self.models.values() for deployment in model.deployments]

    # ---- what comes and goes

    def add(self, planned: Planned) -> FleetModel:
        """Serve a model from now on, cold."""
        model = self.models[planned.name] = FleetModel(planned)
        self._add_slots(model)
        self._tell_seats(ModelOpened(model=model.name))
        return model

    def _add_slots(self, model: FleetModel) -> None:
        self._generation += 1
        model.lay_out(self._yard.run_dir / "logs", self._generation)
        for slot in model.slots:
            self._slots[slot.unit] = slot
            self.tell(model.known(slot))
            self._tell_seats(slot.replica(open_=False))

    def replace(self, model: FleetModel, planned: Planned) -> None:
        """Serve *model* with other settings: what runs finishes its requests and goes, then the new one comes."""
        was_up = any(self.residence(slot) in _UP for slot in model.slots)
        old, model.slots = model.slots, []
        model.retired += old
        model.wish, model.planned = planned.wish, planned
        model.renamed()
        for slot in old:
            self._retire(slot)
        self._add_slots(model)
        if was_up:
            self.ask(model)

    def reterm(self, model: FleetModel) -> None:
        """Its wish has changed in names and terms only."""
        model.renamed()
        for slot in model.slots:
            self.tell(model.known(slot))

    def remove(self, model: FleetModel) -> None:
        """Serve it no more: who waits is turned away, who is being answered is answered."""
        self._tell_seats(ModelClosed(model=model.name, reason=f"{model.name} is not served any more"))
        for slot in model.slots:
            self._retire(slot)
        model.retired += model.slots
        model.slots = []
        del self.models[model.name]
        self._wake()

    def _retire(self, slot: Slot) -> None:
        self.open(slot, open_=False)
        self.tell(UnitForgotten(unit=slot.unit))
        if self.residence(slot) is None:
            self._dispose(slot)

    def gone(self, slot: Slot) -> None:
        """As ``engine_room.House`` has it."""
        if self.residence(slot) is None:
            self._dispose(slot)
        elif (model := self.model_of(slot)) is not None:
            self.tell(model.known(slot))

    def model_of(self, slot: Slot) -> FleetModel | None:
        """Whose slot it is; None if it isn't served any more, or with other settings."""
        model = self.models.get(slot.planned.name)
        return model if model is not None and slot in model.slots else None

    def _dispose(self, slot: Slot) -> None:
        """Nothing of it is left."""
        self._tell_seats(ReplicaGone(replica=slot.unit))
        self._slots.pop(slot.unit, None)
        slot.release()
        for model in self.models.values():
            if slot in model.retired:
                model.retired.remove(slot)

    def ask(self, model: FleetModel, *, evict: bool = True) -> None:
        """Load its first replicas, though nobody waits."""
        for slot in model.slots[: max(1, model.wish.replicas[0])]:
            self.tell(LoadAsked(unit=slot.unit, evict=evict))

    def let_go(self, model: FleetModel, reason: str) -> None:
        """Unload it once it is idle."""
        for slot in model.slots:
            self.tell(UnloadAsked(unit=slot.unit, reason=reason))

    def stop_model(self, model: FleetModel) -> None:
        """It takes no requests, and is unloaded once it is idle, until a person loads it."""
        model.stopped = True
        self.reterm(model)
        self._close(model, f"{model.name} was stopped; terazi load {model.name} brings it back")
        self.let_go(model, "it was stopped")

    def load_model(self, model: FleetModel) -> None:
        """It takes requests, and is loaded now; idle ones may go for it."""
        if model.stopped:
            model.stopped = False
            self.reterm(model)
        self._reopen(model)
        self.ask(model)

    def _close(self, model: FleetModel, reason: str, again_at: float | None = None) -> None:
        model.closed = reason
        self._tell_seats(ModelClosed(model=model.name, reason=reason, again_at=again_at))

    def _reopen(self, model: FleetModel) -> None:
        if model.closed is not None:
            model.closed = None
            self._tell_seats(ModelOpened(model=model.name))

    def closed_until(self, model: FleetModel) -> float | None:
        """As the keeper has it."""
        return self._keeper.closed_until(model.name)

    @property
    def moving(self) -> bool:
        """As the keeper has it."""
        return self._keeper.moving

    def residence(self, slot: Slot) -> Residence | None:
        """As the keeper has it."""
        return self._keeper.residence(slot.unit)

    async def stop(self, drain_s: float) -> None:
        """End all engines."""
        self._keeping.hush()
        running = [slot.deployment for slot in self._slots.values() if slot.deployment is not None]
        await asyncio.gather(*(deployment.runner.stop(drain_s=drain_s) for deployment in running))
        await self._keeping.end()
        self._engines.close()
        for slot in self._slots.values():
            slot.release()

    def idle_left_s(self, model: FleetModel) -> float | None:
        """Seconds until *model* is unloaded, if no request comes; None is never."""
        ends = [end for slot in model.slots if (end := self._keeper.idle_until(slot.unit)) is not None]
        return max(0.0, max(ends) - asyncio.get_running_loop().time()) if ends else None

    def reconfigure(self, config: Config) -> None:
        """The budget, the keeper's patience and the engines' are these from now on."""
        self._yard.config = config
        self._keeper.relimit(limits_of(config.memory))
        for deployment in self.deployments():
            deployment.be_patient(config.engines.llama_cpp)

    # ---- the keeper's events and commands

    def tell(self, event: Event) -> None:
        """Tell the keeper, and do what it says."""
        self._keeping.tell(event)

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Do this beside all else."""
        self._keeping.begin(work)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _do(self, command: Command) -> None:
        match command:
            case Load(unit=unit):
                self._engines.load(self._slots[unit])
            case Unload(unit=unit, reason=reason):
                _log.info("%s is unloaded: %s", unit, reason)
                self._counts.unloaded(self._slots[unit].planned.name, reason)
                if (model := self.model_of(self._slots[unit])) is not None:
                    model.asked_idle = None  # that was for this stay; who asks from now on means the next one
                self.open(self._slots[unit], open_=False)
                self.begin(self._engines.unload(self._slots[unit]))
            case Close(unit=unit, reason=reason):
                _log.info("%s takes no more requests: %s", unit, reason)
                self.open(self._slots[unit], open_=False)
            case Open(unit=unit):
                self.open(self._slots[unit], open_=True)
            case PlanAgain(unit=unit, room=room):
                self.begin(self._engines.plan_again(self._slots[unit], room))
            case CloseModel(model=model, reason=reason, again_at=again_at):
                self._model_failed(model, reason, again_at)
            case OpenModel(model=model):
                if model in self.models and not self.models[model].stopped:
                    self._reopen(self.models[model])
            case Measure():
                self.begin(self._measure())

    async def _measure(self) -> None:
        self.tell(FreeMeasured(free=await self.meter.measure()))

    def _tell_seats(self, news: News) -> None:
        if self.seats is not None:
            self.seats.tell(news)

    def open(self, slot: Slot, *, open_: bool) -> None:
        """Let requests into the slot's engine, or not."""
        slot.open = open_ and slot.deployment is not None and slot.deployment.runner.state.phase is Phase.READY
        if slot.planned.name in self.models:
            self._tell_seats(slot.replica(open_=slot.open))

    def _model_failed(self, name: str, reason: str, again_at: float | None) -> None:
        model = self.models.get(name)
        if model is None:
            return
        left = None if again_at is None else again_at - asyncio.get_running_loop().time()
        later = "" if left is None else f" (it is tried again in {left:.0f} s)"
        _log.warning("%s can't be served: %s%s", name, reason, later)
        self._close(model, f"{name} can't be served now: {reason}", again_at)

"""The fleet: executes ``policy.residency`` over all models, and tells the dispatcher which engines take requests.

It is the gateway's ``Directory`` and the seats' ``Keeper``. Loads and unloads are tasks of their own, so they go on
whoever gives up waiting for them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from terazi.engines.llama_cpp.binary import Binary
from terazi.errors import TeraziError
from terazi.gateway.backend import Served, find_served
from terazi.gateway.figures import Figure
from terazi.hardware.machine import Machine
from terazi.hardware.probe import read_process_memory
from terazi.policy.dispatch_messages import ModelClosed, ModelOpened, ReplicaChanged, ReplicaGone, WantModel
from terazi.policy.lifecycle import State
from terazi.policy.lifecycle_messages import Phase, Retry
from terazi.policy.residency import Keeper
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
    Ticked,
    UnitFailed,
    UnitForgotten,
    UnitLoaded,
    UnitRestarting,
    UnitUnloaded,
    UnitUsed,
    Unload,
    UnloadAsked,
    WakeAt,
)
from terazi.policy.residency_state import Limits, Residence
from terazi.service.attached import AttachedModel
from terazi.service.cards import slug
from terazi.service.config import Config
from terazi.service.deployment import Deployment
from terazi.service.engine_counts import EngineCounts, memory_figures
from terazi.service.fleet_model import FleetModel, Slot
from terazi.service.planning import Planned, plan_one
from terazi.service.room import Holding, free_for_models, with_room
from terazi.supervisor.freed import freed
from terazi.supervisor.log import claim
from terazi.supervisor.process import resident
from terazi.supervisor.vitals import DeviceMemory

_log = logging.getLogger(__name__)

#: From closing a replica until its requests are counted: one that was just dispatched may not be yet.
_SETTLE_S = 0.05
#: A measurement during which a unit came or went is worth nothing; after so many it is taken all the same.
_MOST_LOOKS = 5
_UP = (Residence.READY, Residence.CLOSED)


class Dispatching(Protocol):
    """The seats, as far as the fleet needs them."""

    def tell(self, news: ReplicaChanged | ReplicaGone | ModelClosed | ModelOpened) -> None:
        """What has become of a replica or a model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """What all engines have in common.

    Args:
        binary: the engine.
        look: this machine as it is now, as the engine sees it. It may block.
        run_dir: where records and logs are kept.
        on_ready: told of each start that succeeded.
        device_memory: what the driver last counted for a process.
        price_per_kwh: for forecasts.
    """

    binary: Binary
    look: Callable[[], Machine]
    run_dir: Path
    on_ready: Callable[[Deployment], None] = lambda _: None
    device_memory: DeviceMemory | None = None
    price_per_kwh: float | None = None


class Fleet:
    """All models. Use it on one event loop.

    Args:
        yard: what engines need.
        config: ``memory`` and ``engines`` of it count here.
    """

    def __init__(self, yard: Yard, config: Config) -> None:
        self._yard = yard
        self._config = config
        memory = config.memory
        self._keeper = Keeper(
            Limits(min_stay_s=memory.min_stay_s, batch_s=memory.batch_s, free_wait_s=memory.free_wait_s)
        )
        self.seats: Dispatching | None = None
        self.models: dict[str, FleetModel] = {}
        self.attached: dict[str, AttachedModel] = {}
        self._slots: dict[str, Slot] = {}
        self._generation = 0
        self._timer: asyncio.TimerHandle | None = None
        self._events: deque[Event] = deque()
        self._stepping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Event()
        self._counts = EngineCounts()

    # ---- Directory, Keeper

    def served(self) -> tuple[Served, ...]:
        """All models, in the order in which they came."""
        return (*self.models.values(), *self.attached.values())

    def find(self, name: str) -> Served | None:
        """By id or alias; Ollama's ``:latest`` is the same model."""
        return find_served(self.served(), name)

    def want(self, wanted: WantModel) -> None:
        """Requests wait for a model that has no open replica."""
        if wanted.model in self.models:
            self.tell(
                ModelWanted(
                    model=wanted.model, waiting=wanted.waiting, since=wanted.since, priority=wanted.priority
                )
            )

    def figures(self) -> Iterator[Figure]:
        """What the metrics show of engines."""
        yield from self._counts.figures()
        yield from memory_figures(self.deployments())

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
        again = "" if self._generation_of(model) == 1 else f"@{self._generation}"
        for number in range(1, model.wish.replicas[1] + 1):
            unit = f"{model.name}{again}" + (f"#{number}" if number > 1 else "")
            path, lock = claim(self._yard.run_dir / "logs", slug(unit))
            slot = Slot(unit, model.planned, log_path=path, lock=lock)
            model.slots.append(slot)
            self._slots[unit] = slot
            self.tell(slot.known(model.wish, stopped=model.stopped))
            self._tell_seats(slot.replica(open_=False))

    @staticmethod
    def _generation_of(model: FleetModel) -> int:
        model.generation += 1
        return model.generation

    def replace(self, model: FleetModel, planned: Planned) -> None:
        """Serve *model* with other settings: what runs finishes its requests and goes, then the new one comes."""
        was_up = any(self._keeper.residence(slot.unit) in {*_UP, Residence.LOADING} for slot in model.slots)
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
            self.tell(slot.known(model.wish, stopped=model.stopped))

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
        self._open(slot, open_=False)
        self.tell(UnitForgotten(unit=slot.unit))
        if self._keeper.residence(slot.unit) is None:
            self._dispose(slot)

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

    def _close(self, model: FleetModel, reason: str) -> None:
        model.closed = reason
        self._tell_seats(ModelClosed(model=model.name, reason=reason))

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

    def room(self, machine: Machine) -> dict[str, int]:
        """What a model could have if everything unpinned went."""
        free = free_for_models(machine, self._holdings(machine), self._config.memory)
        for name, slot in self._slots.items():
            if self._keeper.residence(name) in _UP and not self._pinned(slot):
                for device, need in slot.needs().items():
                    free[device] = free.get(device, 0) + need
        return free

    def _pinned(self, slot: Slot) -> bool:
        model = self.models.get(slot.planned.name)
        return model is not None and slot in model.slots and model.wish.pinned

    async def stop(self, drain_s: float) -> None:
        """End all engines."""
        if self._timer is not None:
            self._timer.cancel()
        running = [slot.deployment for slot in self._slots.values() if slot.deployment is not None]
        await asyncio.gather(*(deployment.runner.stop(drain_s=drain_s) for deployment in running))
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in self._slots.values():
            slot.release()

    def idle_left_s(self, model: FleetModel) -> float | None:
        """Seconds until *model* is unloaded, if no request comes; None is never."""
        now = asyncio.get_running_loop().time()
        ends = [end for slot in model.slots if (end := self._keeper.idle_until(slot.unit)) is not None]
        return max(0.0, max(ends) - now) if ends else None

    def reconfigure(self, config: Config) -> None:
        """The budget and the engines' patience are these from now on."""
        self._config = config

    # ---- engines of others

    def attach(self, model: AttachedModel) -> None:
        """Serve *model* from now on."""
        self.attached[model.card.id] = model
        self._tell_seats(ModelOpened(model=model.card.id))
        self._tell_seats(model.replica_changed())

    def detach(self, model: AttachedModel) -> None:
        """Serve it no more."""
        if self.attached.get(model.card.id) is model:
            self._tell_seats(ModelClosed(model=model.card.id, reason=f"{model.card.id} is not served any more"))
            self._tell_seats(ReplicaGone(replica=model.replica))
            del self.attached[model.card.id]

    def attached_answers(self, model: AttachedModel) -> None:
        """Its server answers again, or doesn't."""
        if self.attached.get(model.card.id) is not model:
            return
        name = model.card.id
        if not model.answers:
            self._tell_seats(model.replica_changed())
            self._tell_seats(
                ModelClosed(model=name, reason=f"{model.base_url}, which serves {name}, does not answer")
            )
        else:
            self._tell_seats(ModelOpened(model=name))
            self._tell_seats(model.replica_changed())

    # ---- the keeper's events and commands

    def tell(self, event: Event) -> None:
        """Tell the keeper, and do what it says."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                now = asyncio.get_running_loop().time()
                for command in self._keeper.step(self._events.popleft(), now):
                    self._do(command)
        finally:
            self._stepping = False
            self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _do(self, command: Command) -> None:
        match command:
            case Load(unit=unit):
                self._begin(self._load(self._slots[unit]))
            case Unload(unit=unit, reason=reason):
                _log.info("%s is unloaded: %s", unit, reason)
                self._counts.unloaded(self._slots[unit].planned.name, reason)
                self._open(self._slots[unit], open_=False)
                self._begin(self._unload(self._slots[unit]))
            case Close(unit=unit, reason=reason):
                _log.info("%s takes no more requests: %s", unit, reason)
                self._open(self._slots[unit], open_=False)
            case Open(unit=unit):
                self._open(self._slots[unit], open_=True)
            case PlanAgain(unit=unit, room=room):
                self._begin(self._plan_again(self._slots[unit], room))
            case CloseModel(model=model, reason=reason, again_at=again_at):
                self._model_failed(model, reason, again_at)
            case OpenModel(model=model):
                if model in self.models and not self.models[model].stopped:
                    self._reopen(self.models[model])
            case Measure():
                self._begin(self._measure())
            case WakeAt(at=at):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_at(at, self.tell, Ticked())

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("the fleet failed at something", exc_info=problem)

    def _tell_seats(self, news: ReplicaChanged | ReplicaGone | ModelClosed | ModelOpened) -> None:
        if self.seats is not None:
            self.seats.tell(news)

    def _open(self, slot: Slot, *, open_: bool) -> None:
        ready = slot.deployment is not None and slot.deployment.runner.state.phase is Phase.READY
        slot.open = open_ and ready
        if slot.planned.name in self.models:
            self._tell_seats(slot.replica(open_=slot.open))

    def _model_failed(self, name: str, reason: str, again_at: float | None) -> None:
        model = self.models.get(name)
        if model is None:
            return
        left = None if again_at is None else again_at - asyncio.get_running_loop().time()
        later = "" if left is None else f"; it is tried again in {left:.0f} s"
        _log.warning("%s can't be served: %s%s", name, reason, later)
        self._close(model, f"{name} can't be served now: {reason}{later}")

    # ---- the work

    async def _load(self, slot: Slot) -> None:
        loop = asyncio.get_running_loop()
        slot.began = loop.time()
        planned = slot.now
        model = self.models.get(planned.name)
        if model is None:
            self.tell(UnitUnloaded(unit=slot.unit))
            return
        slot.deployment = Deployment(
            planned.weighing,
            planned.plan,
            self._yard.binary,
            card=model.card,
            replica=slot.unit,
            run_dir=self._yard.run_dir,
            log_path=slot.log_path,
            limits=self._config.engines.llama_cpp,
            on_change=partial(self._engine_changed, slot),
            on_use=lambda deployment: self.tell(UnitUsed(unit=slot.unit, in_flight=deployment.in_flight)),
            device_memory=self._yard.device_memory,
        )
        slot.deployment.runner.start()

    def _engine_changed(self, slot: Slot, deployment: Deployment, state: State) -> None:
        """A change of phase of a slot's engine; the runner's own state is newer by a step sometimes."""
        if deployment is not slot.deployment:
            return
        loop = asyncio.get_running_loop()
        if state.phase is Phase.READY:
            slot.load_s = loop.time() - slot.began
            self._counts.loaded(slot.planned.name, slot.load_s)
            self.tell(UnitLoaded(unit=slot.unit, took_s=slot.load_s))
            if self._keeper.residence(slot.unit) is Residence.READY:
                self._open(slot, open_=True)
            self._yard.on_ready(deployment)
        elif state.stop_wanted:
            return
        elif state.phase is Phase.FAILED and state.ended:
            self._open(slot, open_=False)
            self._counts.load_failed(slot.planned.name)
            self.tell(
                UnitFailed(
                    unit=slot.unit,
                    reason=state.reason,
                    for_good=state.retry is Retry.NEVER,
                    no_memory=self._out_of_memory(deployment),
                )
            )
        elif state.phase is Phase.FAILED:
            was_ready = slot.open or self._keeper.residence(slot.unit) in _UP
            self._open(slot, open_=False)
            slot.began = loop.time()
            if was_ready:
                self._counts.broke(slot.planned.name, stuck=state.stuck)
                self.tell(UnitRestarting(unit=slot.unit))
            elif self._out_of_memory(deployment):  # again at once would only fail again: others must go first
                self._begin(self._give_up(slot, deployment, state.reason))
        self._wake()

    @staticmethod
    def _out_of_memory(deployment: Deployment) -> bool:
        failure = deployment.runner.error().failure
        return failure is not None and failure.no_memory

    async def _give_up(self, slot: Slot, deployment: Deployment, reason: str) -> None:
        await deployment.runner.stop(drain_s=0)
        self.tell(UnitFailed(unit=slot.unit, reason=reason, no_memory=True))

    async def _unload(self, slot: Slot) -> None:
        deployment = slot.deployment
        if deployment is not None:
            await asyncio.sleep(_SETTLE_S)
            pids = deployment.runner.pids
            await deployment.runner.stop(drain_s=self._config.service.drain_s)
            if pids:
                found = await freed(
                    pids, timeout_s=self._config.memory.free_wait_s, device_memory=read_process_memory
                )
                if not found.free:
                    _log.warning("%s: %s", slot.unit, found.sentence())
        slot.smaller, slot.deployment = None, None
        self.tell(UnitUnloaded(unit=slot.unit))
        if self._keeper.residence(slot.unit) is None:
            self._dispose(slot)
        else:
            model = self.models.get(slot.planned.name)
            if model is not None:
                self.tell(slot.known(model.wish, stopped=model.stopped))

    async def _plan_again(self, slot: Slot, room: Mapping[str, int]) -> None:
        wish, name = slot.planned.wish, slot.planned.name
        try:
            machine = with_room(await asyncio.to_thread(self._yard.look), room)
            planned = await asyncio.to_thread(
                partial(plan_one, wish, name, machine, price_per_kwh=self._yard.price_per_kwh)
            )
        except TeraziError as error:
            self.tell(UnitFailed(unit=slot.unit, reason=error.message))
            return
        model = self.models.get(name)
        if model is not None and slot in model.slots:
            slot.smaller = planned
            _log.info("%s is planned again, with less memory: %s", slot.unit, planned.plan.id)
            self.tell(slot.known(model.wish, stopped=model.stopped))

    async def _measure(self) -> None:
        """What is free now; again if a unit came or went meanwhile."""
        for look in range(_MOST_LOOKS):
            before = self._residences()
            machine = await asyncio.to_thread(self._yard.look)
            holdings = await asyncio.to_thread(self._holdings, machine)
            if before == self._residences() or look == _MOST_LOOKS - 1:
                self.tell(FreeMeasured(free=free_for_models(machine, holdings, self._config.memory)))
                return

    def _residences(self) -> dict[str, Residence | None]:
        return {name: self._keeper.residence(name) for name in self._slots}

    def _holdings(self, machine: Machine) -> list[Holding]:
        """May block: the driver is asked about engines that are loading."""
        found = []
        for name, slot in tuple(self._slots.items()):
            at = self._keeper.residence(name)
            if at not in {*_UP, Residence.LOADING, Residence.UNLOADING}:
                continue
            pid = slot.deployment.runner.pid if slot.deployment is not None else None
            loading = at is Residence.LOADING
            on_cards = read_process_memory(pid) if loading and machine.devices and pid is not None else None
            found.append(
                Holding(
                    needs=slot.needs(),
                    loading=loading,
                    host_bytes=(resident(pid)[0] or 0) if pid is not None else 0,
                    device_bytes=None if on_cards is None else dict(on_cards),
                )
            )
        return found

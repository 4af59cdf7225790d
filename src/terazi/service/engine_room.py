"""Starts and stops the engines of slots as the keeper commands, and tells it what becomes of them."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Final, Protocol

from terazi.errors import TeraziError
from terazi.hardware.probe import read_process_memory
from terazi.policy.lifecycle import State
from terazi.policy.lifecycle_messages import Phase, Retry
from terazi.policy.residency_messages import Event, UnitFailed, UnitLoaded, UnitRestarting, UnitUnloaded, UnitUsed
from terazi.policy.residency_state import Residence
from terazi.service.deployment import Deployment
from terazi.service.engine_counts import EngineCounts
from terazi.service.fleet_model import FleetModel, Slot
from terazi.service.kept_prompts import KeptPrompts
from terazi.service.planning import plan_one
from terazi.service.room import with_room
from terazi.service.yard import Yard
from terazi.supervisor.freed import freed

_log = logging.getLogger(__name__)

#: From closing a replica until its requests are counted: one that was just dispatched may not be yet.
_SETTLE_S: Final = 0.05
_UP: Final = (Residence.READY, Residence.CLOSED)


class House(Protocol):
    """What it needs of the fleet."""

    def tell(self, event: Event) -> None:
        """Tell the keeper."""
        ...

    def open(self, slot: Slot, *, open_: bool) -> None:
        """Let requests into the slot's engine, or not."""
        ...

    def residence(self, slot: Slot) -> Residence | None:
        """Where the keeper has it."""
        ...

    def model_of(self, slot: Slot) -> FleetModel | None:
        """Whose slot it is; None if it isn't served any more."""
        ...

    def gone(self, slot: Slot) -> None:
        """It was unloaded: say its terms again, or forget it."""
        ...

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Do this beside all else."""
        ...


class EngineRoom:
    """One for a fleet.

    Args:
        counts: is told what happens, for the metrics.
    """

    def __init__(self, yard: Yard, house: House, counts: EngineCounts) -> None:
        self._yard = yard
        self._counts = counts
        self._house = house
        self._prompts = KeptPrompts(yard.run_dir)

    def close(self) -> None:
        """All engines have ended."""
        self._prompts.close()

    def load(self, slot: Slot) -> None:
        """Start an engine; what becomes of it is told."""
        house, model, planned = self._house, self._house.model_of(slot), slot.now
        if model is None:
            house.tell(UnitUnloaded(unit=slot.unit))
            return
        binary = self._yard.binary
        if binary is None:
            house.tell(UnitFailed(unit=slot.unit, reason="there is no llama-server here", for_good=True))
            return
        slot.began = asyncio.get_running_loop().time()
        slot.deployment = Deployment(
            planned.weighing,
            planned.plan,
            binary,
            card=model.card,
            replica=slot.unit,
            run_dir=self._yard.run_dir,
            log_path=slot.log_path,
            limits=self._yard.config.engines.llama_cpp,
            on_change=partial(self._changed, slot),
            on_use=lambda deployment: house.tell(UnitUsed(unit=slot.unit, in_flight=deployment.in_flight)),
            device_memory=self._yard.device_memory,
            slot_dir=self._prompts.folder() if self._yard.config.engines.llama_cpp.keep_prompts else None,
        )
        slot.deployment.runner.start()

    def _changed(self, slot: Slot, deployment: Deployment, state: State) -> None:
        """A change of phase of a slot's engine."""
        if deployment is not slot.deployment:
            return
        house, now = self._house, asyncio.get_running_loop().time()
        if state.phase is Phase.READY and self._prompts.waits(slot.unit, deployment.plan):
            house.begin(self._bring_back(slot, deployment))
        elif state.phase is Phase.READY:
            self._loaded(slot, deployment)
        elif state.phase is Phase.FAILED and not state.stop_wanted:
            was_ready = house.residence(slot) in _UP
            house.open(slot, open_=False)
            slot.began = now
            if state.ended:
                house.begin(deployment.runner.wait_stopped())  # its log is closed: the next load makes a new one
                self._counts.load_failed(slot.planned.name)
                house.tell(
                    UnitFailed(
                        unit=slot.unit,
                        reason=state.reason,
                        for_good=state.retry is Retry.NEVER and not state.was_ready,
                        no_memory=_out_of_memory(deployment),
                    )
                )
            elif was_ready:
                self._counts.broke(slot.planned.name, stuck=state.stuck)
                house.tell(UnitRestarting(unit=slot.unit))
            elif _out_of_memory(deployment):  # at once it would only fail again: others must go first
                house.begin(self._give_up(slot, deployment, state.reason))

    def _loaded(self, slot: Slot, deployment: Deployment) -> None:
        """It takes requests."""
        house = self._house
        slot.load_s = asyncio.get_running_loop().time() - slot.began
        self._counts.loaded(slot.planned.name, slot.load_s)
        house.tell(UnitLoaded(unit=slot.unit, took_s=slot.load_s))
        if house.residence(slot) is Residence.READY:
            house.open(slot, open_=True)
        self._yard.on_ready(deployment)

    async def _bring_back(self, slot: Slot, deployment: Deployment) -> None:
        """Before it takes requests; if it dies of that, its next start does without."""
        runner = deployment.runner
        start = runner.state.generation
        await self._prompts.bring_back(
            slot.unit, deployment.plan, base_url=deployment.base_url, api_key=deployment.api_key
        )
        same = deployment is slot.deployment and runner.state.generation == start
        if same and runner.state.phase is Phase.READY:
            self._loaded(slot, deployment)

    async def _give_up(self, slot: Slot, deployment: Deployment, reason: str) -> None:
        deployment.given_up = deployment.runner.error()
        await deployment.runner.stop(drain_s=0)
        self._house.tell(UnitFailed(unit=slot.unit, reason=reason, no_memory=True))

    async def unload(self, slot: Slot) -> None:
        """Let its requests finish, end it, and wait until its memory is measured free."""
        deployment, config = slot.deployment, self._yard.config
        if deployment is not None:
            await asyncio.sleep(_SETTLE_S)
            pids = deployment.runner.pids
            await self._keep_prompts(slot, deployment)
            await deployment.runner.stop(drain_s=config.service.drain_s)
            if pids:
                wait_s = config.memory.free_wait_s
                found = await freed(pids, timeout_s=wait_s, device_memory=read_process_memory)
                if not found.free:
                    _log.warning("%s: %s", slot.unit, found.sentence())
        slot.smaller, slot.deployment = None, None
        self._house.tell(UnitUnloaded(unit=slot.unit))
        self._house.gone(slot)

    async def _keep_prompts(self, slot: Slot, deployment: Deployment) -> None:
        """What its slots hold, if it is asked for and will be loaded as it was."""
        asked = self._yard.config.engines.llama_cpp.keep_prompts
        ready = deployment.runner.state.phase is Phase.READY and deployment.in_flight == 0
        if asked and ready and self._house.model_of(slot) is not None:
            slots = slot.replica(open_=False).slots
            at, key = deployment.base_url, deployment.api_key
            await self._prompts.save(slot.unit, deployment.plan, slots, base_url=at, api_key=key)

    async def plan_again(self, slot: Slot, room: Mapping[str, int]) -> None:
        """Plan it into *room*, for its next load only."""
        planned = slot.planned
        try:
            machine = with_room(await asyncio.to_thread(self._yard.look), room)
            price = self._yard.price_per_kwh
            work = partial(plan_one, planned.wish, planned.name, machine, price_per_kwh=price)
            smaller = await asyncio.to_thread(work)
        except TeraziError as error:
            self._house.tell(UnitFailed(unit=slot.unit, reason=error.message))
            return
        model = self._house.model_of(slot)
        if model is not None:
            slot.smaller = smaller
            _log.info("%s is planned into less memory: %s", slot.unit, smaller.plan.id)
            self._house.tell(model.known(slot))


def _out_of_memory(deployment: Deployment) -> bool:
    failure = deployment.runner.error().failure
    return failure is not None and failure.no_memory

"""What the guard can do about pressure: close the doors, unload what is idle, start the largest model smaller."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from terazi.errors import TeraziError
from terazi.gateway.seats import Seats
from terazi.policy.dispatch_messages import AdmissionPaused, AdmissionResumed
from terazi.policy.residency_messages import MemoryPressed
from terazi.service.fleet import Fleet
from terazi.service.fleet_model import FleetModel
from terazi.service.planning import plan_one
from terazi.service.room import with_room
from terazi.service.yard import Yard

_log = logging.getLogger(__name__)


class FleetRelief:
    """Implements the guard's ``Relief``."""

    def __init__(self, fleet: Fleet, seats: Seats, yard: Yard) -> None:
        self._fleet = fleet
        self._seats = seats
        self._yard = yard
        self._shrinking: asyncio.Task[None] | None = None

    def pause(self, reason: str) -> None:
        """Let no new request in."""
        self._seats.tell(AdmissionPaused(reason=reason))

    def resume(self) -> None:
        """Let them in again."""
        self._seats.tell(AdmissionResumed())

    def shed(self, need: Mapping[str, int], reason: str) -> None:
        """Unload idle models until *need* bytes are back on each device."""
        _log.warning("idle models are unloaded: %s", reason)
        self._fleet.tell(MemoryPressed(need=need))

    def shrink(self, need: Mapping[str, int], reason: str) -> None:
        """Drain the model that holds most there, and start it with *need* bytes less."""
        if self._shrinking is None or self._shrinking.done():
            self._shrinking = asyncio.ensure_future(self._shrink(need, reason))

    async def _shrink(self, need: Mapping[str, int], reason: str) -> None:
        model = self._largest(need)
        if model is None:
            return
        held = model.slots[0].needs()
        room = {device: max(0, n - need.get(device, 0)) for device, n in held.items()}
        try:
            machine = with_room(await asyncio.to_thread(self._yard.look), room)
            work = partial(plan_one, model.wish, model.name, machine, price_per_kwh=self._yard.price_per_kwh)
            smaller = await asyncio.to_thread(work)
        except TeraziError as error:
            _log.warning("%s can't be made smaller: %s", model.name, error.message)
            return
        if self._fleet.models.get(model.name) is model:
            _log.warning("%s is started anew with less memory: %s", model.name, reason)
            self._fleet.replace(model, smaller)

    def _largest(self, need: Mapping[str, int]) -> FleetModel | None:
        loaded = [model for model in self._fleet.models.values() if model.slots and model.state == "ready"]
        return max(loaded, key=lambda m: max((m.slots[0].needs().get(d, 0) for d in need), default=0), default=None)

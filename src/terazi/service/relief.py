"""What the guard's stages do here: close the gate, unload what is idle, start what is largest smaller."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from terazi.policy.dispatch_messages import AdmissionPaused, AdmissionResumed
from terazi.policy.residency_messages import MemoryPressed
from terazi.policy.residency_state import Residence
from terazi.service.fleet import Fleet
from terazi.service.fleet_model import FleetModel, Slot
from terazi.service.planning import Planned  # noqa: TC001 - as all others are imported
from terazi.service.smaller import smaller
from terazi.service.yard import Yard

_logger = logging.getLogger(__name__)


class Gate(Protocol):
    """The seats, as far as they are closed and opened here."""

    def tell(self, news: AdmissionPaused | AdmissionResumed) -> None:
        """Whether new requests may come."""
        ...


class FleetRelief:
    """Implements ``Relief`` over the fleet. Use it on one event loop, and close it."""

    def __init__(self, fleet: Fleet, gate: Gate, yard: Yard) -> None:
        self._fleet = fleet
        self._gate = gate
        self._yard = yard
        self._shrinking: asyncio.Task[None] | None = None
        #: As they were planned before they were made smaller, with what was put in their place.
        self._full: dict[str, tuple[Planned, Planned]] = {}

    def pause(self, reason: str) -> None:
        """Let no new request in."""
        self._gate.tell(AdmissionPaused(reason=reason))

    def resume(self) -> None:
        """Let them in again."""
        self._gate.tell(AdmissionResumed())

    def shed(self, need: Mapping[str, int], reason: str) -> None:
        """Unload idle models until *need* bytes are back on each device."""
        del reason  # the guard has logged it
        self._fleet.tell(MemoryPressed(need=dict(need)))

    def shrink(self, need: Mapping[str, int], reason: str) -> None:
        """Drain the model that holds most there, and start it with *need* bytes less."""
        if self._shrinking is None or self._shrinking.done():
            self._shrinking = asyncio.ensure_future(self._shrink(dict(need), reason))

    def calm(self) -> None:
        """No pressure: what was made smaller and is not in memory is loaded in full the next time."""
        for name, (before, after) in tuple(self._full.items()):
            model = self._fleet.models.get(name)
            if model is None or model.planned is not after:
                del self._full[name]  # somebody has changed it meanwhile
            elif all(self._fleet.residence(slot) is Residence.COLD for slot in model.slots):
                del self._full[name]
                self._fleet.replace(model, before)
                _logger.info("%s is planned as before the memory was short", name)

    async def close(self) -> None:
        """Give up what is under way."""
        if self._shrinking is not None:
            self._shrinking.cancel()
            await asyncio.gather(self._shrinking, return_exceptions=True)

    async def _shrink(self, need: dict[str, int], reason: str) -> None:
        machine = await asyncio.to_thread(self._yard.look)
        for model in self._largest(need):
            before = model.planned
            found = await asyncio.to_thread(
                partial(smaller, before, machine, need, price_per_kwh=self._yard.price_per_kwh)
            )
            if self._fleet.models.get(model.name) is not model or model.planned is not before:
                continue
            if found is None:
                continue
            after, change = found
            _logger.warning("%s is drained and started smaller, with %s: %s", model.name, change, reason)
            self._full[model.name] = (self._full.get(model.name, (before, before))[0], after)
            self._fleet.replace(model, after)
            return
        _logger.warning("memory is short, and no model can be started smaller: %s", reason)

    def _largest(self, need: Mapping[str, int]) -> list[FleetModel]:
        """Models in memory that hold something of what is short, the largest holder first."""

        def holds(model: FleetModel) -> int:
            return sum(self._held(slot, need) for slot in model.slots)

        return sorted((m for m in self._fleet.models.values() if holds(m)), key=holds, reverse=True)

    def _held(self, slot: Slot, need: Mapping[str, int]) -> int:
        if self._fleet.residence(slot) not in {Residence.READY, Residence.CLOSED}:
            return 0
        needs = slot.needs()
        return sum(needs.get(device, 0) for device in need)

"""Measures what the fleet's models may still take, beside all that is running."""

import asyncio
from collections.abc import Mapping
from typing import Final

from terazi.hardware.machine import Machine
from terazi.hardware.probe import read_process_memory
from terazi.policy.residency import Keeper
from terazi.policy.residency_state import Residence
from terazi.service.fleet_model import Slot
from terazi.service.room import Holding, free_for_models
from terazi.service.yard import Yard
from terazi.supervisor.process import resident

#: A measurement during which a unit came or went is worth nothing; after so many it is taken all the same.
_MOST_LOOKS: Final = 5
_HOLDING: Final = (Residence.READY, Residence.CLOSED, Residence.LOADING, Residence.UNLOADING)


class Meter:
    """One for a fleet; *slots* by unit, as the fleet keeps them."""

    def __init__(self, yard: Yard, keeper: Keeper, slots: Mapping[str, Slot]) -> None:
        self._yard = yard
        self._keeper = keeper
        self._slots = slots

    async def measure(self) -> dict[str, int]:
        """What is free now, as ``FreeMeasured`` has it; again if a unit came or went meanwhile."""
        for _ in range(_MOST_LOOKS):
            before = self._residences()
            machine = await asyncio.to_thread(self._yard.look)
            free = await asyncio.to_thread(self.free, machine)
            if before == self._residences():
                break
        return free

    def free(self, machine: Machine) -> dict[str, int]:
        """On *machine* as it was just read. It may block."""
        return free_for_models(machine, self._holdings(machine), self._yard.config.memory)

    def room(self, machine: Machine) -> dict[str, int]:
        """What a model could have if everything unpinned went. It may block."""
        free = self.free(machine)
        for name, slot in tuple(self._slots.items()):
            if self._keeper.may_ever_go(name):
                for device, need in slot.needs().items():
                    free[device] = free.get(device, 0) + need
        return free

    def _residences(self) -> dict[str, Residence | None]:
        return {name: self._keeper.residence(name) for name in self._slots}

    def _holdings(self, machine: Machine) -> list[Holding]:
        found = []
        for name, slot in tuple(self._slots.items()):
            at = self._keeper.residence(name)
            if at not in _HOLDING:
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

"""Executes ``policy.scale`` for models that may have several engines."""

import asyncio
from collections.abc import Callable
from typing import Final

from terazi.policy.residency_messages import LoadAsked, UnloadAsked
from terazi.policy.residency_state import Residence
from terazi.policy.scale import DOWN, UP, Look, State, Terms, step
from terazi.policy.survey import LineView, Survey
from terazi.service.fleet import Fleet
from terazi.service.fleet_model import FleetModel, Slot

#: Between two looks.
EVERY_S: Final = 1.0
_UP: Final = (Residence.READY, Residence.CLOSED)


class Scaling:
    """One for a fleet; *survey* is the dispatcher's view of all queues."""

    def __init__(self, fleet: Fleet, survey: Callable[[], Survey]) -> None:
        self._fleet = fleet
        self._survey = survey
        self._states: dict[str, State] = {}

    async def run(self, every_s: float = EVERY_S) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            models = [m for m in self._fleet.models.values() if m.wish.replicas[1] > 1 and not m.stopped]
            lines = {line.model: line for line in self._survey().lines} if models else {}
            for model in models:
                self._look(model, lines.get(model.name))

    def _look(self, model: FleetModel, line: LineView | None) -> None:
        up = [slot for slot in model.slots if self._fleet.residence(slot) in _UP]
        loading = [slot for slot in model.slots if self._fleet.residence(slot) is Residence.LOADING]
        if line is None or not up:
            return
        look = Look(
            at=asyncio.get_running_loop().time(),
            engines=len(up) + len(loading),
            ready=len(up),
            in_flight=sum(_in_flight(slot) for slot in up),
            slots=up[0].replica(open_=True).slots,
            oldest_s=line.oldest_s,
        )
        terms = Terms(least=model.wish.replicas[0], most=model.wish.replicas[1])
        self._states[model.name], change = step(self._states.get(model.name, State()), look, terms)
        if change == UP:
            cold = next((s for s in model.slots if self._fleet.residence(s) is Residence.COLD), None)
            if cold is not None:
                self._fleet.tell(LoadAsked(unit=cold.unit, evict=False))
        elif change == DOWN:
            idlest = min(reversed(up), key=_in_flight)
            self._fleet.tell(UnloadAsked(unit=idlest.unit, reason="fewer engines do"))


def _in_flight(slot: Slot) -> int:
    return 0 if slot.deployment is None else slot.deployment.in_flight

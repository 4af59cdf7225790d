"""A model that is served, in memory or not, and its slots: the places for its engines."""

import asyncio
import dataclasses
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from terazi.gateway.backend import READY, Backend, ModelCard
from terazi.memory.settings import llama_cpp_settings
from terazi.policy.dispatch_messages import ReplicaChanged
from terazi.policy.residency_messages import UnitKnown
from terazi.service.cards import make_card, slug
from terazi.service.cold import Cold
from terazi.service.deployment import Deployment
from terazi.service.planning import Planned
from terazi.service.room import needs_of
from terazi.service.wish import Wish
from terazi.supervisor.log import claim

#: Until a load has been measured: bytes a second of a file, and what a start costs besides.
_LOAD_BYTES_PER_S: Final = 1e9
_START_S: Final = 1.0
_ORDER: Final = ("ready", "loading", "starting", "draining", "backing_off", "failed")


class Slot:
    """One replica of a model: the keeper's unit and the dispatcher's replica.

    Args:
        unit: its name.
        planned: as it is planned with all the room that there can be.
        log_path, lock: of its engine's log.
    """

    def __init__(self, unit: str, planned: Planned, *, log_path: str, lock: int | None) -> None:
        self.unit = unit
        self.planned = planned
        self.log_path = log_path
        self._lock = lock
        #: A smaller plan, for the next load only.
        self.smaller: Planned | None = None
        #: Made anew for each load; cold until then.
        self.deployment: Deployment | None = None
        self.open = False
        self.began = 0.0
        self.load_s: float | None = None
        self.work: asyncio.Task[None] | None = None

    @property
    def now(self) -> Planned:
        """What is loaded, or would be."""
        return self.smaller or self.planned

    def needs(self) -> dict[str, int]:
        """Bytes per device."""
        return needs_of(self.now.plan.devices, self.now.weighing.machine)

    def known(self, wish: Wish, *, stopped: bool = False) -> UnitKnown:
        """What the keeper is told about it. A pinned model that a person has stopped isn't brought back."""
        guess = _START_S + self.planned.weighing.spec.file_bytes / _LOAD_BYTES_PER_S
        return UnitKnown(
            unit=self.unit,
            model=self.planned.name,
            needs=self.needs(),
            load_s=self.load_s or guess,
            pinned=wish.pinned and not stopped,
            idle_s=wish.idle_s,
            priority=wish.priority,
        )

    def replica(self, *, open_: bool) -> ReplicaChanged:
        """What the dispatcher is told about it."""
        plan = self.now.plan
        settings, each = llama_cpp_settings(plan.settings), plan.workload.context
        slots = settings.n_parallel or plan.workload.users
        shared = bool(settings.kv_unified) and slots > 1
        return ReplicaChanged(
            replica=self.unit,
            model=self.planned.name,
            open=open_,
            slots=slots,
            tokens=settings.n_ctx if shared else None if each is None else each * slots,
            tokens_each=each,
            shared=shared,
        )

    def release(self) -> None:
        """Its log may be another's."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class FleetModel:
    """Implements the gateway's ``Served`` for a model whose engines are started here."""

    def __init__(self, planned: Planned) -> None:
        self.name = planned.name
        self.wish = planned.wish
        self.planned = planned
        #: Names that were given while the service runs.
        self.given: tuple[str, ...] = ()
        self.slots: list[Slot] = []
        #: How often its engines' settings were laid down.
        self.generation = 0
        #: Of earlier settings: they finish their requests.
        self.retired: list[Slot] = []
        #: Why it takes no requests; None if it does.
        self.closed: str | None = None
        #: By a person, until it is loaded by one.
        self.stopped = False
        #: A client's word on how long it stays without a request, until it is unloaded: the seconds, or for ever.
        self.asked_idle: tuple[float | None] | None = None
        self.card = self._card()

    def lay_out(self, logs: Path, serial: int) -> None:
        """Make its slots, cold, for its wish and plan as they are now.

        Args:
            logs: the folder for its engines' logs.
            serial: of this layout among all of the service: engines of an earlier one may still be there.
        """
        self.generation += 1
        again = "" if self.generation == 1 else f"@{serial}"
        for number in range(1, self.wish.replicas[1] + 1):
            unit = f"{self.name}{again}" + (f"#{number}" if number > 1 else "")
            path, lock = claim(logs, slug(unit))
            self.slots.append(Slot(unit, self.planned, log_path=path, lock=lock))

    def _card(self) -> ModelCard:
        wish, planned = self.wish, self.planned
        names = (*wish.aliases, *self.given)
        return make_card(
            planned.weighing.spec,
            planned.plan,
            alias=wish.source,
            name=self.name,
            aliases=names,
            projector=planned.weighing.projector,
        )

    @property
    def idle_s(self) -> float | None:
        """After so long without a request it is unloaded; None is never."""
        return self.wish.idle_s if self.asked_idle is None else self.asked_idle[0]

    def known(self, slot: Slot) -> UnitKnown:
        """What the keeper is told about one of its slots."""
        return slot.known(replace(self.wish, idle_s=self.idle_s), stopped=self.stopped)

    def renamed(self) -> None:
        """Its wish or its given names have changed."""
        self.card = self._card()
        for slot in (*self.slots, *self.retired):
            if slot.deployment is not None:
                slot.deployment.card = self.card

    @property
    def engines(self) -> tuple[Backend, ...]:
        """Its replicas, running or not."""
        running = [s.deployment for s in (*self.slots, *self.retired) if s.deployment is not None]
        return (*running, *(Cold(slot.unit, self.card) for slot in self.slots if slot.deployment is None))

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """Those that were started."""
        return tuple(s.deployment for s in (*self.slots, *self.retired) if s.deployment is not None)

    @property
    def state(self) -> str:
        """That of its readiest engine."""
        states = [d.state for d in self.deployments]
        return next((state for state in _ORDER if state in states), "cold")

    async def snapshot(self, closed_until: float | None) -> dict[str, Any]:
        """The model's part of ``terazi ps --json``."""
        replicas = [await deployment.snapshot() for deployment in self.deployments]
        plan, said = self.planned.plan, self.planned.weighing.forecast
        first = next((r for r in replicas if r["state"] == READY), replicas[0] if replicas else _cold(self.planned))
        loop = asyncio.get_running_loop()
        waits = None if closed_until is None or closed_until == float("inf") else closed_until - loop.time()
        return {
            "id": self.name,
            "aliases": list(self.card.aliases),
            **first,
            "state": self.state,
            "engine": plan.engine,
            "context": self.card.context_length,
            "forecast": None if said is None else dataclasses.asdict(said),
            "pinned": self.wish.pinned,
            "idle_s": self.idle_s,
            "closed": self.closed,
            "opens_in_s": waits,
            "needs": self.slots[0].needs() if self.slots else {},
            "replicas": replicas,
        }


def _cold(planned: Planned) -> dict[str, Any]:
    """A replica that isn't in memory."""
    return {
        "replica": planned.name,
        "state": "cold",
        "pid": None,
        "uptime_s": None,
        "plan_id": planned.plan.id,
        "in_flight": 0,
        "restarts": 0,
        "reconciliation": None,
        "live": None,
        "devices": [],
    }

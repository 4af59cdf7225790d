"""The ``Weighing`` noun: one model against one machine, and what came of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from terazi.hardware.machine import Machine
from terazi.memory.companion import Companion
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.forecast import Forecast
from terazi.placement.plan import DeviceShare, Plan, Refusal

if TYPE_CHECKING:
    from terazi.performance.energy import PowerReport
    from terazi.service.verification import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """One model against one machine under one workload, and what came of it.

    ``companions`` are the files that are loaded beside the model.
    ``verification`` is there if the engine was asked about the bill, ``power`` if watts and money were.
    """

    spec: ModelSpec
    machine: Machine
    workload: Workload
    outcome: Plan | Refusal
    forecast: Forecast | None
    notes: tuple[str, ...] = ()
    companions: tuple[Companion, ...] = ()
    verification: "Verification | None" = None
    power: "PowerReport | None" = None

    @property
    def plan(self) -> Plan | None:
        """The plan, unless it was refused."""
        return self.outcome if isinstance(self.outcome, Plan) else None

    @property
    def projector(self) -> ModelSpec | None:
        """What lets it take images or sound."""
        return next((c.spec for c in self.companions if c.part == "mmproj"), None)

    @property
    def shares(self) -> tuple[DeviceShare, ...]:
        """What each device holds: of the plan, or of what came closest to one."""
        return self.outcome.closest if isinstance(self.outcome, Refusal) else self.outcome.devices

"""What the solver asks of whoever knows speeds: how good a plan is, what it misses, how two plans differ.

``placement`` knows no speed itself; ``performance.appraiser`` answers, or a plain ``score(plan)``.
"""

from collections.abc import Callable
from typing import Protocol

from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.placement.pace import Pace
from terazi.placement.plan import Plan

Score = Callable[[Plan], float]


class Appraiser(Protocol):
    """Judges plans that fit."""

    def score(self, plan: Plan) -> float:
        """Higher is better."""

    def misses(self, plan: Plan) -> str:
        """Which limit of the workload the plan doesn't keep, with both figures; empty if it keeps all."""

    def against(self, plan: Plan, chosen: Plan) -> str:
        """What *plan* would cost or gain beside *chosen*, in figures; empty if that isn't known."""

    def pace(self, settings: LlamaCppSettings) -> Pace | None:
        """Seconds a layer on each device under *settings*; None leaves it to the bandwidths."""


class ByScore:
    """An ``Appraiser`` that knows no more than a score."""

    def __init__(self, score: Score) -> None:
        self._score = score

    def score(self, plan: Plan) -> float:
        return self._score(plan)

    def misses(self, plan: Plan) -> str:  # noqa: ARG002 - a score has no limits
        return ""

    def against(self, plan: Plan, chosen: Plan) -> str:
        return f"it scores {self._score(plan):.3g} against {self._score(chosen):.3g}"

    def pace(self, settings: LlamaCppSettings) -> Pace | None:  # noqa: ARG002 - nor a speed
        return None

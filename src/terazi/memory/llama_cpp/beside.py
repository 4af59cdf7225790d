"""What is loaded beside the model, as far as it is known here: a projector, LoRA adapters, a control vector."""

from collections.abc import Sequence
from typing import NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import BillLine
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.adapters import LORA, VECTOR, Adapter, adapter_lines, read_adapters, read_vector
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import Placement
from terazi.models.spec import ModelSpec

PROJECTOR = "mmproj"
_KNOWN = frozenset({PROJECTOR, LORA, VECTOR})


class Beside(NamedTuple):
    """What companions add to a bill. Adapters, and a control vector behind *steered* blocks, change the graph."""

    lines: tuple[BillLine, ...] = ()
    growth: tuple[BillLine, ...] = ()
    reasons: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    steered: range = range(0)

    @property
    def of_unknown_family(self) -> tuple[str, ...]:
        """The reasons where the model's graph isn't drawn."""
        more = ("What adapters add to its graph isn't counted.",) if self.adapters else ()
        return (*self.reasons, *more)


NOTHING = Beside()


def weigh_beside(
    companions: Sequence[Companion],
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    *,
    placements: tuple[Placement, ...],
    devices: tuple[Device, ...],
) -> Beside:
    """The lines of *companions*.

    Args:
        companions: what the command names beside the model.
        spec, settings, resolved: the model, and how it is loaded.
        placements: where its weights are.
        devices: all that the engine sees.

    Raises:
        UsageError, ModelFileError: for what the engine refuses.
    """
    if settings.tool == "llama-fit-params":
        return NOTHING  # it reads the model alone
    adapters = read_adapters(companions, spec)
    vector = read_vector(companions, spec, settings, resolved)
    lines = [*adapter_lines(adapters, placements, resolved), *vector.lines]
    growth: list[BillLine] = []
    said = [
        *vector.reasons,
        *(f"What {c.flag} loads isn't in this bill." for c in companions if c.part not in _KNOWN),
    ]
    for companion in companions:
        if companion.part == PROJECTOR:
            from terazi.memory.llama_cpp.projector_bill import weigh_projector

            projector = weigh_projector(companion, spec, settings, resolved, devices)
            lines += projector.lines
            growth += projector.growth
            said += projector.reasons
    return Beside(tuple(lines), tuple(growth), tuple(said), adapters, vector.steered)

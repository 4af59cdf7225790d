"""What is loaded beside the model, as far as it is known here: a projector, LoRA adapters, a control vector.

A draft model is weighed in ``draft_bill``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import BillLine
from terazi.memory.companion import DRAFT, Companion
from terazi.memory.llama_cpp.adapters import LORA, VECTOR, Adapter, adapter_lines, read_adapters, read_vector
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import place_tensors
from terazi.models.spec import ModelSpec

PROJECTOR = "mmproj"
_KNOWN = frozenset({PROJECTOR, LORA, VECTOR, DRAFT})


class Beside(NamedTuple):
    """What companions add to a bill.

    Args:
        lines: of adapters and control vectors, which are loaded into the model.
        adapters: what they change in the model's own graph.
        steered: the blocks behind which a control vector is added.
        projector: lines of a projector, and ``growth`` what its largest image adds.
        reasons: why the bill isn't exact.
    """

    lines: tuple[BillLine, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    steered: range = range(0)
    projector: tuple[BillLine, ...] = ()
    growth: tuple[BillLine, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def idle(self) -> "Beside":
        """The same before any of it is applied."""
        return self._replace(adapters=tuple(a._replace(applied=False) for a in self.adapters), steered=range(0))


NOTHING = Beside()


def weigh_beside(
    companions: Sequence[Companion],
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    devices: tuple[Device, ...],
    *,
    isa: frozenset[str],
) -> Beside:
    """The lines of *companions*.

    Args:
        companions: what the command names beside the model.
        spec, settings, resolved: the model, and how it is loaded.
        devices: all that the engine sees.
        isa: CPU flags of the host.

    Raises:
        UsageError, ModelFileError: for what the engine refuses.
    """
    if settings.tool == "llama-fit-params":
        return NOTHING  # it reads the model alone
    lines: list[BillLine] = []
    projected: list[BillLine] = []
    growth: list[BillLine] = []
    reasons = [f"What {c.flag} loads isn't in this bill." for c in companions if c.part not in _KNOWN]
    adapters = read_adapters(companions, spec)
    if adapters:
        lines += adapter_lines(adapters, place_tensors(spec, settings, resolved, isa), resolved)
    vector = read_vector(companions, spec, settings, resolved)
    reasons += vector.reasons
    for companion in companions:
        if companion.part == PROJECTOR:
            from terazi.memory.llama_cpp.projector_bill import weigh_projector

            projector = weigh_projector(companion, spec, settings, resolved, devices)
            projected += projector.lines
            growth += projector.growth
            reasons += projector.reasons
    return Beside(
        lines=(*lines, *vector.lines),
        adapters=adapters,
        steered=vector.steered,
        projector=tuple(projected),
        growth=tuple(growth),
        reasons=tuple(reasons),
    )

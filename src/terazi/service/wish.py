"""The ``Wish`` noun: one model that shall be served, from ``[[models]]`` or from the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.service.config_models import ModelTable
from terazi.service.request import Request

#: Tokens of a typical prompt and answer, where nobody says.
USUAL: Final = Workload()
#: What is said instead of a projector's file.
NO_PROJECTOR: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is served, and how.

    Args:
        source: MODEL.
        workload: what it shall be planned for.
        pins: settings that are not to be chosen, by their names in ``LlamaCppSettings``.
        quant: which file of a folder.
        mmproj: the file of its projector; ``none`` for none, None for the one that lies beside it.
        name: what clients call it; None is the file's name.
        aliases, pinned, idle_s, priority, replicas: as ``ModelTable``; replicas are the fewest and the most.
    """

    source: str
    workload: Workload = USUAL
    pins: Mapping[str, object] = field(default_factory=dict)
    quant: str | None = None
    mmproj: str | None = None
    name: str | None = None
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    idle_s: float | None = None
    priority: int = 0
    replicas: tuple[int, int] = (1, 1)

    def same_engine(self, other: "Wish") -> bool:
        """Whether an engine that serves this one serves *other* as well: only names and terms differ."""
        mine = (self.source, self.workload, dict(self.pins), self.quant, self.mmproj, self.name)
        return mine == (other.source, other.workload, dict(other.pins), other.quant, other.mmproj, other.name)

    def request(self, machine: Machine, *, price_per_kwh: float | None = None) -> Request:
        """What is to be weighed."""
        return Request(
            model=self.source,
            machine=machine,
            workload=self.workload,
            pins=self.pins,
            engine="llama.cpp",
            price_per_kwh=price_per_kwh,
            mmproj=None if self.mmproj == NO_PROJECTOR else self.mmproj,
        )


def wish_of(table: ModelTable) -> Wish:
    """*table*, which has a source, as a wish."""
    settings = table.settings
    workload = replace(
        USUAL,
        context=settings.context,
        users=settings.users or USUAL.users,
        prompt=settings.prompt or USUAL.prompt,
        output=settings.output or USUAL.output,
    )
    context = settings.context
    if context is not None and workload.prompt + workload.output > context:  # nobody's wish: they give way
        output = settings.output or max(1, min(workload.output, context // 4))
        workload = replace(workload, output=output, prompt=settings.prompt or max(1, context - output))
    return Wish(
        source=table.source or "",
        workload=workload,
        pins=settings.pins(),
        quant=settings.quant,
        mmproj=settings.mmproj,
        name=table.name,
        aliases=table.aliases,
        pinned=table.pin,
        idle_s=table.idle_s,
        priority=table.priority,
        replicas=(table.replicas.min, table.replicas.max),
    )

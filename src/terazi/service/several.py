"""Several models in one budget: each gets what the ones before it leave, in the order that serves them best.

In: requests on one machine. Out: ``Several``: a weighing each, and one verdict for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

from terazi.hardware.machine import Machine
from terazi.placement.plan import Plan, Verdict
from terazi.placement.together import left_by
from terazi.service.request import Request, weigh_request
from terazi.service.weighing import Weighing
from terazi.units import format_bytes

#: Contexts that all models get if nobody asked for one: the first model must not take what the last one needs.
_CONTEXTS: Final = (32768, 16384, 8192, 4096, 2048)
#: Up to so many models every order is tried; of more, theirs and the largest first.
_ALL_ORDERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """``weighings`` in the order of the requests, each on the machine as those planned before it leave it.

    ``order`` is that in which they were planned, as indices; ``left`` what the machine still has free after all.
    """

    weighings: tuple[Weighing, ...]
    order: tuple[int, ...]
    left: Machine
    reason: str

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        plans = [w.plan for w in self.weighings]
        if any(plan is None for plan in plans):
            return Verdict.REFUSED
        offloaded = any(plan.verdict is Verdict.FITS_OFFLOADED for plan in plans if plan is not None)
        return Verdict.FITS_OFFLOADED if offloaded else Verdict.FITS


def weigh_several(requests: Sequence[Request]) -> Several:
    """Weigh *requests*, which name one machine, together.

    Raises:
        ModelFileError, UsageError, RefusedError: as ``weigh_model``.
    """
    best: Several | None = None
    for context in _contexts(requests):
        for order in _orders(requests):
            found = _in_order(requests, order, context)
            if best is None or _rank(found) > _rank(best):
                best = found
            if best.verdict is Verdict.FITS:
                return best
    if best is None:
        raise ValueError("no requests")
    return best


def _contexts(requests: Sequence[Request]) -> Sequence[int | None]:
    return _CONTEXTS if any(r.workload.context is None for r in requests) else (None,)


def _orders(requests: Sequence[Request]) -> list[tuple[int, ...]]:
    indices = range(len(requests))
    if len(requests) <= _ALL_ORDERS:
        return list(permutations(indices))
    return [tuple(indices), tuple(reversed(indices))]


def _rank(several: Several) -> tuple[int, int, float]:
    """More models that fit, then more of them wholly on cards, then the product of their speeds."""
    plans = [w.plan for w in several.weighings if w.plan is not None]
    whole = sum(1 for plan in plans if plan.verdict is Verdict.FITS)
    speed = 1.0
    for weighing in several.weighings:
        if weighing.forecast is not None and weighing.plan is not None:
            speed *= weighing.forecast.decode_tok_s.mid
    return len(plans), whole, speed


def _in_order(requests: Sequence[Request], order: Sequence[int], context: int | None) -> Several:
    machine = requests[0].machine
    found: dict[int, Weighing] = {}
    for index in order:
        request = replace(requests[index], machine=machine)
        if context is not None and request.workload.context is None:
            request = replace(request, workload=replace(request.workload, context=context))
        weighing = weigh_request(request)
        if context is not None and requests[index].workload.context is None:
            weighing = _shortened(weighing, request, context)
        found[index] = weighing
        if isinstance(weighing.outcome, Plan):
            machine = left_by(machine, weighing.outcome.devices)
    weighings = tuple(found[i] for i in range(len(requests)))
    return Several(weighings=weighings, order=tuple(order), left=machine, reason=_reason(weighings, order, machine))


def _shortened(weighing: Weighing, request: Request, context: int) -> Weighing:
    """A model that was trained for less than *context* gets what it was trained for."""
    trained = weighing.spec.context_length
    if not 0 < trained < context:
        return weighing
    return weigh_request(replace(request, workload=replace(request.workload, context=trained)))


def _reason(weighings: Sequence[Weighing], order: Sequence[int], machine: Machine) -> str:
    names = [w.spec.name for w in weighings]
    refused = [names[i] for i, w in enumerate(weighings) if w.plan is None]
    left = ", ".join(f"{d.id} {format_bytes(d.memory_free_bytes)}" for d in machine.devices)
    left = (
        f"{left}, RAM {format_bytes(machine.host.usable_ram_bytes)}"
        if left
        else (f"RAM {format_bytes(machine.host.usable_ram_bytes)}")
    )
    planned = ", then ".join(names[i] for i in order)
    if refused:
        return f"No room for {', '.join(refused)} beside the others (planned: {planned}); left free: {left}."
    return f"All {len(names)} fit at once (planned: {planned}); left free: {left}."

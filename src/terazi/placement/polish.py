"""Looks around the best layout: a layer more here and less there, a card dropped or taken in, by score.

In: ``Search``, a candidate. Out: better candidates, if there are any. The search proper adds up times a layer; a
forecast doesn't quite (micro-batches overlap over cards, a prompt is bound by operations on one and by bandwidth on
another), so what is nearly as fast by the sums is asked for, as long as there is time for bills.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from terazi.hardware.machine import Device
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.placement.judge import Judged
from terazi.placement.search import Search
from terazi.placement.sums import Counts, place

#: Up to so many layers are moved in every number.
FEW = 8


def polish(
    search: Search, settings: LlamaCppSettings, best: Judged, score: Callable[[Judged], float]
) -> list[Judged]:
    """Layouts that score better than *best*, the last one the best."""
    devices = search.devices(settings)
    at = _counts(best, devices)
    better: list[Judged] = []
    tried = {at}
    mark = score(best)
    while search.may_judge():
        found = None
        for counts in _near(search, settings, devices, at):
            if counts in tried:
                continue
            if not search.may_judge():
                break
            tried.add(counts)
            judged = search.weigh(place(settings, devices, counts))
            if not judged.shortfall and (new := score(judged)) > mark:
                found, mark = judged, new
                break
        if found is None:
            return better
        better.append(found)
        at = _counts(found, devices)
    return better


def _counts(judged: Judged, devices: Sequence[Device]) -> Counts:
    owners = judged.resolved.layer_devices
    return tuple(owners.count(d.id) for d in devices)


def _near(search: Search, settings: LlamaCppSettings, devices: tuple[Device, ...], at: Counts) -> Iterator[Counts]:
    """Neighbours of *at*, the least sum of times first; of few layers every layout is one."""
    near = _neighbours(at, search.total)
    if search.total <= FEW and len(devices) <= FEW // 2:
        near = (c for c in product(range(search.total + 1), repeat=len(devices)) if sum(c) <= search.total)
    costs = {counts: search.seconds(settings, devices, counts) for counts in {*near}}
    yield from sorted(costs, key=lambda c: (costs[c], c))


def _neighbours(at: Counts, total: int) -> Iterator[Counts]:
    """Layers moved between two places, the host being one, before the first device; or a device given up.

    Of one that is given up some layers go to another device and the rest to the host.
    """
    full = (total - sum(at), *at)
    for i, held in enumerate(full):
        for j in range(len(full)):
            if i == j:
                continue
            for moved in _steps(held):
                new = list(full)
                new[i] -= moved
                new[j] += moved
                yield tuple(new[1:])
                if i and j:
                    new[0] += new[i]
                    new[i] = 0
                    yield tuple(new[1:])


def _steps(held: int) -> set[int]:
    """How many of *held* layers to move: any number of a few, else one, half and all."""
    return set(range(1, held + 1)) if held <= FEW else {1, held // 2, held}

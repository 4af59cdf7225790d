"""Looks around the best layout: a layer more here and less there, a card dropped or taken in, by score.

In: ``Search``, a candidate. Out: better candidates, if there are any. The search proper adds up times a layer; a
forecast doesn't quite (micro-batches overlap over cards, a prompt is bound by operations on one and by bandwidth on
another), so neighbours are asked for. What a layout scores needs no bill, and takes a fraction of its time: only
what would be better is weighed.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from terazi.hardware.machine import Device
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.placement.judge import Judged
from terazi.placement.search import Search
from terazi.placement.sums import Counts, Space, place, role_of
from terazi.units import MIB

#: Up to so many layers are moved in every number.
FEW = 9
#: A layout that lacks such a share of a budget by the sums, and so many bytes, isn't worth a bill.
_TOO_MUCH, _TOO_MUCH_BYTES = 0.06, 64 * MIB


def polish(
    search: Search, settings: LlamaCppSettings, best: Judged, score: Callable[[LlamaCppSettings], float]
) -> list[Judged]:
    """Layouts that score better than *best*, the last one the best. *score* needs no bill."""
    devices = search.devices(settings)
    space = search.space(settings, devices)
    at = _counts(best, devices)
    better: list[Judged] = []
    tried = {at}
    mark = score(best.settings)
    if search.total <= FEW and len(devices) <= FEW // 2:
        return _best_of_all(search, settings, devices, space, score, mark)
    while search.may_judge():
        found = None
        for counts in _near(search, settings, devices, at):
            if counts in tried or _hopeless(space, counts, search.total):
                continue
            if not search.may_judge():
                break
            tried.add(counts)
            laid = place(settings, devices, counts)
            search.guessed()
            if (new := score(laid)) <= mark:
                continue
            judged = search.weigh(laid)
            if not judged.shortfall:
                found, mark = judged, new
                break
        if found is None:
            return better
        better.append(found)
        at = _counts(found, devices)
    return better


def _best_of_all(  # noqa: PLR0917 - the search, and what was found out about it
    search: Search,
    settings: LlamaCppSettings,
    devices: tuple[Device, ...],
    space: Space,
    score: Callable[[LlamaCppSettings], float],
    mark: float,
) -> list[Judged]:
    """Of few layers every layout: the first that fits of those that score more than *mark*, the best first."""
    every = (c for c in product(range(search.total + 1), repeat=len(devices)) if sum(c) <= search.total)
    laid = [place(settings, devices, c) for c in every if not _hopeless(space, c, search.total)]
    marks = [score(s) for s in laid]
    for index in sorted(range(len(laid)), key=lambda i: (-marks[i], i)):
        if marks[index] <= mark:
            break
        judged = search.weigh(laid[index])
        if not judged.shortfall:
            return [judged]
    return []


def _hopeless(space: Space, counts: Counts, total: int) -> bool:
    """Whether some device is sure to lack room. The sums may count too much, by a loading peak or a buffer."""
    used = [i for i, n in enumerate(counts) if n]
    end = total - sum(counts)
    for i in used:
        start, end = end, end + counts[i]
        room = space.rooms[i]
        left = (room.room_for_one if counts[i] == 1 else room.room)[role_of(i, used)]
        if room.prefix[end] - room.prefix[start] - left > _TOO_MUCH * space.budgets[i] + _TOO_MUCH_BYTES:
            return True
    return False


def _counts(judged: Judged, devices: Sequence[Device]) -> Counts:
    owners = judged.resolved.layer_devices
    return tuple(owners.count(d.id) for d in devices)


def _near(search: Search, settings: LlamaCppSettings, devices: tuple[Device, ...], at: Counts) -> Iterator[Counts]:
    """Neighbours of *at*, the least sum of times first."""
    near = _neighbours(at, search.total)
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

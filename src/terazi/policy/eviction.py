"""Which units go: what each is worth, and the cheapest set that makes enough room.

A unit's worth is what evicting it will probably cost: the seconds of its load times how likely it is wanted again
soon. How likely is known from its uses, of which older ones count less: their weight halves every ``HALF_LIFE_S``.
Cao and Irani's GreedyDual-Size ("Cost-Aware WWW Proxy Caching Algorithms", 1997) ranks by cost over size on top
of an ageing clock; here sizes are dealt with by choosing sets, since of few large units it matters which of them
fill the gap together. Against the offline optimum this did better than the least recently used, with and without
costs (``tests/property/policy/test_residency_optimum.py`` holds it to that).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

#: After so long a use counts half.
HALF_LIFE_S: Final = 120.0
#: Of more candidates than this, the cheapest are looked at.
_MOST_CANDIDATES: Final = 10


@dataclass(slots=True)
class Uses:
    """How often a unit is used: a count in which older uses weigh less, and the last one."""

    weight: float = 0.0
    at: float = 0.0

    def used(self, now: float) -> None:
        """Once more."""
        self.weight = self.weighed(now) + 1.0
        self.at = now

    def weighed(self, now: float) -> float:
        """The count as it weighs *now*."""
        return self.weight * float(2.0 ** (-max(0.0, now - self.at) / HALF_LIFE_S))


def worth(load_s: float, uses: Uses, now: float) -> float:
    """Seconds that evicting it will probably cost."""
    return load_s * (uses.weighed(now) + 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A unit that may go: the bytes it would leave, and what losing it costs (any unit, lower goes sooner)."""

    unit: str
    needs: Mapping[str, int]
    priority: int
    worth: float


def choose(candidates: Iterable[Candidate], missing: Mapping[str, int]) -> tuple[str, ...] | None:
    """The set whose bytes cover *missing* at the least cost; None if not even all of them do.

    Low priorities go first: a set is judged by its highest priority, then by its worth, then by its number.
    """
    short = {device: gap for device, gap in missing.items() if gap > 0}
    useful = [c for c in candidates if any(c.needs.get(device, 0) > 0 for device in short)]
    if not _covers(useful, short):
        return None
    useful.sort(key=lambda c: (c.priority, c.worth, c.unit))
    if len(useful) > _MOST_CANDIDATES:
        return _greedy(useful, short)
    best = min(
        (chosen for n in range(len(useful) + 1) for chosen in combinations(useful, n) if _covers(chosen, short)),
        key=lambda chosen: (
            max((c.priority for c in chosen), default=0),
            sum(c.worth for c in chosen),
            len(chosen),
        ),
    )
    return tuple(c.unit for c in best)


def _greedy(ordered: list[Candidate], short: Mapping[str, int]) -> tuple[str, ...]:
    """The cheapest until it is enough, then without those that turn out not to be needed, the dearest first."""
    chosen: list[Candidate] = []
    for candidate in ordered:
        if _covers(chosen, short):
            break
        chosen.append(candidate)
    for candidate in reversed(tuple(chosen)):
        without = [c for c in chosen if c is not candidate]
        if _covers(without, short):
            chosen = without
    return tuple(c.unit for c in chosen)


def _covers(chosen: Iterable[Candidate], short: Mapping[str, int]) -> bool:
    chosen = tuple(chosen)
    return all(sum(c.needs.get(device, 0) for c in chosen) >= gap for device, gap in short.items())

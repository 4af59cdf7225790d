"""Which blocks of a model stand for the rest: of a run of equal blocks, four are drawn, and the third is repeated.

In: what is equal about each block, in order. Out: the blocks to draw, and the runs among them. The first of a run
has what comes before it in its surroundings, the last what comes behind; the second and third must leave the same
marks, or the abridgement is given up (``tape.record``).
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

#: Copies of what repeats that are drawn: entry, steady, steady again, exit.
_DRAWN = 4
#: The longest pattern of blocks that is looked for (Gemma 3 repeats after six, Jamba after eight).
_LONGEST = 12


class Run(NamedTuple):
    """A pattern of blocks that repeats.

    Args:
        first: where the second copy begins among the blocks that are drawn.
        period: blocks of the pattern.
        repeats: how often the third copy runs.
    """

    first: int
    period: int
    repeats: int


class Abridgement(NamedTuple):
    """The blocks to draw, by index, and the runs among them."""

    blocks: tuple[int, ...]
    runs: tuple[Run, ...]


def abridge(kinds: Sequence[Hashable]) -> Abridgement:
    """Shorten a sequence of blocks, equal ones of which have equal *kinds*."""
    blocks: list[int] = []
    runs: list[Run] = []
    at, count = 0, len(kinds)
    while at < count:
        period, copies = _longest_run(kinds, at)
        if copies <= _DRAWN:
            blocks.append(at)
            at += 1
            continue
        runs.append(Run(len(blocks) + period, period, copies - _DRAWN + 1))
        blocks += range(at, at + (_DRAWN - 1) * period)
        at += copies * period
        blocks += range(at - period, at)
    return Abridgement(tuple(blocks), tuple(runs))


def _longest_run(kinds: Sequence[Hashable], at: int) -> tuple[int, int]:
    """The period that saves most from *at* on, and its number of copies."""
    best, saved = (1, 1), 0
    for period in range(1, min(_LONGEST, (len(kinds) - at) // _DRAWN) + 1):
        end = at + period
        while end < len(kinds) and kinds[end] == kinds[end - period]:
            end += 1
        copies = (end - at) // period
        if (copies - _DRAWN) * period > saved:
            best, saved = (period, copies), (copies - _DRAWN) * period
    return best

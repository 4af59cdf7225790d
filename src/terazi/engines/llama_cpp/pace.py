"""How fast a running llama-server decodes, from two looks at its slots (build b11434).

In: two answers of ``/slots`` and the seconds between them. Out: streams, their depth and tokens per second, or None
where the two don't tell: a prompt was computed meanwhile, a stream began or ended, or too few tokens came.
"""

from collections.abc import Sequence
from typing import NamedTuple

from terazi.engines.llama_cpp.endpoints import Slot

#: Fewer tokens of each stream than this are a coarse measure of anything.
LEAST_TOKENS = 16


class Pace(NamedTuple):
    """Streams that decoded together, tokens in each one's context on average, and tokens per second of all."""

    streams: int
    depth: float
    tok_s: float


def pace(before: Sequence[Slot], after: Sequence[Slot], seconds: float) -> Pace | None:
    """What happened between two looks *seconds* apart."""
    first, last = ({s.id: s for s in slots if s.is_processing} for slots in (before, after))
    if not first or first.keys() != last.keys() or seconds <= 0:
        return None
    tokens, depth = 0, 0.0
    for number, slot in first.items():
        later = last[number]
        if slot.task is None or slot.task != later.task or not slot.decoded or not later.decoded:
            return None  # another request, or one that was still at its prompt
        if slot.depth is None or later.depth is None or later.decoded - slot.decoded < LEAST_TOKENS:
            return None
        tokens += later.decoded - slot.decoded
        depth += (slot.depth + later.depth) / 2
    return Pace(len(first), depth / len(first), tokens / seconds)

"""Which routed experts stay in RAM where every card may leave out some of its own blocks' ones.

In: ``Search``, a layout over cards that keeps the experts of the first blocks in RAM. Out: the one that takes the
least time of all in which each card holds a range of blocks and leaves out as few of their experts as its room asks
for, matrix by matrix. Exact over (card, first block) for the sums that it goes by; the real bill judges.

Where the first blocks' experts alone may stay in RAM (``--n-cpu-moe``), each card wastes up to a block of its room;
``overflow`` shares blocks out over two cards, which needs larger buffers. Neither is always better.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.placement.judge import Judged
from terazi.placement.overflow import CPU, Piece, pieces, with_moved
from terazi.placement.pace import Pace, active_bytes, running_ns
from terazi.placement.sums import place

if TYPE_CHECKING:
    from terazi.placement.search import Search

#: How often a layout is corrected after the real bill said no to it, and how often whatever time there is.
_TRIALS, _FREE_TRIALS = 4, 2
#: Ranges of blocks times cards that are looked at; more would take longer than an answer may.
_MOST = 60_000
_NEVER = float("inf")


class _Row(NamedTuple):
    """All layers, the output last. Sums run from nothing to all.

    Args:
        dense: bytes of all but routed experts, by layer.
        experts: bytes of experts' matrices, in the order in which they are left out.
        at: by layer, how many matrices lie before it.
        matrices: (block, kind) of each.
        elements: weights in them, summed like their bytes.
        blocks: bytes of experts, by block.
        subsets: (bytes, matrices) of each choice of a block's, ascending, by block.
    """

    dense: Sequence[int]
    experts: Sequence[int]
    at: Sequence[int]
    matrices: Sequence[tuple[int, str]]
    elements: Sequence[int]
    blocks: Sequence[int]
    subsets: Sequence[Sequence[tuple[int, tuple[int, ...]]]]

    def size(self, some: Iterable[int]) -> int:
        """Bytes of *some* matrices."""
        return sum(self.experts[i + 1] - self.experts[i] for i in some)

    def held(self, start: int, end: int, out: Collection[int]) -> int:
        """Bytes of layers *start* to *end* without the matrices *out*."""
        away = sum(self.experts[i + 1] - self.experts[i] for i in out)
        return (
            self.dense[end] - self.dense[start] + self.experts[self.at[end]] - self.experts[self.at[start]] - away
        )

    def away(self, start: int, end: int, out: tuple[int, tuple[int, ...]]) -> int:
        """Bytes of what ``left_out`` said."""
        whole, some = out
        edge = self.blocks[end] - self.blocks[end - whole] if start else self.blocks[whole]
        return edge + self.size(some)

    def missing(self, start: int, end: int, room: int) -> int:
        """Bytes by which *room* is too small for layers *start* to *end*."""
        return self.held(start, end, ()) - room

    def left_out(self, start: int, end: int, room: int) -> tuple[int, tuple[int, ...]] | None:
        """How many blocks whole at a range's edge, and which matrices of the next, make it fit; None: nothing does.

        The edge is the front on the first card and the end on later ones: a card whose first block lacks its
        experts has larger buffers by half.
        """
        missing = self.missing(start, end, room)
        if missing <= 0:
            return 0, ()
        sums = self.blocks
        if missing > sums[end] - sums[start]:
            return None
        if start:
            block = bisect_right(sums, sums[end] - missing) - 1
            whole, rest = end - 1 - block, missing - sums[end] + sums[block + 1]
        else:
            block = bisect_left(sums, missing) - 1
            whole, rest = block, missing - sums[block]
        sizes = self.subsets[block]
        return whole, sizes[bisect_left(sizes, (rest, ()))][1]


def leave_out(
    search: "Search",
    settings: LlamaCppSettings,
    devices: Sequence[Device],
    judged: Judged,
    *,
    largest: bool = False,
) -> list[Judged]:
    """What fits over the cards of *judged*, a layout of *settings*; nothing if none does.

    What a card leaves out are neighbours, or else its *largest* blocks' experts.
    """
    owners = judged.resolved.layer_devices
    used = tuple(d for d in devices if d.id in owners)
    layers = len(owners)
    if len(used) < 2 or HOST in owners or layers * layers * len(used) > 2 * _MOST:
        return []
    every = pieces(search.spec, used[0], settings)
    row = _row(every)
    budgets = [search.capacity.device_bytes[d.id] for d in used]

    def rooms_of(bill: Bill, cuts: Sequence[int], away: Sequence[Collection[int]]) -> list[int]:
        held = [row.held(*ends, out) for ends, out in zip(pairwise(cuts), away, strict=True)]
        return [b - bill.needed_bytes(d.id) + h for b, d, h in zip(budgets, used, held, strict=True)]

    cuts = [0]
    for device in used:
        cuts.append(cuts[-1] + owners.count(device.id))
    in_ram = row.at[min(judged.settings.n_cpu_moe, layers - 1)]
    away: list[Sequence[int]] = [
        range(row.at[a], min(max(row.at[a], in_ram), row.at[b])) for a, b in pairwise(cuts)
    ]
    rooms = rooms_of(judged.bill, cuts, away)
    costs = _costs(search, used, search.pace(settings))
    for trial in range(_TRIALS):
        if (trial >= _FREE_TRIALS or largest) and not search.may_judge():
            break
        found = _cheapest(row, rooms, costs, largest=largest)
        if found is None:
            break
        cuts, away = found
        moved = ((*row.matrices[i], CPU) for out in away for i in out)
        counts = [end - start for start, end in pairwise(cuts)]
        laid = search.weigh(with_moved(place(settings, used, counts), every, moved))
        if not laid.shortfall:
            return [laid]
        learnt = rooms_of(laid.bill, cuts, away)
        rooms = [min(pair) for pair in zip(rooms, learnt, strict=True)]
    return []


class _Cost(NamedTuple):
    """One card: nanoseconds of the first so many layers here; of a byte of experts in RAM more; to enter it."""

    layers: Sequence[int]
    byte: float
    entry: float


def _costs(search: "Search", used: Sequence[Device], pace: Pace) -> list[_Cost]:
    spec = search.spec
    active = active_bytes(spec)
    mean = sum(active[:-1]) / max(1, len(active) - 1) or 1.0
    share = spec.expert_used_count / spec.expert_count
    return [
        _Cost(
            running_ns(active, pace.block_s[d.id], pace.output_s[d.id]),
            1e9 * share * max(0.0, pace.beside_s[d.id] - pace.block_s[d.id]) / mean,
            1e9 * pace.entry_s[d.id],
        )
        for d in used
    ]


def _row(row: Sequence[Piece]) -> _Row:
    layers = row[-1].block + 1
    dense, sizes, elements = [0] * layers, [0], [0]
    at, matrices = [0], []
    for piece in row:
        if not piece.kind:
            dense[piece.block] = piece.n_bytes
    for layer in range(layers):
        for piece in reversed([p for p in row if p.block == layer and p.kind]):
            sizes.append(sizes[-1] + piece.n_bytes)
            elements.append(elements[-1] + piece.elements)
            matrices.append((layer, piece.kind))
        at.append(len(matrices))
    sums = [0]
    for size in dense:
        sums.append(sums[-1] + size)
    choices = [
        sorted((sum(sizes[i + 1] - sizes[i] for i in some), some) for some in _subsets(range(a, b)))
        for a, b in pairwise(at)
    ]
    return _Row(sums, sizes, at, matrices, elements, [sizes[n] for n in at], choices)


def _cheapest(
    row: _Row, rooms: Sequence[int], costs: Sequence[_Cost], *, largest: bool
) -> tuple[list[int], list[Sequence[int]]] | None:
    """Where each card's layers begin (and the end), and the matrices that it leaves out."""
    layers, count = len(row.at) - 1, len(rooms)
    rest = [_NEVER] * layers + [0.0]
    chosen: list[list[int]] = []
    for d in range(count - 1, -1, -1):
        cost, room = costs[d], rooms[d]
        best: list[float] = [_NEVER] * (layers + 1)
        take = [0] * (layers + 1)
        for start in range(0 if not d else layers - 1, -1, -1):
            ends = range(start + 1, layers + 1 - (count - 1 - d)) if d < count - 1 else (layers,)
            for end in ends:
                if rest[end] == _NEVER:
                    continue
                out = row.left_out(start, end, room)
                if out is None:
                    break  # nor do more layers fit
                away = row.away(start, end, out)
                total = rest[end] + cost.layers[end] - cost.layers[start] + away * cost.byte
                if total < best[start]:
                    best[start], take[start] = total, end
        rest = [b + cost.entry for b in best]
        chosen.insert(0, take)
    if rest[0] == _NEVER:
        return None
    cuts = [0]
    found: list[Sequence[int]] = []
    for take, room in zip(chosen, rooms, strict=True):
        end = take[cuts[-1]]
        edge = row.left_out(cuts[-1], end, room) or (0, ())
        found.append(_least(row, cuts[-1], end, room) if largest else _edge(row, cuts[-1], end, edge))
        cuts.append(end)
    return cuts, found


def _edge(row: _Row, start: int, end: int, out: tuple[int, tuple[int, ...]]) -> Sequence[int]:
    """The matrices of whole blocks at the edge of a range, and those of the next."""
    whole, some = out
    if start:
        return (*some, *range(row.at[end - whole], row.at[end]))
    return (*range(row.at[whole]), *some)


def _least(row: _Row, start: int, end: int, room: int) -> Sequence[int]:
    """Matrices of layers *start* to *end* to be left out, wherever they lie: the largest blocks first.

    Types, and so sizes, differ from block to block, and a prompt is bound by operations on the host, not by bytes.
    """
    missing = row.missing(start, end, room)
    if missing <= 0:
        return ()
    blocks = [b for b in range(start, end) if row.at[b] < row.at[b + 1]]
    own = {b: range(row.at[b], row.at[b + 1]) for b in blocks}
    blocks.sort(key=lambda b: (b == start and start > 0, -row.size(own[b])))
    per_byte = row.elements[-1] / row.experts[-1]

    def cost(some: Collection[int]) -> float:
        return sum(row.elements[i + 1] - row.elements[i] for i in some) + per_byte * row.size(some)

    found: list[Sequence[int]] = []
    whole: list[int] = []
    for n, block in enumerate(blocks):
        rest = missing - row.size(whole)
        if rest <= 0:
            break
        found += [(*whole, *s) for b in blocks[n:] for size, s in row.subsets[b] if size >= rest]
        whole += own[block]
    return min(found, key=cost)


def _subsets(matrices: Sequence[int]) -> list[tuple[int, ...]]:
    return [some for n in range(1, len(matrices) + 1) for some in combinations(matrices, n)]

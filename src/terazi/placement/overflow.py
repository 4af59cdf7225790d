"""Fills what whole blocks leave free on cards: a part of a block's experts lies on the next card, or in RAM.

In: ``Search``, a layout whose first blocks keep their routed experts in RAM. Out: one that keeps fewer there, if
the cards together have the room. llama.cpp's own ``--fit`` shares a block out in the same way (``LAYER_FRACTION_*``
of ``common/fit.cpp``, b11434), front to back and until a card is full; here the cuts stay as near as possible to
where the search proper, which knows the cards' speeds, put them.

A block is a row of pieces: all but the routed experts, then each of its experts' matrices. A cut between two cards
may lie before any piece; what comes after it is moved with ``-ot``. What stays in RAM are the first pieces of
experts, a block's *down* before its *gate* before its *up*.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill
from terazi.memory.llama_cpp.buffers import allocation_bytes
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.placement.judge import Judged
from terazi.placement.sums import Counts, layer_sums, place

if TYPE_CHECKING:
    from terazi.placement.search import Search

#: The kinds of experts' matrices, in the order in which a card keeps them (``get_overflow_pattern``).
_KINDS = ("up", "gate", "gate_up", "down")
_EXPERTS = re.compile(r"\.ffn_(up|gate|gate_up|down)_(?:ch|)exps")
#: The engine's name of the host's buffers.
CPU = "CPU"
#: A pattern as it is written below: block, kinds.
_PART = re.compile(r"blk\\\.(\d+)\\\.ffn_\(([a-z_|]+)\)_\(ch\|\)exps")
#: How often a layout is corrected after the real bill said no to it, and how often whatever time there is.
_TRIALS, _FREE_TRIALS = 4, 2


class Piece(NamedTuple):
    """A part of a block that is never cut: its kind of experts' matrices, or all the rest of it ("")."""

    block: int
    kind: str
    n_bytes: int


class Part(NamedTuple):
    """Matrices of one block's experts that lie elsewhere than the rest of it."""

    block: int
    kinds: tuple[str, ...]
    where: str

    @property
    def words(self) -> str:
        """Which matrices, for a sentence."""
        whole = "down" in self.kinds and {"up", "gate_up"} & {*self.kinds}
        return "all experts" if whole else f"the experts' {' and '.join(self.kinds)}"


def read_part(override: tuple[str, str]) -> Part | None:
    """The part that an override of this module's making moves; None for any other."""
    found = _PART.fullmatch(override[0])
    return found and Part(int(found[1]), tuple(found[2].split("|")), override[1])


def shared_out(settings: LlamaCppSettings) -> bool:
    """Whether *settings* put a part of a block on another card than the rest."""
    return any(where != CPU for _, where in settings.override_tensor)


def fill_up(
    search: "Search", settings: LlamaCppSettings, devices: Sequence[Device], judged: Judged
) -> list[Judged]:
    """What fits with fewer experts in RAM than *judged*, a layout of *settings*; nothing if none does."""
    owners = judged.resolved.layer_devices
    used = tuple(d for d in devices if d.id in owners)
    kept = judged.settings.n_cpu_moe
    if not used or not kept or HOST in owners:
        return []
    counts = tuple(owners.count(d.id) for d in used)
    row = pieces(search.spec, used[0], settings)
    in_ram = [i for i in _expert_order(row) if row[i].block < kept]
    at = _starts(row, counts)
    budgets = [search.capacity.device_bytes[d.id] for d in used]

    def rooms_of(bill: Bill, stay: Collection[int], cuts: Sequence[int]) -> list[int]:
        """What pieces may take of each card by *bill*: the budget without what isn't pieces."""
        held = [sum(row[n].n_bytes for n in range(*ends) if n not in stay) for ends in pairwise(cuts)]
        return [b - bill.needed_bytes(d.id) + h for b, d, h in zip(budgets, used, held, strict=True)]

    rooms = rooms_of(judged.bill, frozenset(in_ram), at)
    for trial in range(_TRIALS):
        if trial >= _FREE_TRIALS and not search.may_judge():
            break
        found = _fewest(row, in_ram, rooms, at)
        if found is None:
            break
        fewer, cuts = found
        filled = search.weigh(_settings(settings, used, row, in_ram[:fewer], cuts))
        if not filled.shortfall:
            return [filled]
        # what lies on two cards needs larger buffers there
        learnt = rooms_of(filled.bill, frozenset(in_ram[:fewer]), cuts)
        rooms = [min(pair) for pair in zip(rooms, learnt, strict=True)]
    return []


def pieces(spec: ModelSpec, device: Device, settings: LlamaCppSettings) -> list[Piece]:
    """All layers of *spec* in their order, the output last, as *device* would hold them."""
    sums = layer_sums(spec, device, replace(settings, n_cpu_moe=spec.block_count))
    experts: dict[tuple[int, str], int] = {}
    for tensor in spec.tensors:
        kind = _EXPERTS.search(tensor.name)
        if kind is not None and tensor.block is not None:
            key = tensor.block, kind[1]
            size = allocation_bytes(device, tensor.dtype, tensor.shape, tensor.n_bytes)
            experts[key] = experts.get(key, 0) + size
    found = []
    for block in range(spec.block_count + 1):
        found.append(Piece(block, "", sums[block + 1] - sums[block]))
        found += [Piece(block, kind, experts[block, kind]) for kind in _KINDS if (block, kind) in experts]
    return found


def _expert_order(row: Sequence[Piece]) -> list[int]:
    """The pieces that may stay in RAM, in the order in which they do."""
    return sorted((i for i, p in enumerate(row) if p.kind), key=lambda i: (row[i].block, -i))


def _starts(row: Sequence[Piece], counts: Counts) -> list[int]:
    """Where each device's first block begins among the pieces, and their end."""
    first = {}
    for i, piece in enumerate(row):
        first.setdefault(piece.block, i)
    found, block = [0], 0
    for count in counts[:-1]:
        block += count
        found.append(first[block])
    return [*found, len(row)]


def _fewest(
    row: Sequence[Piece], in_ram: Sequence[int], rooms: Sequence[int], near: Sequence[int]
) -> tuple[int, list[int]] | None:
    """How few of *in_ram* have to stay there, fewer than all, and the cuts then."""
    best = None
    low, high = 0, len(in_ram) - 1
    while low <= high:
        middle = (low + high) // 2
        cuts = _cuts(row, frozenset(in_ram[:middle]), rooms, near)
        if cuts is not None:
            best, high = (middle, cuts), middle - 1
        else:
            low = middle + 1
    return best


def _cuts(
    row: Sequence[Piece], in_ram: frozenset[int], rooms: Sequence[int], near: Sequence[int]
) -> list[int] | None:
    """Where each device begins so that all fits, as near as possible to *near*; None if nothing fits.

    A device takes a block of its own at least (no block lies on three cards).
    """
    sums = [0]
    for i, piece in enumerate(row):
        sums.append(sums[-1] + (0 if i in in_ram else piece.n_bytes))
    end = len(row)
    # the earliest beginning with which a device and all after it have room
    least = [0] * len(rooms)
    after = end
    for d in range(len(rooms) - 1, -1, -1):
        start = after
        while start > 0 and sums[after] - sums[start - 1] <= rooms[d]:
            start -= 1
        if d and not _own_block(row, start, after):
            return None
        least[d] = after = start
    if least[0] > 0:
        return None
    cuts = [0]
    for d in range(len(rooms) - 1):
        reach = cuts[-1]
        while reach < end and sums[reach + 1] - sums[cuts[-1]] <= rooms[d]:
            reach += 1
        cut = min(max(near[d + 1], least[d + 1]), reach)
        if cut < least[d + 1] or not _own_block(row, cuts[-1], cut):
            return None
        cuts.append(cut)
    return [*cuts, end] if _own_block(row, cuts[-1], end) else None


def _own_block(row: Sequence[Piece], start: int, end: int) -> bool:
    return any(not row[i].kind for i in range(start, end))


def _settings(
    settings: LlamaCppSettings,
    used: tuple[Device, ...],
    row: Sequence[Piece],
    in_ram: Sequence[int],
    cuts: Sequence[int],
) -> LlamaCppSettings:
    """The flags of a layout: whole layers by ``-ts``, blocks in RAM by ``--n-cpu-moe``, parts by ``-ot``."""
    owner: dict[int, int] = {}
    for d in range(len(used)):
        owner |= {row[i].block: d for i in range(cuts[d], cuts[d + 1]) if not row[i].kind}
    counts = [list(owner.values()).count(d) for d in range(len(used))]
    stay = frozenset(in_ram)
    whole = 0
    experts = {p.block for p in row if p.kind}
    while all(i in stay for i, p in enumerate(row) if p.block == whole and p.kind) and whole <= max(experts):
        whole += 1
    moved = [(p.block, p.kind, CPU) for i, p in enumerate(row) if i in stay and p.block >= whole]
    for d in range(len(used)):
        away = (row[i] for i in range(cuts[d], cuts[d + 1]) if row[i].kind and i not in stay)
        moved += [(p.block, p.kind, used[d].id) for p in away if owner[p.block] != d]
    placed = place(settings, used, counts)
    return replace(placed, n_cpu_moe=whole, override_tensor=(*settings.override_tensor, *_patterns(moved)))


def _patterns(moved: Sequence[tuple[int, str, str]]) -> Iterator[tuple[str, str]]:
    for block, where in dict.fromkeys((block, where) for block, _, where in moved):
        kinds = "|".join(kind for b, kind, w in moved if (b, w) == (block, where))
        yield rf"blk\.{block}\.ffn_({kinds})_(ch|)exps", where

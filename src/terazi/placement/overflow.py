"""Fills what whole blocks leave free on cards: a part of a block's experts lies on the next card, or in RAM.

In: ``Search``, a layout whose first blocks keep their routed experts in RAM. Out: one that keeps fewer there, if
the cards together have the room. llama.cpp's own ``--fit`` shares a block out in the same way (``LAYER_FRACTION_*``
of ``common/fit.cpp``, b11434), front to back and until a card is full; here the cuts stay as near as possible to
where the search proper, which knows the cards' speeds, put them.

A block is a row of pieces: all but the routed experts, then each of its experts' matrices. A cut between two cards
may lie before any piece; what comes after it is moved with ``-ot``. What stays in RAM are the first pieces of
experts, a block's *down* before its *gate* before its *up*.
"""

import math
import re
from collections.abc import Collection, Iterable, Sequence
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
#: A pattern as it is written below: blocks, kinds.
_PART = re.compile(r"blk\\\.\(([\d|]+)\)\\\.ffn_\(([a-z_|]+)\)_\(ch\|\)exps")
#: How often a layout is corrected after the real bill said no to it, and how often whatever time there is.
_TRIALS, _FREE_TRIALS = 4, 2


class Piece(NamedTuple):
    """A part of a block that is never cut: its kind of experts' matrices, or all the rest of it ("")."""

    block: int
    kind: str
    n_bytes: int
    elements: int = 0


class Part(NamedTuple):
    """Matrices of some blocks' experts that lie elsewhere than the rest of them."""

    blocks: tuple[int, ...]
    kinds: tuple[str, ...]
    where: str

    @property
    def words(self) -> str:
        """Which matrices, for a sentence."""
        whole = "down" in self.kinds and {"up", "gate_up"} & {*self.kinds}
        what = "all experts" if whole else f"the experts' {' and '.join(self.kinds)}"
        return f"{what} of block{'s' * (len(self.blocks) > 1)} {_ranges(self.blocks)}"


def override(blocks: Sequence[int], kinds: Sequence[str], where: str) -> tuple[str, str]:
    """The engine's pattern for *kinds* of experts' matrices of *blocks*, and where they go."""
    return rf"blk\.({'|'.join(map(str, blocks))})\.ffn_({'|'.join(kinds)})_(ch|)exps", where


def read_part(said: tuple[str, str]) -> Part | None:
    """The part that an override of ``override``'s making moves; None for any other."""
    found = _PART.fullmatch(said[0])
    return found and Part(tuple(map(int, found[1].split("|"))), tuple(found[2].split("|")), said[1])


def _ranges(numbers: Sequence[int]) -> str:
    """``3, 5 to 9``."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def shared_out(settings: LlamaCppSettings) -> bool:
    """Whether *settings* put a part of a block on another card than the rest."""
    return any(where != CPU for _, where in settings.override_tensor)


def fill_up(
    search: "Search", settings: LlamaCppSettings, devices: Sequence[Device], judged: Judged
) -> list[Judged]:
    """What fits with fewer experts in RAM than *judged*, a layout of *settings*; nothing if none does.

    Those that stay are the first blocks', or, where there is time to weigh that too, the last ones'.
    """
    owners = judged.resolved.layer_devices
    used = tuple(d for d in devices if d.id in owners)
    if not used or not judged.settings.n_cpu_moe or HOST in owners:
        return []
    row = pieces(search.spec, used[0], settings)
    near = _starts(row, tuple(owners.count(d.id) for d in used))
    kept = frozenset(i for i, p in enumerate(row) if p.kind and p.block < judged.settings.n_cpu_moe)
    filler = _Filler(search, settings, used, row, near)
    rooms = filler.rooms_of(judged.bill, kept, near)
    front = sorted((i for i, p in enumerate(row) if p.kind), key=lambda i: (row[i].block, -i))
    found = filler.fill(front[: len(kept)], rooms, _FREE_TRIALS)
    if len(used) > 1 and search.may_judge():
        back = [i for i in range(len(row) - 1, -1, -1) if row[i].kind]
        found += filler.fill(back[: len(kept)], rooms, 0)
    return found


class _Filler:
    """One layout to be filled: what is cut, between whom, and near where."""

    def __init__(
        self,
        search: "Search",
        settings: LlamaCppSettings,
        used: tuple[Device, ...],
        row: Sequence[Piece],
        near: Sequence[int],
    ) -> None:
        self._search = search
        self._settings = settings
        self._used = used
        self._row = row
        self._near = near
        self._budgets = [search.capacity.device_bytes[d.id] for d in used]

    def rooms_of(self, bill: Bill, stay: Collection[int], cuts: Sequence[int]) -> list[int]:
        """What pieces may take of each card by *bill*: the budget without what isn't pieces."""
        held = [sum(self._row[n].n_bytes for n in range(*ends) if n not in stay) for ends in pairwise(cuts)]
        return [b - bill.needed_bytes(d.id) + h for b, d, h in zip(self._budgets, self._used, held, strict=True)]

    def fill(self, in_ram: Sequence[int], rooms: Sequence[int], free: int) -> list[Judged]:
        """The layout that keeps the fewest of *in_ram* there, the first ones; *free* trials whatever the time."""
        best: list[Judged] = []
        for trial in range(_TRIALS):
            if trial >= free and not self._search.may_judge():
                break
            found = _fewest(self._row, in_ram, rooms, self._near)
            if found is None:
                break
            fewer, cuts = found
            stay = frozenset(in_ram[:fewer])
            filled = self._search.weigh(_settings(self._settings, self._used, self._row, stay, cuts))
            # what lies on two cards needs larger buffers there
            learnt = self.rooms_of(filled.bill, stay, cuts)
            if filled.shortfall:
                rooms = [min(pair) for pair in zip(rooms, learnt, strict=True)]
            else:
                best, rooms, in_ram = [filled], learnt, in_ram[:fewer]
        return best


def pieces(spec: ModelSpec, device: Device, settings: LlamaCppSettings) -> list[Piece]:
    """All layers of *spec* in their order, the output last, as *device* would hold them."""
    sums = layer_sums(spec, device, replace(settings, n_cpu_moe=spec.block_count))
    experts: dict[tuple[int, str], tuple[int, int]] = {}
    for tensor in spec.tensors:
        kind = _EXPERTS.search(tensor.name)
        if kind is not None and tensor.block is not None:
            key = tensor.block, kind[1]
            size = allocation_bytes(device, tensor.dtype, tensor.shape, tensor.n_bytes)
            before = experts.get(key, (0, 0))
            experts[key] = before[0] + size, before[1] + math.prod(tensor.shape)
    found = []
    for block in range(spec.block_count + 1):
        found.append(Piece(block, "", sums[block + 1] - sums[block]))
        found += [Piece(block, kind, *experts[block, kind]) for kind in _KINDS if (block, kind) in experts]
    return found


def _starts(row: Sequence[Piece], counts: Counts) -> list[int]:
    """Where each device's first block begins among the pieces, and their end."""
    first: dict[int, int] = {}
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
    stay: Collection[int],
    cuts: Sequence[int],
) -> LlamaCppSettings:
    """The flags of a layout: whole layers by ``-ts``, blocks in RAM by ``--n-cpu-moe``, parts by ``-ot``."""
    owner: dict[int, int] = {}
    for d in range(len(used)):
        owner |= {row[i].block: d for i in range(cuts[d], cuts[d + 1]) if not row[i].kind}
    counts = [list(owner.values()).count(d) for d in range(len(used))]
    moved = [(p.block, p.kind, CPU) for i, p in enumerate(row) if i in stay]
    for d in range(len(used)):
        away = (row[i] for i in range(cuts[d], cuts[d + 1]) if row[i].kind and i not in stay)
        moved += [(p.block, p.kind, used[d].id) for p in away if owner[p.block] != d]
    return with_moved(place(settings, used, counts), row, moved)


def with_moved(
    settings: LlamaCppSettings, row: Sequence[Piece], moved: Iterable[tuple[int, str, str]]
) -> LlamaCppSettings:
    """*settings* that put each (block, kind of experts) elsewhere, all of the first blocks by ``--n-cpu-moe``."""
    kinds: dict[int, set[str]] = {}
    for piece in row:
        kinds.setdefault(piece.block, set()).update({piece.kind} - {""})
    away: dict[tuple[int, str], set[str]] = {}
    for block, kind, where in moved:
        away.setdefault((block, where), set()).add(kind)
    leading = 0
    while leading in kinds and kinds[leading] <= away.get((leading, CPU), set()):
        leading += 1
    if not any(kinds[b] for b in range(leading)):
        leading = 0
    alike: dict[tuple[str, ...], list[int]] = {}
    for (block, where), some in sorted(away.items()):
        if where != CPU or block >= leading:
            alike.setdefault((where, *(k for k in _KINDS if k in some)), []).append(block)
    patterns = (override(blocks, said[1:], said[0]) for said, blocks in alike.items())
    return replace(settings, n_cpu_moe=leading, override_tensor=(*settings.override_tensor, *patterns))

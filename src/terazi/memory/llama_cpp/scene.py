"""What is asked of recorded drawings, which kind of graph that needs, and what is known of each kind.

In: a configuration, one of its reservations. Out: the kind of its graph, and the values of the drawing's variables.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.abridge import Run
from terazi.memory.llama_cpp.cache_types import CACHE_TYPES
from terazi.memory.llama_cpp.compute import Reservation, Setup, batch_of, offloads, pins_norms
from terazi.memory.llama_cpp.dims import Condition
from terazi.memory.llama_cpp.kv import CacheGroup, CacheLayer
from terazi.memory.llama_cpp.peaks import Peaks
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.resolve import CELLS, Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.sketch import Batch
from terazi.memory.llama_cpp.weights import BufferKind, Placement

#: Cache types that make the same graph, and the same sizes of what isn't the cache itself.
_TYPES: dict[str, str | int] = {
    name: 0 if kind.block_size > 1 else kind.block_bytes for name, kind in CACHE_TYPES.items()
}
_EXACT_TYPES: dict[str, str | int] = {name: name for name in CACHE_TYPES}
#: Tokens a slot are counted in so many where they come out even: chunked scans round up to it.
_CHUNK = 64


class Take(NamedTuple):
    """One recording: its tapes hold wherever its conditions do.

    Args:
        tapes: what comes of each buffer's.
        parts: nodes and leaves as drawn; ``repeated`` are those of the third copy of each run.
        copies_blocks: quantised tensors are among those placed, so it holds for one type of them only.
    """

    conditions: tuple[Condition, ...]
    tapes: tuple[Peaks, ...]
    parts: int
    repeated: tuple[int, ...]
    copies_blocks: bool


class Probe(NamedTuple):
    """Whether fused attention would run where it should, and the size of the graph that was asked, as of a take."""

    conditions: tuple[Condition, ...]
    fused: bool
    parts: int
    repeated: tuple[int, ...]


class Scene:
    """One kind of graph: which blocks are drawn, the recordings so far, and the peaks that are known."""

    def __init__(
        self,
        blocks: tuple[int, ...] | None,
        runs: tuple[Run, ...],
        takes: list[Take],
        pattern: Hashable = None,
    ) -> None:
        self.blocks, self.runs, self.takes, self.pattern = blocks, runs, takes, pattern
        self.repeats = tuple(run.repeats for run in runs)
        self.peaks: dict[tuple[int, ...], tuple[list[int], int]] = {}

    def be_whole(self) -> None:
        """Draw all blocks from now on."""
        self.blocks, self.runs, self.repeats, self.takes = None, (), (), []


class Layout:
    """Where one model's tensors lie, and what that makes of each of its blocks.

    Args:
        number: tells it from the other layouts of one ``Replays``.
        offloads: some device takes over products with host weights, so that these are copied.
    """

    def __init__(self, number: int, setup: Setup) -> None:
        self.number, self.setup = number, setup
        self.offloads = setup.settings.op_offload and offloads(setup.devices) is not None
        by_block: dict[int, list[Placement]] = {}
        loose: list[Placement] = []
        for placement in setup.placements:
            block = placement.tensor.block
            (loose if block is None else by_block.setdefault(block, [])).append(placement)
        self.loose = tuple(self._where(placement, exact=True) for placement in loose)
        #: found out on the way: quantised tensors are copied between devices, so the bytes of their rows matter
        self.exact_types = False
        self.weights = {
            block: frozenset(
                self._where(placement, exact=self.offloads and placement.device == HOST) for placement in placements
            )
            for block, placements in by_block.items()
        }

    def _where(self, placement: Placement, *, exact: bool) -> Hashable:
        tensor = placement.tensor
        _, _, name = tensor.name.partition(".") if tensor.block is None else tensor.name[4:].partition(".")
        plain = self.offloads and placement.kind in {BufferKind.PLAIN, BufferKind.PINNED, BufferKind.LAZY}
        return (
            tensor.name if tensor.block is None else name,
            tensor.shape,
            # only quantised weights that a card takes over from the host are copied; small ones may be anywhere
            tensor.n_bytes if exact or len(tensor.shape) == 1 else 0,
            self.setup.backends[placement.device],
            plain,
        )


class Weighed(NamedTuple):
    """What is asked about: one configuration, as far as it is worked out.

    Args:
        groups: the caches by device and kind.
        caches: gives them block by block; only a new drawing asks.
    """

    layout: Layout
    settings: LlamaCppSettings
    resolved: Resolved
    groups: tuple[CacheGroup, ...]
    states: tuple[StateLayer, ...]
    caches: Callable[[], tuple[CacheLayer, ...]]


class Form(NamedTuple):
    """Which numbers of a reservation are variables, and which follow from others.

    Args:
        tokens: so many a slot are one of the variable; 0: the variable is all tokens.
        outputs: ``tokens`` or ``slots`` if there are as many; else they are a variable of their own.
        all_slots: every slot is in the batch; else it is one.
    """

    tokens: int
    outputs: str
    all_slots: bool


class Kind(NamedTuple):
    """What decides the shape of a graph beside its layout. In *batch* what is variable is 0."""

    form: Form
    batch: Batch
    embedding: bool
    type_k: str | int
    type_v: str | int


def question_of(asked: Weighed, reservation: Reservation, *, fused: bool) -> tuple[Hashable, Form, tuple[int, ...]]:
    """What decides the kind of a reservation's graph in its layout, and the values of its variables."""
    layout, settings, resolved = asked.layout, asked.settings, asked.resolved
    rows = resolved.n_seq_max
    window = next((group.cells for group in asked.groups if group.window), 0)
    tokens, outputs, slots = reservation
    each, count = _token_form(tokens, rows)
    as_many = "tokens" if outputs == tokens else "slots" if outputs == rows else ""
    form = Form(each, as_many, slots == rows)
    types = _EXACT_TYPES if layout.exact_types else _TYPES
    key = (
        layout.number,
        form,
        fused,
        resolved.flash_attn,
        resolved.n_stream == 1,
        window > 0,
        pins_norms(tokens, resolved),
        settings.embedding,
        types[settings.type_k],
        types[settings.type_v],
        resolved.kept_states,
        resolved.draft_head,
        resolved.samples,
    )
    full = resolved.n_ctx_seq // CELLS
    variables = (full, max(1, window // CELLS), count, 1 if as_many else outputs, rows, resolved.n_ubatch)
    return key, form, variables


def kind_of(asked: Weighed, reservation: Reservation, form: Form, *, fused: bool) -> tuple[Kind, Batch]:
    """What kind of graph a reservation has, and its batch in numbers."""
    layout, settings, resolved = asked.layout, asked.settings, asked.resolved
    windowed = any(group.window for group in asked.groups)
    batch = batch_of(resolved, reservation, flash_attn=fused, pins=True, windowed=windowed)
    unified = 1 if resolved.n_stream == 1 else 0
    types = _EXACT_TYPES if layout.exact_types else _TYPES
    kind = Kind(
        form,
        batch._replace(tokens=0, outputs=0, slots=0, rows=0, streams=unified, context=0, all_cells=0, micro=0),
        settings.embedding,
        types[settings.type_k],
        types[settings.type_v],
    )
    return kind, batch


def _token_form(tokens: int, slots: int) -> tuple[int, int]:
    """How *tokens* are counted: (tokens a slot that the variable counts, the variable)."""
    each, rest = divmod(tokens, slots)
    if rest:
        return 0, tokens
    return (1, each) if each % _CHUNK else (_CHUNK, each // _CHUNK)

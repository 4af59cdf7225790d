"""Compute buffers of many settings of one model: each kind of graph is drawn once, and played for each size.

In: where everything lies, settings, caches, states. Out: what ``compute.compute_bytes`` would say, to the byte.
Contexts, slots, batches and outputs are variables of the drawing (``dims``); equal blocks stand for each other
(``abridge``); what is left is a tape a buffer (``tape``). Whatever isn't proven to be the same is drawn anew.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.abridge import Run, abridge
from terazi.memory.llama_cpp.blocks import loop_count, trunk_length
from terazi.memory.llama_cpp.cache_types import CACHE_TYPES
from terazi.memory.llama_cpp.compute import (
    Reservation,
    Setup,
    batch_of,
    compute_bytes,
    may_be_refused,
    measure_of,
    named,
    offloads,
    reservations,
    runs_beside_caches,
    setup_of,
)
from terazi.memory.llama_cpp.dims import Condition, Trace, Values, monomial
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheGroup, CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer, number
from terazi.memory.llama_cpp.resolve import CELLS, Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.sketch import Batch, Sketch
from terazi.memory.llama_cpp.tape import Player, Tape, counts_outputs, record, rounded
from terazi.memory.llama_cpp.weights import BufferKind, Placement
from terazi.models.spec import ModelSpec

#: Drawings whose blocks may stand for each other: each is drawn from what it is, not from how many there are.
_ABRIDGED = frozenset({"decoder", "gemma4"})
#: Drawings that are recorded at all; the others look at more than their caches and the batch.
_PLAYED = _ABRIDGED | {"gemma3n", "encoder", "diffusion", "rwkv"}
#: Tokens a slot are counted in so many where they come out even: chunked scans round up to it.
_CHUNK = 64


#: The variables of a drawing: cells of the full cache and of the window cache in units, tokens a slot (in units),
#: outputs, slots; the sixth is the micro-batch.
_FULL, _WINDOW, _TOKENS, _OUTPUTS, _SLOTS = range(5)
_COUNT_OUTPUTS = frozenset({monomial(_OUTPUTS), monomial(_SLOTS)})


class Take(NamedTuple):
    """One recording: its tapes hold wherever its conditions do.

    Args:
        tapes: one a buffer, and who plays it: takes that differ only in sizes share one.
        parts: nodes and leaves as drawn; ``repeated`` are those of the third copy of each run.
        copies_blocks: quantised tensors are among those placed, so it holds for one type of them only.
    """

    conditions: tuple[Condition, ...]
    tapes: tuple[tuple[Tape, Player], ...]
    parts: int
    repeated: tuple[int, ...]
    copies_blocks: bool


class _Probe(NamedTuple):
    """Whether fused attention would run where it should, and the size of the graph that was asked, as of a take."""

    conditions: tuple[Condition, ...]
    fused: bool
    parts: int
    repeated: tuple[int, ...]


class _Scene:
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


class _Form(NamedTuple):
    """Which numbers of a reservation are variables, and which follow from others.

    Args:
        tokens: so many a slot are one of the variable; 0: the variable is all tokens.
        outputs: ``tokens`` or ``slots`` if there are as many; else they are a variable of their own.
        all_slots: every slot is in the batch; else it is one.
    """

    tokens: int
    outputs: str
    all_slots: bool


class _Kind(NamedTuple):
    """What decides the shape of a graph beside its layout. In *batch* what is variable is 0."""

    form: _Form
    batch: Batch
    embedding: bool
    type_k: str | int
    type_v: str | int


class Replays:
    """The recordings of one model on the same devices.

    Args:
        spec, family: of the model.
        patience: so many times nothing is recorded: whoever asks that seldom is served faster without.
    """

    def __init__(self, spec: ModelSpec, family: Family, patience: int) -> None:
        self._spec, self._family = spec, family
        self._scenes: dict[Hashable, _Scene] = {}
        self._takes: dict[Hashable, list[Take]] = {}
        self._unproven: set[Hashable] = set()
        self._players: dict[Hashable, Player] = {}
        self._probes: dict[Hashable, tuple[_Scene, list[_Probe]]] = {}
        #: which blocks look alike, with fused attention and without; nothing else tells blocks apart by number
        self._looks: dict[bool, dict[int, int]] = {}
        #: a number for each kind of block, and for each look of one
        self._numbers: dict[Hashable, int] = {}
        self._layouts = 0
        self._patience = patience
        self._plays = plays(spec, family)

    def layout(self, settings: LlamaCppSettings, resolved: Resolved, placements: tuple[Placement, ...]) -> Layout:
        """A layout of this model."""
        self._layouts += 1
        return Layout(self._layouts, setup_of(self._spec, self._family, settings, resolved, placements))

    def compute_bytes(self, asked: Weighed) -> dict[str, int]:
        """As ``compute.compute_bytes``.

        Raises:
            UsageError: if the engine would abort over the size of the graph.
        """
        setup, resolved = asked.layout.setup, asked.resolved
        if self._patience > 0 or not self._plays:
            self._patience -= 1
            return compute_bytes(
                self._spec,
                self._family,
                asked.settings,
                resolved,
                caches=asked.caches(),
                placements=setup.placements,
                states=asked.states,
            )
        fused = self._fuses(asked)
        sizes: list[int] = []
        for reservation in reservations(self._spec, resolved):
            peaks, parts = self._reserve(asked, reservation, fused=fused)
            setup.check(parts, resolved)
            sizes = [max(pair) for pair in zip(sizes, peaks, strict=True)] if sizes else peaks
        return named(setup, sizes)

    def _fuses(self, asked: Weighed) -> bool:
        """As ``compute.fuses_attention``, which is asked once where the same drawing comes to the same end."""
        resolved, settings, setup = asked.resolved, asked.settings, asked.layout.setup
        if not resolved.flash_attn or not may_be_refused(settings, resolved, [g.device for g in asked.groups]):
            return resolved.flash_attn
        slots = resolved.n_seq_max
        kind, batch, variables = _kind_of(asked, Reservation(slots, slots, slots), fused=True)
        key = asked.layout.number, kind
        if key not in self._probes:
            self._probes[key] = self._scene(asked, kind, batch), []
        scene, known = self._probes[key]
        values = Values(variables)
        probe = next((probe for probe in known if values.meet(probe.conditions)), None)
        if probe is None:
            trace = Trace()
            drawing = _draw(asked, kind, variables, trace, scene.blocks)
            parts, repeated = _parts(drawing, scene)
            fused = runs_beside_caches(setup, resolved, drawing.graph, drawing.caches)
            probe = _Probe(tuple(trace.conditions), fused, parts, repeated)
            known.append(probe)
        setup.check(_all_parts(probe.parts, probe.repeated, scene), resolved)
        return probe.fused

    def _reserve(self, asked: Weighed, reservation: Reservation, *, fused: bool) -> tuple[list[int], int]:
        """The peak of every buffer, and the nodes and leaves of the graph."""
        kind, batch, variables = _kind_of(asked, reservation, fused=fused)
        scene = self._scenes.get((asked.layout.number, kind))
        if scene is None:
            scene = self._scenes[asked.layout.number, kind] = self._scene(asked, kind, batch)
        known = scene.peaks.get(variables)
        if known is None:
            values = Values(variables)
            take = next((take for take in scene.takes if values.meet(take.conditions)), None)
            if take is None:
                take = self._record(asked, scene, kind, variables)
            if take.copies_blocks and not asked.layout.exact_types:
                asked.layout.exact_types = True
                return self._reserve(asked, reservation, fused=fused)
            peaks = [player.peak(rounded(tape, values), scene.repeats) for tape, player in take.tapes]
            known = scene.peaks[variables] = peaks, _all_parts(take.parts, take.repeated, scene)
        return known

    def _scene(self, asked: Weighed, kind: _Kind, batch: Batch) -> _Scene:
        """What to draw for *kind* in this layout, with the recordings that others have made of the same."""
        layout, setup, caches = asked.layout, asked.layout.setup, asked.caches()
        blocks = _blocks_of(self._spec, self._family, caches)
        if blocks is None or batch.draft_head:
            return _Scene(None, (), [])
        by_block = {cache.block: cache for cache in caches}
        states = {state.block: state for state in asked.states}
        drawn = self._looks.get(kind.batch.flash_attn)
        if drawn is None:
            looks = _look(setup._replace(settings=asked.settings), batch, caches, asked.states)
            numbers = self._numbers
            drawn = self._looks[kind.batch.flash_attn] = {
                b: numbers.setdefault(look, len(numbers)) for b, look in looks.items()
            }
        kinds = [
            self._numbers.setdefault(what, len(self._numbers))
            for what in (
                (
                    setup.layer_backends[block],
                    _what_is_kept(setup, by_block.get(block), states.get(block)),
                    drawn.get(block),
                    layout.weights.get(block),
                )
                for block in blocks
            )
        ]
        short = abridge(kinds)
        pattern = (
            tuple(kinds[block] for block in short.blocks),
            tuple(run[:2] for run in short.runs),
            layout.loose,
            setup.layer_backends[-1],
            len(setup.backends),
            asked.resolved.pipeline,
            setup.settings.op_offload,
            setup.settings.kv_offload,
            kind,
        )
        if pattern in self._unproven:
            return _Scene(None, (), [])
        chosen = tuple(blocks[place] for place in short.blocks)
        return _Scene(chosen, short.runs, self._takes.setdefault(pattern, []), pattern)

    def _record(self, asked: Weighed, scene: _Scene, kind: _Kind, variables: tuple[int, ...]) -> Take:
        """Draw, schedule and record once more, for these *variables* and all that go the same way."""
        trace, setup = Trace(), asked.layout.setup
        drawing = _draw(asked, kind, variables, trace, scene.blocks)
        parts, repeated = _parts(drawing, scene)
        nodes, leaves = setup.scheduler(drawing.graph, pipeline=asked.resolved.pipeline).ordered()
        cuts = _cuts(drawing.sketch, [node for node, _ in nodes], scene)
        tapes = record(nodes, leaves, measure_of(setup.devices), cuts)
        if tapes is None:
            # equal blocks leave different marks: nothing may stand for anything here
            self._unproven.add(scene.pattern)
            scene.be_whole()
            return self._record(asked, scene, kind, variables)
        take = Take(
            conditions=tuple(trace.conditions),
            tapes=tuple((tape, self._player(tape)) for tape in tapes),
            parts=parts,
            repeated=repeated,
            copies_blocks=any(node.kind[0] > 1 and node.home is None and node.view is None for node, _ in nodes),
        )
        scene.takes.append(take)
        return take

    def _player(self, tape: Tape) -> Player:
        key = (tape.parts, tuple(counts_outputs(size, _COUNT_OUTPUTS) for size, _ in tape.sizes))
        player = self._players.get(key)
        if player is None:
            player = self._players[key] = Player(tape, _COUNT_OUTPUTS)
        return player


class _Drawing(NamedTuple):
    """A drawing, and the caches of the blocks that are in it."""

    sketch: Sketch
    graph: Graph
    caches: tuple[CacheLayer, ...]


def _kind_of(asked: Weighed, reservation: Reservation, *, fused: bool) -> tuple[_Kind, Batch, tuple[int, ...]]:
    """What kind of graph a reservation has, its batch in numbers, and the values of the variables."""
    layout, settings, resolved, rows = asked.layout, asked.settings, asked.resolved, asked.resolved.n_seq_max
    window = next((group.cells for group in asked.groups if group.window), 0)
    tokens, outputs = reservation.tokens, reservation.outputs
    each, count = _token_form(tokens, rows)
    as_many = "tokens" if outputs == tokens else "slots" if outputs == rows else ""
    batch = batch_of(resolved, reservation, flash_attn=fused, pins=True, windowed=window > 0)
    unified = 1 if resolved.n_stream == 1 else 0
    kind = _Kind(
        _Form(each, as_many, reservation.slots == rows),
        batch._replace(tokens=0, outputs=0, slots=0, rows=0, streams=unified, context=0, all_cells=0, micro=0),
        settings.embedding,
        _type_key(settings.type_k, exact=layout.exact_types),
        _type_key(settings.type_v, exact=layout.exact_types),
    )
    full = resolved.n_ctx_seq // CELLS
    return kind, batch, (full, max(1, window // CELLS), count, 1 if as_many else outputs, rows, resolved.n_ubatch)


def _draw(
    asked: Weighed, kind: _Kind, variables: tuple[int, ...], trace: Trace, blocks: tuple[int, ...] | None
) -> _Drawing:
    """A graph of *kind*, of all blocks or only of *blocks*, with variables in place of numbers."""
    form, caches, states = kind.form, asked.caches(), asked.states
    full, window, tokens, outputs, slots, micro = (trace.variable(i, value) for i, value in enumerate(variables))
    if blocks is not None:
        shown = frozenset(blocks)
        caches = tuple(cache for cache in caches if cache.block in shown)
        states = tuple(state for state in states if state.block in shown)
    caches = tuple(cache._replace(cells=CELLS * (window if cache.window else full)) for cache in caches)
    all_tokens = form.tokens * tokens * slots if form.tokens else tokens
    batch = kind.batch._replace(
        tokens=all_tokens,
        outputs={"tokens": all_tokens, "slots": slots}.get(form.outputs, outputs),
        streams=kind.batch.streams or slots,
        slots=slots if form.all_slots else 1,
        rows=slots,
        context=CELLS * full,
        all_cells=CELLS * full * (kind.batch.streams or slots),
        micro=micro,
    )
    sketch, graph = asked.layout.setup._replace(settings=asked.settings).draw(batch, caches, states, blocks)
    return _Drawing(sketch, graph, caches)


def _token_form(tokens: int, slots: int) -> tuple[int, int]:
    """How *tokens* are counted: (tokens a slot that the variable counts, the variable)."""
    each, rest = divmod(tokens, slots)
    if rest:
        return 0, tokens
    return (1, each) if each % _CHUNK else (_CHUNK, each // _CHUNK)


def _type_key(name: str, *, exact: bool) -> str | int:
    """Cache types that make the same graph, and the same sizes of what isn't the cache itself."""
    kind = CACHE_TYPES[name]
    return name if exact else 0 if kind.block_size > 1 else kind.block_bytes


def plays(spec: ModelSpec, family: Family) -> bool:
    """Whether recordings are made of this model: its drawing takes all sizes from the batch and the caches."""
    plain = family.drawing in _PLAYED and family.sparse in {False, True}
    return plain and loop_count(spec) == 1 and not number(spec, "hyper_connection.count")


def _blocks_of(spec: ModelSpec, family: Family, caches: tuple[CacheLayer, ...]) -> Sequence[int] | None:
    """The blocks of a drawing in which some may stand for others; None for other drawings."""
    if family.drawing not in _ABRIDGED:
        return None
    if family.recurrent:
        return range(trunk_length(spec))
    return [cache.block for cache in caches] or None


def _look(
    setup: Setup, batch: Batch, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]
) -> dict[int, Hashable]:
    """What each block looks like in a drawing of all: its operations and their shapes, whatever made them so."""
    sketch, graph = setup.draw(batch, caches, states)
    first = _first_places(sketch, graph.nodes)
    places = sorted((place, block) for block, place in first.items())
    looks: dict[int, Hashable] = {}
    for (start, block), (end, _) in pairwise([*places, (len(graph.nodes), -1)]):
        looks[block] = tuple((node.op, node.kind, node.ne, node.backend is None) for node in graph.nodes[start:end])
    return looks


def _what_is_kept(setup: Setup, cache: CacheLayer | None, state: StateLayer | None) -> Hashable:
    """What a block keeps, apart from its length."""
    kept: list[Hashable] = []
    if cache:
        kept += [setup.backends[cache.device], cache.window, cache.k_width, cache.v_width, cache.k_head]
        kept += [cache.v_head, cache.shared, cache.index_width]
    if state:
        kept += [setup.backends[state.device], state.r_width, state.s_width]
    return tuple(kept)


def _first_places(sketch: Sketch, nodes: Iterable[Node]) -> dict[int, int]:
    """Where among *nodes* each block begins: with the first of its weights."""
    first: dict[int, int] = {}
    for place, node in enumerate(nodes):
        for src in node.srcs or (node,):
            block = sketch.block_of.get(src)
            if block is not None:
                first.setdefault(block, place)
    return first


def _parts(drawing: _Drawing, scene: _Scene) -> tuple[int, tuple[int, ...]]:
    """Nodes and leaves as drawn, and how many of them each further copy of a run has."""
    nodes, leaves = drawing.graph.nodes, drawing.graph.leaves
    cuts = zip(_cuts(drawing.sketch, nodes, scene), _cuts(drawing.sketch, leaves, scene), strict=True)
    return len(nodes) + len(leaves), tuple(a[2] - a[1] + b[2] - b[1] for a, b in cuts)


def _all_parts(parts: int, repeated: tuple[int, ...], scene: _Scene) -> int:
    """Nodes and leaves of the whole graph."""
    return parts + sum(n * (repeats - 1) for n, repeats in zip(repeated, scene.repeats, strict=True))


def _cuts(sketch: Sketch, nodes: Iterable[Node], scene: _Scene) -> list[tuple[int, int, int]]:
    """Where among *nodes* the second, the third and the last copy of each run begin."""
    if not scene.runs or scene.blocks is None:
        return []
    first = _first_places(sketch, nodes)
    cuts = []
    for run in scene.runs:
        second, third, last = (first[scene.blocks[run.first + copy * run.period]] for copy in range(3))
        cuts.append((second, third, last))
    return cuts

"""Drawings with variables in place of numbers, of all blocks or of those that stand for the rest.

In: what is asked, the kind of graph, values. Out: the drawing, and where in it the copies of a run begin.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from terazi.memory.llama_cpp.blocks import loop_count, trunk_length
from terazi.memory.llama_cpp.compute import Setup
from terazi.memory.llama_cpp.dims import Trace
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer, number
from terazi.memory.llama_cpp.resolve import CELLS
from terazi.memory.llama_cpp.scene import Kind, Scene, Weighed
from terazi.memory.llama_cpp.sketch import Batch, Sketch
from terazi.models.spec import ModelSpec

#: Drawings whose blocks may stand for each other: each is drawn from what it is, not from how many there are.
_ABRIDGED = frozenset({"decoder", "gemma4"})
#: Drawings that are recorded at all; the others look at more than their caches and the batch.
_PLAYED = _ABRIDGED | {"gemma3n", "encoder", "diffusion", "rwkv"}


class Drawing(NamedTuple):
    """A drawing, and the caches of the blocks that are in it."""

    sketch: Sketch
    graph: Graph
    caches: tuple[CacheLayer, ...]


def draw_kind(
    asked: Weighed, kind: Kind, variables: tuple[int, ...], trace: Trace, blocks: tuple[int, ...] | None
) -> Drawing:
    """A graph of *kind*, of all blocks or only of *blocks*, with variables in place of numbers."""
    form, caches, states = kind.form, asked.caches(), asked.states
    # cells of the full and of the window cache, in units; tokens a slot, in units; the others as they are
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
    return Drawing(sketch, graph, caches)


def plays(spec: ModelSpec, family: Family) -> bool:
    """Whether recordings are made of this model: its drawing takes all sizes from the batch and the caches."""
    plain = family.drawing in _PLAYED and family.sparse in {False, True}
    return plain and loop_count(spec) == 1 and not number(spec, "hyper_connection.count")


def blocks_of(spec: ModelSpec, family: Family, caches: tuple[CacheLayer, ...]) -> Sequence[int] | None:
    """The blocks of a drawing in which some may stand for others; None for other drawings."""
    if family.drawing not in _ABRIDGED:
        return None
    if family.recurrent:
        return range(trunk_length(spec))
    return [cache.block for cache in caches] or None


def looks_of(
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


def what_is_kept(setup: Setup, cache: CacheLayer | None, state: StateLayer | None) -> Hashable:
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


def parts_of(drawing: Drawing, scene: Scene) -> tuple[int, tuple[int, ...]]:
    """Nodes and leaves as drawn, and how many of them each further copy of a run has."""
    nodes, leaves = drawing.graph.nodes, drawing.graph.leaves
    cuts = zip(cuts_of(drawing.sketch, nodes, scene), cuts_of(drawing.sketch, leaves, scene), strict=True)
    return len(nodes) + len(leaves), tuple(a[2] - a[1] + b[2] - b[1] for a, b in cuts)


def all_parts(parts: int, repeated: tuple[int, ...], scene: Scene) -> int:
    """Nodes and leaves of the whole graph."""
    return parts + sum(n * (repeats - 1) for n, repeats in zip(repeated, scene.repeats, strict=True))


def cuts_of(sketch: Sketch, nodes: Iterable[Node], scene: Scene) -> list[tuple[int, int, int]]:
    """Where among *nodes* the second, the third and the last copy of each run begin."""
    if not scene.runs or scene.blocks is None:
        return []
    first = _first_places(sketch, nodes)
    cuts = []
    for run in scene.runs:
        second, third, last = (first[scene.blocks[run.first + copy * run.period]] for copy in range(3))
        cuts.append((second, third, last))
    return cuts

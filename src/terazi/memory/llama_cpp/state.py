"""Recurrent state in the graph: the read at the start of a block, the write at its end.

Source: ``src/llama-graph.cpp`` (``build_rs``, ``build_rs_inp_impl``), b11434, as of a reservation. As a rule every
slot is in the batch, so the part that moves states of slots outside it is there, with no elements.
"""

from collections.abc import Callable
from typing import NamedTuple

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.sketch import Sketch


class StateInputs(NamedTuple):
    """Which state each slot starts from: the whole list, those in the batch, and all but the first."""

    every: Node
    batch: Node
    tail: Node


class States(NamedTuple):
    """The two caches of one block, and the list that all blocks share."""

    convolved: Node
    carried: Node
    inputs: StateInputs


def state_inputs(sketch: Sketch) -> StateInputs:
    """The input that all recurrent blocks read their slots from."""
    slots, rows = sketch.batch.slots, sketch.batch.rows
    every = sketch.input(g.I32, rows)
    return StateInputs(every, g.view(every, (slots,)), g.view(every, (rows - 1,)))


def states_of(sketch: Sketch, layer: StateLayer, inputs: StateInputs) -> States:
    """The caches of *layer* as tensors."""
    caches = [
        g.leaf(g.F32, width, sketch.batch.rows * sketch.batch.kept) for width in (layer.r_width, layer.s_width)
    ]
    for cache in caches:
        cache.home = sketch.backends[layer.device]
    return States(caches[0], caches[1], inputs)


def load(
    sketch: Sketch, cache: Node, inputs: StateInputs, take: Callable[[Node, Node], Node] | None = None
) -> Node:
    """Read the states of *cache*: copied out, or handed to *take* together with the list of slots in the batch."""
    width, slots, rest = cache.ne[0], sketch.batch.slots, sketch.batch.rows - sketch.batch.slots
    states = g.reshape(cache, width, cache.ne[1])
    # a slot that starts afresh is set to zero first
    zero = g.view(states, (width,))
    sketch.graph.expand(Node("scale", zero.kind, zero.ne, (zero,), nb=zero.nb, view=zero))
    rows = g.get_rows(states, inputs.tail if take else inputs.every)
    result = take(states, inputs.batch) if take else g.view(rows, (width, slots), (rows.nb[1],))
    sketch.graph.expand(result)
    store(sketch, g.view(rows, (width, rest), (rows.nb[1],)), g.view(cache, (width, rest), (cache.nb[1],)))
    return result


def store(sketch: Sketch, source: Node, target: Node) -> None:
    """``ggml_cpy`` to a part of a cache."""
    sketch.graph.expand(g.copy(source, target))


def store_tail(sketch: Sketch, x: Node, states: States, count: int) -> None:
    """Write the last columns of what is convolved back to its cache, and *count* - 1 earlier states."""
    slots, channels = sketch.batch.slots, x.ne[1]
    width = states.convolved.ne[0]
    for _ in range(count):
        store(
            sketch,
            g.view(x, (width // channels, channels, slots), x.nb[1:3]),
            g.view(states.convolved, (width, slots), states.convolved.nb[1:2]),
        )


def store_scanned(sketch: Sketch, scanned: Node, states: States, count: int) -> None:
    """Write *count* states from the end of a scan's result to their cache."""
    size, slots = states.carried.ne[0], sketch.batch.slots
    row = 4 * size
    store(
        sketch,
        g.view(scanned, (size, slots, count), (row, row * slots)),
        g.view(states.carried, (size, slots, count), (states.carried.nb[1], row * slots)),
    )

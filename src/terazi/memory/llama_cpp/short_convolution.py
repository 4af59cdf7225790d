"""The gated short convolution of LFM2 in the graph.

Source: ``src/models/lfm2.cpp``, b11434: ``build_shortconv_block``.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.state import States, load, store_tail


def short_convolution(sketch: Sketch, x: Node, block: int, states: States) -> Node:
    """From the normalised input to the output projection."""
    name, slots = f"blk.{block}.shortconv", sketch.batch.slots
    tokens, width = sketch.batch.tokens // slots, sketch.spec.embedding_length
    joined = sketch.linear(g.reshape(x, x.ne[0], tokens, slots), f"{name}.in_proj")
    b, c, x = (g.view(joined, (joined.ne[0] // 3, tokens, slots), joined.nb[1:3]) for _ in range(3))
    gated = g.transpose(g.like("mul", b, x))
    past = load(sketch, states.convolved, states.inputs)
    gated = g.concat(g.reshape(past, states.convolved.ne[0] // width, width, slots), gated, 0)
    store_tail(sketch, gated, states, min(tokens, sketch.batch.kept))
    y = g.like("mul", c, g.state_convolution(gated, sketch.need(f"{name}.conv.weight")))
    y = sketch.linear(y, f"{name}.out_proj")
    return g.reshape(y, y.ne[0], tokens * slots)

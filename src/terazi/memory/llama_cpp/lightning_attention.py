"""The graph of MiniMax-Text-01: lightning attention in seven blocks of eight, which carry a state and no cache.

Source: ``src/models/minimax-01.cpp``, b11434. What is added after each half is its normalised input, scaled.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import Position, all_cache_inputs, attend
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.state import States, load, state_inputs, states_of, store


def draw_lightning(sketch: Sketch, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    batch, blocks = sketch.batch, sketch.spec.block_count
    x = sketch.embeddings()
    shared = state_inputs(sketch)
    lightning = _Lightning(sketch)
    position = Position(sketch.input(g.I32, batch.tokens), None)
    inputs = all_cache_inputs(sketch, caches)
    wanted = sketch.input(g.I32, batch.outputs)
    by_block = {cache.block: cache for cache in caches}
    recurring = {layer.block: states_of(sketch, layer, shared) for layer in states}
    for block in range(blocks):
        residual = x = sketch.norm(x, f"blk.{block}.attn_norm", block)
        if block in recurring:
            x = lightning.attend(x, block, recurring[block])
        else:
            x = attend(sketch, x, position, by_block[block], inputs[False])
        if block == blocks - 1:
            x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
        inner = g.like("add", x, g.like("scale", residual))
        residual = sketch.norm(inner, f"blk.{block}.ffn_norm", block)
        x = g.like("add", feed_forward(sketch, residual, block), g.like("scale", residual))
    hidden = sketch.norm(x, "output_norm", None)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    return sketch.graph


class _Lightning:
    """Lightning attention, with the decays that all blocks share."""

    def __init__(self, sketch: Sketch) -> None:
        batch = sketch.batch
        self._sketch = sketch
        self._heads, self._width = max(sketch.spec.head_count), sketch.spec.key_length
        self._tokens = tokens = batch.tokens // batch.slots
        self._slopes = sketch.input(g.F32, self._heads)
        self._q_decay = sketch.input(g.F32, 1, self._heads, tokens, batch.slots)
        self._k_decay = sketch.input(g.F32, 1, self._heads, tokens, batch.slots)
        self._diagonal = sketch.input(g.F32, tokens, tokens, self._heads, batch.slots)

    def attend(self, x: Node, block: int, states: States) -> Node:
        """From the normalised input to the output projection."""
        sketch, name = self._sketch, f"blk.{block}"
        heads, width, tokens, slots = self._heads, self._width, self._tokens, self._sketch.batch.slots
        load(sketch, states.convolved, states.inputs)  # of no elements
        slope = g.like("scale", self._slopes)
        x = g.reshape(x, x.ne[0], tokens, 1, slots)
        joined = g.like("unary", sketch.linear(x, f"{name}.attn_qkv"))
        joined = g.reshape(joined, 3 * width, heads, tokens, slots)
        q, k, v = (g.view(joined, (width, heads, tokens, slots), joined.nb[1:4]) for _ in range(3))
        carried = load(sketch, states.carried, states.inputs)
        carried = g.reshape(carried, width, width, heads, slots)
        q_decay, k_decay, diagonal = (
            g.like("unary", g.like("scale", decay)) for decay in (self._q_decay, self._k_decay, self._diagonal)
        )
        before = g.mul_mat(carried, g.swap_heads(g.like("mul", q, q_decay)))
        scores = g.like("mul", g.mul_mat(g.swap_heads(k), g.swap_heads(q)), diagonal)
        turned = g.contiguous(g.streams_first(v))
        y = g.like("add", before, g.mul_mat(turned, scores))
        sketch.graph.expand(y)
        faded = g.reshape(g.like("unary", g.like("scale", slope)), 1, 1, heads)
        kept = g.like("mul", carried, faded)
        added = g.mul_mat(g.contiguous(g.streams_first(g.like("mul", k, k_decay))), turned)
        size = states.carried.ne[0] * slots
        store(sketch, g.like("add", kept, added), g.view(states.carried, (size,)))
        y = g.contiguous(g.swap_heads(y))
        y = sketch.norm(g.reshape(y, width * heads, tokens, 1, slots), f"{name}.attn_norm_2", block)
        gate = g.like("unary", sketch.linear(x, f"{name}.attn_gate"))
        y = sketch.linear(g.like("mul", gate, y), f"{name}.attn_output")
        return g.reshape(y, y.ne[0], tokens * slots)

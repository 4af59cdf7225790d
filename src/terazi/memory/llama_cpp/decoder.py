"""The graph of a decoder-only model, as the engine builds it for a reservation.

Source: ``src/models/*.cpp`` of build b11434, one ``build_arch_graph`` a family.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import attend, cache_inputs
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch


def draw_decoder(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    family, batch = sketch.family, sketch.batch
    x = sketch.embeddings()
    position = sketch.input(g.I32, batch.tokens)
    cells = {cache.window: cache.cells for cache in caches}
    inputs = {window: cache_inputs(sketch, cells[window]) for window in sorted(cells)}
    wanted = sketch.input(g.I32, batch.outputs)
    for cache in caches:
        block = cache.block
        residual = x
        x = sketch.norm(x, f"blk.{block}.attn_norm", block)
        x = attend(sketch, x, position, cache, inputs[cache.window])
        if cache is caches[-1]:
            x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
        if family.post_norms:
            x = sketch.norm(x, f"blk.{block}.post_attention_norm", block)
        inner = g.like("add", x, residual)
        x = feed_forward(sketch, sketch.norm(inner, f"blk.{block}.ffn_norm", block), block)
        if family.post_norms:
            x = sketch.norm(x, f"blk.{block}.post_ffw_norm", None)
        x = g.like("add", x, inner)
    hidden = sketch.norm(x, "output_norm", None)
    logits = g.mul_mat(sketch.output_matrix(), hidden)
    hidden.is_output = logits.is_output = True
    sketch.graph.expand(logits)
    return sketch.graph

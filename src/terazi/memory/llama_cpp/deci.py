"""The graph of Nemotron's searched models (DeciLM): a block may lack attention, its feed-forward half, or both.

Source: ``src/models/deci.cpp``, b11434. A block with query heads and no heads for keys is linear: one matrix. One
without feed-forward leaves its input as it is: the engine computes its attention and drops the result.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import Position, all_cache_inputs, attend
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch


def draw_deci(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    spec, batch = sketch.spec, sketch.batch
    x = sketch.embeddings()
    position = Position(sketch.input(g.I32, batch.tokens), None)
    inputs = all_cache_inputs(sketch, caches)
    wanted = sketch.input(g.I32, batch.outputs)
    by_block = {cache.block: cache for cache in caches if cache.k_width}
    for block, (heads, width) in enumerate(zip(spec.head_count, spec.feed_forward_length, strict=True)):
        residual, cache = x, by_block.get(block)
        mixed = sketch.norm(x, f"blk.{block}.attn_norm", block) if heads else x
        if cache:
            mixed = attend(sketch, mixed, position, cache, inputs[cache.window])
        elif heads:
            mixed = g.mul_mat(sketch.need(f"blk.{block}.attn_output.weight"), mixed)
        if block == spec.block_count - 1:
            mixed, residual = g.get_rows(mixed, wanted), g.get_rows(residual, wanted)
        if not width:
            continue
        inner = g.like("add", mixed, residual) if heads else mixed
        x = sketch.norm(inner, f"blk.{block}.ffn_norm", block)
        x = g.like("add", feed_forward(sketch, x, block), inner)
    hidden = sketch.norm(x, "output_norm", None)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    return sketch.graph

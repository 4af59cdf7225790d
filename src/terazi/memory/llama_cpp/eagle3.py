"""The graph of an EAGLE3 draft: one block that reads a token beside what three layers of the model think of it.

Source, b11434: ``src/models/eagle3.cpp`` (the decoder; the encoder's graph is smaller and takes no part in the
reservation). All rows of a batch get logits. Embedding and output matrix may be the model's (``ctx_other``).
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import Position, all_cache_inputs, attend_cached
from terazi.memory.llama_cpp.draft_head import draw_sampling
from terazi.memory.llama_cpp.feed_forward import dense
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch


def draw_eagle3(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the draft and return its graph, ready for the scheduler."""
    batch, cache = sketch.batch, caches[0]
    embedded = g.get_rows(sketch.need("token_embd.weight"), sketch.input(g.I32, batch.tokens))
    features = sketch.input(g.F32, sketch.spec.embedding_length, batch.tokens)
    position = Position(sketch.input(g.I32, batch.tokens), None)
    inputs = all_cache_inputs(sketch, caches)[cache.window]

    embedded = sketch.norm(embedded, "blk.0.attn_norm", 0)
    normed = sketch.norm(features, "blk.0.attn_norm_2", None)
    residual = normed if sketch.spec.metadata.get("eagle3.norm_before_residual") else features
    x = g.concat(embedded, normed, 0)
    shapes = ((cache.k_head, sketch.spec.head_count[0]), *((cache.k_head, sketch.spec.head_count_kv[0]),) * 2)
    flat = [sketch.linear(x, f"blk.0.attn_{part}") for part in "qkv"]
    q, k, v = (g.reshape(part, *shape, batch.tokens) for part, shape in zip(flat, shapes, strict=True))
    factors = tuple(filter(None, (sketch.weight("blk.0.rope_freqs.weight"),)))
    q, k = (g.like("rope", part, position.place, *factors) for part in (q, k))
    x = attend_cached(sketch, (q, k, v), cache, inputs)
    inner = g.like("add", x, residual)
    x = g.like("add", dense(sketch, sketch.norm(inner, "blk.0.ffn_norm", 0), "blk.0"), inner)
    x.is_output = True  # the next step starts from it
    logits = g.mul_mat(sketch.output_matrix(), sketch.norm(x, "output_norm", None))
    mapped = sketch.weight("d2t")
    if mapped:
        logits = _in_target_vocabulary(sketch, logits, mapped)
    logits.is_output = True
    sketch.graph.expand(logits)
    if batch.samples:
        draw_sampling(sketch, logits)
    return sketch.graph


def _in_target_vocabulary(sketch: Sketch, logits: Node, mapped: Node) -> Node:
    """Logits of the draft's own, smaller vocabulary, set into rows of minus infinity."""
    count, rows, tokens = logits.ne[0], logits.ne[1], sketch.spec.vocab_size
    nothing = g.like("fill", g.leaf(g.F32, 1, tokens, rows))
    chosen = g.set_rows(nothing, g.reshape(logits, 1, count, rows), g.reshape(mapped, count, 1, 1))
    return g.reshape(chosen, tokens, rows)

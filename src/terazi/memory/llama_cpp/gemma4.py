"""The graph of Gemma 4, and the per-layer embeddings that it shares with Gemma 3n.

Source, b11434: ``src/models/gemma4.cpp``. Window layers have narrower heads; the last layers may read the cache of
earlier ones; values are normalised, and may be the keys themselves; experts work beside a dense feed-forward.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, all_cache_inputs, attend_cached, attend_shared
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.feed_forward import dense, experts
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch


def draw_gemma4(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    x = sketch.embeddings()
    place = sketch.input(g.I32, sketch.batch.tokens)
    inputs = all_cache_inputs(sketch, caches)
    wanted = sketch.input(g.I32, sketch.batch.outputs)
    per_layer = per_layer_inputs(sketch, x) if sketch.weight("per_layer_token_embd.weight") else None
    for cache in caches:
        x = _block(sketch, x, place, cache, inputs[cache.window])
        name = f"blk.{cache.block}"
        if per_layer:
            own = sketch.linear(x, f"{name}.inp_gate")
            x = g.like("add", x, per_layer_output(sketch, g.like("unary", own), per_layer, cache.block))
        scale = sketch.weight(f"{name}.layer_output_scale.weight")
        if scale:
            x = g.like("mul", x, scale)
    x = sketch.norm(x, "output_norm", None)
    x.is_output = True
    hidden = g.get_rows(x, wanted)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    return sketch.graph


def per_layer_inputs(sketch: Sketch, x: Node) -> Node:
    """A small embedding of each token for each layer: (width, tokens, layers)."""
    tokens, blocks = sketch.batch.tokens, sketch.spec.block_count
    table = sketch.need("per_layer_token_embd.weight")
    width = table.ne[0] // blocks
    looked_up = g.get_rows(table, sketch.input(g.I32, tokens))
    looked_up = g.like("scale", g.reshape(looked_up, width, blocks, tokens))
    sketch.graph.expand(looked_up)
    projected = g.like("scale", g.mul_mat(sketch.need("per_layer_model_proj.weight"), x))
    projected = sketch.norm(g.reshape(projected, width, blocks, tokens), "per_layer_proj_norm", None)
    return g.contiguous(g.swap_heads(g.like("scale", g.like("add", projected, looked_up))))


def per_layer_output(sketch: Sketch, gate: Node, per_layer: Node, block: int) -> Node:
    """What a block adds for its per-layer embedding, once *gate* has been computed."""
    width, tokens = per_layer.ne[:2]
    x = g.like("mul", gate, g.view(per_layer, (width, tokens), (4 * width,)))
    return sketch.norm(sketch.linear(x, f"blk.{block}.proj"), f"blk.{block}.post_norm", block)


def _block(sketch: Sketch, x: Node, place: Node, cache: CacheLayer, inputs: CacheInputs) -> Node:
    block, name = cache.block, f"blk.{cache.block}"
    residual = x
    x = _attend(sketch, sketch.norm(x, f"{name}.attn_norm", block), place, cache, inputs)
    inner = g.like("add", sketch.norm(x, f"{name}.post_attention_norm", block), residual)
    x = dense(sketch, sketch.norm(inner, f"{name}.ffn_norm", block), name)
    router = sketch.weight(f"{name}.ffn_gate_inp.weight")
    if router:
        x = sketch.norm(x, f"{name}.post_ffw_norm_1", block)
        mixed = sketch.norm(inner, f"{name}.pre_ffw_norm_2", block)
        # the router looks at the block's input, normalised without a weight of its own
        logits = g.like("scale", g.like("rms_norm", inner))
        logits = g.mul_mat(router, g.like("mul", logits, sketch.need(f"{name}.ffn_gate_inp.scale")))
        mixed = sketch.norm(experts(sketch, mixed, name, logits), f"{name}.post_ffw_norm_2", block)
        x = g.like("add", x, mixed)
    x = sketch.norm(x, f"{name}.post_ffw_norm", None)
    return g.like("add", x, inner)


def _attend(sketch: Sketch, x: Node, place: Node, cache: CacheLayer, inputs: CacheInputs) -> Node:
    spec, tokens, name = sketch.spec, sketch.batch.tokens, f"blk.{cache.block}"
    heads, kv_heads = spec.head_count[cache.block], spec.head_count_kv[cache.block]
    # only layers that see everything have frequency factors
    factors = None if cache.window else sketch.shared_weight("rope_freqs.weight", cache.block)
    turning = (place, factors) if factors else (place,)

    def turned(part: Node, which: str) -> Node:
        return g.like("rope", sketch.norm(part, f"{name}.attn_{which}_norm", cache.block), *turning)

    joined = sketch.linear(x, f"{name}.attn_qkv") if sketch.weight(f"{name}.attn_qkv.weight") else None

    def projected(which: str, count: int) -> Node:
        if joined:
            part = g.contiguous(g.view(joined, (cache.k_head * count, tokens), (joined.nb[1],)))
        else:
            part = sketch.linear(x, f"{name}.attn_{which}")
        return g.reshape(part, cache.k_head, count, tokens)

    q = turned(projected("q", heads), "q")
    if cache.shared:
        return attend_shared(sketch, q, cache, inputs)
    k = projected("k", kv_heads)
    if joined or sketch.weight(f"{name}.attn_v.weight"):
        v = projected("v", kv_heads)
    else:
        v = g.reshape(k.srcs[0], cache.k_head, kv_heads, tokens)
    return attend_cached(sketch, (q, turned(k, "k"), g.like("rms_norm", v)), cache, inputs)

"""The graph of Gemma 3n: four streams of activations (AltUp), a low-rank bypass (Laurel), per-layer embeddings.

Source, b11434: ``src/models/gemma3n.cpp``, whose functions have the same names here. The number of streams and of
sparse layers are constants of the engine.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, all_cache_inputs, attend_cached, attend_shared, project
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.gemma4 import per_layer_inputs, per_layer_output
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch

#: ``llama_hparams::n_altup``.
_STREAMS = 4
#: ``n_layer_sparsity``: so many layers, from the first, drop all but the strongest activations.
_SPARSE_LAYERS = 10


def draw_gemma3n(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    x = sketch.embeddings()
    place = sketch.input(g.I32, sketch.batch.tokens)
    inputs = all_cache_inputs(sketch, caches)
    per_layer = per_layer_inputs(sketch, x)
    width, tokens = x.ne[:2]
    repeated = Node("repeat", g.F32, (width, tokens, _STREAMS - 1, 1), (x,))
    x = g.concat(x, _as_large(g.mul_mat(sketch.need("altup_proj.weight"), repeated), x), 2)
    for cache in caches:
        x = _block(sketch, x, place, cache, (inputs[cache.window], per_layer))

    others = _as_large(g.mul_mat(sketch.need("altup_unembd_proj.weight"), _other_streams(x)), _stream(x))
    x = _stream(x)
    for _ in range(_STREAMS - 1):
        x = g.like("add", x, _stream(others))
    x = g.get_rows(g.like("scale", x), sketch.input(g.I32, sketch.batch.outputs))
    hidden = sketch.norm(x, "output_norm", None)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    return sketch.graph


def _stream(x: Node) -> Node:
    """One stream of all; which one makes no difference here."""
    return g.view(x, x.ne[:2], (x.nb[1],))


def _other_streams(x: Node) -> Node:
    return g.view(x, (*x.ne[:2], _STREAMS - 1), x.nb[1:3])


def _magnitude(x: Node) -> Node:
    return g.like("sqrt", g.sum_rows(g.like("sqr", x)))


def _as_large(x: Node, model: Node) -> Node:
    """*x*, scaled to the magnitude of *model*."""
    return g.like("div", g.like("mul", x, _magnitude(model)), _magnitude(x))


def _block(sketch: Sketch, streams: Node, place: Node, cache: CacheLayer, inputs: tuple[CacheInputs, Node]) -> Node:
    block, name = cache.block, f"blk.{cache.block}"
    cache_inputs, per_layer = inputs
    predictions = _predict(sketch, streams, block)
    active = _stream(predictions)
    x = sketch.norm(active, f"{name}.attn_norm", block)
    bypass = sketch.linear(sketch.linear(x, f"{name}.laurel_l"), f"{name}.laurel_r")
    bypass = g.like("add", sketch.norm(bypass, f"{name}.laurel_post_norm", block), x)
    x = _attend(sketch, x, place, cache, cache_inputs)
    x = g.like("add", sketch.norm(x, f"{name}.post_attention_norm", block), active)
    inner = g.like("scale", g.like("add", x, bypass))
    x = _feed_forward(sketch, sketch.norm(inner, f"{name}.ffn_norm", block), block)
    x = g.like("add", sketch.norm(x, f"{name}.post_ffw_norm", None), inner)
    corrected = _correct(sketch, predictions, x, block)
    first = g.like("mul", _stream(corrected), sketch.need(f"{name}.altup_correct_scale.weight"))
    first = g.like("unary", sketch.linear(first, f"{name}.inp_gate"))
    first = per_layer_output(sketch, first, per_layer, block)
    return g.concat(_stream(corrected), g.like("add", _other_streams(corrected), first), 2)


def _attend(sketch: Sketch, x: Node, place: Node, cache: CacheLayer, inputs: CacheInputs) -> Node:
    block, name = cache.block, f"blk.{cache.block}"
    heads, tokens = sketch.spec.head_count[block], sketch.batch.tokens
    if not cache.shared:
        q, k, v = project(sketch, x, cache)
        q, k = sketch.norm(q, f"{name}.attn_q_norm", block), sketch.norm(k, f"{name}.attn_k_norm", block)
        q, k = g.like("rope", q, place), g.like("rope", k, place)
        return attend_cached(sketch, (q, k, g.like("rms_norm", v)), cache, inputs)
    if sketch.weight(f"{name}.attn_qkv.weight"):
        joined = sketch.linear(x, f"{name}.attn_qkv")
        q = g.contiguous(g.view(joined, (cache.k_head * heads, tokens), (joined.nb[1],)))
    else:
        q = sketch.linear(x, f"{name}.attn_q")
    q = sketch.norm(g.reshape(q, cache.k_head, heads, tokens), f"{name}.attn_q_norm", block)
    return attend_shared(sketch, g.like("rope", q, place), cache, inputs)


def _feed_forward(sketch: Sketch, x: Node, block: int) -> Node:
    up = sketch.linear(x, f"blk.{block}.ffn_up")
    gate = sketch.linear(x, f"blk.{block}.ffn_gate")
    if block < _SPARSE_LAYERS:
        gate = _strongest(gate)
    return sketch.linear(g.like("mul", up, g.like("unary", gate)), f"blk.{block}.ffn_down")


def _strongest(x: Node) -> Node:
    """``gaussian_topk``."""
    mean = Node("mean", g.F32, (1, *x.ne[1:]), (x,))
    spread = g.like("sqrt", g.like("scale", g.sum_rows(g.like("sqr", g.like("sub", x, mean)))))
    cutoff = g.like("add", mean, g.like("scale", spread))
    return g.like("unary", g.like("sub", x, cutoff))


def _modalities(sketch: Sketch, x: Node, block: int) -> Node:
    """``altup_compute_router_modalities``."""
    x = g.like("scale", sketch.norm(x, f"blk.{block}.altup_router_norm", block))
    return g.like("unary", g.mul_mat(sketch.need(f"blk.{block}.altup_router.weight"), x))


def _predict(sketch: Sketch, x: Node, block: int) -> Node:
    """``altup_predict``."""
    modalities = _modalities(sketch, _stream(x), block)
    factors = sketch.linear(modalities, f"blk.{block}.altup_predict_coef")
    factors = g.reshape(factors, _STREAMS, _STREAMS, x.ne[1])
    predictions = g.mul_mat(g.contiguous(g.streams_first(x)), factors)
    return g.like("add", g.contiguous(g.swap_heads(predictions)), x)


def _correct(sketch: Sketch, predictions: Node, activated: Node, block: int) -> Node:
    """``altup_correct``."""
    width, tokens = activated.ne[:2]
    modalities = _modalities(sketch, activated, block)
    innovation = g.like("sub", activated, _stream(predictions))
    factors = g.like("scale", sketch.linear(modalities, f"blk.{block}.altup_correct_coef"))
    factors = g.contiguous(g.transpose(factors), 1, tokens, _STREAMS)
    repeated = Node("repeat", g.F32, (width, tokens, _STREAMS, 1), (innovation,))
    return g.like("add", g.like("mul", repeated, factors), predictions)

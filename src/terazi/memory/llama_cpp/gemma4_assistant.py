"""The graph of Gemma 4's assistants: drafts without a cache, which read the last caches of the model itself.

Source, b11434: ``src/models/gemma4-assistant.cpp``, and ``layer_share_cb`` of ``llama_model::create_memory``. A
token is looked up in the model's table and joined with the model's hidden state.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, all_cache_inputs, attend_shared
from terazi.memory.llama_cpp.cache_rules import window_layers
from terazi.memory.llama_cpp.draft_head import draw_sampling
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.feed_forward import dense
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.weights import LENT
from terazi.models.spec import ModelSpec


def shared_caches(spec: ModelSpec, family: Family, lent: tuple[CacheLayer, ...]) -> tuple[CacheLayer, ...]:
    """The cache that each block reads: the model's last, or its last but one for windows."""
    windows = window_layers(spec, family)
    return tuple(
        lent[-2 if window else -1]._replace(block=block, k_bytes=0, v_bytes=0, shared=True)
        for block, window in enumerate(windows)
    )


def draw_gemma4_assistant(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the draft and return its graph, ready for the scheduler."""
    tokens = sketch.batch.tokens
    first, last = sketch.need("nextn.pre_projection.weight"), sketch.need("nextn.post_projection.weight")
    table = sketch.need(f"{LENT}token_embd.weight")
    x = g.like("scale", g.get_rows(table, sketch.input(g.I32, tokens)))
    x = g.mul_mat(first, g.concat(x, sketch.input(g.F32, first.ne[0] - x.ne[0], tokens), 0))
    place = sketch.input(g.I32, tokens)
    inputs = all_cache_inputs(sketch, caches)
    wanted = sketch.input(g.I32, sketch.batch.outputs)
    for cache in caches:
        rows = wanted if cache is caches[-1] else None
        x = _draw_block(sketch, x, place, cache, (inputs[cache.window], rows))
    x = sketch.norm(x, "output_norm", None)
    logits, hidden = g.mul_mat(sketch.output_matrix(), x), g.mul_mat(last, x)
    for result in (logits, hidden):
        result.is_output = True
        sketch.graph.expand(result)
    if sketch.batch.samples:
        draw_sampling(sketch, logits)
    return sketch.graph


def _draw_block(
    sketch: Sketch, x: Node, place: Node, cache: CacheLayer, given: tuple[CacheInputs, Node | None]
) -> Node:
    """One block; the second of what is *given* are the rows that go on after the last attention."""
    (inputs, wanted), block, name, residual = given, cache.block, f"blk.{cache.block}", x
    q = sketch.linear(sketch.norm(x, f"{name}.attn_norm", block), f"{name}.attn_q")
    heads = sketch.spec.head_count[block]
    q = sketch.norm(g.reshape(q, cache.k_head, heads, sketch.batch.tokens), f"{name}.attn_q_norm", block)
    factors = None if cache.window else sketch.shared_weight("rope_freqs.weight", block)
    q = g.like("rope", q, place, *((factors,) if factors else ()))
    x = attend_shared(sketch, q, cache, inputs)
    if wanted:
        x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
    inner = g.like("add", sketch.norm(x, f"{name}.post_attention_norm", block), residual)
    x = dense(sketch, sketch.norm(inner, f"{name}.ffn_norm", block), name)
    x = g.like("add", sketch.norm(x, f"{name}.post_ffw_norm", None), inner)
    return g.like("mul", x, sketch.need(f"{name}.layer_output_scale.weight"))

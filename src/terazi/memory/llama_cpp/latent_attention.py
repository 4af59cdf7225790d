"""Multi-head latent attention in the graph: K and V come from one compressed row a token.

Source, b11434: ``src/models/deepseek2.cpp``. Files with ``key_length_mla`` keep only the compressed row, which all
heads share; the queries are taken into its space and the values back out of it. Older files hold one matrix for
both (``attn_kv_b``): they keep full K and V.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import (
    CacheInputs,
    Position,
    attend_cached,
    multi_head,
    rope_factors,
    store_k,
    view_heads,
)
from terazi.memory.llama_cpp.cache_rules import stores_latent
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch


def attend_latent(sketch: Sketch, x: Node, position: Position, cache: CacheLayer, inputs: CacheInputs) -> Node:
    """The attention of one block, from the normalised input to the output projection."""
    heads, tokens = sketch.spec.head_count[cache.block], sketch.batch.tokens
    q = _queries(sketch, x, cache.block)
    q = g.reshape(q, q.ne[0] // heads, heads, tokens)
    if stores_latent(sketch.spec, sketch.family):
        parts = compress(sketch, x, q, position, cache)
        gate = sketch.weight(f"blk.{cache.block}.attn_gate.weight") if sketch.family.gated else None
        factor = g.reshape(g.mul_mat(gate, x), 1, heads, tokens) if gate else None
        return attend_compressed(sketch, parts, cache, inputs, inputs.mask, gate=factor)
    kept, k_turned = _row(sketch, x, position, cache)
    q = _scaled(_turned(sketch, q, position, cache.block), position)
    return attend_cached(sketch, (q, *_decompressed(sketch, kept, k_turned, cache)), cache, inputs)


def compress(sketch: Sketch, x: Node, q: Node, position: Position, cache: CacheLayer) -> tuple[Node, Node, Node]:
    """Queries, keys and values in the compressed space; keys and values are one head for all.

    *q* holds the queries of all heads, a row a token.
    """
    heads, tokens = sketch.spec.head_count[cache.block], sketch.batch.tokens
    kept, k_turned = _row(sketch, x, position, cache)
    turned, rank = k_turned.ne[0], kept.ne[0]
    width = q.elements // heads // tokens
    steps = (4 * width, 4 * width * heads)
    q_turned = _turned(sketch, g.view(q, (turned, heads, tokens), steps), position, cache.block)
    q_plain = g.swap_heads(g.view(q, (width - turned, heads, tokens), steps))
    absorbed = g.swap_heads(g.mul_mat(sketch.need(f"blk.{cache.block}.attn_k_b.weight"), q_plain))
    q = _scaled(g.concat(absorbed, q_turned, 0), position)
    v = g.reshape(kept, rank, 1, tokens)
    return q, g.concat(v, k_turned, 0), v


def attend_compressed(
    sketch: Sketch,
    parts: tuple[Node, Node, Node],
    cache: CacheLayer,
    inputs: CacheInputs,
    mask: Node,
    *,
    gate: Node | None = None,
) -> Node:
    """``build_attn`` with a cache of K alone: the values are the first part of each row of it.

    A *gate* (1, heads, tokens) multiplies what the heads put out.
    """
    q, k, v = parts
    rank = v.ne[0]
    for root in (q, v, k):
        sketch.graph.expand(root)
    k_cache = store_k(sketch, k, cache, inputs)
    k = view_heads(k_cache, cache.k_head, 1, cache.cells, sketch.batch.streams)
    v = g.view(k, (rank, *k.ne[1:]), k.nb[1:])
    x = multi_head(sketch, (q, k, v), mask, decompress=sketch.need(f"blk.{cache.block}.attn_v_b.weight"))
    if gate:
        each = g.reshape(x, x.ne[0] // gate.ne[1], gate.ne[1], x.ne[1])
        x = g.contiguous(g.like("mul", each, g.like("unary", gate)), *x.ne[:2])
    return sketch.linear(x, f"blk.{cache.block}.attn_output")


def _row(sketch: Sketch, x: Node, position: Position, cache: CacheLayer) -> tuple[Node, Node]:
    """The compressed row of each token: the part that is kept as it is, and the part that is turned."""
    tokens, name = sketch.batch.tokens, f"blk.{cache.block}"
    value = sketch.spec.metadata.get(f"{sketch.spec.architecture}.rope.dimension_count", cache.k_head)
    turned = value if isinstance(value, int) else cache.k_head
    row = g.mul_mat(sketch.need(f"{name}.attn_kv_a_mqa.weight"), x)
    k_turned = _turned(sketch, g.view(row, (turned, 1, tokens), (row.nb[1], row.nb[1])), position, cache.block)
    kept = g.view(row, (row.ne[0] - turned, tokens), (row.nb[1],))
    return sketch.norm(kept, f"{name}.attn_kv_a_norm", cache.block), k_turned


def _turned(sketch: Sketch, x: Node, position: Position, block: int) -> Node:
    if sketch.family.rope == "none":
        return x
    factors = rope_factors(sketch, block) if sketch.family.rope_factors else None
    return g.like("rope", x, position.place, *((factors,) if factors else ()))


def _queries(sketch: Sketch, x: Node, block: int) -> Node:
    """Straight, or by way of a compressed row of their own."""
    direct = sketch.weight(f"blk.{block}.attn_q.weight")
    if direct:
        return g.mul_mat(direct, x)
    x = g.mul_mat(sketch.need(f"blk.{block}.attn_q_a.weight"), x)
    x = sketch.norm(x, f"blk.{block}.attn_q_a_norm", block)
    return g.mul_mat(sketch.need(f"blk.{block}.attn_q_b.weight"), x)


def _decompressed(sketch: Sketch, kept: Node, k_turned: Node, cache: CacheLayer) -> tuple[Node, Node]:
    """Keys and values of each head, as files without ``key_length_mla`` have them."""
    tokens, heads, turned = sketch.batch.tokens, sketch.spec.head_count_kv[cache.block], k_turned.ne[0]
    both = g.mul_mat(sketch.need(f"blk.{cache.block}.attn_kv_b.weight"), kept)
    step = 4 * (cache.k_head - turned + cache.v_head)
    k_plain = g.view(both, (cache.k_head - turned, heads, tokens), (step, step * heads))
    v = g.contiguous(g.view(both, (cache.v_head, heads, tokens), (step, step * heads)))
    k = g.concat(k_plain, Node("repeat", g.F32, (turned, heads, tokens, 1), (k_turned,)), 0)
    return k, v


def _scaled(q: Node, position: Position) -> Node:
    return g.like("mul", q, position.factor) if position.factor else q

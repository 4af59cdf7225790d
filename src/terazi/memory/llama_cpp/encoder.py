"""The graph of an encoder (BERT and its kin): every token sees every other, nothing is cached, no logits.

Source, b11434: ``src/models/bert.cpp``, which draws all of them, and ``llm_graph_context::build_attn`` without a
cache. A micro-batch holds whole texts, so the mask is as wide as it is long.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import multi_head
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.pooling import draw_pooling
from terazi.memory.llama_cpp.sketch import Sketch


def draw_encoder(sketch: Sketch) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    batch = sketch.batch
    place = sketch.input(g.I32, batch.tokens)
    x = _embedded(sketch, place)
    mask = sketch.input(g.F16 if batch.flash_attn else g.F32, batch.tokens, batch.tokens)
    wanted = sketch.input(g.I32, batch.outputs)
    for block in range(sketch.spec.block_count):
        name, residual = f"blk.{block}", x
        x = _attend(sketch, x, place, mask, block)
        if block == sketch.spec.block_count - 1:
            x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
        inner = sketch.norm(g.like("add", x, residual), f"{name}.attn_output_norm", block)
        if sketch.weight(f"{name}.attn_norm_2.weight"):
            inner = sketch.norm(g.like("add", inner, residual), f"{name}.attn_norm_2", block)
        x = g.like("add", feed_forward(sketch, inner, block), inner)
        x = sketch.norm(x, f"{name}.layer_output_norm", block)
    x.is_output = True
    sketch.graph.expand(x)
    draw_pooling(sketch, x)
    return sketch.graph


def _embedded(sketch: Sketch, place: Node) -> Node:
    """Tokens, the kind of sentence (always the first), and places where they are learnt."""
    x = sketch.embeddings()
    kinds, places = sketch.weight("token_types.weight"), sketch.weight("position_embd.weight")
    if kinds:
        x = g.like("add", x, g.view(kinds, (x.ne[0],)))
    if places:
        x = g.like("add", g.get_rows(places, place), x)
    return sketch.norm(x, "token_embd_norm", 0)


def _attend(sketch: Sketch, x: Node, place: Node, mask: Node, block: int) -> Node:
    spec, tokens, name = sketch.spec, sketch.batch.tokens, f"blk.{block}"
    heads, kv_heads, width = spec.head_count[block], spec.head_count_kv[block], spec.key_length
    counts = (heads, kv_heads, kv_heads)
    if sketch.weight(f"{name}.attn_qkv.weight"):
        joined = sketch.linear(x, f"{name}.attn_qkv")
        q, k, v = (g.view(joined, (width, count, tokens), (4 * width, joined.nb[1])) for count in counts)
    else:
        parts = (sketch.linear(x, f"{name}.attn_{part}") for part in "qkv")
        q, k, v = (g.reshape(part, width, count, tokens) for part, count in zip(parts, counts, strict=True))
    q, k = _normed(sketch, q, f"{name}.attn_q_norm", block), _normed(sketch, k, f"{name}.attn_k_norm", block)
    if sketch.family.rope == "all":
        q, k = g.like("rope", q, place), g.like("rope", k, place)
    for root in (q, k, v):
        sketch.graph.expand(root)
    return sketch.linear(multi_head(sketch, (q, k, v), mask), f"{name}.attn_output")


def _normed(sketch: Sketch, x: Node, name: str, block: int) -> Node:
    if not sketch.weight(f"{name}.weight"):
        return x
    width, heads, tokens, _ = x.ne
    return g.reshape(sketch.norm(g.reshape(x, width * heads, tokens), name, block), width, heads, tokens)

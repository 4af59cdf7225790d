"""The graph of an encoder: every token sees every other, or those near it; nothing is cached, there are no logits.

Sources, b11434: ``src/models/bert.cpp``, which draws BERT and its kin with norms behind each half;
``modern-bert.cpp``, ``eurobert.cpp``, ``neo-bert.cpp`` and ``gemma-embedding.cpp`` with norms before, as are those
that diffuse a text and have logits (``dream.cpp``, ``llada.cpp``, ``llada-moe.cpp``, ``rnd1.cpp``);
``llm_graph_context::build_attn`` without a cache. A micro-batch holds whole texts, so the mask is as wide as long.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import multi_head, rope_factors
from terazi.memory.llama_cpp.cache_rules import window_layers
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.pooling import draw_pooling
from terazi.memory.llama_cpp.sketch import Sketch


def draw_encoder(sketch: Sketch) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    batch, family = sketch.batch, sketch.family
    place = sketch.input(g.I32, batch.tokens)
    x = _embedded(sketch, place)
    kind = g.F16 if batch.flash_attn else g.F32
    masks = [sketch.input(kind, batch.tokens, batch.tokens) for _ in range(2)]
    wanted = sketch.input(g.I32, batch.outputs)
    for block, window in enumerate(window_layers(sketch.spec, sketch.family)):
        residual = x
        if sketch.weight(f"blk.{block}.attn_norm.weight"):
            x = sketch.norm(x, f"blk.{block}.attn_norm", block)
        x = _attend(sketch, x, place, masks[window], block)
        if block == sketch.spec.block_count - 1:
            x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
        after = sketch.weight(f"blk.{block}.attn_output_norm.weight")
        x = _norms_behind(sketch, x, residual, block) if after else _norms_before(sketch, x, residual, block)
    for name in ("output_norm", "enc.output_norm"):
        if sketch.weight(f"{name}.weight"):
            x = sketch.norm(x, name, None)
    x.is_output = True
    if family.drawing == "diffusion":
        draw_logits(sketch, x)
    else:
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
    return sketch.norm(x, "token_embd_norm", 0) if sketch.weight("token_embd_norm.weight") else x


def _norms_behind(sketch: Sketch, x: Node, residual: Node, block: int) -> Node:
    name = f"blk.{block}"
    inner = sketch.norm(g.like("add", x, residual), f"{name}.attn_output_norm", block)
    if sketch.weight(f"{name}.attn_norm_2.weight"):
        inner = sketch.norm(g.like("add", inner, residual), f"{name}.attn_norm_2", block)
    x = g.like("add", feed_forward(sketch, inner, block), inner)
    return sketch.norm(x, f"{name}.layer_output_norm", block)


def _norms_before(sketch: Sketch, x: Node, residual: Node, block: int) -> Node:
    name, both = f"blk.{block}", sketch.family.post_norms
    if both:
        x = sketch.norm(x, f"{name}.post_attention_norm", block)
    inner = g.like("add", x, residual)
    x = feed_forward(sketch, sketch.norm(inner, f"{name}.ffn_norm", block), block)
    if both:
        x = sketch.norm(x, f"{name}.post_ffw_norm", None)
    return g.like("add", x, inner)


def _attend(sketch: Sketch, x: Node, place: Node, mask: Node, block: int) -> Node:
    spec, family, tokens, name = sketch.spec, sketch.family, sketch.batch.tokens, f"blk.{block}"
    heads, kv_heads, width = spec.head_count[block], spec.head_count_kv[block], spec.key_length
    counts = (heads, kv_heads, kv_heads)
    if sketch.weight(f"{name}.attn_qkv.weight"):
        joined = sketch.linear(x, f"{name}.attn_qkv")
        q, k, v = (g.view(joined, (width, count, tokens), (4 * width, joined.nb[1])) for count in counts)
    else:
        parts = (sketch.linear(x, f"{name}.attn_{part}") for part in "qkv")
        q, k, v = (g.reshape(part, width, count, tokens) for part, count in zip(parts, counts, strict=True))
    q, k = _normed(sketch, q, f"{name}.attn_q_norm", block), _normed(sketch, k, f"{name}.attn_k_norm", block)
    if family.rope == "all":
        factors = rope_factors(sketch, block) if family.rope_factors else None
        q, k = (g.like("rope", part, place, *((factors,) if factors else ())) for part in (q, k))
    if family.scaled_queries:
        q = g.like("scale", q)
    for root in (q, k, v):
        sketch.graph.expand(root)
    return sketch.linear(multi_head(sketch, (q, k, v), mask), f"{name}.attn_output")


def _normed(sketch: Sketch, x: Node, name: str, block: int) -> Node:
    """Queries or keys normalised per head, or over all heads at once."""
    if not sketch.weight(f"{name}.weight"):
        return x
    if sketch.family.qk_norm == "head":
        return sketch.norm(x, name, block)
    width, heads, tokens, _ = x.ne
    return g.reshape(sketch.norm(g.reshape(x, width * heads, tokens), name, block), width, heads, tokens)

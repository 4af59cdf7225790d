"""The graph of a decoder-only model, as the engine builds it for a reservation.

Source: ``src/models/*.cpp`` of build b11434, one ``build_arch_graph`` a family.
"""

from collections.abc import Callable
from typing import TypeAlias

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, Position, all_cache_inputs, attend
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch

#: Draws the attention of one block, from the normalised input to the output projection.
Attention: TypeAlias = Callable[[Sketch, Node, Position, CacheLayer, CacheInputs], Node]


def draw_decoder(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    family, batch = sketch.family, sketch.batch
    x = embedded = sketch.embeddings()
    position = Position(sketch.input(g.I32, batch.tokens * places(sketch)), _temperature(sketch))
    learnt = sketch.weight("position_embd.weight")
    if learnt:
        x = g.like("add", x, g.get_rows(learnt, position.place))
    inputs = all_cache_inputs(sketch, caches)
    wanted = sketch.input(g.I32, batch.outputs)
    attention = _attention(sketch, caches)
    for cache in caches:
        if family.parallel:
            from terazi.memory.llama_cpp.parallel import draw_parallel, runs_parallel

            if runs_parallel(sketch, cache.block):
                rows = wanted if cache is caches[-1] else None
                x = draw_parallel(sketch, x, position, cache, (inputs[cache.window], rows))
                continue
        residual = x
        if family.pre_norms:
            x = sketch.norm(x, f"blk.{cache.block}.attn_norm", cache.block)
        x = attention(sketch, x, position, cache, inputs[cache.window])
        if cache is caches[-1] and not family.select_last:
            # only the wanted rows go on after the last attention
            x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
        x = sketch.steer(_feed_forward_half(sketch, x, residual, cache.block), cache.block)
        if cache.block < sketch.deep_inputs:
            # an image's embedding brings a part for each of the first layers
            x = g.like("add", x, g.view(embedded, x.ne[:2], (embedded.nb[1],)))
    if family.select_last:
        x.is_output = True
        x = g.get_rows(x, wanted)
    hidden = sketch.norm(x, "output_norm", None)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    if sketch.settings.embedding:
        from terazi.memory.llama_cpp.pooling import draw_pooling

        draw_pooling(sketch, hidden)
    return sketch.graph


def places(sketch: Sketch) -> int:
    """Numbers that say where a token stands: one, or four if rotary embeddings are cut into sections."""
    if sketch.family.sectioned == "always":
        return 4
    sections = sketch.spec.metadata.get(f"{sketch.spec.architecture}.rope.dimension_sections")
    return 4 if sketch.family.sectioned and isinstance(sections, tuple) and any(sections[:2]) else 1


def draw_logits(sketch: Sketch, hidden: Node) -> None:
    """The output matrix, its bias and the cap on the logits, where the model has them."""
    logits = g.mul_mat(sketch.output_matrix(), hidden)
    bias = sketch.weight("output.bias")
    if bias:
        logits = g.like("add", logits, bias)
    if (sketch.family.parallel or sketch.family.scaled_residuals) and sketch.spec.metadata.get(
        f"{sketch.spec.architecture}.logit_scale"
    ):
        logits = g.like("scale", logits)
    cap = sketch.spec.metadata.get(f"{sketch.spec.architecture}.final_logit_softcapping", 0)
    if cap:
        logits = g.like("scale", g.like("unary", g.like("scale", logits)))
    logits.is_output = True
    sketch.graph.expand(logits)


def _temperature(sketch: Sketch) -> Node | None:
    """A factor a token (``build_inp_attn_scale``)."""
    key = sketch.family.tempered
    if key is None or (key != "unturned" and not sketch.spec.metadata.get(f"{sketch.spec.architecture}.{key}")):
        return None
    return sketch.input(g.F32, 1, 1, sketch.batch.tokens)


def _attention(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Attention:
    if sketch.family.sparse:
        from terazi.memory.llama_cpp.sparse_attention import SparseAttention

        return SparseAttention(sketch, caches).attend
    if sketch.family.latent:
        from terazi.memory.llama_cpp.latent_attention import attend_latent

        return attend_latent
    return attend


def _feed_forward_half(sketch: Sketch, x: Node, residual: Node, block: int) -> Node:
    family = sketch.family
    if family.post_norms:
        x = sketch.norm(x, f"blk.{block}.post_attention_norm", block)
    if family.scaled_residuals:
        x = g.like("scale", x)
    inner = g.like("add", x, residual)
    x = sketch.norm(inner, f"blk.{block}.{family.ffn_norm}", block) if family.pre_norms else inner
    x = feed_forward(sketch, x, block)
    if family.post_norms:
        x = sketch.norm(x, f"blk.{block}.post_ffw_norm", block if family.post_norms == "pinned" else None)
    if family.scaled_residuals:
        x = g.like("scale", x)
    return g.like("add", inner, x) if family.residual_first else g.like("add", x, inner)

"""The graph of a decoder-only model, as the engine builds it for a reservation.

Source: ``src/models/*.cpp`` of build b11434, one ``build_arch_graph`` a family.
"""

from collections.abc import Callable
from typing import TypeAlias

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, Position, all_cache_inputs, attend
from terazi.memory.llama_cpp.blocks import loop_count
from terazi.memory.llama_cpp.feed_forward import dense, experts, feed_forward
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
    if sketch.weight("token_embd_norm.weight"):
        x = sketch.norm(x, "token_embd_norm", 0)
    inputs = all_cache_inputs(sketch, caches)
    wanted = sketch.input(g.I32, batch.outputs)
    attention = _attention(sketch, caches)

    def attend_block(x: Node, cache: CacheLayer) -> Node:
        return attention(sketch, x, position, cache, inputs[cache.window])

    for cache in caches:
        rows = wanted if cache is caches[-1] and not family.select_last else None
        if family.parallel:
            from terazi.memory.llama_cpp.parallel import draw_parallel, runs_parallel

            if runs_parallel(sketch, cache.block):
                x = draw_parallel(sketch, x, position, cache, (inputs[cache.window], rows))
                continue
        x = sketch.steer(_draw_block(sketch, x, cache, attend_block, rows), cache.block)
        if _ends_loop(sketch, cache.block):
            x = sketch.norm(x, "output_norm", cache.block)
        if cache.block < sketch.deep_inputs:
            # an image's embedding brings a part for each of the first layers
            x = g.like("add", x, g.view(embedded, x.ne[:2], (embedded.nb[1],)))
    if family.select_last is True:
        x.is_output = True
        x = g.get_rows(x, wanted)
    hidden = sketch.norm(x, "output_norm", None)
    hidden.is_output = True
    if family.select_last == "after_norm":
        hidden = g.get_rows(hidden, wanted)
        hidden.is_output = True
    draw_logits(sketch, hidden)
    if sketch.settings.embedding:
        from terazi.memory.llama_cpp.pooling import draw_pooling

        draw_pooling(sketch, hidden)
    return sketch.graph


def _draw_block(
    sketch: Sketch, x: Node, cache: CacheLayer, attention: Callable[[Node, CacheLayer], Node], wanted: Node | None
) -> Node:
    """One block; with *wanted* only those rows go on after its attention."""
    family, block, residual, logits = sketch.family, cache.block, x, None
    if family.experts.early:
        logits = g.mul_mat(sketch.need(f"blk.{block}.ffn_gate_inp.weight"), x)
    if family.pre_norms:
        x = sketch.norm(x, f"blk.{block}.attn_norm", block)
    x = attention(x, cache)
    if family.rows_after_norm:
        x = norm_behind(sketch, x, block, 0)
    if wanted:
        x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
        logits = g.get_rows(logits, wanted) if logits else None
    if not family.rows_after_norm:
        x = norm_behind(sketch, x, block, 0)
    return _feed_forward_half(sketch, x, residual, block, logits)


def places(sketch: Sketch) -> int:
    """Numbers that say where a token stands: one, or four if rotary embeddings are cut into sections."""
    if sketch.family.sectioned == "always":
        return 4
    sections = sketch.spec.metadata.get(f"{sketch.spec.architecture}.rope.dimension_sections")
    return 4 if sketch.family.sectioned and isinstance(sections, tuple) and any(sections[:2]) else 1


def _ends_loop(sketch: Sketch, block: int) -> bool:
    """Whether the blocks are about to run once more, and the last norm runs in between."""
    spec = sketch.spec
    skips = spec.metadata.get(f"{spec.architecture}.skip_loop_final_norm", False)
    if loop_count(spec) == 1 or skips:
        return False
    return (block + 1) % (spec.block_count // loop_count(spec)) == 0 and block + 1 < spec.block_count


def draw_logits(sketch: Sketch, hidden: Node) -> None:
    """The output matrix, its bias and the cap on the logits, where the model has them."""
    family = sketch.family
    if family.scaled_logits == "hidden":
        hidden = g.like("scale", hidden)
    logits = g.mul_mat(sketch.output_matrix(), hidden)
    bias = sketch.weight("output.bias")
    if bias:
        logits = g.like("add", logits, bias)
    stated = sketch.spec.metadata.get(f"{sketch.spec.architecture}.logit_scale")
    scaled = family.parallel or family.scaled_residuals or family.scaled_logits
    if (scaled and stated and family.scaled_logits != "hidden") or family.scaled_logits == "always":
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
    if sketch.family.sparse == "blocks":
        from terazi.memory.llama_cpp.block_sparse import BlockSparseAttention

        return BlockSparseAttention(sketch).attend
    if sketch.family.sparse:
        from terazi.memory.llama_cpp.sparse_attention import SparseAttention

        return SparseAttention(sketch, caches).attend
    if sketch.family.latent:
        from terazi.memory.llama_cpp.latent_attention import attend_latent

        return attend_latent
    return attend


def norm_behind(sketch: Sketch, x: Node, block: int, half: int) -> Node:
    """The norm behind attention (*half* 0) or the feed-forward (1), if the family has them."""
    kind = sketch.family.post_norms
    if not kind:
        return x
    name = f"blk.{block}.{sketch.family.post_norm_names[half]}"
    if half and not sketch.weight(f"{name}.weight") and sketch.weight(f"blk.{block}.post_ffw_norm.weight"):
        name = f"blk.{block}.post_ffw_norm"  # Grok 1 and 2 differ
    pinned = kind == "pinned" or (half == 0 and kind != "free")
    return sketch.norm(x, name, block if pinned else None)


def _feed_forward_half(sketch: Sketch, x: Node, residual: Node, block: int, logits: Node | None) -> Node:
    family = sketch.family
    if family.scaled_residuals:
        x = g.like("scale", x)
    inner = g.like("add", residual, x) if family.residual_first == "attention" else g.like("add", x, residual)
    x = sketch.norm(inner, f"blk.{block}.{family.ffn_norm}", block) if family.pre_norms else inner
    if family.experts.from_residual:
        name = f"blk.{block}"
        inner = g.like("add", dense(sketch, x, name), inner)
        x = experts(sketch, sketch.norm(residual, f"{name}.ffn_norm_exps", block), name)
    else:
        x = feed_forward(sketch, x, block, logits)
    x = norm_behind(sketch, x, block, 1)
    if family.scaled_residuals:
        x = g.like("scale", x)
    return g.like("add", inner, x) if family.residual_first is True else g.like("add", x, inner)

"""The graph of a model's own draft head: one block behind the model's, fed with a token and a hidden state.

Source, b11434: ``graph_mtp`` of each file in ``src/models/``. They differ in how the block attends, in where the
wanted rows are picked, and in the last norm.
"""

from typing import NamedTuple

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, Position, all_cache_inputs, attend
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.decoder import Attention, places
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch

#: ``llama_sampler_init_top_k`` of each drafting kind in ``common/speculative.cpp``.
_BEST = 10


class Head(NamedTuple):
    """How one architecture's draft head is drawn.

    Args:
        attention: ``plain``, ``gated`` or ``latent``.
        picks: where only the wanted rows go on: ``attended`` (both halves of the sum), ``summed``, ``block``
            (after the whole block) or ``normed`` (after the last norm); ``never`` keeps all rows.
        norm: kind of the last norm.
    """

    attention: str = "plain"
    picks: str = "normed"
    norm: str | None = None


#: Architectures whose heads are drawn here.
HEADS = {
    "bailingmoe3": Head("latent"),
    "cohere2moe": Head(),
    "deepseek2": Head("latent"),
    "deepseek32": Head("latent"),
    "glm-dsa": Head("latent"),
    "glm4moe": Head(),
    "hy_v3": Head(),
    "mimo2": Head(picks="block"),
    "nemotron_h_moe": Head(picks="summed", norm="norm"),
    "qwen35": Head("gated"),
    "qwen35moe": Head("gated"),
    "qwen3next": Head("gated", picks="attended"),
    "step35": Head(picks="block"),
}


def draw_draft_head(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the head and return its graph, ready for the scheduler."""
    head, family, batch = HEADS[sketch.spec.architecture], sketch.family, sketch.batch
    block = trunk_length(sketch.spec)
    name, cache = f"blk.{block}", caches[0]
    table = sketch.weight(f"{name}.nextn.embed_tokens.weight") or sketch.need("token_embd.weight")
    embedded = g.get_rows(table, sketch.input(g.I32, batch.tokens))
    hidden = sketch.input(g.F32, sketch.spec.embedding_length, batch.tokens)
    numbers = family.recurrent.positions if family.recurrent else places(sketch)
    position = Position(sketch.input(g.I32, batch.tokens * numbers), None)
    inputs = all_cache_inputs(sketch, caches)[cache.window]
    wanted = sketch.input(g.I32, batch.outputs)

    hidden = sketch.norm(hidden, f"{name}.nextn.hnorm", block)
    embedded = sketch.norm(embedded, f"{name}.nextn.enorm", block)
    x = sketch.linear(g.concat(embedded, hidden, 0), f"{name}.nextn.eh_proj")
    x = _draw_block(sketch, head, x, (position, cache, inputs, wanted))
    if head.picks == "block":
        x = g.get_rows(x, wanted)
        x.is_output = True  # the next step starts from it
    x = _last_norm(sketch, x, name, head.norm)
    if head.picks != "block":
        x.is_output = True
    if head.picks == "normed":
        x = g.get_rows(x, wanted)
    _draw_logits(sketch, x, name)
    return sketch.graph


def _draw_block(sketch: Sketch, head: Head, x: Node, given: tuple[Position, CacheLayer, CacheInputs, Node]) -> Node:
    """The block itself; the last of what is *given* are the rows that are wanted."""
    position, cache, inputs, wanted = given
    name, block, residual = f"blk.{cache.block}", cache.block, x
    if sketch.family.parallel:
        from terazi.memory.llama_cpp.parallel import draw_parallel

        return draw_parallel(sketch, x, position, cache, (inputs, None))
    x = _attention(head)(sketch, sketch.norm(x, f"{name}.attn_norm", block), position, cache, inputs)
    if head.picks == "attended":
        x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
    x = g.like("add", x, residual)
    if head.picks == "summed":
        x = g.get_rows(x, wanted)
    inner = x
    x = sketch.norm(inner, f"{name}.{_ffn_norm(sketch)}", block)
    return g.like("add", feed_forward(sketch, x, block), inner)


def _attention(head: Head) -> Attention:
    if head.attention == "gated":
        from terazi.memory.llama_cpp.delta_net import attend_gated

        return attend_gated
    if head.attention == "latent":
        from terazi.memory.llama_cpp.latent_attention import attend_latent

        return attend_latent
    return attend


def _ffn_norm(sketch: Sketch) -> str:
    """The draft block's own; where blocks are either attention or feed-forward, only this one has both."""
    recurrent = sketch.family.recurrent
    return (recurrent.ffn_norm or "post_attention_norm") if recurrent else sketch.family.ffn_norm


def _last_norm(sketch: Sketch, x: Node, name: str, kind: str | None) -> Node:
    own = (f"{name}.nextn.shared_head_norm", f"{name}.layer_output_norm")
    found = next((norm for norm in own if sketch.weight(f"{norm}.weight")), "output_norm")
    return sketch.norm(x, found, None, kind=kind)


def _draw_logits(sketch: Sketch, x: Node, name: str) -> None:
    own = sketch.weight(f"{name}.nextn.shared_head_head.weight")
    logits = g.mul_mat(own or sketch.output_matrix(), x)
    if sketch.spec.metadata.get(f"{sketch.spec.architecture}.logit_scale"):
        logits = g.like("scale", logits)
    logits.is_output = True
    sketch.graph.expand(logits)
    if sketch.batch.samples:
        draw_sampling(sketch, logits)


def draw_sampling(sketch: Sketch, logits: Node) -> None:
    """``build_sampling`` with a chain of top-k for each sequence, of which each has one row of *logits*."""
    rows = Node("pad", g.F32, (logits.ne[0], logits.ne[1] + 1, 1, 1), (logits,))
    for _ in range(sketch.batch.slots):
        row = g.view(rows, (logits.ne[0],))
        best = Node("top_k", g.I32, (min(_BEST, logits.ne[0]), 1, 1, 1), (row,))
        values = g.get_rows(g.reshape(row, 1, logits.ne[0]), best)
        for chosen in (values, best):
            chosen.is_output = True
            sketch.graph.expand(chosen)

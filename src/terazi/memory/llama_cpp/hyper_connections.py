"""Hyper-connections: several residual streams, mixed before and after each half of a block.

Source, b11434: ``src/models/deepseek4.cpp`` (``build_hc_pre``, ``build_hc_sinkhorn``, ``build_hc_post``,
``build_hc_head``). Three fused operations do the work, unless one would run elsewhere than its layer: then the
engine draws that one step by step (``llama_context::resolve_fused_ops``).
"""

from typing import NamedTuple

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.recurrent import number
from terazi.memory.llama_cpp.sketch import Sketch

#: In the order in which the engine looks where they run.
FUSED = ("hc_pre", "hc_comb", "hc_post")


class Mixed(NamedTuple):
    """What goes into half a block, and how its output is spread over the streams again."""

    x: Node
    post: Node
    comb: Node
    block: int


def mix(sketch: Sketch, streams: Node, block: int, half: str) -> Mixed:
    """One input from all *streams* (width, streams, tokens), by weights learnt from themselves."""
    width, count, tokens, _ = streams.ne
    name = f"blk.{block}.hc_{half}"
    scale, base = sketch.need(f"{name}_scale.weight"), sketch.need(f"{name}_base.weight")
    flat = g.like("rms_norm", g.reshape(streams, width * count, tokens))
    mixes = g.mul_mat(sketch.need(f"{name}_fn.weight"), flat)
    pre, post = (
        g.like("scale", g.like("unary", _affine(part, g.view(scale, (1,)), g.view(base, (count,)))))
        for part in (g.view(mixes, (count, tokens), (mixes.nb[1],)) for _ in range(2))
    )
    if "hc_comb" in sketch.batch.taken_apart:
        part = g.view(mixes, (count * count, tokens), (mixes.nb[1],))
        part = _affine(part, g.view(scale, (1,)), g.view(base, (count * count,)))
        comb = _balanced(sketch, g.reshape(part, count, count, tokens))
    else:
        comb = _fused(sketch, Node("hc_comb", g.F32, (count, count, tokens, 1), (mixes, scale, base)), block)
    if "hc_pre" in sketch.batch.taken_apart:
        x = _weighed_sum(streams, pre)
    else:
        x = _fused(sketch, Node("hc_pre", g.F32, (width, tokens, 1, 1), (streams, pre)), block)
    return Mixed(x, post, comb, block)


def spread(sketch: Sketch, x: Node, streams: Node, mixed: Mixed) -> Node:
    """*x* added to all *streams*."""
    if "hc_post" not in sketch.batch.taken_apart:
        node = Node("hc_post", g.F32, streams.ne, (x, streams, mixed.post, mixed.comb))
        return _fused(sketch, node, mixed.block)
    width, count, tokens, _ = streams.ne
    result: Node | None = None
    for _ in range(count):
        part = g.like("mul", x, g.view(mixed.post, (1, tokens), (mixed.post.nb[1],)))
        for _ in range(count):
            stream = g.view(streams, (width, tokens), (streams.nb[2],))
            share = g.view(mixed.comb, (1, tokens), (mixed.comb.nb[2],))
            part = g.like("add", part, g.like("mul", stream, share))
        part = g.reshape(part, width, 1, tokens)
        result = g.concat(result, part, 1) if result else part
    if result is None:
        raise AssertionError("no streams")
    return result


def merge(sketch: Sketch, streams: Node, name: str) -> Node:
    """The sum of all *streams* at the end of the model."""
    width, count, tokens, _ = streams.ne
    flat = g.like("rms_norm", g.reshape(streams, width * count, tokens))
    mixes = g.mul_mat(sketch.need(f"{name}_fn.weight"), flat)
    mixes = _affine(mixes, sketch.need(f"{name}_scale.weight"), sketch.need(f"{name}_base.weight"))
    return _weighed_sum(streams, g.like("scale", g.like("unary", mixes)))


def _weighed_sum(streams: Node, weights: Node) -> Node:
    width, count, tokens, _ = streams.ne
    result: Node | None = None
    for _ in range(count):
        stream = g.view(streams, (width, tokens), (streams.nb[2],))
        part = g.like("mul", stream, g.view(weights, (1, tokens), (weights.nb[1],)))
        result = g.like("add", result, part) if result else part
    if result is None:
        raise AssertionError("no streams")
    return result


def _balanced(sketch: Sketch, comb: Node) -> Node:
    """Sinkhorn's iterations: columns and rows normalised in turn."""
    comb = g.like("soft_max", comb)
    floor = g.like("fill", g.leaf(g.F32, 1))
    comb = _by_columns(g.like("add", comb, floor), floor)
    for _ in range(number(sketch.spec, "hyper_connection.sinkhorn_iterations") - 1):
        comb = g.like("div", comb, g.like("add", g.sum_rows(comb), floor))
        comb = _by_columns(comb, floor)
    return comb


def _by_columns(comb: Node, floor: Node) -> Node:
    total = g.sum_rows(g.contiguous(g.permute(comb, 1, 0, 2, 3)))
    return g.like("div", comb, g.permute(g.like("add", total, floor), 1, 0, 2, 3))


def _fused(sketch: Sketch, node: Node, block: int) -> Node:
    sketch.fused.append((node, block))
    return node


def _affine(x: Node, scale: Node, base: Node) -> Node:
    return g.like("add", g.like("mul", x, scale), base)

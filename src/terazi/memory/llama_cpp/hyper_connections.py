"""Hyper-connections: several residual streams, mixed before and after each half of a block.

Source, b11434: ``src/models/deepseek4.cpp`` (``build_hc_pre``, ``build_hc_post``, ``build_hc_head``), fused.
"""

from typing import NamedTuple

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.sketch import Sketch


class Mixed(NamedTuple):
    """What goes into half a block, and how its output is spread over the streams again."""

    x: Node
    post: Node
    comb: Node


def mix(sketch: Sketch, streams: Node, name: str) -> Mixed:
    """One input from all *streams* (width, streams, tokens), by weights learnt from themselves."""
    width, count, tokens, _ = streams.ne
    scale, base = sketch.need(f"{name}_scale.weight"), sketch.need(f"{name}_base.weight")
    flat = g.like("rms_norm", g.reshape(streams, width * count, tokens))
    mixes = g.mul_mat(sketch.need(f"{name}_fn.weight"), flat)
    pre, post = (
        g.like("scale", g.like("unary", _affine(part, g.view(scale, (1,)), g.view(base, (count,)))))
        for part in (g.view(mixes, (count, tokens), (mixes.nb[1],)) for _ in range(2))
    )
    comb = Node("hc_comb", g.F32, (count, count, tokens, 1), (mixes, scale, base))
    return Mixed(Node("hc_pre", g.F32, (width, tokens, 1, 1), (streams, pre)), post, comb)


def spread(x: Node, streams: Node, mixed: Mixed) -> Node:
    """*x* added to all *streams*."""
    return Node("hc_post", g.F32, streams.ne, (x, streams, mixed.post, mixed.comb))


def merge(sketch: Sketch, streams: Node, name: str) -> Node:
    """The sum of all *streams* at the end of the model."""
    width, count, tokens, _ = streams.ne
    flat = g.like("rms_norm", g.reshape(streams, width * count, tokens))
    mixes = g.mul_mat(sketch.need(f"{name}_fn.weight"), flat)
    mixes = _affine(mixes, sketch.need(f"{name}_scale.weight"), sketch.need(f"{name}_base.weight"))
    weights = g.like("scale", g.like("unary", mixes))
    result: Node | None = None
    for _ in range(count):
        stream = g.view(streams, (width, tokens), (streams.nb[2],))
        part = g.like("mul", stream, g.view(weights, (1, tokens), (weights.nb[1],)))
        result = g.like("add", result, part) if result else part
    if result is None:
        raise AssertionError("no streams")
    return result


def _affine(x: Node, scale: Node, base: Node) -> Node:
    return g.like("add", g.like("mul", x, scale), base)

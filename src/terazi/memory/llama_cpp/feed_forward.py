"""The feed-forward half of a block in the graph: gated, plain, or a mixture of experts.

Source: ``src/llama-graph.cpp`` (``build_ffn``, ``build_moe_ffn``), b11434.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.sketch import Sketch


def feed_forward(sketch: Sketch, x: Node, block: int) -> Node:
    """From the normalised input to the sum that is added to the residual."""
    name = f"blk.{block}"
    if sketch.weight(f"{name}.ffn_gate_inp.weight"):
        return _experts(sketch, x, name)
    up = sketch.linear(x, f"{name}.ffn_up")
    if sketch.weight(f"{name}.ffn_gate.weight"):
        x = g.like("glu", sketch.linear(x, f"{name}.ffn_gate"), up)
    else:
        x = g.like("unary", up)
    return sketch.linear(x, f"{name}.ffn_down")


def _experts(sketch: Sketch, x: Node, name: str) -> Node:
    """Softmax gating, weights normalised over the experts chosen."""
    tokens, used, count = x.ne[1], sketch.spec.expert_used_count, sketch.spec.expert_count
    probabilities = g.like("soft_max", sketch.linear(x, f"{name}.ffn_gate_inp"))
    order = Node("argsort", g.I32, probabilities.ne, (probabilities,))
    chosen = g.view(order, (used, tokens), (order.nb[1],))
    weights = g.reshape(g.get_rows(g.reshape(probabilities, 1, count, tokens), chosen), used, tokens)
    total = g.like("clamp", Node("sum_rows", g.F32, (1, tokens, 1, 1), (weights,)))
    weights = g.reshape(g.like("div", weights, total), 1, used, tokens)
    sketch.graph.expand(weights)
    x = g.reshape(x, x.ne[0], 1, tokens)
    up = g.mul_mat_id(sketch.need(f"{name}.ffn_up_exps.weight"), x, chosen)
    gate = sketch.weight(f"{name}.ffn_gate_exps.weight")
    inner = g.like("glu", g.mul_mat_id(gate, x, chosen), up) if gate else g.like("unary", up)
    x = g.mul_mat_id(sketch.need(f"{name}.ffn_down_exps.weight"), inner, chosen)
    return _sum_experts(sketch, g.like("mul", x, weights), used)


def _sum_experts(sketch: Sketch, x: Node, used: int) -> Node:
    """All views first, then the additions, each added to the graph at once."""
    sketch.graph.expand(x)
    parts = [g.view(x, (x.ne[0], x.ne[2]), (x.nb[2],)) for _ in range(used)]
    for part in parts:
        sketch.graph.expand(part)
    total = parts[0]
    for part in parts[1:]:
        total = g.like("add", total, part)
        sketch.graph.expand(total)
    return total if used > 1 else g.contiguous(total)

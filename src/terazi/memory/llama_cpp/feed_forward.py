"""The feed-forward half of a block in the graph: gated, plain, or a mixture of experts.

Source: ``src/llama-graph.cpp`` (``build_ffn``, ``build_moe_ffn``), b11434.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.family import Experts
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.models.spec import ModelSpec

#: These cut gate and up off in operations of their own; the others that do so have one for all.
_CLAMPING = frozenset({"bailingmoe3", "step35"})
_NO_LIMIT = 1e-6


def feed_forward(
    sketch: Sketch, x: Node, block: int, logits: Node | None = None, *, chosen: Node | None = None
) -> Node:
    """From the normalised input to the sum that is added to the residual. The router's *logits*, or which experts
    are *chosen*, may come from elsewhere.
    """
    name = f"blk.{block}"
    if not sketch.weight(f"{name}.ffn_gate_inp.weight"):
        return dense(sketch, x, name)
    if sketch.family.experts.chunked:
        return _chunked(sketch, x, name)
    mixed = experts(sketch, x, name, logits, chosen=chosen)
    if sketch.family.experts.beside_dense and sketch.weight(f"{name}.ffn_up.weight"):
        return g.like("scale", g.like("add", dense(sketch, x, name), mixed))
    widen = sketch.weight(f"{name}.ffn_latent_up.weight")
    if widen:
        mixed = g.mul_mat(widen, mixed)
    if sketch.weight(f"{name}.ffn_up_shexp.weight"):
        shared = dense(sketch, x, name, "_shexp")
        gate = sketch.weight(f"{name}.ffn_gate_inp_shexp.weight")
        if gate:
            raw = g.mul_mat(gate, x)
            factor = g.like("unary", raw)
            if sketch.family.experts.divided_gate:
                factor = g.like("div", factor, raw)
            shared = g.like("mul", shared, factor)
        both = g.like("add", mixed, shared)
        return g.like("scale", both) if sketch.family.experts.halved else both
    return mixed


def _chunked(sketch: Sketch, x: Node, name: str) -> Node:
    """Grove MoE: experts, then smaller ones that each stand for a group of them, on what those put out."""
    spec = sketch.spec
    logits = g.mul_mat(sketch.need(f"{name}.ffn_gate_inp.weight"), x)
    mixed = experts(sketch, x, name, logits)
    group = spec.metadata.get(f"{spec.architecture}.experts_per_group", 1)
    chunks = spec.expert_count // (group if isinstance(group, int) and group > 0 else 1)
    more = experts(sketch, mixed, name, logits, kind="chexps", choose=min(chunks, spec.expert_used_count))
    return g.like("add", mixed, g.like("scale", more))


def dense(sketch: Sketch, x: Node, name: str, suffix: str = "") -> Node:
    """``build_ffn``."""
    up = sketch.linear(x, f"{name}.ffn_up{suffix}")
    down = sketch.need(f"{name}.ffn_down{suffix}.weight")
    if sketch.weight(f"{name}.ffn_gate{suffix}.weight"):
        x = gated(sketch.linear(x, f"{name}.ffn_gate{suffix}"), up, _limit(sketch, name, "shexp"))
    elif up.ne[0] == 2 * down.ne[0]:
        # gate and up in one matrix
        x = Node("glu", g.F32, (down.ne[0], *up.ne[1:]), (up,))
    else:
        x = g.like("unary", up)
    if sketch.weight(f"{name}.ffn_sub_norm.weight"):
        x = sketch.norm(x, f"{name}.ffn_sub_norm", int(name.rpartition(".")[2]))
    return sketch.linear(x, f"{name}.ffn_down{suffix}")


def gated(gate: Node, up: Node, limit: float) -> Node:
    """Gate and up as one: fused, or step by step where both are cut off at a *limit*."""
    if limit <= _NO_LIMIT:
        return g.like("glu", gate, up)
    up = g.like("clamp", up)
    return g.like("mul", g.like("clamp", g.like("unary", gate)), up)


def _limit(sketch: Sketch, name: str, kind: str) -> float:
    """``swiglu_clamp_exp`` or ``_shexp`` of a block, in families that clamp step by step."""
    spec = sketch.spec
    if spec.architecture not in _CLAMPING:
        return 0.0
    limit = spec.metadata.get(f"{spec.architecture}.swiglu_clamp_{kind}", 0.0)
    if isinstance(limit, tuple):
        block = int(name.rpartition(".")[2])
        limit = limit[block] if block < len(limit) else 0.0
    return float(limit) if isinstance(limit, int | float) else 0.0


def experts(
    sketch: Sketch,
    x: Node,
    name: str,
    logits: Node | None = None,
    *,
    kind: str = "exps",
    choose: int = 0,
    chosen: Node | None = None,
) -> Node:
    """``build_moe_ffn``. The router's *logits*, or which are *chosen*, may come from elsewhere; *choose* isn't the
    file's number of experts where those of another *kind* stand for groups.
    """
    family, used = sketch.family.experts, choose or _experts_used(sketch.spec, name)
    weights, chosen = _gate(sketch, x, name, logits, used=used, grouped=kind != "exps", chosen=chosen)
    sketch.graph.expand(weights)
    narrow = sketch.weight(f"{name}.ffn_latent_down.weight")
    if narrow:
        x = g.mul_mat(narrow, x)
    x = g.reshape(x, x.ne[0], 1, x.ne[1])
    if family.weigh_input:
        repeated = Node("repeat", x.kind, (x.ne[0], used, x.ne[2], 1), (x,))
        x = g.like("mul", repeated, weights)
    x = _product(sketch, f"{name}.ffn_down_{kind}", _inner(sketch, x, name, chosen, kind), chosen)
    if not family.weigh_input:
        x = g.like("mul", x, weights)
    return _sum_experts(sketch, x, used)


def _inner(sketch: Sketch, x: Node, name: str, chosen: Node, kind: str) -> Node:
    if sketch.weight(f"{name}.ffn_gate_up_exps.weight"):
        both = _product(sketch, f"{name}.ffn_gate_up_exps", x, chosen)
        gate, up = (g.view(both, (both.ne[0] // 2, *both.ne[1:3]), both.nb[1:3]) for _ in range(2))
        return g.like("glu", gate, up)
    up = _product(sketch, f"{name}.ffn_up_{kind}", x, chosen)
    if sketch.weight(f"{name}.ffn_gate_{kind}.weight"):
        return gated(_product(sketch, f"{name}.ffn_gate_{kind}", x, chosen), up, _limit(sketch, name, "exp"))
    return g.like("unary", up)


def _gate(
    sketch: Sketch, x: Node, name: str, logits: Node | None, *, used: int, grouped: bool, chosen: Node | None
) -> tuple[Node, Node]:
    """The weights of the chosen experts, and which they are; *grouped* chooses the groups of those chosen."""
    family, spec, tokens = experts_of(sketch), sketch.spec, x.ne[1]
    count = spec.expert_count
    logits = logits or sketch.linear(x, f"{name}.ffn_gate_inp")
    values = logits if family.gating == "chosen" else g.like(_GATING[family.gating], logits)
    if family.gating == "sqrt_softplus":
        values = g.like("sqrt", values)
    # Hunyuan 3 names it without the suffix
    bias = None if chosen else sketch.weight(f"{name}.exp_probs_b.bias") or sketch.weight(f"{name}.exp_probs_b")
    rated = g.like("add", values, bias) if bias else values
    groups = spec.metadata.get(f"{spec.architecture}.expert_group_count", 0)
    if isinstance(groups, int) and groups > 1:
        rated = _best_groups(sketch, rated, groups)
    if family.chunked:
        rated = g.like("unary", logits)
    if chosen is None:
        chosen = g.top(logits if family.select_by_logits else rated, used)
    if grouped:
        chosen = g.cast(g.like("scale", g.cast(chosen, g.F32)), g.I32)
    weights = g.get_rows(g.reshape(values, 1, count, tokens), chosen)
    if family.gating == "chosen":
        weights = g.reshape(g.like("soft_max", g.reshape(weights, used, tokens)), 1, used, tokens)
    if family.normalised:
        weights = g.reshape(weights, used, tokens)
        total = g.like("clamp", g.sum_rows(weights))
        weights = g.reshape(g.like("div", weights, total), 1, used, tokens)
    scale = spec.metadata.get(f"{spec.architecture}.expert_weights_scale", 0.0)
    if scale not in {0.0, 1.0}:
        weights = g.like("scale", weights)
    return weights, chosen


def _experts_used(spec: ModelSpec, name: str) -> int:
    """How many experts a token takes in this block: files may say so for each (Nemotron's puzzles)."""
    each = spec.metadata.get(f"{spec.architecture}.expert_used_count")
    if isinstance(each, tuple):
        block = int(name.rpartition(".")[2])
        value = each[block] if block < len(each) else 0
        if isinstance(value, int) and value > 0:
            return value
    return spec.expert_used_count


def experts_of(sketch: Sketch) -> Experts:
    """How this file's experts are chosen."""
    family, spec = sketch.family.experts, sketch.spec
    if not family.by_file:
        return family
    gating = spec.metadata.get(f"{spec.architecture}.expert_gating_func", 0)
    named = _BY_NUMBER.get(gating) if isinstance(gating, int) else None
    normalised = spec.metadata.get(f"{spec.architecture}.expert_weights_norm", family.normalised)
    return family._replace(gating=named or family.gating, normalised=bool(normalised))


def _best_groups(sketch: Sketch, rated: Node, groups: int) -> Node:
    """Ratings with all groups masked but the best; a group counts as much as its two best experts."""
    spec, tokens = sketch.spec, rated.ne[1]
    size = spec.expert_count // groups
    grouped = g.reshape(rated, size, groups, tokens)
    best = g.top(grouped, 2)
    scores = g.get_rows(g.reshape(grouped, 1, size, groups, tokens), best)
    scores = g.sum_rows(g.reshape(scores, 2, groups, tokens))
    kept = g.top(g.reshape(scores, groups, tokens), _groups_used(spec))
    masked = g.set_rows(g.like("fill", grouped), g.get_rows(grouped, kept), kept)
    return g.reshape(masked, spec.expert_count, tokens)


def _groups_used(spec: ModelSpec) -> int:
    used = spec.metadata.get(f"{spec.architecture}.expert_group_used_count", 1)
    return used if isinstance(used, int) else 1


#: ``llama_expert_gating_func_type``.
_BY_NUMBER = {1: "soft_max", 2: "sigmoid", 3: "chosen", 4: "sqrt_softplus"}
_GATING = {"soft_max": "soft_max", "sigmoid": "unary", "sqrt_softplus": "unary"}


def _product(sketch: Sketch, name: str, x: Node, chosen: Node) -> Node:
    x = g.mul_mat_id(sketch.need(f"{name}.weight"), x, chosen)
    scale = sketch.weight(f"{name}.scale")
    if scale:
        # one factor an expert, looked up for those chosen
        each = Node("repeat", g.F32, (1, scale.ne[0], x.ne[2], 1), (g.reshape(scale, 1, scale.ne[0]),))
        x = g.like("mul", x, g.get_rows(each, chosen))
    bias = sketch.weight(f"{name}.bias")
    return g.like("add_id", x, bias, chosen) if bias else x


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

"""Qwen's linear attention (gated delta net) in the graph, and the gated attention of the blocks between.

Sources, b11434: ``src/models/qwen35.cpp`` and ``qwen3next.cpp`` (``build_layer_attn_linear``,
``build_layer_attn``), ``src/models/delta-net-base.cpp`` (the fused form, which this build always takes).
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, Position, look_back
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import Scan, scan_of
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.state import States, load, store, store_scanned, store_tail


def delta_net(sketch: Sketch, x: Node, block: int, states: States) -> Node:
    """The recurrent block, from the normalised input to the output projection."""
    name, scan, slots = f"blk.{block}", scan_of(sketch.spec), sketch.batch.slots
    tokens, width = sketch.batch.tokens // slots, scan.inner // scan.heads
    mixed, z = _project(sketch, x, name, scan)
    beta, gate = _gates(sketch, x, name, scan)

    past = load(sketch, states.convolved, states.inputs)
    past = g.reshape(past, scan.kernel - 1, scan.channels, slots)
    joined = g.concat(past, g.transpose(mixed), 0)
    store_tail(sketch, joined, states, sketch.batch.kept)
    carried = g.reshape(load(sketch, states.carried, states.inputs), width, width, scan.heads, slots)
    mixed = g.like("unary", g.state_convolution(joined, sketch.need(f"{name}.ssm_conv1d.weight")))

    row = 4 * (2 * scan.state * scan.groups + scan.inner)
    q, k = (
        g.view(mixed, (scan.state, scan.groups, tokens, slots), (4 * scan.state, row, row * tokens)) for _ in "qk"
    )
    v = g.view(mixed, (width, scan.heads, tokens, slots), (4 * width, row, row * tokens))
    q, k = (g.like("scale", g.like("rms_norm", part)) for part in (q, k))
    if sketch.family.recurrent and sketch.family.recurrent.repeats_heads and scan.heads != scan.groups:
        q, k = (_repeat(part, scan, tokens, slots) for part in (q, k))
    y = _scan(sketch, (q, k, v, gate, beta, carried), states)

    z = g.reshape(z, width, scan.heads, tokens, slots)
    y = g.like("mul", sketch.norm(y, f"{name}.ssm_norm", block), g.like("unary", z))
    y = sketch.linear(g.reshape(y, width * scan.heads, tokens, slots), f"{name}.ssm_out")
    return g.reshape(y, sketch.spec.embedding_length, tokens * slots)


def _project(sketch: Sketch, x: Node, name: str, scan: Scan) -> tuple[Node, Node]:
    """What is convolved (queries, keys and values in one), and the output's gate."""
    slots = sketch.batch.slots
    tokens = sketch.batch.tokens // slots
    if sketch.weight(f"{name}.attn_qkv.weight"):
        mixed = sketch.linear(x, f"{name}.attn_qkv")
        return g.reshape(mixed, mixed.ne[0], tokens, slots), sketch.linear(x, f"{name}.attn_gate")
    # early files of Qwen3-Next keep all four in one matrix, group by group
    width, share = scan.inner // scan.heads, scan.heads // scan.groups
    joined = sketch.linear(x, f"{name}.ssm_in")
    joined = g.reshape(joined, 2 * (scan.state + width * share), scan.groups, tokens, slots)
    sizes = (scan.state, scan.state, width * share, width * share)
    q, k, v, z = (g.view(joined, (size, scan.groups, tokens, slots), joined.nb[1:4]) for size in sizes)
    z = g.contiguous(z)
    q, k, v = (g.contiguous(part, part.ne[0] * scan.groups, tokens, slots) for part in (q, k, v))
    return g.concat(g.concat(q, k, 0), v, 0), z


def _gates(sketch: Sketch, x: Node, name: str, scan: Scan) -> tuple[Node, Node]:
    """How much each token writes (beta), and how much of the state it keeps."""
    slots = sketch.batch.slots
    tokens = sketch.batch.tokens // slots
    if sketch.weight(f"{name}.ssm_ba.weight"):
        share = scan.heads // scan.groups
        joined = g.reshape(sketch.linear(x, f"{name}.ssm_ba"), 2 * share, scan.groups, tokens, slots)
        beta, alpha = (g.view(joined, (share, scan.groups, tokens, slots), joined.nb[1:4]) for _ in range(2))
        beta = g.like("unary", g.contiguous(beta))
        alpha = g.contiguous(alpha, scan.heads, tokens, slots)
        beta = g.reshape(beta, 1, scan.heads, tokens, slots)
    else:
        beta = g.reshape(sketch.linear(x, f"{name}.ssm_beta"), 1, scan.heads, tokens, slots)
        beta = g.like("unary", beta)
        alpha = g.reshape(sketch.linear(x, f"{name}.ssm_alpha"), scan.heads, tokens, slots)
    alpha = g.like("unary", g.like("add", alpha, sketch.need(f"{name}.ssm_dt.bias")))
    gate = g.like("mul", alpha, sketch.need(f"{name}.ssm_a"))
    return beta, g.reshape(gate, 1, scan.heads, tokens, slots)


def _repeat(x: Node, scan: Scan, tokens: int, slots: int) -> Node:
    """Each query and key head as often as there are value heads for it."""
    share = scan.heads // scan.groups
    x = g.reshape(x, scan.state, 1, scan.groups, tokens * slots)
    x = Node("repeat", x.kind, (scan.state, share, scan.groups, tokens * slots), (x,))
    return g.reshape(x, scan.state, scan.heads, tokens, slots)


def kimi_delta(sketch: Sketch, x: Node, block: int, states: States) -> Node:
    """Kimi's delta attention: a convolution each for queries, keys and values, and a decay for every element."""
    name, scan, slots = f"blk.{block}", scan_of(sketch.spec), sketch.batch.slots
    tokens = sketch.batch.tokens
    past = load(sketch, states.convolved, states.inputs)
    q, k, v = (_convolved(sketch, x, past, (block, part), states) for part in "qkv")
    decay = g.mul_mat(sketch.need(f"{name}.ssm_f_b.weight"), g.mul_mat(sketch.need(f"{name}.ssm_f_a.weight"), x))
    decay = g.like("unary", g.like("add", decay, sketch.need(f"{name}.ssm_dt.bias")))
    decay = g.reshape(decay, scan.state, scan.heads, tokens)
    decay = g.like("mul", decay, g.reshape(sketch.need(f"{name}.ssm_a"), 1, scan.heads, 1))
    decay = g.reshape(decay, *q.ne)
    beta = g.reshape(g.mul_mat(sketch.need(f"{name}.ssm_beta.weight"), x), 1, *q.ne[1:])
    beta = g.like("unary", beta)
    whole = g.reshape(x, x.ne[0], tokens // slots, slots)
    carried = load(sketch, states.carried, states.inputs)
    carried = g.reshape(carried, scan.state, scan.state, scan.heads, slots)
    q, k = (g.like("scale", g.like("rms_norm", part)) for part in (q, k))
    result = g.gated_delta_net(1, q, k, v, decay, beta, carried)
    line = 4 * scan.state
    y = g.contiguous(g.view(result, q.ne, (line, line * scan.heads, line * scan.heads * q.ne[2])))
    new = g.view(result, carried.ne, (line, line * scan.state, line * scan.state * scan.heads))
    store(sketch, new, g.view(states.carried, (states.carried.ne[0] * slots,)))

    gate = g.mul_mat(sketch.need(f"{name}.ssm_g_a.weight"), g.reshape(whole, x.ne[0], tokens))
    gate = g.mul_mat(sketch.need(f"{name}.ssm_g_b.weight"), gate)
    gate = g.like("unary", g.reshape(gate, scan.state, scan.heads, tokens))
    y = sketch.norm(g.reshape(y, scan.state, scan.heads, tokens), f"{name}.ssm_norm", block)
    y = g.contiguous(g.like("mul", y, gate), scan.inner, tokens)
    return g.mul_mat(sketch.need(f"{name}.attn_output.weight"), y)


def bailing_delta(sketch: Sketch, x: Node, block: int, states: States) -> Node:
    """Ling 3's and GLM-5 Next's: decay and gate may be of full rank (``bailingmoe3.cpp``, ``glm5-next.cpp``)."""
    name, scan, slots = f"blk.{block}", scan_of(sketch.spec), sketch.batch.slots
    tokens = sketch.batch.tokens
    past = load(sketch, states.convolved, states.inputs)
    q, k, v = (_convolved(sketch, x, past, (block, part), states) for part in "qkv")
    decay = _one_or_two(sketch, x, f"{name}.ssm_f")
    decay = g.like("add", decay, sketch.need(f"{name}.ssm_dt.bias"))
    bounded = f"{sketch.spec.architecture}.kda.gate_lower_bound" in sketch.spec.metadata
    decay = g.reshape(decay if bounded else g.like("unary", decay), scan.state, scan.heads, tokens)
    decay = g.like("mul", decay, g.reshape(sketch.need(f"{name}.ssm_a"), 1, scan.heads, 1))
    decay = g.like("scale", g.like("unary", decay)) if bounded else decay
    decay = g.reshape(decay, *q.ne)
    beta = g.reshape(g.mul_mat(sketch.need(f"{name}.ssm_beta.weight"), x), 1, *q.ne[1:])
    beta = g.like("unary", beta)
    q, k = (g.like("scale", g.like("rms_norm", part)) for part in (q, k))
    carried = load(sketch, states.carried, states.inputs)
    carried = g.reshape(carried, scan.state, scan.state, scan.heads, slots)
    y = g.contiguous(_scan(sketch, (q, k, v, decay, beta, carried), states))
    gate = g.reshape(_one_or_two(sketch, x, f"{name}.ssm_g"), scan.state, scan.heads, tokens)
    y = sketch.norm(g.reshape(y, scan.state, scan.heads, tokens), f"{name}.ssm_norm", block)
    y = g.contiguous(g.like("mul", y, g.like("unary", gate)), scan.inner, tokens)
    return g.mul_mat(sketch.need(f"{name}.attn_output.weight"), y)


def _one_or_two(sketch: Sketch, x: Node, name: str) -> Node:
    """A matrix of full rank, or two narrow ones."""
    x = g.mul_mat(sketch.need(f"{name}_a.weight"), x)
    second = sketch.weight(f"{name}_b.weight")
    return g.mul_mat(second, x) if second else x


def _scan(sketch: Sketch, parts: tuple[Node, ...], states: States) -> Node:
    """``build_recurrent_attn``: queries, keys, values, decay, beta and state to outputs; new states are written."""
    kept, carried = sketch.batch.kept, parts[-1]
    width, heads, tokens, slots = parts[2].ne
    result = g.gated_delta_net(kept, *parts)
    line = 4 * width
    y = g.view(result, (width, heads, tokens, slots), (line, line * heads, line * heads * tokens))
    if kept > 1:
        store_scanned(sketch, result, states, min(tokens, kept))
    else:
        new = g.view(result, carried.ne, (line, line * width, line * width * heads))
        store(sketch, new, g.view(states.carried, (states.carried.ne[0], slots), states.carried.nb[1:2]))
    return y


def _convolved(sketch: Sketch, x: Node, past: Node, place: tuple[int, str], states: States) -> Node:
    """One of the three convolutions (``causal_conv1d``); each has a third of the state."""
    block, part = place
    scan, slots = scan_of(sketch.spec), sketch.batch.slots
    tokens = sketch.batch.tokens // slots
    nb = (4 * (scan.kernel - 1), states.convolved.nb[1])
    shape = (scan.kernel - 1, scan.inner, slots)
    x = g.mul_mat(sketch.need(f"blk.{block}.attn_{part}.weight"), x)
    x = g.concat(g.view(past, shape, nb), g.transpose(g.reshape(x, scan.inner, tokens, slots)), 0)
    for _ in range(min(tokens, sketch.batch.kept)):
        store(sketch, g.view(x, shape, x.nb[1:3]), g.view(states.convolved, shape, nb))
    kernel = g.reshape(sketch.need(f"blk.{block}.ssm_conv1d_{part}.weight"), scan.kernel, scan.inner)
    x = g.reshape(g.state_convolution(x, kernel), scan.inner, tokens * slots)
    return g.reshape(g.like("unary", x), scan.state, scan.heads, tokens, slots)


def attend_gated(sketch: Sketch, x: Node, position: Position, cache: CacheLayer, inputs: CacheInputs) -> Node:
    """Full attention whose query matrix also gives a gate for the output."""
    spec, name, tokens = sketch.spec, f"blk.{cache.block}", sketch.batch.tokens
    heads, kv_heads, width = spec.head_count[cache.block], spec.head_count_kv[cache.block], spec.key_length
    joined, k, v = (sketch.linear(x, f"{name}.attn_{part}") for part in "qkv")
    nb = (8 * width, 8 * width * heads)
    if sketch.family.recurrent and sketch.family.recurrent.repeats_heads:
        joined = g.reshape(joined, 2 * width, heads, tokens)
    q = g.view(joined, (width, heads, tokens), nb)
    gate = g.contiguous(g.view(joined, (width, heads, tokens), nb), width * heads, tokens)
    k, v = (g.reshape(part, width, kv_heads, tokens) for part in (k, v))
    q = g.like("rope", sketch.norm(q, f"{name}.attn_q_norm", cache.block), position.place)
    k = g.like("rope", sketch.norm(k, f"{name}.attn_k_norm", cache.block), position.place)
    x = look_back(sketch, (q, k, v), cache, inputs)
    return sketch.linear(g.like("mul", x, g.like("unary", gate)), f"{name}.attn_output")

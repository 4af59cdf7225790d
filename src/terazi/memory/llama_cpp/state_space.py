"""The Mamba block in the graph, in both versions.

Source: ``src/models/mamba-base.cpp``, b11434: ``build_mamba_layer`` and ``build_mamba2_layer``.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.recurrent import number, scan_of
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.state import States, load, store, store_scanned, store_tail


def mamba2(sketch: Sketch, x: Node, block: int, states: States) -> Node:
    """A scan with one decay a head."""
    name, scan, slots = f"blk.{block}", scan_of(sketch.spec), sketch.batch.slots
    tokens, width = sketch.batch.tokens // slots, scan.inner // scan.heads
    past = g.reshape(load(sketch, states.convolved, states.inputs), scan.kernel - 1, scan.channels, slots)
    joined = sketch.linear(x, f"{name}.ssm_in")
    joined = g.reshape(joined, joined.ne[0], tokens, slots)
    z = g.view(joined, (width, scan.heads, tokens, slots), (4 * width, *joined.nb[1:3]))
    mixed = g.view(joined, (scan.channels, tokens, slots), joined.nb[1:3])
    step = g.view(joined, (scan.heads, tokens, slots), joined.nb[1:3])

    written = min(tokens, sketch.batch.kept)
    mixed = _convolve(sketch, mixed, past, states, name=name, written=written)
    heads = g.view(mixed, (width, scan.heads, tokens, slots), (4 * width, *mixed.nb[1:3]))
    b, c = (
        g.view(mixed, (scan.state, scan.groups, tokens, slots), (4 * scan.state, *mixed.nb[1:3])) for _ in range(2)
    )
    step = g.like("add", g.contiguous(step), sketch.need(f"{name}.ssm_dt.bias"))
    decay = sketch.need(f"{name}.ssm_a")

    def take(all_states: Node, ids: Node) -> Node:
        carried = g.reshape(all_states, scan.state, width, scan.heads, all_states.ne[1])
        return g.state_scan(sketch.batch.kept, carried, heads, step, decay, b, c, ids)

    scanned = load(sketch, states.carried, states.inputs, take)
    store_scanned(sketch, scanned, states, written)
    nb1 = heads.nb[1]
    y = g.view(scanned, (width, scan.heads, tokens, slots), (nb1, nb1 * scan.heads, nb1 * scan.heads * tokens))
    y = g.like("add", y, g.like("mul", heads, sketch.need(f"{name}.ssm_d")))
    y = g.like("glu", g.contiguous(z), y)
    if sketch.weight(f"{name}.ssm_norm.weight"):
        y = g.reshape(y, scan.inner // scan.groups, scan.groups, tokens, slots)
        y = sketch.norm(y, f"{name}.ssm_norm", block)
    return sketch.linear(g.reshape(y, scan.inner, tokens * slots), f"{name}.ssm_out")


def mamba(sketch: Sketch, x: Node, block: int, states: States) -> Node:
    """The first version: a decay for every element of the state, and a projection of its own for the step."""
    name, scan, slots = f"blk.{block}", scan_of(sketch.spec), sketch.batch.slots
    tokens = sketch.batch.tokens // slots
    past = g.reshape(load(sketch, states.convolved, states.inputs), scan.kernel - 1, scan.inner, slots)
    joined = sketch.linear(g.reshape(x, x.ne[0], tokens, slots), f"{name}.ssm_in")
    mixed, z = (g.view(joined, (scan.inner, tokens, slots), joined.nb[1:3]) for _ in range(2))
    mixed = _convolve(sketch, mixed, past, states, name=name, written=1)

    split = sketch.linear(mixed, f"{name}.ssm_x")
    step = g.view(split, (scan.heads, tokens, slots), split.nb[1:3])
    b, c = (g.view(split, (scan.state, 1, tokens, slots), (4 * scan.state, *split.nb[1:3])) for _ in range(2))
    parts = ("ssm_dt_norm", "ssm_b_norm", "ssm_c_norm")
    if number(sketch.spec, "ssm.dt_b_c_rms") or all(sketch.weight(f"{name}.{part}.weight") for part in parts):
        step, b, c = (
            sketch.norm(part, f"{name}.{norm}", block) for part, norm in zip((step, b, c), parts, strict=True)
        )
    else:
        step = g.contiguous(step)
    step = sketch.linear(step, f"{name}.ssm_dt")
    heads = g.reshape(mixed, 1, scan.inner, tokens, slots)
    decay = sketch.need(f"{name}.ssm_a")

    def take(all_states: Node, ids: Node) -> Node:
        carried = g.reshape(all_states, scan.state, 1, scan.inner, slots)
        return g.state_scan(1, carried, heads, step, decay, b, c, ids)

    scanned = load(sketch, states.carried, states.inputs, take)
    size = scan.state * scan.inner * slots
    store(sketch, g.view(scanned, (size,)), g.view(states.carried, (size,)))
    y = g.view(scanned, (scan.inner, tokens, slots), heads.nb[2:4])
    y = g.like("add", y, g.like("mul", mixed, sketch.need(f"{name}.ssm_d")))
    y = g.like("glu", g.contiguous(z), y)
    y = sketch.linear(y, f"{name}.ssm_out")
    return g.reshape(y, y.ne[0], tokens * slots)


def _convolve(sketch: Sketch, x: Node, past: Node, states: States, *, name: str, written: int) -> Node:
    """Keep the last columns for the next batch, then the convolution, its bias and SiLU."""
    x = g.concat(past, g.transpose(x), 0)
    store_tail(sketch, x, states, written)
    x = g.state_convolution(x, sketch.need(f"{name}.ssm_conv1d.weight"))
    bias = sketch.weight(f"{name}.ssm_conv1d.bias")
    return g.like("unary", g.like("add", x, bias) if bias else x)

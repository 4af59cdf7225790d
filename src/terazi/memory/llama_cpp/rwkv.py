"""RWKV in the graph: time mixing with a state, channel mixing, and shifts by one token before both.

Source, b11434: ``src/models/rwkv6-base.cpp``, ``rwkv6.cpp``, ``rwkv7-base.cpp`` and ``rwkv7.cpp``;
``rwkv6qwen2.cpp`` and ``arwkv7.cpp``, where time mixing replaces the attention of a decoder.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.recurrent import StateLayer, number
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.state import States, load, state_inputs, states_of, store

#: Decoders whose attention was replaced.
_CONVERTED = frozenset({"rwkv6qwen2", "arwkv7"})


def draw_rwkv(sketch: Sketch, layers: tuple[StateLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    x = sketch.embeddings()
    if sketch.weight("token_embd_norm.weight"):
        x = sketch.norm(x, "token_embd_norm", 0)
    draw_block = _converted_block if sketch.spec.architecture in _CONVERTED else _block
    shared, wanted = state_inputs(sketch), sketch.input(g.I32, sketch.batch.outputs)
    mixer = _Seventh(sketch) if sketch.spec.architecture in {"rwkv7", "arwkv7"} else _Sixth(sketch)
    every = number(sketch.spec, "rescale_every_n_layers")
    for layer in layers:
        last = layer is layers[-1]
        x = draw_block(sketch, x, mixer, (layer.block, states_of(sketch, layer, shared)), wanted if last else None)
        if every and draw_block is _block and (layer.block + 1) % every == 0:
            x = g.like("scale", x)
    hidden = sketch.norm(x, "output_norm", None)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    return sketch.graph


def _block(
    sketch: Sketch, x: Node, mixer: "_Sixth | _Seventh", place: tuple[int, States], wanted: Node | None
) -> Node:
    block, states = place
    slots, width = sketch.batch.slots, sketch.spec.embedding_length
    tokens = sketch.batch.tokens // slots
    x = g.reshape(x, width, tokens, slots)
    shifted = load(sketch, states.convolved, states.inputs)
    shifted = g.reshape(shifted, width, states.convolved.ne[0] // width, slots)
    normed = sketch.norm(x, f"blk.{block}.attn_norm", block)
    inner = g.like("add", mixer.mix_time(normed, _shift(shifted, normed), block, states), x)
    normed_inner = sketch.norm(inner, f"blk.{block}.attn_norm_2", block)
    before = _shift(shifted, normed_inner)
    tails = [g.view(part, (width, 1, slots), part.nb[1:3]) for part in (normed, normed_inner)]
    both = g.concat(tails[0], tails[1], 1)
    size = states.convolved.ne[0] * slots
    store(sketch, g.view(both, (size,)), g.view(states.convolved, (size,)))

    inner, normed_inner, before = (g.reshape(part, width, tokens * slots) for part in (inner, normed_inner, before))
    if wanted:
        inner, normed_inner, before = (g.get_rows(part, wanted) for part in (inner, normed_inner, before))
    return g.like("add", mixer.mix_channels(normed_inner, before, block), inner)


def _converted_block(
    sketch: Sketch, x: Node, mixer: "_Sixth | _Seventh", place: tuple[int, States], wanted: Node | None
) -> Node:
    block, states = place
    slots, width = sketch.batch.slots, sketch.spec.embedding_length
    tokens = sketch.batch.tokens // slots
    x = g.reshape(x, width, tokens, slots)
    shifted = load(sketch, states.convolved, states.inputs)
    shifted = g.reshape(shifted, width, states.convolved.ne[0] // width, slots)
    normed = sketch.norm(x, f"blk.{block}.attn_norm", block)
    mixed = mixer.mix_time(normed, _shift(shifted, normed), block, states)
    tail = g.view(normed, (width, 1, slots), normed.nb[1:3])
    size = states.convolved.ne[0] * slots
    store(sketch, g.view(tail, (size,)), g.view(states.convolved, (size,)))
    inner = g.reshape(g.like("add", mixed, x), width, tokens * slots)
    if wanted:
        inner = g.get_rows(inner, wanted)
    return g.like("add", feed_forward(sketch, sketch.norm(inner, f"blk.{block}.ffn_norm", block), block), inner)


def _shift(shifted: Node, x: Node) -> Node:
    """*x* one token later, with what the cache kept in front."""
    width, tokens, slots, _ = x.ne
    first = g.view(shifted, (width, 1, slots), shifted.nb[1:3])
    return g.concat(first, g.view(x, (width, tokens - 1, slots), x.nb[1:3]), 1)


def _unary(x: Node) -> Node:
    return g.like("unary", x)


def _squared(x: Node) -> Node:
    return g.like("sqr", g.like("unary", x))


class _Mixer:
    """What both versions share."""

    def __init__(self, sketch: Sketch) -> None:
        self._sketch = sketch
        self._head = number(sketch.spec, "wkv.head_size")
        self._heads = sketch.spec.embedding_length // self._head

    def _need(self, block: int, name: str) -> Node:
        return self._sketch.need(f"blk.{block}.{name}.weight")

    def _by_head(self, x: Node) -> Node:
        return g.reshape(x, self._head, self._heads, self._sketch.batch.tokens)

    def _scan(self, op: str, srcs: tuple[Node, ...], states: States) -> Node:
        """The scan and the write of its states; returns the outputs. The state is its last source."""
        sketch, tokens, slots = self._sketch, self._sketch.batch.tokens, self._sketch.batch.slots
        width = sketch.spec.embedding_length
        result = Node(op, g.F32, (width, tokens + self._head * slots, 1, 1), srcs)
        size = width * self._head * slots
        store(sketch, g.view(result, (size,)), g.view(states.carried, (size,)))
        return g.view(result, (width * tokens,))

    def _normed(self, x: Node, block: int) -> Node:
        """A norm of each head, then the weight and bias of all."""
        tokens, width = self._sketch.batch.tokens, self._sketch.spec.embedding_length
        x = g.reshape(g.like("norm", self._by_head(x)), width, tokens)
        x = g.like("mul", x, self._need(block, "time_mix_ln"))
        return g.like("add", x, self._sketch.need(f"blk.{block}.time_mix_ln.bias"))

    def _output(self, x: Node, block: int) -> Node:
        slots = self._sketch.batch.slots
        x = self._sketch.linear(x, f"blk.{block}.time_mix_output")
        return g.reshape(x, self._sketch.spec.embedding_length, self._sketch.batch.tokens // slots, slots)


class _Sixth(_Mixer):
    """RWKV 6."""

    def mix_time(self, x: Node, before: Node, block: int, states: States) -> Node:
        """From the normalised input and what came a token before it to the output projection."""
        sketch, name = self._sketch, f"blk.{block}.time_mix"
        width, tokens = sketch.spec.embedding_length, sketch.batch.tokens
        change = g.reshape(g.like("sub", before, x), width, tokens)
        xw, xk, xv, xr, xg = self._blends(g.reshape(x, width, tokens), change, block)
        r, k, v = (
            sketch.linear(part, f"{name}_{kind}") for kind, part in (("receptance", xr), ("key", xk), ("value", xv))
        )
        gate = _unary(sketch.linear(xg, f"{name}_gate"))
        k, v, r = self._by_head(self._all_heads(k)), self._by_head(self._all_heads(v)), self._by_head(r)
        decay = _unary(g.mul_mat(self._need(block, "time_mix_decay_w1"), xw))
        decay = g.mul_mat(self._need(block, "time_mix_decay_w2"), decay)
        decay = g.like("add", decay, self._need(block, "time_mix_decay"))
        decay = self._by_head(_unary(_unary(_unary(decay))))
        first = sketch.weight(f"{name}_first.weight")
        if first is None:
            # a converted decoder: linear attention with a gate, and no norm behind it
            k = g.like("sub", k, g.like("mul", k, decay))
            carried = load(sketch, states.carried, states.inputs)
            x = g.reshape(self._scan("gated_linear_attn", (k, v, r, decay, carried), states), width, tokens)
            return self._output(g.like("mul", x, gate), block)
        carried = load(sketch, states.carried, states.inputs)
        x = self._scan("rwkv_wkv6", (k, v, r, first, decay, carried), states)
        return self._output(g.like("mul", self._normed(x, block), gate), block)

    def _all_heads(self, x: Node) -> Node:
        """Keys or values repeated, where there are fewer heads of them."""
        kv_heads = x.ne[0] // self._head
        if kv_heads == self._heads:
            return x
        x = g.reshape(x, self._head, 1, kv_heads, x.ne[1])
        return Node("repeat", x.kind, (self._head, self._heads // kv_heads, kv_heads, x.ne[3]), (x,))

    def _blends(self, x: Node, change: Node, block: int) -> list[Node]:
        """How far each of five projections looks back, learnt from the input itself."""
        width, tokens = x.ne[0], x.ne[1]
        mixed = g.like("add", g.like("mul", change, self._need(block, "time_mix_lerp_x")), x)
        w1, w2 = self._need(block, "time_mix_w1"), self._need(block, "time_mix_w2")
        mixed = g.reshape(_unary(g.mul_mat(w1, mixed)), w1.ne[1] // 5, 1, 5, tokens)
        mixed = g.contiguous(g.swap_last(mixed))
        mixed = g.mul_mat(g.reshape(w2, w2.ne[0], w2.ne[1], 1, 5), mixed)
        fused = self._sketch.weight(f"blk.{block}.time_mix_lerp_fused.weight")
        if fused:
            change, x = g.reshape(change, width, 1, tokens), g.reshape(x, width, 1, tokens)
            mixed = g.like("add", g.like("mul", g.like("add", mixed, fused), change), x)
        parts = [g.view(mixed, (width, tokens), mixed.nb[1:2]) for _ in range(5)]
        if fused:
            return parts
        weights = (self._need(block, f"time_mix_lerp_{kind}") for kind in "wkvrg")
        return [
            g.like("add", g.like("mul", g.like("add", part, weight), change), x)
            for part, weight in zip(parts, weights, strict=True)
        ]

    def mix_channels(self, x: Node, before: Node, block: int) -> Node:
        """The other half of a block."""
        name = f"blk.{block}.channel_mix"
        change = g.like("sub", before, x)
        k = g.like("add", g.like("mul", change, self._need(block, "channel_mix_lerp_k")), x)
        r = g.like("add", g.like("mul", change, self._need(block, "channel_mix_lerp_r")), x)
        r = _unary(self._sketch.linear(r, f"{name}_receptance"))
        k = _squared(self._sketch.linear(k, f"{name}_key"))
        return g.like("mul", r, self._sketch.linear(k, f"{name}_value"))


class _Seventh(_Mixer):
    """RWKV 7. The values of the first block go into those of all others."""

    def __init__(self, sketch: Sketch) -> None:
        super().__init__(sketch)
        self._first_value: Node | None = None

    def mix_time(self, x: Node, before: Node, block: int, states: States) -> Node:
        """From the normalised input and what came a token before it to the output projection."""
        sketch, width, tokens = self._sketch, self._sketch.spec.embedding_length, self._sketch.batch.tokens
        gated = sketch.weight(f"blk.{block}.time_mix_g1.weight") is not None
        parts = 6 if gated else 5
        change = g.like("sub", before, x)
        change = Node("repeat", change.kind, (*change.ne[:3], parts), (change,))
        mixed = g.like("add", g.like("mul", change, self._need(block, "time_mix_lerp_fused")), x)
        xr, xw, xk, xv, xa, *xg = (g.view(mixed, (width, tokens), mixed.nb[1:2]) for _ in range(parts))

        r = sketch.linear(xr, f"blk.{block}.time_mix_receptance")
        w = self._low_rank(xw, block, "w", unary=True)
        w = _unary(g.like("scale", _unary(w)))
        k = sketch.linear(xk, f"blk.{block}.time_mix_key")
        v = self._value(xv, block)
        gate = self._low_rank(xg[0], block, "g", unary=True) if xg else None
        a = _unary(self._low_rank(xa, block, "a"))
        kk = g.like("l2_norm", self._by_head(g.like("mul", k, self._need(block, "time_mix_k_k"))))
        ka = g.like("mul", k, self._need(block, "time_mix_k_a"))
        k = g.like("add", k, g.like("sub", g.like("mul", a, ka), ka))
        r, w, k, v, a = (self._by_head(part) for part in (r, w, k, v, a))
        carried = load(sketch, states.carried, states.inputs)
        x = self._scan("rwkv_wkv7", (r, w, k, v, _unary(kk), g.like("mul", kk, a), carried), states)

        ln = sketch.weight(f"blk.{block}.time_mix_ln.weight")
        x = self._normed(x, block) if ln else g.reshape(x, width, tokens)
        bonus = g.reshape(self._need(block, "time_mix_r_k"), self._head, self._heads)
        rk = g.sum_rows(g.like("mul", g.like("mul", k, r), bonus))
        x = g.like("add", x, g.reshape(g.like("mul", v, rk), width, tokens))
        return self._output(g.like("mul", x, gate) if gate else x, block)

    def _low_rank(self, x: Node, block: int, kind: str, *, unary: bool = False) -> Node:
        """Two narrow matrices one after the other, and a bias (the gate has none)."""
        x = g.mul_mat(self._need(block, f"time_mix_{kind}1"), x)
        x = g.mul_mat(self._need(block, f"time_mix_{kind}2"), _unary(x) if unary else x)
        bias = self._sketch.weight(f"blk.{block}.time_mix_{kind}0.weight")
        return g.like("add", x, bias) if bias else x

    def _value(self, x: Node, block: int) -> Node:
        v = self._sketch.linear(x, f"blk.{block}.time_mix_value")
        if self._first_value is None:
            self._first_value = v
            return v
        share = _unary(self._low_rank(x, block, "v"))
        return g.like("add", v, g.like("mul", g.like("sub", self._first_value, v), share))

    def mix_channels(self, x: Node, before: Node, block: int) -> Node:
        """The other half of a block."""
        change = g.like("sub", before, x)
        k = g.like("add", g.like("mul", change, self._need(block, "channel_mix_lerp_k")), x)
        k = _squared(self._sketch.linear(k, f"blk.{block}.channel_mix_key"))
        return self._sketch.linear(k, f"blk.{block}.channel_mix_value")

"""The graph of a model whose blocks recur, or of which some recur and some attend.

Source: ``src/models/*.cpp`` of build b11434, one ``build_arch_graph`` a family.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, Position, all_cache_inputs, attend
from terazi.memory.llama_cpp.blocks import Recurrent
from terazi.memory.llama_cpp.decoder import draw_logits, places
from terazi.memory.llama_cpp.delta_net import attend_gated, bailing_delta, delta_net, kimi_delta
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.latent_attention import attend_latent
from terazi.memory.llama_cpp.pooling import draw_pooling
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.short_convolution import short_convolution
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.state import States, state_inputs, states_of
from terazi.memory.llama_cpp.state_space import mamba, mamba2

_MIXERS = {
    "mamba": mamba,
    "mamba2": mamba2,
    "short_convolution": short_convolution,
    "delta_net": delta_net,
    "kimi_delta": kimi_delta,
    "bailing_delta": bailing_delta,
}


def draw_hybrid(sketch: Sketch, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    family, batch = sketch.family, sketch.batch
    recurrent = family.recurrent
    if recurrent is None:
        raise AssertionError(family.name)
    x = sketch.embeddings()
    wanted = sketch.input(g.I32, batch.outputs)
    blocks = _Blocks(sketch, recurrent, caches, states)
    for block in sketch.blocks:
        last = block == sketch.blocks[-1] and not recurrent.select_after_norm
        x = blocks.draw(x, block, wanted if last else None)
    hidden = sketch.norm(x, recurrent.output_norm, None)
    hidden.is_output = True  # where outputs are picked after it, a draft head would start from it
    if recurrent.select_after_norm:
        hidden = g.get_rows(hidden, wanted)
        hidden.is_output = True
    draw_logits(sketch, hidden)
    draw_pooling(sketch, hidden)
    return sketch.graph


class _Blocks:
    """Draws one block after the other."""

    def __init__(
        self,
        sketch: Sketch,
        recurrent: Recurrent,
        caches: tuple[CacheLayer, ...],
        states: tuple[StateLayer, ...],
    ) -> None:
        self._sketch, self._recurrent = sketch, recurrent
        self._caches = {cache.block: cache for cache in caches}
        numbers = max(recurrent.positions, places(sketch))
        self._position = Position(sketch.input(g.I32, sketch.batch.tokens * numbers), None)
        shared_inputs = all_cache_inputs(sketch, caches)
        self._inputs: CacheInputs | None = shared_inputs[caches[0].window] if caches else None
        if self._inputs and sketch.batch.windowed:
            # build_inp_mem_hybrid_iswa makes no rotations, even for a quantised cache
            self._inputs = self._inputs._replace(k_rotation=None, v_rotation=None)
        shared = state_inputs(sketch)
        self._states: dict[int, States] = {layer.block: states_of(sketch, layer, shared) for layer in states}

    def draw(self, x: Node, block: int, wanted: Node | None) -> Node:
        """One block; with *wanted* only those rows go on after its mixing half."""
        sketch, recurrent = self._sketch, self._recurrent
        residual = x
        x = sketch.norm(x, f"blk.{block}.attn_norm", block)
        if recurrent.mixer in {"delta_net", "kimi_delta"}:
            sketch.graph.expand(x)
        if recurrent.layers == "beside":
            # two branches, each with a norm of its own from the same weight
            attended = self._attend(x, block)
            x = sketch.norm(residual, f"blk.{block}.attn_norm", block)
            inner = g.like("add", g.like("add", attended, self._recur(x, block)), residual)
            if wanted:
                inner = g.get_rows(inner, wanted)
        else:
            x = self._mix(x, block)
            if wanted:
                x, residual = g.get_rows(x, wanted), g.get_rows(residual, wanted)
            inner = self._add(residual, x)
        if not recurrent.ffn_norm:
            return inner
        x = sketch.norm(inner, f"blk.{block}.{recurrent.ffn_norm}", block)
        return self._add(inner, feed_forward(sketch, x, block))

    def _mix(self, x: Node, block: int) -> Node:
        if block in self._states:
            return self._recur(x, block)
        if block in self._caches:
            return self._attend(x, block)
        return feed_forward(self._sketch, x, block)

    def _add(self, residual: Node, x: Node) -> Node:
        if self._sketch.family.scaled_residuals:
            x = g.like("scale", x)
        return g.like("add", residual, x) if self._sketch.family.residual_first else g.like("add", x, residual)

    def _recur(self, x: Node, block: int) -> Node:
        return _MIXERS[self._recurrent.mixer](self._sketch, x, block, self._states[block])

    def _attend(self, x: Node, block: int) -> Node:
        if self._inputs is None:
            raise AssertionError("no cache")
        draw = attend_gated if self._recurrent.mixer == "delta_net" else attend
        if self._sketch.family.latent:
            draw = attend_latent
        return draw(self._sketch, x, self._position, self._caches[block], self._inputs)

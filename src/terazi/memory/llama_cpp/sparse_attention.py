"""Sparse attention in the graph: an indexer picks the rows of the cache that latent attention then looks at.

Sources, b11434: ``src/models/deepseek32.cpp``, ``src/models/glm-dsa.cpp``, ``llm_graph_context::build_attn`` with
``llm_graph_input_attn_k_dsa``, ``src/llama-kv-cache-dsa.cpp``. The indexer keeps one narrow key a token in a cache
of its own; what it picks becomes a mask as large as the whole one. The engine always uses its fused indexer.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, Position, cache_tensor, store_rows, view_heads
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.latent_attention import attend_compressed, compress
from terazi.memory.llama_cpp.sketch import Sketch

#: Side of the smallest Hadamard matrix (``llama_kv_cache``); the largest power of two that divides a head is used.
_SMALLEST_SIDE = 64


class SparseAttention:
    """The attention of one model; blocks without an indexer look at what the one before has picked."""

    def __init__(self, sketch: Sketch, caches: tuple[CacheLayer, ...]) -> None:
        batch, cache = sketch.batch, caches[0]
        width = cache.index_width
        side = max(_SMALLEST_SIDE, width & -width)
        self._ids = sketch.input(g.I64, batch.tokens)
        self._mask = sketch.input(g.F16, cache.cells, batch.tokens // batch.streams, 1, batch.streams)
        self._rotation = sketch.input(g.F32, side, side)
        self._picked: Node | None = None

    def attend(self, sketch: Sketch, x: Node, position: Position, cache: CacheLayer, inputs: CacheInputs) -> Node:
        """The attention of one block, from the normalised input to the output projection."""
        block = cache.block
        narrow = g.mul_mat(sketch.need(f"blk.{block}.attn_q_a.weight"), x)
        narrow = sketch.norm(narrow, f"blk.{block}.attn_q_a_norm", block)
        if cache.index_width or self._picked is None:
            self._picked = self._pick(sketch, x, narrow, position, cache)
        q = g.mul_mat(sketch.need(f"blk.{block}.attn_q_b.weight"), narrow)
        parts = compress(sketch, x, q, position, cache)
        return attend_compressed(sketch, parts, cache, inputs, _only(self._picked, inputs.mask))

    def _pick(self, sketch: Sketch, x: Node, narrow: Node, position: Position, cache: CacheLayer) -> Node:
        """The lightning indexer: the numbers of the most relevant rows for each token."""
        tokens, streams = sketch.batch.tokens, sketch.batch.streams
        name, width = f"blk.{cache.block}.indexer", cache.index_width
        q = g.mul_mat(sketch.need(f"{name}.attn_q_b.weight"), narrow)
        heads = q.ne[0] // width
        q = g.like("rope", g.reshape(q, width, heads, tokens), position.place)
        k = g.mul_mat(sketch.need(f"{name}.attn_k.weight"), x)
        k = sketch.norm(k, f"{name}.k_norm", cache.block, kind="norm")
        k = g.like("rope", g.reshape(k, width, 1, tokens), position.place)
        q, k = g.mul_mat(self._rotation, q), g.mul_mat(self._rotation, k)
        stored = cache_tensor(sketch, sketch.settings.type_k, width, cache)
        store_rows(sketch, k, stored, self._ids)
        weights = g.mul_mat(sketch.need(f"{name}.proj.weight"), x)
        k = view_heads(stored, width, 1, cache.cells, streams)
        each = tokens // streams
        q = g.view(q, (width, heads, each, streams), (q.nb[1], q.nb[2], q.nb[3] // streams))
        weights = g.view(
            weights, (heads, each, 1, streams), (weights.nb[1], weights.nb[2] // streams, weights.nb[3] // streams)
        )
        sources = (q, k, g.like("scale", weights), self._mask)
        score = Node("lightning_indexer", g.F32, (cache.cells, each, 1, streams), sources)
        most = sketch.spec.metadata.get(f"{sketch.spec.architecture}.attention.indexer.top_k", cache.cells)
        count = min(most, cache.cells) if isinstance(most, int) else cache.cells
        return g.contiguous(Node("top_k", g.I32, (count, *score.ne[1:]), (score,)))


def _only(picked: Node, mask: Node) -> Node:
    """*mask*, with all that isn't *picked* masked too."""
    nothing = g.like("fill", mask)
    cells, each, _, streams = mask.ne
    nothing = g.view(nothing, (1, cells, each, streams), nothing.nb[:3])
    count = picked.ne[0]
    ids = g.view(picked, (count, each, streams), (picked.nb[1], picked.nb[2], streams * picked.nb[3]))
    zeros = g.like("fill", g.leaf(g.F32, 1, count, each, streams))
    chosen = g.set_rows(nothing, zeros, ids)
    chosen = g.view(chosen, (cells, each, 1, streams), (chosen.nb[2], chosen.nb[3], chosen.nb[3]))
    return g.like("add", chosen, mask)

"""MiniMax M3's sparse attention: an indexer picks blocks of the cache for each group of heads.

Sources, b11434: ``src/models/minimax-m3.cpp``, ``src/llama-kv-cache-msa.cpp``. It needs flash attention, and one
slot or a cache for each; otherwise, and in the leading dense blocks, attention is full. Blocks are counted by
position: an empty cache, as at a reservation, has 256.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import (
    CacheInputs,
    Position,
    attend,
    cache_tensor,
    project_and_turn,
    rotate,
    store_kv,
    store_rows,
    view_heads,
)
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import number
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.units import pad

#: ``get_n_pos`` of an empty cache.
_POSITIONS = 256


class BlockSparseAttention:
    """The attention of one model."""

    def __init__(self, sketch: Sketch) -> None:
        batch, spec = sketch.batch, sketch.spec
        self._block = number(spec, "attention.indexer.block_size")
        self._heads = number(spec, "attention.indexer.head_count")
        self._positions = pad(_POSITIONS, self._block)
        self._blocks = self._positions // self._block
        self._picked = min(number(spec, "attention.indexer.top_k"), self._blocks)
        self._each = batch.tokens // batch.streams
        self._on = batch.flash_attn and (batch.rows == 1 or batch.streams > 1)
        self._ids = sketch.input(g.I64, batch.tokens)
        self._bias = sketch.input(g.F32, self._blocks, batch.tokens)
        self._visible = sketch.input(g.F32, self._positions, batch.tokens)
        self._slot_ids = sketch.input(g.I32, self._positions, batch.streams)
        self._slots = sketch.input(g.F32, self._positions, batch.streams)
        self._cell_blocks: Node | None = None
        self._wide_mask: Node | None = None

    def attend(self, sketch: Sketch, x: Node, position: Position, cache: CacheLayer, inputs: CacheInputs) -> Node:
        """The attention of one block, from the normalised input to the output projection."""
        if not (self._on and cache.index_width):
            return attend(sketch, x, position, cache, inputs)
        q, k, v = project_and_turn(sketch, x, position, cache)
        asked, index = self._index(sketch, x, position, cache)
        if inputs.k_rotation:
            q, k = rotate(q, inputs.k_rotation), rotate(k, inputs.k_rotation)
        if inputs.v_rotation:
            v = rotate(v, inputs.v_rotation)
        for root in (q, k, v):
            sketch.graph.expand(root)
        stored = store_kv(sketch, k, v, cache, inputs)
        kv_heads = sketch.spec.head_count_kv[cache.block]
        keys, values = (
            view_heads(part, width, kv_heads, cache.cells, sketch.batch.streams)
            for part, width in zip(stored, (cache.k_head, cache.v_head), strict=True)
        )
        if self._each == 1:
            y = self._gathered(sketch, q, (keys, values), asked, index)
        else:
            if self._wide_mask is None:
                self._wide_mask = g.cast(inputs.mask, g.F32)
                self._cell_blocks = sketch.input(g.I32, cache.cells, sketch.batch.streams)
            parts = [self._masked(q, (keys, values), asked, index) for _ in range(sketch.batch.streams)]
            y = parts[0]
            for part in parts[1:]:
                y = g.concat(y, part, 1)
        if inputs.v_rotation:
            y = rotate(y, inputs.v_rotation)
        return sketch.linear(y, f"blk.{cache.block}.attn_output")

    def _index(self, sketch: Sketch, x: Node, position: Position, cache: CacheLayer) -> tuple[Node, Node]:
        """What the indexer asks, and its keys of all cells."""
        name, width, tokens = f"blk.{cache.block}.indexer", cache.index_width, sketch.batch.tokens
        q, k = (sketch.linear(x, f"{name}.{part}_proj") for part in "qk")
        q, k = g.reshape(q, width, self._heads, tokens), g.reshape(k, width, 1, tokens)
        q, k = sketch.norm(q, f"{name}.q_norm", cache.block), sketch.norm(k, f"{name}.k_norm", cache.block)
        q, k = g.like("rope", q, position.place), g.like("rope", k, position.place)
        kept = cache_tensor(sketch, sketch.settings.type_k, width, cache)
        store_rows(sketch, k, kept, self._ids)
        return q, view_heads(kept, width, 1, cache.cells, sketch.batch.streams)

    def _masked(self, q: Node, stored: tuple[Node, Node], asked: Node, index: Node) -> Node:
        """A prompt of one stream: what isn't picked is masked."""
        if self._wide_mask is None or self._cell_blocks is None:
            raise AssertionError("no mask")
        keys, values = stored
        each, heads, picked, blocks = self._each, self._heads, self._picked, self._blocks
        width, cells = asked.ne[0], keys.ne[2]
        asked = g.view(asked, (width, heads, each), asked.nb[1:3])
        index = g.view(index, (width, cells), index.nb[2:3])
        slots = g.view(self._slot_ids, (self._positions,))
        row = self._visible.nb[1]
        visible = g.view(self._visible, (self._positions, 1, each), (row, row))
        cell_blocks = g.view(self._cell_blocks, (cells,))
        mask = g.view(self._wide_mask, (cells, each, 1), (self._wide_mask.nb[1], self._wide_mask.nb[3]))
        bias = g.view(self._bias, (blocks, 1, each), (self._bias.nb[1], self._bias.nb[1]))
        query = g.view(q, (q.ne[0], q.ne[1], each), q.nb[1:3])
        keys, values = (g.view(part, (*part.ne[:3], 1), part.nb[1:4]) for part in (keys, values))

        scores = g.mul_mat(g.get_rows(index, slots), g.reshape(asked, width, heads * each))
        scores = g.in_place("add", g.reshape(scores, self._positions, heads, each), visible)
        best = self._best(g.like("add", self._pooled(scores), bias))
        nothing = g.cast(g.like("scale", bias), g.F16)
        nothing = Node("repeat", nothing.kind, (blocks, heads, each, 1), (nothing,))
        zero = g.like("scale", g.cast(best, g.F32))
        chosen = g.set_rows(
            g.reshape(nothing, 1, blocks, heads * each),
            g.reshape(zero, 1, picked, heads * each),
            g.reshape(best, picked, heads * each),
        )
        chosen = g.contiguous(g.swap_heads(g.reshape(chosen, blocks, heads, each)))
        chosen = g.contiguous(g.transpose(g.reshape(chosen, blocks, each * heads)))
        chosen = g.contiguous(g.transpose(g.get_rows(chosen, cell_blocks)))
        chosen = g.in_place("add", g.reshape(chosen, cells, each, heads), mask)
        chosen = g.half(g.reshape(chosen, cells, each, 1, heads))
        keys, values = (g.permute(part, 0, 3, 1, 2) for part in (keys, values))
        return self._fused(query, keys, values, chosen)

    def _gathered(self, sketch: Sketch, q: Node, stored: tuple[Node, Node], asked: Node, index: Node) -> Node:
        """One token a stream: what is picked is copied out of the cache."""
        keys, _ = stored
        heads, picked, size, streams = self._heads, self._picked, self._block, sketch.batch.streams
        width, cells, kv_heads = asked.ne[0], keys.ne[2], keys.ne[1]
        rows = g.get_rows(g.view(index, (width, cells, streams), index.nb[2:4]), self._slot_ids)
        asked = g.reshape(asked, width, heads, 1, streams)
        scores = g.mul_mat(g.reshape(rows, width, self._positions, 1, streams), asked)
        scores = g.in_place("add", scores, g.reshape(self._visible, self._positions, 1, 1, streams))
        bias = g.reshape(self._bias, self._blocks, 1, 1, streams)
        best = self._best(g.like("add", self._pooled(scores), bias))
        starts = g.reshape(g.like("scale", g.cast(best, g.F32)), 1, picked, heads, streams)
        spread = Node("repeat", g.F32, (size, picked, heads, streams), (starts,))
        places = g.like("add", spread, g.reshape(_count(size), size, 1, 1))
        many = size * picked * heads
        places = g.cast(g.reshape(places, many, streams), g.I32)
        found = g.get_rows(g.reshape(self._slots, 1, self._positions, streams), places)
        found = g.reshape(found, size, picked, heads, streams)
        lines = g.like("add", g.like("scale", found), g.reshape(_count(kv_heads), 1, 1, heads))
        lines = g.cast(g.reshape(lines, many, streams), g.I32)
        flat = [g.view(part, (part.ne[0], kv_heads * cells, streams), (part.nb[1], part.nb[3])) for part in stored]
        visible = g.reshape(self._visible, 1, self._positions, streams)
        k, v = (g.get_rows(part, lines) for part in flat)
        mask = g.get_rows(visible, places)
        k, v = (g.reshape(part, part.ne[0], size * picked, 1, heads * streams) for part in (k, v))
        kinds = (part.kind if part.kind[0] == 1 else g.F16 for part in stored)
        k, v = (x if x.kind == kind else g.cast(x, kind) for x, kind in zip((k, v), kinds, strict=True))
        mask = g.half(g.reshape(mask, size * picked, 1, 1, heads * streams))
        return self._fused(q, k, v, mask)

    def _pooled(self, scores: Node) -> Node:
        """The best score of each block."""
        return Node("pool", g.F32, (self._blocks, *scores.ne[1:]), (scores,))

    def _best(self, scores: Node) -> Node:
        return Node("top_k", g.I32, (self._picked, *scores.ne[1:]), (scores,))

    def _fused(self, q: Node, k: Node, v: Node, mask: Node) -> Node:
        """``build_attn_msa_fa``: groups of heads, and streams, stand where sequences would."""
        width, heads, tokens, _ = q.ne
        group, channels = heads // self._heads, k.ne[3]
        rows = heads * tokens // (channels * group)
        q = g.permute(g.reshape(q, width, group, channels, rows), 0, 2, 3, 1)
        y = g.swap_last(g.flash_attention(q, k, v, mask))
        y = y if rows == 1 else g.contiguous(y)
        return g.reshape(y, width * heads, tokens)


def _count(length: int) -> Node:
    """``ggml_arange``."""
    return Node("arange", g.F32, (length, 1, 1, 1))

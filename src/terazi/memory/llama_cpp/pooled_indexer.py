"""The graph of GLM-5 Next: delta attention, and between it latent attention to what an indexer of pools picks.

Source, b11434: ``src/models/glm5-next.cpp``, ``src/llama-memory-hybrid-idx.cpp`` (sizes of a reservation). Keys of
several tokens are pooled to one; each row of the indexer's cache holds a key, its gate and the pooled key. All is
under hyper-connections, and there is no rotary embedding.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import (
    all_cache_inputs,
    cache_tensor,
    multi_head,
    store_k,
    store_rows,
    view_heads,
)
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.delta_net import bailing_delta
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.hyper_connections import mix, spread
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer, number
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.memory.llama_cpp.state import state_inputs, states_of
from terazi.units import pad

#: Pools are padded to this many.
_POOLS = 64
#: Up to this micro-batch what is picked is copied out of the cache instead of masking the rest.
_GATHERED_BATCH = 16


def draw_glm5_next(sketch: Sketch, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    spec, batch = sketch.spec, sketch.batch
    width, count = spec.embedding_length, number(spec, "hyper_connection.count")
    x = sketch.embeddings()
    shared = state_inputs(sketch)
    attention = _PooledAttention(sketch, caches)
    wanted = sketch.input(g.I32, batch.outputs)
    by_block = {cache.block: cache for cache in caches}
    recurring = {layer.block: states_of(sketch, layer, shared) for layer in states}
    x = g.reshape(x, width, 1, batch.tokens)
    x = Node("repeat", x.kind, (width, count, batch.tokens, 1), (x,))
    for block in range(trunk_length(spec)):
        mixed = mix(sketch, x, block, "attn")
        y = sketch.norm(mixed.x, f"blk.{block}.attn_norm", block)
        sketch.graph.expand(y)
        if block in recurring:
            y = bailing_delta(sketch, y, block, recurring[block])
        else:
            y = attention.attend(y, by_block[block])
        x = spread(sketch, y, x, mixed)
        mixed = mix(sketch, x, block, "ffn")
        y = sketch.norm(mixed.x, f"blk.{block}.ffn_norm", block)
        x = spread(sketch, feed_forward(sketch, y, block), x, mixed)
    flat = g.get_rows(g.reshape(x, width * count, batch.tokens), wanted)
    hidden = sketch.norm(_mean(g.reshape(flat, width, count, batch.outputs)), "output_norm", None)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    return sketch.graph


def _mean(streams: Node) -> Node:
    width, count, tokens, _ = streams.ne
    total = g.view(streams, (width, tokens), (streams.nb[2],))
    for _ in range(count - 1):
        total = g.like("add", total, g.view(streams, (width, tokens), (streams.nb[2],)))
    return g.like("scale", total)


class _PooledAttention:
    """The attention of one model; blocks without an indexer look at what the one before has picked."""

    def __init__(self, sketch: Sketch, caches: tuple[CacheLayer, ...]) -> None:
        batch, spec = sketch.batch, sketch.spec
        self._sketch = sketch
        self._inputs = all_cache_inputs(sketch, caches)[False]
        self._size = size = number(spec, "attention.indexer.kpool")
        self._width = number(spec, "attention.indexer.key_length")
        self._new = new = max(1, batch.context // size * batch.rows)
        self._pools = pools = max(_POOLS, pad(batch.context // size * batch.rows + 1, _POOLS))
        most = number(spec, "attention.indexer.top_k")
        self._top = min(pools, most // size)
        self._tail = bool(spec.metadata.get(f"{spec.architecture}.attention.indexer.kpool_select_tail", True))
        self._selected = size * self._top + (size - 1 if self._tail else 0)
        self._gathers = batch.micro <= _GATHERED_BATCH and batch.all_cells > most + size - 1
        self._ids = sketch.input(g.I64, batch.tokens)
        self._cells = sketch.input(g.I32, pools)
        self._members = sketch.input(g.I32, size, pools)
        self._visible = sketch.input(g.F16, pools, batch.tokens)
        self._tails = sketch.input(g.I32, size - 1, batch.tokens)
        self._live = sketch.input(g.F32, self._selected, 1, 1, batch.tokens)
        for root in (self._cells, self._members, self._visible, self._tails, self._live):
            sketch.graph.expand(root)
        self._new_members = sketch.input(g.I32, size, new)
        self._new_cells = sketch.input(g.I64, new)
        self._picked: Node | None = None

    def attend(self, x: Node, cache: CacheLayer) -> Node:
        """The attention of one block, from the normalised input to the output projection."""
        sketch, name, tokens = self._sketch, f"blk.{cache.block}", self._sketch.batch.tokens
        heads = sketch.spec.head_count[cache.block]
        narrow = g.mul_mat(sketch.need(f"{name}.attn_q_a.weight"), x)
        narrow = sketch.norm(narrow, f"{name}.attn_q_a_norm", cache.block)
        q = g.mul_mat(sketch.need(f"{name}.attn_q_b.weight"), narrow)
        q = g.reshape(q, q.ne[0] // heads, heads, tokens)
        kv = sketch.norm(
            g.mul_mat(sketch.need(f"{name}.attn_kv_a_mqa.weight"), x), f"{name}.attn_kv_a_norm", cache.block
        )
        rank = kv.ne[0]
        kv = g.reshape(kv, rank, 1, tokens)
        q = g.swap_heads(g.mul_mat(sketch.need(f"{name}.attn_k_b.weight"), g.swap_heads(q)))
        if cache.index_width or self._picked is None:
            self._picked = self._pick(x, narrow, cache)
        picked = self._picked
        sketch.graph.expand(q)
        sketch.graph.expand(kv)
        stored = store_k(sketch, kv, cache, self._inputs)
        if self._gathers:
            y = self._gathered(q, stored, picked, name)
        else:
            k = view_heads(stored, cache.k_head, 1, cache.cells, sketch.batch.streams)
            v = g.view(k, (rank, *k.ne[1:]), k.nb[1:])
            mask = g.reshape(picked, *self._inputs.mask.ne)
            y = multi_head(sketch, (q, k, v), mask, decompress=sketch.need(f"{name}.attn_v_b.weight"))
        return g.mul_mat(sketch.need(f"{name}.attn_output.weight"), y)

    def _gathered(self, q: Node, stored: Node, picked: Node, name: str) -> Node:
        """Tokens of a tiny batch, each with the rows that were picked for it."""
        sketch, tokens = self._sketch, self._sketch.batch.tokens
        sketch.graph.expand(self._inputs.mask)
        rows = g.view(stored, (stored.ne[0], stored.ne[1] * stored.ne[2]), stored.nb[1:2])
        k = g.get_rows(rows, g.reshape(picked, picked.ne[0] * tokens))
        k = g.reshape(k, stored.ne[0], picked.ne[0], 1, tokens)
        scores = g.like("soft_max", g.mul_mat(k, g.permute(q, 0, 2, 3, 1)), self._live)
        y = g.mul_mat(g.contiguous(g.transpose(k)), scores)
        y = g.mul_mat(sketch.need(f"{name}.attn_v_b.weight"), y)
        y = g.contiguous(g.swap_heads(y))
        return g.reshape(y, y.ne[0] * y.ne[1], tokens)

    def _pick(self, x: Node, narrow: Node, cache: CacheLayer) -> Node:
        """The pools that count most for each token, as a mask (or as cells, for a tiny batch)."""
        sketch, name, tokens = self._sketch, f"blk.{cache.block}", self._sketch.batch.tokens
        width, top = self._width, self._top
        q = g.mul_mat(sketch.need(f"{name}.indexer.attn_q_b.weight"), narrow)
        q = g.reshape(q, width, q.ne[0] // width, tokens)
        keys = self._pooled(x, cache)
        weights = g.like("scale", g.mul_mat(sketch.need(f"{name}.indexer.proj.weight"), x))
        sources = (q, keys, weights, self._visible)
        score = Node("lightning_indexer", g.F32, (self._pools, tokens, 1, 1), sources)
        best = Node("top_k", g.I32, (top, tokens, 1, 1), (score,))
        rated = g.get_rows(g.reshape(score, 1, self._pools, tokens), best)
        order = Node("argsort", g.I32, (top, tokens, 1, 1), (g.reshape(rated, top, tokens),))
        best = g.get_rows(g.reshape(g.cast(best, g.F32), 1, top, tokens), order)
        best = g.cast(g.contiguous(g.reshape(best, top, tokens)), g.I32)
        picked = g.get_rows(self._members, g.reshape(best, top * tokens))
        picked = g.reshape(picked, self._size * top, tokens)
        if self._tail:
            picked = g.concat(picked, self._tails, 0)
        return picked if self._gathers else self._masked(picked)

    def _pooled(self, x: Node, cache: CacheLayer) -> Node:
        """Write new keys and gates, pool those that are complete, and read all pools."""
        sketch, name, tokens, width = self._sketch, f"blk.{cache.block}", self._sketch.batch.tokens, self._width
        key = g.mul_mat(sketch.need(f"{name}.indexer.attn_k.weight"), x)
        key = sketch.norm(key, f"{name}.indexer.k_norm", cache.block, kind="norm")
        gate = g.mul_mat(sketch.need(f"{name}.indexer_compressor_gate.weight"), x)
        empty = g.like("fill", g.leaf(g.F32, width, tokens))
        row = g.concat(g.concat(key, gate, 0), empty, 0)
        stored = cache_tensor(sketch, sketch.settings.type_k, 3 * width, cache)
        store_rows(sketch, g.reshape(row, 3 * width, 1, tokens), stored, self._ids)
        cells = stored.ne[1] * stored.ne[2]
        rows = g.view(stored, (2 * width, cells), stored.nb[1:2])
        rows = g.get_rows(rows, g.reshape(self._new_members, self._size * self._new))
        rows = g.reshape(rows, 2 * width, self._size, self._new)
        keys, gates = (g.view(rows, (width, self._size, self._new), rows.nb[1:3]) for _ in range(2))
        gates = g.like("add", gates, sketch.need(f"{name}.indexer_compressor_ape.weight"))
        gates = g.contiguous(g.permute(gates, 1, 0, 2, 3))
        shares = g.like("soft_max", g.reshape(gates, self._size, width * self._new))
        shares = g.reshape(shares, self._size, width, self._new)
        keys = g.contiguous(g.permute(keys, 1, 0, 2, 3))
        fresh = g.reshape(g.sum_rows(g.like("mul", shares, keys)), width, self._new)
        pooled = g.view(stored, (width, cells), stored.nb[1:2])
        sketch.graph.expand(g.set_rows(pooled, fresh, self._new_cells))
        return g.reshape(g.get_rows(pooled, self._cells), width, 1, self._pools)

    def _masked(self, picked: Node) -> Node:
        sketch, tokens, mask = self._sketch, self._sketch.batch.tokens, self._inputs.mask
        count, cells = picked.ne[0], mask.ne[0]
        sketch.graph.expand(picked)
        everything, zeros = (
            g.reshape(
                Node("repeat", mask.kind, (size, tokens, 1, 1), (g.like("fill", g.leaf(mask.kind, size)),)),
                1,
                size,
                tokens,
            )
            for size in (cells + count, count)
        )
        live = g.like("unary", g.reshape(self._live, count, tokens))
        spare = Node("arange", g.F32, (count, 1, 1, 1))
        place = g.like("sub", g.cast(picked, g.F32), spare)
        place = g.cast(g.like("add", g.like("mul", place, live), spare), g.I32)
        chosen = g.set_rows(everything, zeros, g.reshape(place, count, tokens, 1))
        chosen = g.view(chosen, (cells, tokens), chosen.nb[2:3])
        return g.like("add", chosen, g.reshape(mask, cells, tokens))

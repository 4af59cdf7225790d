"""The graph of DeepSeek V4: compressed attention under hyper-connections.

Source, b11434: ``src/models/deepseek4.cpp``, ``llm_graph_context::build_inp_dsv4``,
``llama-kv-cache-dsv4.cpp:dsv4_build_reserve_comp_plan`` (the sizes of a reservation).
"""

from typing import NamedTuple

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import (
    cache_tensor,
    multi_head,
    rotate,
    rotation_side,
    store_rows,
    view_heads,
)
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.compressed_cache import Compressor, compressors
from terazi.memory.llama_cpp.decoder import draw_logits
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.hyper_connections import merge, mix, spread
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import number
from terazi.memory.llama_cpp.sketch import Sketch

#: Side of the smallest Hadamard matrix.
_SMALLEST_SIDE = 64


def draw_deepseek4(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """Fill *sketch* with the whole model and return its graph, ready for the scheduler."""
    spec, batch = sketch.spec, sketch.batch
    x = sketch.embeddings()
    attention = _CompressedAttention(sketch, caches[0])
    wanted = sketch.input(g.I32, batch.outputs)
    count = number(spec, "hyper_connection.count")
    hashed = number(spec, "hash_layer_count")
    x = g.reshape(x, spec.embedding_length, 1, batch.tokens)
    x = Node("repeat", x.kind, (spec.embedding_length, count, batch.tokens, 1), (x,))
    for cache in caches[: trunk_length(spec)]:
        name = f"blk.{cache.block}"
        mixed = mix(sketch, x, cache.block, "attn")
        y = sketch.norm(mixed.x, f"{name}.attn_norm", cache.block)
        x = spread(sketch, attention.attend(y, cache), x, mixed)
        mixed = mix(sketch, x, cache.block, "ffn")
        for root in (x, mixed.post, mixed.comb):
            sketch.graph.expand(root)
        y = sketch.norm(mixed.x, f"{name}.ffn_norm", cache.block)
        chosen = None
        if cache.block < hashed:
            # experts by the token's number alone
            table = sketch.need(f"{name}.ffn_gate_tid2eid.weight")
            chosen = Node("get_rows", g.I32, (table.ne[0], batch.tokens, 1, 1), (table, sketch.tokens))
        x = spread(sketch, feed_forward(sketch, y, cache.block, chosen=chosen), x, mixed)
        if batch.pin_norms:
            # the engine pins the last operation of a block as it does the norms
            x.backend = sketch.layer_backends[cache.block]
    flat = g.get_rows(g.reshape(x, spec.embedding_length * count, batch.tokens), wanted)
    x = merge(sketch, g.reshape(flat, spec.embedding_length, count, batch.outputs), "output_hc")
    hidden = sketch.norm(x, "output_norm", None)
    hidden.is_output = True
    draw_logits(sketch, hidden)
    return sketch.graph


class _Plan(NamedTuple):
    """The inputs of one kind of compressor."""

    positions: Node
    persist_from: Node
    persist_to: Node
    restore: tuple[Node, Node] | None
    snapshot: tuple[Node, Node] | None
    read: Node
    write: Node
    write_positions: Node
    mask: Node
    rotation: Node | None


class _CompressedAttention:
    """The attention of one model."""

    def __init__(self, sketch: Sketch, first: CacheLayer) -> None:
        batch = sketch.batch
        self._sketch = sketch
        self._streams = batch.slots
        self._place = sketch.input(g.I32, batch.tokens)
        self._ids = sketch.input(g.I64, batch.tokens)
        kind = g.F16 if batch.flash_attn else g.F32
        self._mask = sketch.input(kind, first.cells, batch.tokens // self._streams, 1, self._streams)
        side = rotation_side(sketch.settings.type_k, first.k_head)
        self._rotation = sketch.input(g.F32, side, side) if side else None
        self._plans: dict[tuple[str, int], _Plan] = {}
        sketch.graph.expand(self._mask)

    def attend(self, x: Node, cache: CacheLayer) -> Node:
        """The attention of one block, from the normalised input to the output projection."""
        sketch, name, tokens = self._sketch, f"blk.{cache.block}", self._sketch.batch.tokens
        heads, width = sketch.spec.head_count[cache.block], cache.k_head
        narrow = sketch.norm(sketch.linear(x, f"{name}.attn_q_a"), f"{name}.attn_q_a_norm", cache.block)
        q = g.reshape(sketch.linear(narrow, f"{name}.attn_q_b"), width, heads, tokens)
        q = g.like("rope", g.like("rms_norm", q), self._place)
        kv = sketch.norm(sketch.linear(x, f"{name}.attn_kv"), f"{name}.attn_kv_a_norm", cache.block)
        kv = g.like("rope", g.reshape(kv, width, 1, tokens), self._place)
        kept = [(part, self._compress(x, part, cache)) for part in compressors(sketch.spec, cache.block)]
        picked = None
        if len(kept) > 1:
            part, keys = kept[1]
            picked = self._pick(x, narrow, part, keys, cache)
        if self._rotation:
            q, kv = rotate(q, self._rotation), rotate(kv, self._rotation)
        sketch.graph.expand(q)
        sketch.graph.expand(kv)
        raw = self._cache(cache, width, cache.cells)
        store_rows(sketch, kv, raw, self._ids)
        keys, mask = view_heads(raw, width, 1, cache.cells, self._streams), self._mask
        if kept:
            part, compressed = kept[0]
            cells = part.cells(sketch.batch.context)
            more = view_heads(compressed, part.width, 1, cells, self._streams)
            keys = g.concat(keys, g.view(more, more.ne, more.nb[1:4]), 2)
            visible = self._plan(part).mask
            mask = g.concat(mask, self._only(picked, visible) if picked else visible, 0)
        y = multi_head(sketch, (q, keys, keys), mask, (sketch.need(f"{name}.attn_sinks.weight"),))
        if self._rotation:
            y = rotate(y, self._rotation)
        return self._project(g.like("rope", g.reshape(y, width, heads, tokens), self._place), name)

    def _project(self, y: Node, name: str) -> Node:
        """The output projection: a narrow one for each group of heads, then one for all."""
        sketch, groups = self._sketch, number(self._sketch.spec, "attention.output_group_count")
        width, heads, tokens, _ = y.ne
        y = g.swap_heads(g.reshape(y, width * heads // groups, groups, tokens))
        weight = sketch.need(f"{name}.attn_output_a.weight")
        rank = weight.ne[1] * weight.ne[2] // groups
        y = g.swap_heads(Node("mul_mat", g.F32, (rank, tokens, groups, 1), (weight, y)))
        return sketch.linear(g.contiguous(y, rank * groups, tokens), f"{name}.attn_output_b")

    def _cache(self, cache: CacheLayer, width: int, cells: int) -> Node:
        streams = self._sketch.batch.rows
        return cache_tensor(self._sketch, self._sketch.settings.type_k, width, cache, cells=cells, streams=streams)

    def _plan(self, part: Compressor) -> _Plan:
        """The inputs of *part*, which all blocks share."""
        key = (part.name, part.ratio)
        if key not in self._plans:
            sketch, batch = self._sketch, self._sketch.batch
            tokens, rows, back = batch.tokens, part.state_rows * batch.rows, batch.kept - 1
            blocks = tokens // part.ratio + batch.slots
            pairs = [
                (sketch.input(g.I32, size), sketch.input(g.I32, size)) if size else None
                for size in (rows if back else 0, rows * back)
            ]
            persisted = min(tokens, rows)
            kind = g.F16 if batch.flash_attn or part.name == "indexer_compressor" else g.F32
            side = rotation_side(sketch.settings.type_k, part.width)
            if part.name == "indexer_compressor":
                side = max(_SMALLEST_SIDE, part.width & -part.width)
            self._plans[key] = _Plan(
                positions=sketch.input(g.I32, tokens),
                persist_from=sketch.input(g.I32, persisted),
                persist_to=sketch.input(g.I32, persisted),
                restore=pairs[0],
                snapshot=pairs[1],
                read=sketch.input(g.I32, (2 if part.overlaps else 1) * part.ratio * blocks),
                write=sketch.input(g.I64, blocks),
                write_positions=sketch.input(g.I32, blocks),
                mask=sketch.input(kind, part.cells(batch.context), tokens // self._streams, 1, self._streams),
                rotation=sketch.input(g.F32, side, side) if side else None,
            )
        return self._plans[key]

    def _compress(self, x: Node, part: Compressor, cache: CacheLayer) -> Node:
        """Make new keys of what has come in, write them and the state. Returns the cache of keys."""
        sketch, plan, name = self._sketch, self._plan(part), f"blk.{cache.block}.{part.name}"
        values = sketch.linear(x, f"{name}_kv")
        scores = sketch.linear(x, f"{name}_gate")
        scores = g.like("add", scores, g.get_rows(sketch.need(f"{name}_ape.weight"), plan.positions))
        rows = part.state_rows * sketch.batch.rows
        states = [self._state(part, cache) for _ in range(2)]
        restored = [self._restore(state, plan) for state in states]
        sources = [
            g.concat(g.view(state, (part.state_width, rows), state.nb[1:2]), new, 1)
            for state, new in zip(restored, (values, scores), strict=True)
        ]
        if part.overlaps:
            sources = [_with_empty_row(source) for source in sources]
            pair = self._overlapping(sources, part, plan)
        else:
            pair = [
                g.reshape(g.get_rows(source, plan.read), part.width, part.ratio, plan.write.ne[0])
                for source in sources
            ]
        kept, rated = (g.contiguous(g.permute(source, 1, 0, 2, 3)) for source in pair)
        key = g.sum_rows(g.like("mul", kept, g.like("soft_max", rated)))
        key = g.contiguous(g.permute(key, 1, 0, 2, 3))
        key = g.like("rope", sketch.norm(key, f"{name}_norm", cache.block), plan.write_positions)
        if plan.rotation:
            key = rotate(key, plan.rotation)
        stored = self._cache(cache, part.width, part.cells(sketch.batch.context))
        store_rows(sketch, key, stored, plan.write)
        for state, new in zip(restored, (values, scores), strict=True):
            if plan.snapshot:
                rest = g.get_rows(g.concat(state, new, 1), plan.snapshot[0])
                sketch.graph.expand(g.set_rows(state, rest, plan.snapshot[1]))
        written = [
            g.set_rows(self._all_rows(state), g.get_rows(new, plan.persist_from), plan.persist_to)
            for state, new in zip(states, (values, scores), strict=True)
        ]
        for root in written:
            sketch.graph.expand(root)
        return stored

    def _state(self, part: Compressor, cache: CacheLayer) -> Node:
        batch = self._sketch.batch
        state = g.leaf(g.F32, part.state_width, part.state_rows, batch.rows * batch.kept)
        state.home = self._sketch.backends[cache.device]
        return state

    def _all_rows(self, state: Node) -> Node:
        return g.view(state, (state.ne[0], state.ne[1] * state.ne[2]), state.nb[1:2])

    def _restore(self, state: Node, plan: _Plan) -> Node:
        rows = self._all_rows(state)
        if plan.restore is None:
            return rows
        return g.set_rows(self._all_rows(state), g.get_rows(rows, plan.restore[0]), plan.restore[1])

    def _overlapping(self, sources: list[Node], part: Compressor, plan: _Plan) -> list[Node]:
        """Values and scores of two spans: half the width of a row belongs to the one before."""
        blocks = plan.write.ne[0]
        count = part.ratio * blocks
        rows = [g.get_rows(source, plan.read) for source in sources]
        shape = (part.width, part.ratio, blocks)
        halves = [
            [g.reshape(g.contiguous(g.view(row, (part.width, count), row.nb[1:2])), *shape) for row in rows]
            for _ in range(2)
        ]
        return [g.concat(before, now, 1) for before, now in zip(*halves, strict=True)]

    def _pick(self, x: Node, narrow: Node, part: Compressor, stored: Node, cache: CacheLayer) -> Node:
        """The lightning indexer over compressed keys."""
        sketch, plan, name = self._sketch, self._plan(part), f"blk.{cache.block}.indexer"
        tokens, streams, width = sketch.batch.tokens, self._streams, part.width
        q = sketch.linear(narrow, f"{name}.attn_q_b")
        heads = q.ne[0] // width
        q = g.like("rope", g.reshape(q, width, heads, tokens), self._place)
        if plan.rotation is None:
            raise AssertionError("no rotation")
        q = rotate(q, plan.rotation)
        weights = g.like("scale", sketch.linear(x, f"{name}.proj"))
        cells = part.cells(sketch.batch.context)
        keys = view_heads(stored, width, 1, cells, streams)
        keys = g.view(keys, keys.ne, keys.nb[1:4])
        each = tokens // streams
        q = g.view(q, (width, heads, each, streams), (q.nb[1], q.nb[2], q.nb[3] // streams))
        weights = g.view(
            weights, (heads, each, 1, streams), (weights.nb[1], weights.nb[2] // streams, weights.nb[3] // streams)
        )
        score = Node("lightning_indexer", g.F32, (cells, each, 1, streams), (q, keys, weights, plan.mask))
        count = min(number(sketch.spec, "attention.indexer.top_k"), cells)
        return g.contiguous(Node("top_k", g.I32, (count, *score.ne[1:]), (score,)))

    def _only(self, picked: Node, mask: Node) -> Node:
        """*mask*, with all that isn't *picked* masked too."""
        nothing = g.like("fill", mask)
        cells, each, _, streams = mask.ne
        nothing = g.view(nothing, (1, cells, each, streams), nothing.nb[:3])
        count = picked.ne[0]
        ids = g.view(picked, (count, each, streams), (picked.nb[1], picked.nb[2], streams * picked.nb[3]))
        kind = g.F16 if self._sketch.batch.flash_attn else g.F32
        zeros = g.like("fill", g.leaf(kind, 1, count, each, streams))
        chosen = g.set_rows(nothing, zeros, ids)
        chosen = g.view(chosen, (cells, each, 1, streams), (chosen.nb[2], chosen.nb[3], chosen.nb[3]))
        return g.like("add", chosen, mask)


def _with_empty_row(rows: Node) -> Node:
    """*rows* and one more that counts for nothing."""
    row = g.like("scale", g.view(rows, (rows.ne[0],)))
    return g.concat(rows, g.reshape(row, rows.ne[0], 1), 1)

"""Attention in the graph: projections, rotary embedding, the write to the cache, the read from it.

Sources, b11434: ``src/llama-graph.cpp`` (``build_qkv``, ``build_attn``, ``build_attn_mha``) and
``src/llama-kv-cache.cpp`` (``cpy_k``, ``cpy_v``, ``get_k``, ``get_v``, ``build_input_*``).
"""

from typing import NamedTuple

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.cache_types import CACHE_TYPES, is_quantised_cache
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch

#: These read ``clamp_kqv``.
_CLAMPING = frozenset({"dbrx", "mpt", "olmo"})


class CacheInputs(NamedTuple):
    """What the layers of one cache share: where rows go, what may be seen, how quantised heads are rotated."""

    k_ids: Node
    v_ids: Node
    mask: Node
    k_rotation: Node | None
    v_rotation: Node | None


class Position(NamedTuple):
    """Inputs that say where a token stands: its place, and the factor of its queries if there is one."""

    place: Node
    factor: Node | None


def all_cache_inputs(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> dict[bool, CacheInputs]:
    """The inputs of the full cache (False) and of the window cache (True), as far as there are such."""
    kinds = {cache.window: cache for cache in caches}
    return {window: _cache_inputs(sketch, kinds[window]) for window in sorted(kinds)}


def _cache_inputs(sketch: Sketch, cache: CacheLayer) -> CacheInputs:
    """The inputs of the cache that *cache* is a layer of."""
    batch, settings, cells = sketch.batch, sketch.settings, cache.cells
    masks = min(batch.streams, batch.slots)
    side = rotation_side(settings.type_k, cache.k_head)
    k_rotation = sketch.input(g.F32, side, side) if side else None
    v_rotation = sketch.input(g.F32, 64, 64) if rotation_side(settings.type_v, cache.v_head) else None
    return CacheInputs(
        sketch.input(g.I64, batch.tokens),
        sketch.input(g.I64, batch.tokens * cache.v_width if batch.v_transposed else batch.tokens),
        sketch.input(g.F16 if batch.flash_attn else g.F32, cells, batch.tokens // masks, 1, masks),
        k_rotation,
        v_rotation,
    )


def rotation_side(cache_type: str, width: int) -> int:
    """Side of the Hadamard matrix for heads of *width* in a quantised cache: its largest power of two, from 64."""
    if not is_quantised_cache(cache_type) or width % 64:
        return 0
    return width & -width


def attend(sketch: Sketch, x: Node, position: Position, cache: CacheLayer, inputs: CacheInputs) -> Node:
    """The attention of one block, from the normalised input to the output projection."""
    family = sketch.family
    result = look_back(sketch, project_and_turn(sketch, x, position, cache), cache, inputs)
    if family.gated:
        result = gate_output(sketch, result, x, cache)
    norm = f"blk.{cache.block}.attn_sub_norm"
    if sketch.weight(f"{norm}.weight"):
        result = sketch.norm(result, norm, cache.block)
    return sketch.linear(result, f"blk.{cache.block}.attn_output")


def project_and_turn(sketch: Sketch, x: Node, position: Position, cache: CacheLayer) -> tuple[Node, Node, Node]:
    """Queries, keys and values with their norms, rotary embeddings and scale."""
    q, k, v = project(sketch, x, cache)
    q = _turn(sketch, q, position, cache, "q")
    k = _turn(sketch, k, position, cache, "k")
    return g.like("scale", q) if sketch.family.scaled_queries else q, k, v


def gate_output(sketch: Sketch, attended: Node, x: Node, cache: CacheLayer) -> Node:
    """What heads put out, times a gate of their input: one for each element, or one for each head."""
    weight = sketch.weight(f"blk.{cache.block}.attn_gate.weight")
    if weight is None:
        return attended
    gate = g.like("unary", g.mul_mat(weight, x))
    width, tokens, heads = attended.ne[0], attended.ne[1], sketch.spec.head_count[cache.block]
    if weight.ne[1] != heads:
        return g.like("mul", attended, gate)
    each = g.reshape(attended, width // heads, heads, tokens)
    return g.reshape(g.like("mul", each, g.reshape(gate, 1, heads, tokens)), width, tokens)


def attend_cached(
    sketch: Sketch, projected: tuple[Node, Node, Node], cache: CacheLayer, inputs: CacheInputs
) -> Node:
    """``build_attn`` with a cache of K and V: from the queries, keys and values to the output projection."""
    return sketch.linear(look_back(sketch, projected, cache, inputs), f"blk.{cache.block}.attn_output")


def look_back(sketch: Sketch, projected: tuple[Node, Node, Node], cache: CacheLayer, inputs: CacheInputs) -> Node:
    """The same without the output projection."""
    q, k, v = projected
    if inputs.k_rotation:
        q, k = rotate(q, inputs.k_rotation), rotate(k, inputs.k_rotation)
    if inputs.v_rotation:
        v = rotate(v, inputs.v_rotation)
    for root in (q, k, v) if sketch.batch.windowed else (q, v, k):
        sketch.graph.expand(root)
    return _read(sketch, q, store_kv(sketch, k, v, cache, inputs), cache, inputs)


def attend_shared(sketch: Sketch, q: Node, cache: CacheLayer, inputs: CacheInputs) -> Node:
    """The same for a block that only asks, and reads what an earlier block has stored."""
    if inputs.k_rotation:
        q = rotate(q, inputs.k_rotation)
    sketch.graph.expand(q)
    k_cache = cache_tensor(sketch, sketch.settings.type_k, cache.k_width, cache)
    v_cache = cache_tensor(sketch, sketch.settings.type_v, cache.v_width, cache)
    x = _read(sketch, q, (k_cache, v_cache), cache, inputs)
    return sketch.linear(x, f"blk.{cache.block}.attn_output")


def _read(sketch: Sketch, q: Node, stored: tuple[Node, Node], cache: CacheLayer, inputs: CacheInputs) -> Node:
    x = _look_up(sketch, q, stored, cache, inputs.mask)
    return rotate(x, inputs.v_rotation) if inputs.v_rotation else x


def project(sketch: Sketch, x: Node, cache: CacheLayer) -> tuple[Node, Node, Node]:
    """``build_qkv``: queries, keys and values, head by head."""
    spec, tokens, block = sketch.spec, sketch.batch.tokens, cache.block
    heads, kv_heads = spec.head_count[block], spec.head_count_kv[block]
    shapes = ((cache.k_head, heads), (cache.k_head, kv_heads), (cache.v_head, kv_heads))
    if sketch.weight(f"blk.{block}.attn_qkv.weight"):
        joined = clamped(sketch, sketch.linear(x, f"blk.{block}.attn_qkv"))
        if sketch.family.joined_heads:
            joined = g.reshape(joined, cache.k_head, heads + 2 * kv_heads, tokens)
        if sketch.family.qk_norm != "flat":
            row = joined.nb[2 if sketch.family.joined_heads else 1]
            q, k, v = (g.view(joined, (*shape, tokens), (4 * shape[0], row)) for shape in shapes)
            return q, k, v
        flat = [g.contiguous(g.view(joined, (a * b, tokens), (joined.nb[1],))) for a, b in shapes]
    else:
        flat = [clamped(sketch, sketch.linear(x, f"blk.{block}.attn_{part}")) for part in "qkv"]
    if sketch.family.qk_norm == "flat":
        flat[0] = sketch.norm(flat[0], f"blk.{block}.attn_q_norm", block)
        flat[1] = sketch.norm(flat[1], f"blk.{block}.attn_k_norm", block)
    q, k, v = (g.reshape(part, *shape, tokens) for part, shape in zip(flat, shapes, strict=True))
    return q, k, v


def clamped(sketch: Sketch, x: Node) -> Node:
    """*x*, cut off where the file says so (``clamp_kqv``)."""
    spec = sketch.spec
    limit = spec.metadata.get(f"{spec.architecture}.attention.clamp_kqv", 0)
    clamps = spec.architecture in _CLAMPING and isinstance(limit, int | float) and limit > 0
    return g.like("clamp", x) if clamps else x


def _turn(sketch: Sketch, x: Node, position: Position, cache: CacheLayer, part: str) -> Node:
    """The norm of a head, if the family has one, and the rotary embedding, if this layer has one."""
    family, block = sketch.family, cache.block
    norm = f"blk.{block}.attn_{part}_norm"
    normed = sketch.weight(f"{norm}.weight") is not None
    if family.qk_norm == "head" and normed:
        x = sketch.norm(x, norm, block)
    if _rope_off(sketch, cache):
        return x
    factor = position.factor if part == "q" else None
    if family.rope == "but_fourth" and block % 4 == 3:
        return g.like("mul", x, factor) if factor else x
    factors = None
    if family.rope_factors is True or (family.rope_factors == "full" and not cache.window):
        factors = rope_factors(sketch, block)
    x = g.like("rope", x, position.place, *((factors,) if factors else ()))
    if family.qk_norm == "turned" and normed:
        x = sketch.norm(x, norm, block)
    return g.like("mul", x, factor) if factor and family.tempered != "unturned" else x


def rope_factors(sketch: Sketch, block: int) -> Node | None:
    """``get_rope_factors``: the copy on the device of *block*."""
    names = ("rope_freqs.weight", "rope_factors_long.weight")
    return next(filter(None, (sketch.shared_weight(name, block) for name in names)), None)


def _rope_off(sketch: Sketch, cache: CacheLayer) -> bool:
    """Whether this layer does without a rotary embedding."""
    rope, spec = sketch.family.rope, sketch.spec
    if rope == "windowed":
        return sketch.batch.windowed and not cache.window
    if rope == "windowed_and_dense":
        dense = spec.metadata.get(f"{spec.architecture}.leading_dense_block_count", 0)
        return not cache.window and not (isinstance(dense, int) and cache.block < dense)
    if rope == "but_first":
        return sketch.batch.windowed and cache.block % 4 == 0
    if rope == "by_pattern":
        pattern = spec.metadata.get(f"{spec.architecture}.attention.rope_pattern")
        return isinstance(pattern, tuple) and cache.block < len(pattern) and not pattern[cache.block]
    if rope == "small":
        return spec.block_count != 32
    if rope == "finetuned":
        return spec.metadata.get(f"{spec.architecture}.rope.scaling.finetuned") is False
    return rope == "none"


def rotate(x: Node, rotation: Node) -> Node:
    """``llama_mul_mat_hadamard``."""
    side = rotation.ne[0]
    flat = g.reshape(x, side, x.elements // side) if x.contiguous else g.contiguous(x, side, x.elements // side)
    return g.reshape(g.mul_mat(rotation, flat), *x.ne)


def store_kv(sketch: Sketch, k: Node, v: Node, cache: CacheLayer, inputs: CacheInputs) -> tuple[Node, Node]:
    """Write the new rows. Returns the cache tensors."""
    tokens, streams = sketch.batch.tokens, sketch.batch.streams
    k_cache = store_k(sketch, k, cache, inputs)
    v_cache = cache_tensor(sketch, sketch.settings.type_v, cache.v_width, cache)
    width = v.ne[0] * v.ne[1]
    if not sketch.batch.v_transposed:
        rows = g.view(v, (width, tokens), (v.nb[2],))
        target = _all_streams(v_cache, streams)
    else:
        # V is stored transposed, one element a row
        merged = g.row_bytes(v.kind, width) == v.nb[2]
        rows = g.reshape(v, width, tokens) if merged else g.contiguous(v, width, tokens)
        if width < cache.v_width:
            rows = Node("pad", rows.kind, (cache.v_width, tokens, 1, 1), (rows,))
        target = g.reshape(v_cache, 1, v_cache.elements)
        rows = g.reshape(rows, 1, rows.elements)
    sketch.graph.expand(g.set_rows(target, rows, inputs.v_ids))
    return k_cache, v_cache


def store_k(sketch: Sketch, k: Node, cache: CacheLayer, inputs: CacheInputs) -> Node:
    """Write the new rows of K (``cpy_k``). Returns the cache tensor."""
    k_cache = cache_tensor(sketch, sketch.settings.type_k, cache.k_width, cache)
    store_rows(sketch, k, k_cache, inputs.k_ids)
    return k_cache


def store_rows(sketch: Sketch, x: Node, cache: Node, ids: Node) -> None:
    """Write what *x* holds of each token (width, heads, tokens) as a row of *cache*."""
    rows = g.view(x, (cache.ne[0], ids.ne[0]), (x.nb[2],))
    sketch.graph.expand(g.set_rows(_all_streams(cache, cache.ne[2]), rows, ids))


def cache_tensor(
    sketch: Sketch, cache_type: str, width: int, cache: CacheLayer, *, cells: int = 0, streams: int = 0
) -> Node:
    """The tensor of a cache whose rows have *width* elements; *cells* and *streams* if they aren't those of all."""
    kind = CACHE_TYPES[cache_type]
    shape = (width, cells or cache.cells, streams or sketch.batch.streams)
    node = g.leaf((kind.block_size, kind.block_bytes), *shape)
    node.home = sketch.backends[cache.device]
    return node


def _all_streams(cache: Node, streams: int) -> Node:
    return g.reshape(cache, cache.ne[0], cache.ne[1] * streams) if streams > 1 else cache


def _look_up(sketch: Sketch, q: Node, stored: tuple[Node, Node], cache: CacheLayer, mask: Node) -> Node:
    """Read all rows of the cache (``get_k``, ``get_v``) and attend to them."""
    k_cache, v_cache = stored
    streams, cells = sketch.batch.streams, cache.cells
    kv_heads = sketch.spec.head_count_kv[cache.block]
    sink = sketch.weight(f"blk.{cache.block}.attn_sinks.weight")
    k = view_heads(k_cache, cache.k_head, kv_heads, cells, streams)
    if not sketch.batch.v_transposed:
        v = view_heads(v_cache, cache.v_head, kv_heads, cells, streams)
    else:
        size = v_cache.kind[1]
        v = g.view(
            v_cache,
            (cells, kv_heads, cache.v_head, streams),
            (size * cells * cache.v_head, size * cells, size * cells * cache.v_width),
        )
    return multi_head(sketch, (q, k, v), mask, (sink,) if sink else ())


def multi_head(
    sketch: Sketch,
    parts: tuple[Node, Node, Node],
    mask: Node,
    sinks: tuple[Node, ...] = (),
    decompress: Node | None = None,
) -> Node:
    """``build_attn_mha``: queries, keys and values (head width, heads, tokens, streams) to one row a token.

    *decompress* is the matrix that turns compressed values into those of each head.
    """
    q, k, v = parts
    streams = k.ne[3]
    tokens = q.ne[2] // streams
    q = g.view(q, (q.ne[0], q.ne[1], tokens, streams), (q.nb[1], q.nb[2], q.nb[2] * tokens))
    transposed = v.nb[1] > v.nb[2]
    q, k, v = g.swap_heads(q), g.swap_heads(k), g.swap_heads(v)
    if sketch.batch.flash_attn:
        # the fused operation takes no 32-bit keys and values
        k, v = (g.half(x) if x.kind == g.F32 else x for x in (k, v))
        x = g.flash_attention(q, k, v, mask, *sinks)
        if decompress:
            x = g.contiguous(g.swap_heads(g.mul_mat(decompress, g.swap_heads(x))))
        x = g.reshape(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
    else:
        scores = g.like("soft_max", g.mul_mat(k, q), mask, *sinks)
        x = g.mul_mat(v if transposed else g.contiguous(g.transpose(v)), scores)
        if decompress:
            x = g.mul_mat(decompress, x)
        x = g.swap_heads(x)
        x = g.contiguous(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
        if not sketch.settings.kv_offload:
            x.backend = sketch.backends[HOST]
    sketch.graph.expand(x)
    return x


def view_heads(cache: Node, width: int, kv_heads: int, cells: int, streams: int) -> Node:
    """``get_k``: the rows of a cache, head by head."""
    nb = (g.row_bytes(cache.kind, width), cache.nb[1], cache.nb[1] * cells)
    return g.view(cache, (width, kv_heads, cells, streams), nb)

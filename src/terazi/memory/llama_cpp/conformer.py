"""The graph of Gemma 4's sound encoder, a conformer that attends within chunks.

Source: ``tools/mtmd/models/gemma4a.cpp``, b11434.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp import image_ops as ops
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.tower import Tower

_CHUNK, _PAST = 12, 12
#: Places that a chunk sees, and distances that are told apart.
_SEEN, _DISTANCES = _CHUNK + _PAST, _PAST + 1


def draw_conformer(tower: Tower) -> Node:
    """Gemma 4's sounds: convolutions, conformer blocks, the embedder."""
    encoder = tower.encoder
    x = _subsampled(tower)
    places = x.ne[1]
    chunks = -(-places // _CHUNK)
    relative = tower.input(g.F32, encoder.heads * encoder.head_width, _DISTANCES)
    mask = tower.input(g.F32, _SEEN, _CHUNK, chunks)
    for block in range(encoder.layers):
        x = _block(tower, x, f"a.blk.{block}", relative, mask)
    if tower.weight("a.pre_encode.out.weight"):
        x = tower.linear("a.pre_encode.out", x)
    x = g.like("rms_norm", x)
    weight = tower.weight("mm.a.soft_emb_norm.weight")
    if weight:
        x = g.like("mul", x, weight)
    if tower.weight("mm.a.input_projection.weight"):
        x = tower.product("mm.a.input_projection.weight", x)
    return x


def _subsampled(tower: Tower) -> Node:
    x = g.contiguous(g.transpose(tower.raw(1)))
    for number in (0, 1):
        x = tower.convolve(f"a.conv1d.{number}.weight", x, stride=2, padding=1)
        bias, weight = tower.weight(f"a.conv1d.{number}.bias"), tower.weight(f"a.conv1d.{number}.norm.weight")
        if bias:
            x = g.like("add", x, bias)
        if weight:
            x = g.like("norm", g.contiguous(ops.permute(x, 1, 2, 0, 3)))
            x = g.contiguous(ops.permute(g.like("mul", x, weight), 2, 0, 1, 3))
        x = g.like("unary", x)
    x = g.contiguous(ops.permute(x, 1, 2, 0, 3))
    x = g.reshape(x, x.ne[0] * x.ne[1], x.ne[2])
    return tower.linear("a.input_projection", x)


def _block(tower: Tower, x: Node, name: str, relative: Node, mask: Node) -> Node:
    x = _half_step(tower, x, name, "")
    x = g.like("add", x, _attend(tower, x, name, relative, mask))
    x = g.like("add", x, _convolve(tower, x, name))
    x = _half_step(tower, x, name, "_1")
    return tower.norm(x, f"{name}.ln2", "rms_norm") if tower.weight(f"{name}.ln2.weight") else x


def _half_step(tower: Tower, x: Node, name: str, number: str) -> Node:
    y = tower.norm(x, f"{name}.ffn_norm{number}", "rms_norm")
    y = g.like("unary", tower.product(f"{name}.ffn_up{number}.weight", y))
    y = tower.product(f"{name}.ffn_down{number}.weight", y)
    if tower.weight(f"{name}.ffn_post_norm{number}.weight"):
        y = tower.norm(y, f"{name}.ffn_post_norm{number}", "rms_norm")
    return g.like("add", x, g.like("scale", y))


def _attend(tower: Tower, start: Node, name: str, relative: Node, mask: Node) -> Node:
    encoder = tower.encoder
    width, heads, places = encoder.head_width, encoder.heads, start.ne[1]
    chunks = mask.ne[2]
    x = start
    for norm in ("attn_pre_norm", "ln1"):
        if tower.weight(f"{name}.{norm}.weight"):
            x = tower.norm(start, f"{name}.{norm}", "rms_norm")
            break
    q, k, v = (g.reshape(tower.product(f"{name}.attn_{part}.weight", x), width, heads, places) for part in "qkv")
    q, k = _scaled(tower, q, f"{name}.per_dim_scale"), _scaled(tower, k, f"{name}.per_dim_k_scale")
    q = g.reshape(ops.padded(q, 0, 0, chunks * _CHUNK - places), width, heads, _CHUNK, chunks)
    q = g.contiguous(ops.permute(q, 0, 3, 1, 2))
    k = g.contiguous(ops.permute(_windows(k, chunks), 0, 3, 1, 2))
    v = g.contiguous(ops.permute(_windows(v, chunks), 1, 3, 0, 2))
    scores = g.mul_mat(k, q)
    matrix = tower.weight(f"{name}.attn_k_rel.weight")
    if matrix:
        scores = g.like("add", scores, _distances(matrix, relative, q))
    scores = g.like("scale", g.like("unary", g.like("scale", scores)))
    weights = g.like("soft_max", g.like("add", scores, mask))
    y = g.contiguous(ops.permute(g.mul_mat(v, weights), 0, 2, 3, 1))
    y = g.contiguous(y, width * heads, _CHUNK * chunks)
    if _CHUNK * chunks > places:
        y = g.contiguous(g.view(y, (width * heads, places), (y.nb[1],)))
    y = tower.linear(f"{name}.attn_out", y)
    return tower.norm(y, f"{name}.attn_post_norm", "rms_norm") if _has_post(tower, name) else y


def _has_post(tower: Tower, name: str) -> bool:
    return tower.weight(f"{name}.attn_post_norm.weight") is not None


def _scaled(tower: Tower, x: Node, name: str) -> Node:
    x = g.like("scale", x)
    factors = tower.weight(f"{name}.weight")
    return g.like("mul", x, g.reshape(factors, x.ne[0], 1, 1)) if factors else x


def _windows(x: Node, chunks: int) -> Node:
    """Each chunk with what lies before it: overlapping pieces, copied."""
    width, heads, places, _ = x.ne
    x = ops.padded(x, 0, 0, _SEEN * chunks - places)
    return g.contiguous(g.view(x, (width, heads, _SEEN, chunks), (x.nb[1], x.nb[2], _CHUNK * x.nb[2])))


def _distances(matrix: Node, relative: Node, q: Node) -> Node:
    """What a query makes of the distance, shifted into place."""
    width, _, chunks, heads = q.ne
    p = g.reshape(g.mul_mat(matrix, relative), width, heads, _DISTANCES)
    p = g.contiguous(g.swap_heads(p))
    x = g.mul_mat(p, g.reshape(q, width, _CHUNK * chunks, heads))
    x = g.reshape(x, _DISTANCES, _CHUNK, chunks, heads)
    x = ops.padded(x, _SEEN + 1 - _DISTANCES)
    x = g.reshape(x, (_SEEN + 1) * _CHUNK, chunks, heads)
    x = g.contiguous(g.view(x, (_CHUNK * _SEEN, chunks, heads), (x.nb[1], x.nb[2])))
    return g.reshape(x, _SEEN, _CHUNK, chunks, heads)


def _convolve(tower: Tower, start: Node, name: str) -> Node:
    # the two norms have each other's names in the file
    x = tower.norm(start, f"{name}.conv_norm", "rms_norm")
    x = tower.product(f"{name}.conv_pw1.weight", x)
    width = x.ne[0] // 2
    gate = g.like("unary", g.contiguous(g.view(x, (width, x.ne[1]), (x.nb[1],))))
    x = g.like("mul", g.view(x, (width, x.ne[1]), (x.nb[1],)), gate)
    x = ops.padded(g.contiguous(g.transpose(x)), 4)
    x = g.state_convolution(x, tower.need(f"{name}.conv_dw.weight"))
    bias, weight = tower.weight(f"{name}.conv_dw.bias"), tower.weight(f"{name}.norm_conv.weight")
    if bias:
        x = g.like("add", x, bias)
    if weight:
        x = g.like("mul", g.like("rms_norm", x), weight)
    return tower.product(f"{name}.conv_pw2.weight", g.like("unary", x))

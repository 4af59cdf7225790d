"""The graphs of sound encoders: Whisper's with the projectors behind it, Qwen3's, Gemma 4's unified one.

Sources, b11434: ``tools/mtmd/models/whisper-enc.cpp``, ``qwen3a.cpp``, ``gemma4ua.cpp``.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp import image_ops as ops
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.tower import Tower


def draw_whisper(tower: Tower) -> Node:
    """Whisper's encoder and what joins it to the text model."""
    table = tower.need("a.position_embd.weight")
    places = tower.picture.width // 2
    x = tower.raw(1)
    for number, stride in ((1, 1), (2, 2)):
        x = tower.convolve_line(f"a.conv1d.{number}.weight", x, stride=stride)
        x = g.like("unary", g.like("add", x, tower.need(f"a.conv1d.{number}.bias")))
    x = g.contiguous(g.transpose(x))
    learnt = g.view(table, (table.ne[0], places), (table.nb[1],))
    x = tower.layers(x, places, "norm", learnt=learnt)
    return _PROJECTORS[tower.encoder.kind](tower, x)


def _stacked(tower: Tower, x: Node) -> Node:
    """``build_stack``: several frames as one row, padded to whole rows."""
    factor = tower.encoder.number("projector.stack_factor")
    if factor <= 1:
        return x
    row, total = tower.encoder.width * factor, x.elements
    length = -(-total // row) * row
    if length > total:
        x = ops.padded(g.view(x, (total,)), length - total)
    return g.view(x, (row, length // row), (4 * row,))


def _ultravox(tower: Tower, x: Node) -> Node:
    x = g.like("mul", g.like("rms_norm", _stacked(tower, x)), tower.need("mm.a.norm_pre.weight"))
    x = g.mul_mat(tower.need("mm.a.mlp.1.weight"), x)
    x = ops.made("glu", x.kind, (x.ne[0] // 2, *x.ne[1:]), x)
    x = g.like("mul", g.like("rms_norm", x), tower.need("mm.a.norm_mid.weight"))
    return g.mul_mat(tower.need("mm.a.mlp.2.weight"), x)


def _qwen2(tower: Tower, x: Node) -> Node:
    return tower.linear("mm.a.fc", x)


def _voxtral(tower: Tower, x: Node) -> Node:
    return tower.feed_forward(_stacked(tower, x), "mm.a.mlp.1", "mm.a.mlp.2")


def _flamingo(tower: Tower, x: Node) -> Node:
    return tower.feed_forward(x, "mm.a.mlp.1", "mm.a.mlp.2")


def _meralion(tower: Tower, x: Node) -> Node:
    x = tower.norm(_stacked(tower, x), "mm.a.norm_pre", "norm")
    x = g.like("unary", tower.linear("mm.a.mlp.0", x))
    gate = g.like("unary", tower.linear("mm.a.mlp.1", x))
    return tower.linear("mm.a.mlp.3", g.like("mul", gate, tower.linear("mm.a.mlp.2", x)))


def _glm(tower: Tower, x: Node) -> Node:
    x = _stacked(tower, tower.norm(x, "mm.a.norm_pre", "norm"))
    x = tower.feed_forward(x, "mm.a.mlp.1", "mm.a.mlp.2")
    x = g.concat(tower.need("v.boi"), x, 1)
    return g.concat(x, tower.need("v.eoi"), 1)


_PROJECTORS = {
    "ultravox": _ultravox,
    "qwen2a": _qwen2,
    "voxtral": _voxtral,
    "musicflamingo": _flamingo,
    "meralion": _meralion,
    "glma": _glm,
}


def draw_qwen3_audio(tower: Tower) -> Node:
    """Qwen3's sounds: pieces of 100 frames, convolved as pictures."""
    frames, bands = tower.picture.width, tower.picture.height
    pieces = frames // 100
    raw = tower.raw(1)
    x = g.contiguous(g.view(raw, (100, bands, 1, pieces), (4 * frames, 400, 400)))
    for number in (1, 2, 3):
        x = tower.convolve(f"a.conv2d.{number}.weight", x, stride=2, padding=1)
        bias = g.reshape(tower.need(f"a.conv2d.{number}.bias"), 1, 1, x.ne[2], 1)
        x = g.like("unary", g.like("add", x, bias))
    x = g.contiguous(ops.permute(x, 2, 0, 1, 3))
    x = g.reshape(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
    x = g.mul_mat(tower.need("a.conv_out.weight"), x)
    table, places = tower.need("a.position_embd.weight"), x.ne[1]
    piece = g.view(table, (table.ne[0], places // pieces), (table.nb[1],))
    x = g.like("add", x, ops.made("repeat", piece.kind, (table.ne[0], places), piece))
    x = tower.layers(x, places, "norm")
    return tower.feed_forward(x, "mm.a.mlp.1", "mm.a.mlp.2")


def draw_gemma4_unified_audio(tower: Tower) -> Node:
    """Gemma 4's variant without a transformer: raw sound in rows, normalised and projected."""
    x = g.contiguous(ops.permute(tower.raw(1), 1, 0, 2, 3))
    return tower.product("mm.a.input_projection.weight", g.like("rms_norm", x))

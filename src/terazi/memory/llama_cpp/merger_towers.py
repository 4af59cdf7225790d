"""The graphs of image encoders that join squares of patches: GLM, Kimi, dots, PaddleOCR, Nemotron, MiniCPM-V 4.6.

Sources, b11434: ``tools/mtmd/models/`` (``glm4v.cpp``, ``kimivl.cpp``, ``kimik25.cpp``, ``dotsocr.cpp``,
``paddleocr.cpp``, ``nemotron-v2-vl.cpp``, ``minicpmv.cpp``).
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp import image_ops as ops
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.qwen_towers import both_frames, in_squares, squares_of_places
from terazi.memory.llama_cpp.tower import Tower
from terazi.memory.llama_cpp.vision_towers import resized_places, turn_by


def draw_glm4(tower: Tower) -> Node:
    """GLM-4V, GLM-OCR and GLM-5V: patches like Qwen's, a convolution that merges them, two projectors."""
    encoder, patches = tower.encoder, tower.patches
    merge = encoder.merge
    x = g.like("add", in_squares(tower, both_frames(tower)), tower.need("v.patch_embd.bias"))
    if tower.weight("v.norm_embd.weight"):
        x = tower.norm(x, "v.norm_embd", "rms_norm")
    learnt = squares_of_places(tower) if tower.weight("v.position_embd.weight") else None
    places = tower.input(g.I32, 4 * patches)
    x = tower.layers(x, patches, "rms_norm", learnt=learnt, turn=turn_by(places))
    tokens = patches // merge // merge
    x = g.contiguous(ops.permute(g.reshape(x, encoder.width, merge, merge, tokens), 2, 0, 1, 3))
    x = tower.convolve("mm.patch_merger.weight", x, stride=merge)
    x = g.like("add", g.reshape(x, x.ne[2], tokens), tower.need("mm.patch_merger.bias"))
    x = tower.norm(g.mul_mat(tower.need("mm.model.fc.weight"), x), "mm.post_norm", "norm")
    return tower.feed_forward(g.like("unary", x), "mm.up", "mm.down", "mm.gate")


def draw_kimi(tower: Tower) -> Node:
    """Kimi-VL and Kimi K2.5: learnt and turned places, a pixel shuffle, a norm of each patch."""
    high, wide = (tower.input(g.I32, tower.patches) for _ in range(2))
    x = tower.patched()
    learnt: Node | None = _places_in_plane(tower) if tower.encoder.kind == "kimik25" else resized_places(tower)
    x = tower.layers(x, tower.patches, "norm", learnt=learnt, turn=turn_by(wide, high))
    x = tower.merged(x)
    joined, tokens = x.ne[0], x.ne[1]
    width, square = tower.encoder.width, tower.encoder.merge**2
    x = tower.norm(g.view(x, (width, tokens * square), (4 * width,)), "mm.input_norm", "norm")
    return tower.feed_forward(g.view(x, (joined, tokens), (4 * joined,)), "mm.1", "mm.2")


def _places_in_plane(tower: Tower) -> Node:
    """``resize_position_embeddings_3d``: the table keeps its rows and columns apart."""
    table, width = tower.need("v.position_embd.weight"), tower.encoder.width
    if table.ne[1:3] == (tower.across, tower.down):
        return g.contiguous(table, width, tower.patches)
    x = ops.resized(ops.permute(table, 2, 1, 0, 3), tower.down, tower.across, width)
    return g.contiguous(ops.permute(x, 2, 1, 0, 3), width, tower.patches)


def draw_dots(tower: Tower) -> Node:
    """dots.ocr: turned places in four sections, a norm, squares of patches."""
    places = tower.input(g.I32, 4 * tower.patches)
    x = tower.layers(tower.patched(), tower.patches, "rms_norm", turn=turn_by(places))
    return tower.feed_forward(tower.merged(tower.norm(x, "mm.input_norm", "norm")), "mm.0", "mm.2")


def draw_paddle(tower: Tower) -> Node:
    """PaddleOCR: the same with learnt places besides."""
    places = tower.input(g.I32, 4 * tower.patches)
    learnt = resized_places(tower)
    x = tower.layers(tower.patched(), tower.patches, "norm", learnt=learnt, turn=turn_by(places))
    return tower.feed_forward(tower.merged(tower.norm(x, "mm.input_norm", "norm")), "mm.1", "mm.2")


def draw_nemotron(tower: Tower) -> Node:
    """Nemotron Nano V2 VL: register tokens before the patches."""
    registers, patches, width = tower.need("v.class_embd"), tower.patches, tower.encoder.width
    x = g.like("add", tower.patched(), tower.need("v.position_embd.weight"))
    x = g.concat(registers, x, 1)
    x = tower.layers(x, patches + registers.ne[1], "norm")
    x = tower.merged(g.view(x, (width, patches), (4 * width,)))
    x = g.mul_mat(tower.need("mm.model.mlp.1.weight"), tower.norm(x, "mm.model.mlp.0", "rms_norm"))
    return g.mul_mat(tower.need("mm.model.mlp.3.weight"), g.like("sqr", g.like("unary", x)))


def draw_minicpmv_merged(tower: Tower) -> Node:
    """MiniCPM-V 4.6: patches attend within squares in the middle, are joined there, and once more at the end."""
    encoder, patches = tower.encoder, tower.patches
    learnt = g.get_rows(tower.need("v.position_embd.weight"), tower.input(g.I32, patches))
    x = g.like("add", tower.patched(), learnt)
    if tower.weight("v.pre_ln.weight"):
        x = tower.norm(x, "v.pre_ln", "norm")
    tokens, first = patches, 0
    if encoder.merge != 2:
        first = (encoder.numbers("wa_layer_indexes") or (0,))[0] + 1
        for block in range(first):
            x = _plain_layer(tower, x, block, patches)
        tokens = (tower.across // 2) * (tower.down // 2)
        x = _joined(tower, _within_squares(tower, x), tokens)
    for block in range(first, encoder.layers):
        x = _plain_layer(tower, x, block, tokens)
    if tower.weight("v.post_ln.weight"):
        x = tower.norm(x, "v.post_ln", "norm")
    _, joined = _four(tower, x, (tower.across // encoder.merge) * (tower.down // encoder.merge))
    return tower.feed_forward(tower.norm(joined, "mm.input_norm", "norm"), "mm.up", "mm.down")


def _plain_layer(tower: Tower, x: Node, block: int, tokens: int) -> Node:
    name, encoder = f"v.blk.{block}", tower.encoder
    y = tower.norm(x, f"{name}.ln1", "norm")
    flat = [tower.linear(f"{name}.attn_{part}", y) for part in "qkv"]
    q, k, v = (g.reshape(part, encoder.head_width, encoder.heads, tokens) for part in flat)
    x = g.like("add", tower.scaled(tower.attention(f"{name}.attn_out", q, k, v), f"{name}.ls1"), x)
    y = tower.norm(x, f"{name}.ln2", "norm")
    y = tower.feed_forward(y, f"{name}.ffn_up", f"{name}.ffn_down", f"{name}.ffn_gate")
    return g.like("add", x, tower.scaled(y, f"{name}.ls2"))


def _within_squares(tower: Tower, x: Node) -> Node:
    encoder, patches, name = tower.encoder, tower.patches, "v.vit_merger"
    order, back = (tower.input(g.I32, patches) for _ in range(2))
    mask = tower.input(g.F32, patches, patches)
    if tower.flash_attn:
        mask = g.half(mask)
    y = g.get_rows(tower.norm(x, f"{name}.ln1", "norm"), order)
    flat = [tower.linear(f"{name}.attn_{part}", y) for part in "qkv"]
    q, k, v = (g.reshape(part, encoder.head_width, encoder.heads, patches) for part in flat)
    y = tower.attention(f"{name}.attn_out", q, k, v, mask)
    return g.like("add", g.get_rows(y, back), x)


def _four(tower: Tower, x: Node, tokens: int) -> tuple[list[Node], Node]:
    """Every fourth patch four times, and all of them as one row."""
    parts = [g.get_rows(x, tower.input(g.I32, tokens)) for _ in range(4)]
    joined = parts[0]
    for part in parts[1:]:
        joined = g.concat(joined, part, 0)
    return parts, joined


def _joined(tower: Tower, x: Node, tokens: int) -> Node:
    parts, joined = _four(tower, x, tokens)
    mean = parts[0]
    for part in parts[1:]:
        mean = g.like("add", mean, part)
    mean = g.like("scale", mean)
    name = "v.vit_merger"
    y = tower.feed_forward(tower.norm(joined, f"{name}.ds_ln", "norm"), f"{name}.ds_ffn_up", f"{name}.ds_ffn_down")
    return g.like("add", y, mean)

"""The graphs of Qwen's image encoders: two frames in one patch, rotary places in four sections, windows.

Sources, b11434: ``tools/mtmd/models/qwen2vl.cpp``, ``qwen3vl.cpp``.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp import image_ops as ops
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.tower import Tower
from terazi.memory.llama_cpp.vision_towers import resized_places


def draw_qwen2(tower: Tower) -> Node:
    """Qwen2-VL and Qwen2.5-VL; the latter's windows are groups of patches behind a mask."""
    encoder, patches = tower.encoder, tower.patches
    width, period = encoder.width, encoder.number("n_wa_pattern")
    norm = _norm(tower)
    x = in_squares(tower, both_frames(tower))
    places = tower.input(g.I32, 4 * patches)
    if tower.weight("v.pre_ln.weight"):
        x = tower.norm(x, "v.pre_ln", norm)
    mask = None
    if period:
        order = tower.input(g.I32, patches // 4)
        mask = tower.input(g.F32, patches, patches)
        if tower.flash_attn:
            mask = g.half(mask)
        x = g.get_rows(g.reshape(x, 4 * width, patches // 4), order)
        x = g.reshape(x, width, patches, 1)
    for block in range(encoder.layers):
        whole = not period or (block + 1) % period == 0
        x = _layer(tower, x, block, places, None if whole else mask)
    if tower.weight("v.post_ln.weight"):
        x = tower.norm(x, "v.post_ln", norm)
    x = tower.feed_forward(g.reshape(x, 4 * width, patches // 4, 1), "mm.0", "mm.2")
    if period:
        back = tower.input(g.I32, patches // 4)
        text = encoder.number("projection_dim")
        x = g.get_rows(g.reshape(x, text, patches // 4), back)
        x = g.reshape(x, text, patches // 4, 1)
    return x


def draw_qwen3(tower: Tower) -> Node:
    """Qwen3-VL: learnt places besides, and parts of some layers behind the result."""
    encoder, patches = tower.encoder, tower.patches
    width, merged = encoder.width, encoder.merge**2 or 4
    x = in_squares(tower, both_frames(tower))
    bias = tower.weight("v.patch_embd.bias")
    if bias:
        x = g.like("add", x, bias)
    x = g.like("add", x, squares_of_places(tower))
    places = tower.input(g.I32, 4 * patches)
    if tower.weight("v.pre_ln.weight"):
        x = tower.norm(x, "v.pre_ln", "norm")
    deep: Node | None = None
    for block in range(encoder.layers):
        x = _layer(tower, x, block, places, None)
        if tower.weight(f"v.deepstack.{block}.fc1.weight"):
            name = f"v.deepstack.{block}"
            part = tower.norm(g.reshape(x, width * merged, patches // merged, 1), f"{name}.norm", "norm")
            part = tower.feed_forward(part, f"{name}.fc1", f"{name}.fc2")
            deep = g.concat(deep, part, 0) if deep else part
    if tower.weight("v.post_ln.weight"):
        x = tower.norm(x, "v.post_ln", "norm")
    x = tower.feed_forward(g.reshape(x, 4 * width, patches // 4, 1), "mm.0", "mm.2")
    return g.concat(x, deep, 0) if deep else x


def _norm(tower: Tower) -> str:
    return "rms_norm" if tower.encoder.kind == "qwen2.5vl_merger" else "norm"


def both_frames(tower: Tower) -> Node:
    """``build_inp_with_temporal_merge`` of a still image, or of two frames of a film."""
    raw, patch = tower.raw(), tower.encoder.patch
    names = ("v.patch_embd.weight", "v.patch_embd.weight.1")
    frames = [raw, raw]
    if tower.picture.pictures == 2:
        frames = [g.view(raw, raw.ne[:3], raw.nb[1:3]) for _ in names]
    first, second = (tower.convolve(n, x, stride=patch) for n, x in zip(names, frames, strict=True))
    return g.like("add", first, second)


def in_squares(tower: Tower, x: Node) -> Node:
    """Patches in the order of squares of four."""
    width, across, down = tower.encoder.width, tower.across, tower.down
    x = g.contiguous(ops.permute(x, 1, 2, 0, 3), 2 * width, across // 2, down, 1)
    return _by_squares(tower, x)


def squares_of_places(tower: Tower) -> Node:
    """Learnt places in the same order."""
    x = g.contiguous(resized_places(tower), 2 * tower.encoder.width, tower.across // 2, tower.down, 1)
    return _by_squares(tower, x)


def _by_squares(tower: Tower, x: Node) -> Node:
    width, across, down = tower.encoder.width, tower.across, tower.down
    x = g.swap_heads(g.reshape(x, 2 * width, across // 2, 2, down // 2))
    return g.contiguous(x, width, across * down, 1)


def _layer(tower: Tower, x: Node, block: int, places: Node, mask: Node | None) -> Node:
    encoder, patches, name, norm = tower.encoder, tower.patches, f"v.blk.{block}", _norm(tower)
    shape = (encoder.head_width, encoder.heads, patches)
    y = tower.norm(x, f"{name}.ln1", norm)
    if encoder.kind == "qwen3vl_merger":
        y = tower.linear(f"{name}.attn_qkv", y)
        q, k, v = (g.view(y, shape, (4 * shape[0], y.nb[1])) for _ in range(3))
    else:
        q, k, v = (g.reshape(tower.linear(f"{name}.attn_{part}", y), *shape) for part in "qkv")
    q, k = g.like("rope", q, places), g.like("rope", k, places)
    x = g.like("add", tower.attention(f"{name}.attn_out", q, k, v, mask), x)
    y = tower.norm(x, f"{name}.ln2", norm)
    y = tower.feed_forward(y, f"{name}.ffn_up", f"{name}.ffn_down", f"{name}.ffn_gate")
    return g.like("add", x, y)

"""The graphs of image encoders that share a transformer, one function a kind of projector.

Sources, b11434: ``tools/mtmd/models/`` (``siglip.cpp``, ``pixtral.cpp``, ``internvl.cpp``, ``llama4.cpp``,
``llava.cpp``, ``minicpmv.cpp``, ``gemma4v.cpp``, ``gemma4uv.cpp``). The order in which things are added to the
graph is the order in which the allocator sees them.
"""

from collections.abc import Callable

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp import image_ops as ops
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.tower import Tower


def draw_gemma3(tower: Tower) -> Node:
    """SigLIP, then squares of patches averaged (``clip_graph_siglip``)."""
    width, side = tower.encoder.width, tower.across
    x = tower.layers(tower.patched(), tower.patches, "norm", learnt=tower.weight("v.position_embd.weight"))
    x = g.contiguous(g.transpose(x), side, side, width, 1)
    x = ops.pool(x, tower.encoder.merge)
    x = g.contiguous(g.transpose(g.reshape(x, x.ne[0] * x.ne[0], width, 1)))
    x = g.like("mul", g.like("rms_norm", x), tower.need("mm.soft_emb_norm.weight"))
    return g.mul_mat(g.contiguous(g.transpose(tower.need("mm.input_projection.weight"))), x)


def draw_idefics3(tower: Tower) -> Node:
    """SigLIP, then a pixel shuffle: SmolVLM too."""
    x = tower.layers(tower.patched(), tower.patches, "norm", learnt=tower.weight("v.position_embd.weight"))
    return g.mul_mat(tower.need("mm.model.fc.weight"), tower.merged(x))


def draw_lfm2(tower: Tower) -> Node:
    """SigLIP with resized places, a pixel shuffle, a small network."""
    x = tower.layers(tower.patched(), tower.patches, "norm", learnt=resized_places(tower))
    x = tower.merged(x)
    weight, bias = tower.weight("mm.input_norm.weight"), tower.weight("mm.input_norm.bias")
    if weight:
        x = g.like("mul", g.like("norm", x), weight)
    if bias:
        x = g.like("add", x, bias)
    return tower.feed_forward(x, "mm.1", "mm.2")


def draw_phi4(tower: Tower) -> Node:
    """SigLIP with resized places and a small network."""
    x = tower.layers(tower.patched(), tower.patches, "norm", learnt=resized_places(tower))
    return tower.feed_forward(x, "mm.0", "mm.2")


def draw_janus(tower: Tower) -> Node:
    """SigLIP and a small network."""
    x = tower.layers(tower.patched(), tower.patches, "norm", learnt=tower.weight("v.position_embd.weight"))
    return tower.feed_forward(x, "mm.0", "mm.1")


def resized_places(tower: Tower) -> Node:
    """``resize_position_embeddings``: the learnt places of a square grid, for another grid."""
    table = tower.need("v.position_embd.weight")
    width, across, down = tower.encoder.width, tower.across, tower.down
    side = int(table.ne[1] ** 0.5)
    if across == side and down == side:
        return table
    x = ops.permute(g.reshape(table, width, side, side), 2, 0, 1, 3)
    x = ops.permute(ops.resized(x, across, down, width), 1, 2, 0, 3)
    return g.contiguous(x, width, across * down)


def turn_by(*places: Node) -> Callable[[Node], Node]:
    """Rotary embeddings, one after the other."""

    def turn(x: Node) -> Node:
        for place in places:
            x = g.like("rope", x, place)
        return x

    return turn


def draw_pixtral(tower: Tower) -> Node:
    """Pixtral, Mistral 3 with its patch merger, LightOnOCR without the breaks between rows."""
    merge, width = tower.encoder.merge, tower.encoder.width
    across, down = tower.across, tower.down
    high, wide = (tower.input(g.I32, tower.patches) for _ in range(2))
    start = tower.patched()
    x = tower.layers(start, tower.patches, "rms_norm", turn=turn_by(high, wide))
    merger = tower.weight("mm.patch_merger.weight")
    if merger:
        x = g.like("mul", g.like("rms_norm", x), tower.need("mm.input_norm.weight"))
        x = g.contiguous(ops.permute(g.reshape(x, width, across, down), 2, 0, 1, 3))
        kernel = g.view(x, (merge, merge, x.ne[2]), (0, 0, 0))
        x = ops.unfold(kernel, x, g.F32, stride=merge)
        x = g.mul_mat(merger, g.reshape(x, x.ne[0], x.ne[1] * x.ne[2]))
    x = tower.feed_forward(x, "mm.1", "mm.2")
    pause = tower.weight("v.token_embd.img_break")
    if pause:
        rows, columns, text = down // merge, across // merge, x.ne[0]
        grid = g.reshape(x, text, columns, rows)
        ends = g.like("add", g.like("scale", g.leaf(g.F32, text, 1, rows)), pause)
        grid = g.concat(grid, ends, 1)
        x = g.view(grid, (text, columns * rows + rows - 1), (4 * text,))
    return x


def draw_internvl(tower: Tower) -> Node:
    """InternVL: a token for the whole tile is added first and dropped last."""
    encoder, count = tower.encoder, tower.picture.pictures
    width, merge = encoder.width, encoder.merge
    whole = tower.need("v.class_embd")
    start = tower.patched()
    repeated = ops.made("repeat", g.F32, (whole.ne[0], 1, count, 1), whole)
    x = g.concat(start, repeated, 1)
    norm = "rms_norm" if (width, encoder.layers) == (3200, 45) else "norm"
    x = tower.layers(x, tower.patches + 1, norm, learnt=tower.need("v.position_embd.weight"))
    x = g.contiguous(g.view(x, (width, tower.patches, count), (x.nb[1], x.nb[2])))
    x = g.swap_heads(g.reshape(x, width * merge, tower.down // merge, tower.across, count))
    x = g.contiguous(x, width * merge * merge, tower.down // merge, tower.across // merge, count)
    x = g.swap_heads(x)
    x = g.contiguous(x, width * merge * merge, x.ne[1] * x.ne[2], x.ne[3])
    x = tower.norm(x, "mm.model.mlp.0", "norm")
    return tower.feed_forward(x, "mm.model.mlp.1", "mm.model.mlp.3")


def draw_llama4(tower: Tower) -> Node:
    """Llama 4: patches are unfolded and multiplied, places are turned."""
    encoder, patches = tower.encoder, tower.patches
    width, merge, patch = encoder.width, encoder.merge, encoder.patch
    high, wide = (tower.input(g.I32, patches + 1) for _ in range(2))
    matrix = tower.need("v.patch_embd.weight")
    kernel = g.reshape(matrix, patch, patch, 3, width)
    x = ops.unfold(kernel, tower.raw(), g.F32, stride=patch)
    x = g.reshape(g.mul_mat(matrix, x), width, patches)
    x = g.concat(x, tower.need("v.class_embd"), 1)
    x = tower.layers(x, patches + 1, "norm", learnt=tower.need("v.position_embd.weight"), turn=turn_by(wide, high))
    x = g.view(x, (width, patches), (4 * width,))
    x = g.swap_heads(g.reshape(x, width * merge, tower.across // merge, tower.down, 1))
    x = g.contiguous(x, width * merge * merge, tower.across // merge, tower.down // merge, 1)
    x = g.contiguous(x, width * merge * merge, patches // merge // merge)
    for number in (1, 2):
        x = g.like("unary", g.mul_mat(tower.need(f"mm.model.mlp.{number}.weight"), x))
    return g.mul_mat(tower.need("mm.model.fc.weight"), x)


def draw_llava(tower: Tower) -> Node:
    """LLaVA and Granite Vision: the last layer (or those behind the deepest feature) isn't run."""
    encoder, patches = tower.encoder, tower.patches
    whole = tower.weight("v.class_embd")
    tokens = patches + (1 if whole else 0)
    features = encoder.numbers("feature_layer")
    deepest = max(features, default=-1)
    if deepest < 0:
        deepest = encoder.layers - 1
    x = tower.patched()
    if whole:
        x = g.concat(x, whole, 1)
    places = tower.input(g.I32, tokens)
    x = g.like("add", x, g.get_rows(tower.need("v.position_embd.weight"), places))
    if tower.weight("v.pre_ln.weight"):
        x = tower.norm(x, "v.pre_ln", "norm")
    stack = []
    for block in range(deepest):
        if block in features:
            stack.append(x)
        x = _llava_layer(tower, x, f"v.blk.{block}", tokens)
    if tower.weight("v.post_ln.weight"):
        x = tower.norm(x, "v.post_ln", "norm")
    if deepest in features:
        stack.append(x)
    if stack:
        x = stack[0]
        for more in stack[1:]:
            x = g.concat(x, more, 0)
    x = g.reshape(x, x.ne[0], x.ne[1])
    x = g.get_rows(x, tower.input(g.I32, patches))
    x = g.like("add", g.mul_mat(tower.need("mm.0.weight"), x), tower.need("mm.0.bias"))
    if tower.weight("mm.3.weight"):  # Yi's: norms between the layers
        x = g.like("unary", tower.norm(x, "mm.1", "norm"))
        x = g.like("add", g.mul_mat(tower.need("mm.3.weight"), x), tower.need("mm.3.bias"))
        return tower.norm(x, "mm.4", "norm")
    x = g.like("unary", x)
    if tower.weight("mm.2.weight"):
        x = g.like("add", g.mul_mat(tower.need("mm.2.weight"), x), tower.need("mm.2.bias"))
    return x


def _llava_layer(tower: Tower, x: Node, name: str, tokens: int) -> Node:
    encoder = tower.encoder
    y = tower.norm(x, f"{name}.ln1", "norm")
    flat = [tower.linear(f"{name}.attn_{part}", y) for part in "qkv"]
    q, k, v = (g.reshape(part, encoder.head_width, encoder.heads, tokens) for part in flat)
    x = g.like("add", tower.attention(f"{name}.attn_out", q, k, v), x)
    y = tower.norm(x, f"{name}.ln2", "norm")
    return g.like("add", x, tower.feed_forward(y, f"{name}.ffn_up", f"{name}.ffn_down", f"{name}.ffn_gate"))


def draw_minicpmv(tower: Tower) -> Node:
    """MiniCPM-V: SigLIP and a resampler with queries of its own."""
    patches = tower.patches
    projection = tower.need("resampler.proj.weight")
    text, width = projection.ne[0], 128
    queries = _query_count(tower)
    omega = tower.input(g.F32, text // 4)
    high, wide = (tower.input(g.F32, 1, patches) for _ in range(2))
    learnt = g.get_rows(tower.need("v.position_embd.weight"), tower.input(g.I32, patches))
    x = tower.layers(tower.patched(), patches, "norm", learnt=learnt)
    v = g.mul_mat(tower.need("resampler.kv.weight"), x)
    q = tower.norm(tower.need("resampler.query"), "resampler.ln_q", "norm")
    v = tower.norm(v, "resampler.ln_kv", "norm")
    each = ops.made("repeat", g.F32, (omega.ne[0], patches, 1, 1), omega)
    angles = [g.like("mul", each, place) for place in (wide, high)]
    waves = [g.concat(g.like("sin", angle), g.like("cos", angle), 0) for angle in angles]
    k = g.like("add", v, g.concat(waves[0], waves[1], 0))
    parts = (("q", q, queries), ("k", k, patches), ("v", v, patches))
    q, k, v = (
        g.reshape(tower.linear(f"resampler.attn.{name}", x), width, text // width, tokens)
        for name, x, tokens in parts
    )
    x = tower.attention("resampler.attn.out", q, k, v)
    x = tower.norm(x, "resampler.ln_post", "norm")
    return g.mul_mat(projection, x)


def _query_count(tower: Tower) -> int:
    keys = tower.encoder.keys
    count = keys.get("clip.minicpmv_query_num", 0)
    if isinstance(count, int) and count > 0:
        return count
    return 64 if keys.get("clip.minicpmv_version", 0) in {3, 4, 5, 6, 100045} else 96


def draw_gemma4(tower: Tower) -> Node:
    """Gemma 4: clamped products, places looked up by row and column and turned, squares of patches averaged."""
    encoder, patches, count = tower.encoder, tower.patches, tower.picture.pictures
    x = tower.convolve("v.patch_embd.weight", g.like("scale", tower.raw()), stride=encoder.patch)
    x = g.contiguous(g.transpose(g.reshape(x, patches, encoder.width, count)))
    x, places = _placed(tower, x)
    x = tower.layers(x, patches, "rms_norm", turn=turn_by(*places))
    merge = encoder.merge
    x = ops.pool(g.contiguous(g.transpose(x), tower.across, tower.down, encoder.width, count), merge)
    x = g.reshape(x, (tower.across // merge) * (tower.down // merge), encoder.width, count)
    x = g.like("scale", g.contiguous(g.transpose(x)))
    bias, factor = tower.weight("v.std_bias"), tower.weight("v.std_scale")
    if bias and factor:
        x = g.like("mul", g.like("sub", x, bias), factor)
    return tower.product("mm.input_projection.weight", g.like("rms_norm", x))


def _placed(tower: Tower, x: Node) -> tuple[Node, tuple[Node, Node]]:
    """*x* with what is learnt about each row and column added, and the inputs that say where patches are."""
    table = tower.need("v.position_embd.weight")
    wide, high = (tower.input(g.I32, tower.patches) for _ in range(2))
    for place in (wide, high):
        half = g.view(table, (tower.encoder.width, table.ne[1]), (table.nb[1],))
        x = g.like("add", x, g.get_rows(half, place))
    return x, (wide, high)


def draw_gemma4_unified(tower: Tower) -> Node:
    """Gemma 4's variant without a transformer: patches are normalised, multiplied and projected."""
    patch = tower.encoder.patch
    raw = tower.raw()
    x = ops.unfold(g.leaf(g.F32, patch, patch, 3), raw, g.F32, stride=patch)
    x = g.reshape(x, x.ne[0], x.ne[1] * x.ne[2] * x.ne[3])
    x = tower.norm(x, "v.patch_norm.1", "norm")
    x = g.like("add", g.mul_mat(tower.need("v.patch_embd.weight"), x), tower.need("v.patch_embd.bias"))
    x, _ = _placed(tower, tower.norm(x, "v.patch_norm.2", "norm"))
    x = tower.norm(x, "v.patch_norm.3", "norm")
    return tower.product("mm.input_projection.weight", g.like("rms_norm", x))

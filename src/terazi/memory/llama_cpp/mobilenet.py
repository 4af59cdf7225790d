"""The graph of Gemma 3n's image encoder, a MobileNet of four stages.

Source: ``tools/mtmd/models/mobilenetv5.cpp``, b11434; stages and blocks are found by their tensors, as
``clip_model_loader::load_tensors`` finds them.
"""

from collections.abc import Iterator

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp import image_ops as ops
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.tower import Tower

_STAGES = 4
#: Side of the grid of tokens that comes out.
_SIDE = 16


def draw_mobilenet(tower: Tower) -> Node:
    """Gemma 3n: stem, blocks, a fusion of the last two stages, the embedder."""
    x = _same(tower.raw(), 3, 2)
    x = ops.convolve_directly(tower.need("v.conv_stem.conv.weight"), x, stride=2)
    bias = tower.weight("v.conv_stem.conv.bias")
    if bias:
        x = g.like("add", x, bias)
    x = g.like("unary", _normed(tower, x, "v.conv_stem.bn"))
    blocks = list(_blocks(tower))
    ends = [i for i, (stage, _) in enumerate(blocks) if i + 1 == len(blocks) or blocks[i + 1][0] != stage]
    fused = ends[2:4] if len(ends) >= _STAGES else [len(blocks) - 1]
    features = []
    for index, (_, name) in enumerate(blocks):
        stride = 2 if index == 0 or index - 1 in ends else 1
        x = _block(tower, x, name, stride)
        if index in fused:
            features.append(x)
    if features:
        x = _fuse(tower, features)
    wide, high, channels = x.ne[0], x.ne[1], x.ne[2]
    x = g.contiguous(g.swap_heads(ops.permute(x, 2, 1, 0, 3)))
    x = g.contiguous(g.reshape(x, channels, wide * high, x.ne[3]))
    x = g.like("rms_norm", g.like("scale", x))
    weight = tower.weight("mm.soft_emb_norm.weight")
    if weight:
        x = g.like("mul", x, weight)
    return g.like("rms_norm", g.mul_mat(tower.need("mm.input_projection.weight"), x))


def _blocks(tower: Tower) -> Iterator[tuple[int, str]]:
    kinds = ("conv_exp.weight", "dw_start.conv.weight", "pw_exp.conv.weight", "attn.query.proj.weight")
    for stage in range(_STAGES):
        block = 0
        while any(tower.weight(f"v.blk.{stage}.{block}.{kind}") for kind in kinds):
            yield stage, f"v.blk.{stage}.{block}"
            block += 1


def _block(tower: Tower, x: Node, name: str, stride: int) -> Node:
    if tower.weight(f"{name}.conv_exp.weight"):
        return _edge(tower, x, name, stride)
    if tower.weight(f"{name}.attn.query.proj.weight"):
        return _attention(tower, x, name)
    return _inverted(tower, x, name, stride)


def _same(x: Node, kernel: int, stride: int) -> Node:
    """``pad_same_2d``: padded so that the length is divided by *stride*, rounded up."""
    more = [max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.ne[:2]]
    return ops.padded(x, *more) if any(more) else x


def _normed(tower: Tower, x: Node, name: str) -> Node:
    """``rms_norm_2d``, where there is a weight for it."""
    weight = tower.weight(f"{name}.weight")
    if not weight:
        return x
    x = g.like("rms_norm", g.contiguous(ops.permute(x, 2, 1, 0, 3)))
    return g.contiguous(ops.permute(g.like("mul", x, weight), 2, 1, 0, 3))


def _edge(tower: Tower, start: Node, name: str, stride: int) -> Node:
    kernel = tower.need(f"{name}.conv_exp.weight")
    if stride == 2:
        x = ops.convolve_directly(kernel, _same(start, 3, 2), stride=2)
    else:
        x = ops.convolve_directly(kernel, start, stride=stride, padding=1)
    x = g.like("unary", _normed(tower, x, f"{name}.bn1"))
    x = ops.convolve_directly(tower.need(f"{name}.conv_pwl.weight"), x)
    x = _normed(tower, x, f"{name}.bn2")
    if stride == 1 and (start.ne[2], start.ne[0]) == (x.ne[2], x.ne[0]):
        x = g.like("add", x, start)
    return x


def _inverted(tower: Tower, start: Node, name: str, stride: int) -> Node:
    x = start
    kernel = tower.weight(f"{name}.dw_start.conv.weight")
    if kernel:
        x = tower.convolve_channels(f"{name}.dw_start.conv.weight", x, padding=kernel.ne[0] // 2)
        x = _normed(tower, x, f"{name}.dw_start.bn")
    kernel = tower.weight(f"{name}.pw_exp.conv.weight")
    if kernel:
        x = g.like("unary", _normed(tower, ops.convolve_directly(kernel, x), f"{name}.pw_exp.bn"))
    kernel = tower.weight(f"{name}.dw_mid.conv.weight")
    if kernel:
        side, named = kernel.ne[0], f"{name}.dw_mid.conv.weight"
        if stride > 1:
            x = tower.convolve_channels(named, _same(x, side, stride), stride=stride)
        else:
            x = tower.convolve_channels(named, x, padding=side // 2)
        x = g.like("unary", _normed(tower, x, f"{name}.dw_mid.bn"))
    kernel = tower.weight(f"{name}.pw_proj.conv.weight")
    if kernel:
        x = _normed(tower, ops.convolve_directly(kernel, x), f"{name}.pw_proj.bn")
    factor = tower.weight(f"{name}.layer_scale.gamma")
    if factor:
        x = g.like("mul", x, factor)
    return g.like("add", x, start) if start.ne[:3] == x.ne[:3] else x


def _attention(tower: Tower, start: Node, name: str) -> Node:
    """Many queries, one key and one value head, the latter two on a coarser grid."""
    x = _normed(tower, start, f"{name}.norm")
    q = ops.convolve_directly(tower.need(f"{name}.attn.query.proj.weight"), x)
    k = _coarser(tower, x, f"{name}.attn.key")
    v = _coarser(tower, x, f"{name}.attn.value")
    wide, high, count = x.ne[0], x.ne[1], x.ne[3]
    width, places, seen = k.ne[2], wide * high, k.ne[0] * k.ne[1]
    heads = q.ne[2] // width
    q = g.reshape(g.reshape(q, places, width * heads, count), places, width, heads, count)
    q = g.contiguous(ops.permute(q, 1, 0, 2, 3))
    k = g.reshape(g.reshape(k, seen, width, count), seen, width, 1, count)
    k = g.contiguous(ops.permute(k, 1, 0, 2, 3))
    v = g.contiguous(g.reshape(g.reshape(v, seen, width, count), seen, width, 1, count))
    scores = g.like("soft_max", g.like("scale", g.mul_mat(k, q)))
    y = g.contiguous(ops.permute(g.mul_mat(v, scores), 1, 0, 2, 3))
    y = g.reshape(g.reshape(y, places, width * heads, count), wide, high, width * heads, count)
    y = ops.convolve_directly(tower.need(f"{name}.attn.output.proj.weight"), g.contiguous(y))
    if (start.ne[0], start.ne[2]) == (y.ne[0], y.ne[2]):
        factor = tower.weight(f"{name}.layer_scale.gamma")
        y = g.like("add", g.like("mul", y, factor) if factor else y, start)
    return y


def _coarser(tower: Tower, x: Node, name: str) -> Node:
    kernel = tower.weight(f"{name}.down_conv.weight")
    if kernel:
        x = tower.convolve_channels(f"{name}.down_conv.weight", _same(x, kernel.ne[0], 2), stride=2)
        x = _normed(tower, x, f"{name}.norm")
    return ops.convolve_directly(tower.need(f"{name}.proj.weight"), x)


def _fuse(tower: Tower, features: list[Node]) -> Node:
    """The features at the finest resolution, one behind the other, mixed and averaged."""
    wide, high = features[0].ne[:2]
    same = []
    for feature in features:
        coarser = feature.ne[0] < wide or feature.ne[1] < high
        scale = wide // feature.ne[0] if coarser else 1
        size = (feature.ne[0] * scale, feature.ne[1] * scale, *feature.ne[2:])
        same.append(ops.resized(feature, *size) if coarser else feature)
    x = same[0]
    for more in same[1:]:
        x = g.concat(x, more, 2)
    kernel = tower.weight("v.msfa.ffn.pw_exp.conv.weight")
    if kernel:
        x = g.like("unary", _normed(tower, ops.convolve_directly(kernel, x), "v.msfa.ffn.pw_exp.bn"))
    kernel = tower.weight("v.msfa.ffn.pw_proj.conv.weight")
    if kernel:
        x = _normed(tower, ops.convolve_directly(kernel, x), "v.msfa.ffn.pw_proj.bn")
    if x.ne[0] > _SIDE:
        x = ops.pool(x, x.ne[0] // _SIDE)
    return _normed(tower, x, "v.msfa.norm")

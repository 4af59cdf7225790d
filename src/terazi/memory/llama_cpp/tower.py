"""The sheet on which an image or sound encoder's graph is drawn, and the transformer that most of them share.

Source: ``tools/mtmd/clip.cpp:clip_graph`` (``build_vit``, ``build_attn``, ``build_ffn``, ``build_inp``), b11434.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from terazi.errors import ModelFileError
from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp import image_ops as ops
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.projector import Encoder
from terazi.models.ggml_types import TYPE_BY_NAME
from terazi.models.spec import Tensor

#: Turns queries or keys by where they stand.
Turn: TypeAlias = Callable[[Node], Node]


class Picture(NamedTuple):
    """What a graph is drawn for: width and height in pixels (a sound: frames and bands), and how many at once."""

    width: int
    height: int
    pictures: int = 1


class Tower:
    """One graph in the making.

    Args:
        encoder: what is drawn.
        tensors: its weights.
        picture: what for.
        flash_attn: whether attention is one fused operation.
    """

    def __init__(
        self, encoder: Encoder, tensors: tuple[Tensor, ...], picture: Picture, *, flash_attn: bool
    ) -> None:
        self.encoder, self.picture, self.flash_attn = encoder, picture, flash_attn
        self.graph = Graph()
        self.across, self.down = picture.width // encoder.patch, picture.height // encoder.patch
        self.patches = self.across * self.down
        self._weights = {tensor.name: _weight(tensor) for tensor in tensors}
        self._wide = {tensor.name for tensor in tensors if tensor.dtype == "bf16"}
        #: products of these kinds clamp what goes in and what comes out (``Gemma4ClippableLinear``)
        self._clamps = encoder.kind in {"gemma4v", "gemma4a"}

    def weight(self, name: str) -> Node | None:
        """The weight *name*, or None if the file has none."""
        return self._weights.get(name)

    def need(self, name: str) -> Node:
        """The weight *name*.

        Raises:
            ModelFileError: if the file has none; the engine refuses it too.
        """
        node = self._weights.get(name)
        if node is None:
            raise ModelFileError(
                f"The projector lacks the tensor {name}, which its type {self.encoder.kind} needs.",
                hint="The file is incomplete or mislabelled; get it again.",
            )
        return node

    def input(self, kind: tuple[int, int], *ne: int) -> Node:
        """A graph input, which lives in host memory."""
        node = g.leaf(kind, *ne)
        node.is_input = True
        return node

    def raw(self, channels: int = 3) -> Node:
        """``build_inp_raw``."""
        return self.input(g.F32, self.picture.width, self.picture.height, channels, self.picture.pictures)

    def convolve(self, name: str, x: Node, *, stride: int = 1, padding: int = 0) -> Node:
        """A convolution with the kernel *name*."""
        return ops.convolve(self.need(name), x, stride=stride, padding=padding, wide=name in self._wide)

    def convolve_line(self, name: str, x: Node, *, stride: int = 1) -> Node:
        """A convolution over time."""
        return ops.convolve_line(self.need(name), x, stride=stride, wide=name in self._wide)

    def convolve_channels(self, name: str, x: Node, *, stride: int = 1, padding: int = 0) -> Node:
        """A convolution channel by channel."""
        return ops.convolve_channels(self.need(name), x, stride=stride, padding=padding, wide=name in self._wide)

    def patched(self, x: Node | None = None) -> Node:
        """``build_inp``: the picture as one row a patch."""
        width = self.encoder.width
        x = self.convolve("v.patch_embd.weight", x or self.raw(), stride=self.encoder.patch)
        x = g.contiguous(g.transpose(g.reshape(x, self.patches, width, self.picture.pictures)))
        bias = self.weight("v.patch_embd.bias")
        return g.like("add", x, bias) if bias else x

    def norm(self, x: Node, name: str, kind: str) -> Node:
        """``build_norm`` with the weight and the bias of *name*, as far as there are any."""
        x = g.like(kind, x)
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        if weight:
            x = g.like("mul", x, weight)
        return g.like("add", x, bias) if bias else x

    def product(self, name: str, x: Node) -> Node:
        """``build_mm`` with the matrix *name*."""
        if not self._clamps:
            return g.mul_mat(self.need(name), x)
        return g.like("clamp", g.mul_mat(self.need(name), g.like("clamp", x)))

    def linear(self, name: str, x: Node) -> Node:
        """A product and its bias, if it has one."""
        x = self.product(f"{name}.weight", x)
        bias = self.weight(f"{name}.bias")
        return g.like("add", x, bias) if bias else x

    def feed_forward(self, x: Node, up: str, down: str, gate: str = "") -> Node:
        """``build_ffn``; some old files have *up* and *down* swapped, which their shapes show."""
        if up.endswith(".ffn_up") and self._swapped(down):
            up, down = down, up
        inner = self.linear(up, x)
        if gate and self.weight(f"{gate}.weight"):
            inner = g.like("glu", self.linear(gate, x), inner)
        else:
            inner = g.like("unary", inner)
        return self.linear(down, inner)

    def _swapped(self, down: str) -> bool:
        matrix = self.weight(f"{down}.weight")
        return self.encoder.kind in _SWAPPED and matrix is not None and matrix.ne[0] == self.encoder.width

    def attention(self, name: str, q: Node, k: Node, v: Node, mask: Node | None = None) -> Node:
        """``build_attn``; *name* is the output projection."""
        for root in (q, k, v):
            self.graph.expand(root)
        q, k = g.swap_heads(q), g.swap_heads(k)
        if self.flash_attn:
            k, v = g.half(k), g.half(g.swap_heads(v))
            masks = (g.half(mask),) if mask else ()
            x = g.flash_attention(q, k, v, *masks)
            x = g.reshape(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
        else:
            v = g.contiguous(ops.permute(v, 1, 2, 0, 3))
            scores = g.like("soft_max", g.mul_mat(k, q), *((mask,) if mask else ()))
            x = g.swap_heads(g.mul_mat(v, scores))
            x = g.contiguous(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
        return self.linear(name, x)

    def layers(
        self,
        x: Node,
        tokens: int,
        norm: str,
        *,
        learnt: Node | None = None,
        turn: Turn | None = None,
    ) -> Node:
        """``build_vit`` of *x* (width, tokens, pictures).

        *learnt* places are added to it, *turn* is for queries and keys.
        """
        count = x.ne[2]
        if learnt:
            x = g.like("add", x, learnt)
        x = g.reshape(x, self.encoder.width, tokens * count)
        prefix = self.encoder.prefix
        if self.weight(f"{prefix}.pre_ln.weight"):
            x = self.norm(x, f"{prefix}.pre_ln", norm)
        for block in range(self.encoder.layers):
            x = self._layer(x, f"{prefix}.blk.{block}", (tokens, count), norm, turn)
        if self.encoder.kind in _AVERAGED:
            x = ops.pool_line(g.contiguous(g.transpose(x)), 2)
            x = g.contiguous(g.transpose(x))
        last = "mm.post_norm" if self.encoder.kind == "dots_ocr" else f"{prefix}.post_ln"
        if self.weight(f"{last}.weight"):
            x = self.norm(x, last, norm)
        return g.reshape(x, self.encoder.width, x.ne[1] // count, count)

    def _layer(self, x: Node, name: str, places: tuple[int, int], norm: str, turn: Turn | None) -> Node:
        q, k, v = self._heads(self.norm(x, f"{name}.ln1", norm), name, places, norm)
        if turn:
            q, k = turn(q), turn(k)
        if self.encoder.kind == "gemma4v":
            v = g.like("rms_norm", v)
        y = self.attention(f"{name}.attn_out", q, k, v)
        y = self.scaled(y, f"{name}.ls1")
        if self.weight(f"{name}.attn_post_norm.weight"):
            y = self.norm(y, f"{name}.attn_post_norm", norm)
        x = g.like("add", y, x)
        y = self.feed_forward(
            self.norm(x, f"{name}.ln2", norm), f"{name}.ffn_up", f"{name}.ffn_down", f"{name}.ffn_gate"
        )
        if self.weight(f"{name}.ffn_post_norm.weight"):
            y = self.norm(y, f"{name}.ffn_post_norm", norm)
        x = g.like("add", x, self.scaled(y, f"{name}.ls2"))
        return self.scaled(x, f"{name}.out_scale")

    def scaled(self, x: Node, name: str) -> Node:
        """*x* times the factors *name*, if there are any."""
        factor = self.weight(f"{name}.weight")
        return g.like("mul", x, factor) if factor else x

    def _heads(self, x: Node, name: str, places: tuple[int, int], norm: str) -> tuple[Node, Node, Node]:
        """Queries, keys and values, head by head."""
        encoder = self.encoder
        width, counts = encoder.head_width, (encoder.heads, encoder.kv_heads, encoder.kv_heads)
        normed = self.weight(f"{name}.attn_q_norm.weight")
        if self.weight(f"{name}.attn_qkv.weight"):
            joined = self.linear(f"{name}.attn_qkv", x)
            strides = (4 * width, joined.nb[1], joined.nb[1] * places[0])
            q, k, v = (g.view(joined, (width, encoder.heads, *places), strides) for _ in range(3))
            return self._normed(q, name, "q", norm), self._normed(k, name, "k", norm), v
        flat = [self.linear(f"{name}.attn_{part}", x) for part in "qkv"]
        by_head = normed is not None and normed.ne[0] == width
        if not by_head:
            flat[0], flat[1] = self._normed(flat[0], name, "q", norm), self._normed(flat[1], name, "k", norm)
        q, k, v = (g.reshape(x, width, n, *places) for x, n in zip(flat, counts, strict=True))
        if by_head:
            q, k = self._normed(q, name, "q", norm), self._normed(k, name, "k", norm)
        return q, k, v

    def _normed(self, x: Node, name: str, part: str, norm: str) -> Node:
        weight = self.weight(f"{name}.attn_{part}_norm.weight")
        return g.like("mul", g.like(norm, x), weight) if weight else x

    def merged(self, x: Node) -> Node:
        """``build_patch_merge_permute``: squares of patches joined into one row each."""
        width, scale = x.ne[0], self.encoder.merge
        across, down = -(-self.across // scale) * scale, -(-self.down // scale) * scale
        x = g.reshape(x, width, self.across, self.down)
        if (across, down) != (self.across, self.down):
            x = ops.padded(x, 0, across - self.across, down - self.down)
        x = g.swap_heads(g.reshape(x, width * scale, across // scale, down))
        x = g.contiguous(x, width * scale * scale, down // scale, across // scale)
        x = g.swap_heads(x)
        return g.contiguous(x, x.ne[0], x.ne[1] * x.ne[2])


#: Files of these kinds may have the two matrices of a feed-forward swapped.
_SWAPPED = frozenset(
    {"mlp", "qwen2vl_merger", "qwen2.5vl_merger", "gemma3", "idefics3", "resampler", "minicpmv4_6", "exaone4_5"}
)
#: Sounds that are averaged over pairs of frames behind the last layer.
_AVERAGED = frozenset({"qwen2a", "voxtral", "musicflamingo"})


def _weight(tensor: Tensor) -> Node:
    kind = TYPE_BY_NAME[tensor.dtype]
    node = g.leaf((kind.block_size, kind.block_bytes), *tensor.shape)
    node.home = 0
    node.is_weight = True
    return node

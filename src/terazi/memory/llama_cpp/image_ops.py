"""Symbolic operations that only image and sound encoders use: convolutions, pooling, padding, resizing.

Source: ``ggml/src/ggml.c`` of build b11434, the function of the same name (``ggml_conv_2d``, ``ggml_pool_2d``, …).
"""

from terazi.errors import ModelFileError
from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node, Shape

BF16 = (1, 2)


def permute(x: Node, *axes: int) -> Node:
    """``ggml_permute``: dimension *i* of *x* becomes dimension ``axes[i]``."""
    ne, nb = [0] * 4, [0] * 4
    for source, target in enumerate(axes):
        ne[target], nb[target] = x.ne[source], x.nb[source]
    shape: Shape = (ne[0], ne[1], ne[2], ne[3])
    return Node("permute", x.kind, shape, (x,), nb=(nb[0], nb[1], nb[2], nb[3]), view=x)


def made(op: str, kind: tuple[int, int], ne: tuple[int, ...], *srcs: Node) -> Node:
    """A tensor of its own of any shape."""
    ne0, ne1, ne2, ne3 = (*ne, 1, 1, 1)[:4]
    return Node(op, kind, (ne0, ne1, ne2, ne3), srcs)


def unfold(
    kernel: Node,
    x: Node,
    kind: tuple[int, int],
    *,
    stride: int = 1,
    padding: int = 0,
    flat: bool = True,
    size: tuple[int, int] | None = None,
) -> Node:
    """``ggml_im2col`` of *x* for *kernel*; *flat* for images, else for one-dimensional signals."""
    k0, k1 = size or (kernel.ne[0], kernel.ne[1])
    wide = _slid(x.ne[0], k0, stride, padding)
    if not flat:
        return made("im2col", kind, (kernel.ne[1] * kernel.ne[0], wide, x.ne[2], 1), kernel, x)
    high = _slid(x.ne[1], k1, stride, padding)
    return made("im2col", kind, (kernel.ne[2] * k1 * k0, wide, high, x.ne[3]), kernel, x)


def _slid(length: int, kernel: int, stride: int, padding: int) -> int:
    """``ggml_calc_conv_output_size`` without dilation; the engine aborts where nothing comes out."""
    steps = (length + 2 * padding - kernel) // stride + 1
    if steps < 1:
        raise ModelFileError(
            f"The projector's kernel of {kernel} doesn't fit its input of {length}: llama.cpp would abort.",
            hint="The file is damaged, or made by a faulty converter: get it again.",
        )
    return steps


def convolve(kernel: Node, x: Node, *, stride: int = 1, padding: int = 0, wide: bool = False) -> Node:
    """``ggml_conv_2d``; *wide* for a kernel of 16-bit brain floats, which is unfolded in 32 bits."""
    columns = unfold(kernel, x, g.F32 if wide else g.F16, stride=stride, padding=padding)
    k0, k1, k2, k3 = kernel.ne
    product = g.mul_mat(
        g.reshape(columns, columns.ne[0], columns.ne[3] * columns.ne[2] * columns.ne[1]),
        g.reshape(kernel, k0 * k1 * k2, k3),
    )
    shaped = g.reshape(product, columns.ne[1], columns.ne[2], columns.ne[3], k3)
    return g.contiguous(g.swap_last(shaped))


def convolve_line(kernel: Node, x: Node, *, stride: int = 1, wide: bool = False) -> Node:
    """``ggml_conv_1d_ph``: padded by half the kernel."""
    columns = unfold(kernel, x, g.F32 if wide else g.F16, stride=stride, padding=kernel.ne[0] // 2, flat=False)
    product = g.mul_mat(
        g.reshape(columns, columns.ne[0], columns.ne[2] * columns.ne[1]),
        g.reshape(kernel, kernel.ne[0] * kernel.ne[1], kernel.ne[2]),
    )
    return g.reshape(product, columns.ne[1], kernel.ne[2], columns.ne[2])


def convolve_channels(kernel: Node, x: Node, *, stride: int = 1, padding: int = 0, wide: bool = False) -> Node:
    """``ggml_conv_2d_dw``: each channel on its own."""
    k0, k1, k2, k3 = kernel.ne
    lone = g.reshape(kernel, k0, k1, 1, k2 * k3)
    spread = g.reshape(x, x.ne[0], x.ne[1], 1, x.ne[2] * x.ne[3])
    columns = unfold(lone, spread, g.F32 if wide else g.F16, stride=stride, padding=padding)
    grouped = g.reshape(columns, columns.ne[0], columns.ne[2] * columns.ne[1], x.ne[2], x.ne[3])
    product = g.mul_mat(g.reshape(lone, k0 * k1, 1, k2 * k3, 1), grouped)
    return g.reshape(product, columns.ne[1], columns.ne[2], x.ne[2], x.ne[3])


def convolve_directly(kernel: Node, x: Node, *, stride: int = 1, padding: int = 0) -> Node:
    """``ggml_conv_2d_direct``: without unfolding."""
    ne = (
        _slid(x.ne[0], kernel.ne[0], stride, padding),
        _slid(x.ne[1], kernel.ne[1], stride, padding),
        kernel.ne[3],
        x.ne[3],
    )
    return made("conv_2d", x.kind, ne, kernel, x)


def pool(x: Node, side: int) -> Node:
    """``ggml_pool_2d`` with squares of *side* that don't overlap."""
    return made("pool_2d", g.F32, (x.ne[0] // side, x.ne[1] // side, x.ne[2], x.ne[3]), x)


def pool_line(x: Node, length: int) -> Node:
    """``ggml_pool_1d`` with stretches of *length* that don't overlap."""
    return made("pool_1d", g.F32, (x.ne[0] // length, x.ne[1], x.ne[2], x.ne[3]), x)


def padded(x: Node, *more: int) -> Node:
    """``ggml_pad``: so many elements more in each dimension."""
    extra = (*more, 0, 0, 0)[:4]
    return made("pad", x.kind, tuple(n + e for n, e in zip(x.ne, extra, strict=True)), x)


def resized(x: Node, *ne: int) -> Node:
    """``ggml_interpolate``, ``ggml_upscale``."""
    return made("upscale", x.kind, ne, x)

"""Symbolic ggml tensors: shapes, strides and sources, no data. Enough to replay what ggml's allocator does.

Source: ``ggml/src/ggml.c`` of build b11434, the function of the same name for each operation here. Shapes (``ne``)
have four entries, the contiguous dimension first; strides (``nb``) are in bytes.
"""

from typing import TypeAlias

Shape: TypeAlias = tuple[int, int, int, int]

#: (elements of a block, bytes of a block)
F32 = (1, 4)
F16 = (1, 2)
I32 = (1, 4)
I64 = (1, 8)

#: ``ggml_op_can_inplace`` of ``ggml-alloc.c``, for the operations that occur here.
IN_PLACE = frozenset(
    {
        "add",
        "add_id",
        "clamp",
        "div",
        "fill",
        "mul",
        "rms_norm",
        "rope",
        "scale",
        "soft_max",
        "sqr",
        "sqrt",
        "sub",
        "unary",
    }
)
#: ``ggml_is_view_op`` of ``ggml-backend.cpp``.
VIEW_OPS = frozenset({"view", "reshape", "permute", "transpose"})


class Node:
    """One tensor of a graph, with the fields in which the scheduler and the allocator keep their state.

    ``dense`` tensors were made without strides of their own, so that there are no gaps.
    ``home`` is the backend whose buffer holds a weight or a cache already (None: the allocator places it).
    ``view`` is the tensor whose memory a view shares, followed to its root.
    ``adapters`` are the LoRA pairs of a weight: products with it are followed by products with them.
    """

    __slots__ = (
        "adapters",
        "address",
        "allocated",
        "backend",
        "children",
        "copies",
        "dense",
        "home",
        "is_input",
        "is_output",
        "is_weight",
        "kind",
        "nb",
        "ne",
        "op",
        "owner",
        "plain_host",
        "srcs",
        "view",
        "views",
        "visited",
    )

    def __init__(
        self,
        op: str,
        kind: tuple[int, int],
        ne: Shape,
        srcs: tuple["Node", ...] = (),
        *,
        nb: Shape | None = None,
        view: "Node | None" = None,
    ) -> None:
        self.op = op
        self.kind = kind
        self.ne = ne
        self.nb = nb or strides(kind, ne)
        self.dense = nb is None
        self.srcs = srcs
        self.view: Node | None = (view.view or view) if view else None
        self.home: int | None = None
        self.is_weight = False
        self.plain_host = False
        self.adapters: tuple[tuple[Node, Node], ...] = ()
        self.is_input = False
        self.is_output = False
        self.visited = False
        # scheduler
        self.backend: int | None = None
        self.copies: dict[int, list[Node]] | None = None
        # allocator
        self.children = 0
        self.views = 0
        self.allocated = False
        self.owner = 0
        self.address = 0

    @property
    def n_bytes(self) -> int:
        """``ggml_nbytes``: from the first to the last byte, gaps of a strided view included."""
        if self.dense:
            return self.nb[3] * self.ne[3]
        block, size = self.kind
        (ne0, ne1, ne2, ne3), (nb0, nb1, nb2, nb3) = self.ne, self.nb
        if 0 in self.ne:
            return 0
        rest = (ne1 - 1) * nb1 + (ne2 - 1) * nb2 + (ne3 - 1) * nb3
        return size + (ne0 - 1) * nb0 + rest if block == 1 else ne0 * nb0 // block + rest

    @property
    def elements(self) -> int:
        """Number of elements."""
        ne0, ne1, ne2, ne3 = self.ne
        return ne0 * ne1 * ne2 * ne3

    @property
    def contiguous(self) -> bool:
        """No gaps and no permutation."""
        return self.nb == strides(self.kind, self.ne)


def strides(kind: tuple[int, int], ne: Shape) -> Shape:
    """Bytes between neighbours in each dimension of a contiguous tensor."""
    block, size = kind
    nb1 = size * (ne[0] // block)
    nb2 = nb1 * ne[1]
    return (size, nb1, nb2, nb2 * ne[2])


def row_bytes(kind: tuple[int, int], elements: int) -> int:
    """``ggml_row_size``."""
    return elements // kind[0] * kind[1]


def leaf(kind: tuple[int, int], *ne: int) -> Node:
    """A tensor that no operation makes: an input, a weight, a cache."""
    return Node("none", kind, _four(ne))


def like(op: str, first: Node, *more: Node) -> Node:
    """An operation whose result has the shape of its first source (``add``, ``mul``, ``rope``, ``rms_norm``, …)."""
    return Node(op, first.kind, first.ne, (first, *more))


def in_place(op: str, first: Node, *more: Node) -> Node:
    """The same, written over its first source (``ggml_add_inplace``)."""
    return Node(op, first.kind, first.ne, (first, *more), nb=first.nb, view=first)


def mul_mat(weight: Node, x: Node) -> Node:
    """Matrix product, in 32-bit floats, and what adapters of the weight add (``build_lora_mm``)."""
    product = Node("mul_mat", F32, (weight.ne[1], x.ne[1], x.ne[2], x.ne[3]), (weight, x))
    for a, b in weight.adapters:
        product = like("add", product, like("scale", mul_mat(b, mul_mat(a, x))))
    return product


def mul_mat_id(weight: Node, x: Node, ids: Node) -> Node:
    """Matrix product with the experts that *ids* choose for each token, and what adapters add."""
    product = Node("mul_mat_id", F32, (weight.ne[1], ids.ne[0], x.ne[2], 1), (weight, x, ids))
    for a, b in weight.adapters:
        product = like("add", product, like("scale", mul_mat_id(b, mul_mat_id(a, x, ids), ids)))
    return product


def get_rows(table: Node, ids: Node) -> Node:
    """Rows of *table*, looked up by *ids*."""
    return Node("get_rows", F32, (table.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]), (table, ids))


def set_rows(target: Node, rows: Node, ids: Node) -> Node:
    """Write *rows* into *target*: a view of it."""
    return Node("set_rows", target.kind, target.ne, (rows, ids, target), nb=target.nb, view=target)


def reshape(x: Node, *ne: int) -> Node:
    """The same memory in another shape."""
    return Node("reshape", x.kind, _four(ne), (x,), view=x)


def view(x: Node, ne: tuple[int, ...], nb: tuple[int, ...] = ()) -> Node:
    """A window on *x*; *nb* are the strides of dimensions 1 and up, contiguous from where they end."""
    shape = _four(ne)
    full = [x.kind[1], *nb]
    while len(full) < 4:
        full.append(full[-1] * shape[len(full) - 1] if len(full) > 1 else row_bytes(x.kind, shape[0]))
    return Node("view", x.kind, shape, (x,), nb=(full[0], full[1], full[2], full[3]), view=x)


def swap_heads(x: Node) -> Node:
    """``ggml_permute(x, 0, 2, 1, 3)``."""
    (ne0, ne1, ne2, ne3), (nb0, nb1, nb2, nb3) = x.ne, x.nb
    return Node("permute", x.kind, (ne0, ne2, ne1, ne3), (x,), nb=(nb0, nb2, nb1, nb3), view=x)


def streams_first(x: Node) -> Node:
    """``ggml_permute(x, 1, 2, 0, 3)``: dimension 2 becomes the first."""
    (ne0, ne1, ne2, ne3), (nb0, nb1, nb2, nb3) = x.ne, x.nb
    return Node("permute", x.kind, (ne2, ne0, ne1, ne3), (x,), nb=(nb2, nb0, nb1, nb3), view=x)


def swap_last(x: Node) -> Node:
    """``ggml_permute(x, 0, 1, 3, 2)``."""
    (ne0, ne1, ne2, ne3), (nb0, nb1, nb2, nb3) = x.ne, x.nb
    return Node("permute", x.kind, (ne0, ne1, ne3, ne2), (x,), nb=(nb0, nb1, nb3, nb2), view=x)


def permute(x: Node, *axes: int) -> Node:
    """``ggml_permute``: dimension *i* goes to place *axes[i]*."""
    ne, nb = [0] * 4, [0] * 4
    for index, axis in enumerate(axes):
        ne[axis], nb[axis] = x.ne[index], x.nb[index]
    shape, steps = (ne[0], ne[1], ne[2], ne[3]), (nb[0], nb[1], nb[2], nb[3])
    return Node("permute", x.kind, shape, (x,), nb=steps, view=x)


def transpose(x: Node) -> Node:
    """Dimensions 0 and 1 swapped, without moving anything."""
    (ne0, ne1, ne2, ne3), (nb0, nb1, nb2, nb3) = x.ne, x.nb
    return Node("transpose", x.kind, (ne1, ne0, ne2, ne3), (x,), nb=(nb1, nb0, nb2, nb3), view=x)


def contiguous(x: Node, *ne: int) -> Node:
    """A contiguous copy, in the shape *ne* if given."""
    return Node("cont", x.kind, _four(ne) if ne else x.ne, (x,))


def top(x: Node, count: int) -> Node:
    """``ggml_argsort_top_k``: where the *count* largest of each row are."""
    order = Node("argsort", I32, x.ne, (x,))
    return view(order, (count, *x.ne[1:]), order.nb[1:])


def sum_rows(x: Node) -> Node:
    """The sum of each row."""
    return Node("sum_rows", x.kind, (1, *x.ne[1:]), (x,))


def concat(first: Node, second: Node, dimension: int) -> Node:
    """Both, one after the other in *dimension*."""
    ne = list(first.ne)
    ne[dimension] += second.ne[dimension]
    return Node("concat", first.kind, (ne[0], ne[1], ne[2], ne[3]), (first, second))


def half(x: Node) -> Node:
    """*x* in 16-bit floats."""
    return cast(x, F16)


def cast(x: Node, kind: tuple[int, int]) -> Node:
    """``ggml_cast``. Like the engine's, it names itself as a source."""
    result = Node("cpy", kind, x.ne, (x,))
    result.srcs = (x, result)
    return result


def copy(source: Node, target: Node) -> Node:
    """``ggml_cpy``: a view of *target*, whatever its shape."""
    return Node("cpy", target.kind, target.ne, (source, target), nb=target.nb, view=target)


def state_convolution(x: Node, kernel: Node) -> Node:
    """``ggml_ssm_conv``: *x* holds as many earlier columns as the *kernel* is long, less one."""
    return Node("ssm_conv", F32, (kernel.ne[1], x.ne[0] - kernel.ne[0] + 1, x.ne[2], 1), (x, kernel))


def state_scan(kept: int, state: Node, x: Node, *more: Node) -> Node:
    """``ggml_ssm_scan``: outputs and behind them *kept* states a slot, in one row; the last source is the slots."""
    size = x.elements + kept * state.ne[0] * state.ne[1] * state.ne[2] * more[-1].ne[0]
    return Node("ssm_scan", F32, (size, 1, 1, 1), (state, x, *more))


def gated_delta_net(kept: int, *srcs: Node) -> Node:
    """``ggml_gated_delta_net`` of queries, keys, values, decay, beta and state: the outputs, then *kept* states."""
    width, heads, tokens, slots = srcs[2].ne
    return Node("gated_delta_net", F32, (width * heads, (tokens + kept * width) * slots, 1, 1), srcs)


def flash_attention(q: Node, k: Node, v: Node, *more: Node) -> Node:
    """``ggml_flash_attn_ext``; *more* are the mask and, where the model has them, the sinks."""
    return Node("flash_attn", F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), (q, k, v, *more))


class Graph:
    """Nodes and leaves in the order in which ``ggml_build_forward_expand`` meets them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leaves: list[Node] = []

    def expand(self, root: Node) -> None:
        """Add *root* after all that it needs: depth first, sources from left to right."""
        stack: list[tuple[Node, int]] = [] if root.visited else [(root, 0)]
        root.visited = True
        while stack:
            node, index = stack.pop()
            srcs = node.srcs
            while index < len(srcs) and srcs[index].visited:
                index += 1
            if index < len(srcs):
                child = srcs[index]
                child.visited = True
                stack.append((node, index + 1))
                stack.append((child, 0))
            elif node.op == "none":
                self.leaves.append(node)
            else:
                self.nodes.append(node)


def _four(ne: tuple[int, ...]) -> Shape:
    ne0, ne1, ne2, ne3 = (*ne, 1, 1, 1)[:4]
    return (ne0, ne1, ne2, ne3)

"""What a backend does to its part of a graph before it is placed: another order, tensors kept alive longer.

Sources, b11434: ``ggml/src/ggml-backend.cpp:ggml_backend_sched_split_graph`` (a kept tensor becomes the source of a
node that does nothing), ``ggml/src/ggml-cuda/ggml-cuda.cu:ggml_backend_cuda_graph_optimize`` (which HIP shares) and
``ggml/src/ggml-vulkan/ggml-vulkan.cpp:ggml_vk_graph_optimize``. The CPU's and RPC backends do nothing.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from terazi.memory.llama_cpp.graph import Node

#: ``GGML_MAX_SRC``: so many tensors one node can keep.
_MAX_SOURCES: Final = 10
#: ``MOE_WEIGHTED_REDUCTION_MAX_EXPERTS``.
_MAX_REDUCED: Final = 15
#: The first operations of a router without and with a bias, and those that weigh the chosen experts by their sum.
EARLY: Final = ("soft_max", "reshape", "argsort", "view", "get_rows")
NORMED: Final = ("reshape", "sum_rows", "clamp", "div", "reshape")
BIASED: Final = ("reshape", "add", "argsort", "view", "get_rows")


class Optimised(NamedTuple):
    """Nodes in their new order, and after which node (by ``id``) which others may be let go at the earliest."""

    nodes: list[Node]
    kept: dict[int, list[Node]]

    def keepers(self, node: Node) -> list[Node]:
        """The nodes that do nothing but keep others alive until *node* has run."""
        kept = self.kept.get(id(node), [])
        return [
            Node("none", kept[i].kind, kept[i].ne, tuple(kept[i : i + _MAX_SOURCES]), nb=kept[i].nb, view=kept[i])
            for i in range(0, len(kept), _MAX_SOURCES)
        ]


def for_cuda(nodes: Sequence[Node]) -> Optimised:
    """Experts' outputs and weights are kept until they are summed up, a router's tensors until it is through."""
    order = list(nodes)
    kept: dict[int, list[Node]] = {}
    _group_shared_experts(order, kept)
    index = 0
    while index < len(order):
        count = _weighted_reduction(order, index)
        if count:
            first = order[index]
            keep(kept, order[index + count - 1], first.srcs)
            index += count - 1
        size = _router(order, index)
        if size and index + size < len(order):
            for node in order[index : index + size]:
                keep(kept, order[index + size], (node, *node.srcs))
            index += size - 1
        index += 1
    return Optimised(order, kept)


def keep(kept: dict[int, list[Node]], until: Node, nodes: Sequence[Node]) -> None:
    """Let *nodes* live until *until* has run."""
    there = kept.setdefault(id(until), [])
    there += [node for node in dict.fromkeys(nodes) if all(node is not other for other in there)]


def _weighted_reduction(nodes: Sequence[Node], index: int) -> int:
    """``ggml_cuda_match_moe_weighted_reduction``: how many nodes weigh the experts' outputs and sum them up."""
    first = nodes[index]
    if first.op != "mul" or len(first.srcs) < 2:
        return 0
    experts, weights = first.srcs[:2]
    used = first.ne[1]
    fits = experts.ne == first.ne and weights.ne == (1, *first.ne[1:])
    count = 2 * used
    if not fits or not 2 <= used <= _MAX_REDUCED or index + count > len(nodes):
        return 0
    rest = [node.op for node in nodes[index + 1 : index + count]]
    if rest.count("view") != used or rest.count("add") != used - 1:
        return 0
    views = [node for node in nodes[index + 1 : index + count] if node.op == "view"]
    return count if all(node.srcs[0] is first for node in views) else 0


def _router(nodes: Sequence[Node], index: int) -> int:
    """``ggml_cuda_topk_moe_fusion``: how many nodes choose the experts and weigh them, as one operation."""
    ops = [node.op for node in nodes[index : index + 12]]
    for start in ((*EARLY,), ("unary", *EARLY[1:]), ("unary", *BIASED)):
        if tuple(ops[: len(start)]) == start:
            size = len(start)
            if tuple(ops[size : size + len(NORMED)]) == NORMED:
                size += len(NORMED)
            if ops[size : size + 1] == ["scale"]:
                size += 1
            return size
    return 0


def _group_shared_experts(order: list[Node], kept: dict[int, list[Node]]) -> None:
    """Bring a shared expert's gate, up and activation behind those of the routed ones, if they are alike."""
    index = 0
    while index + 5 < len(order):
        if [node.op for node in order[index : index + 3]] != ["mul_mat_id", "mul_mat_id", "glu"]:
            index += 1
            continue
        up = order[index + 2].srcs[-1]
        for there in range(index + 3, len(order) - 2):
            ops = [node.op for node in order[there : there + 3]]
            if ops[:2] == ["mul_mat_id", "mul_mat_id"]:
                break
            if ops == ["mul_mat", "mul_mat", "glu"] and _alike(order[index : index + 3], order[there : there + 3]):
                order[index + 3 : there + 3] = [*order[there : there + 3], *order[index + 3 : there]]
                keep(kept, order[index + 5], up.srcs[1:3])
                index += 5
                break
        index += 1


def _alike(routed: Sequence[Node], shared: Sequence[Node]) -> bool:
    """``ggml_cuda_match_shared_expert``."""
    if any(set(map(id, trio[2].srcs)) != {id(trio[0]), id(trio[1])} for trio in (routed, shared)):
        return False
    up, shared_up = routed[2].srcs[-1], shared[2].srcs[-1]
    weight, other = up.srcs[0], shared_up.srcs[0]
    given = up.srcs[1]
    same = weight.kind == other.kind and weight.ne[:2] == other.ne[:2] and weight.kind[0] > 1
    return same and given.op == "reshape" and given.srcs[0] is shared_up.srcs[1]

"""The order in which Vulkan runs its part of a graph, which decides how long each tensor lives.

Source, b11434: ``ggml/src/ggml-vulkan/ggml-vulkan.cpp:ggml_vk_graph_optimize``.
"""

from collections.abc import Callable, Sequence
from typing import Final

from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.optimise import BIASED, EARLY, NORMED, Optimised, keep

#: Nodes that Vulkan looks ahead, and for the rest of a fused group.
_AHEAD: Final = 20
_NEAR: Final = 15

_EMPTY: Final = frozenset({"none", "reshape", "transpose", "view", "permute"})
#: Groups of a router's operations that Vulkan runs as one, in the order in which it tries them.
_ROUTERS: Final = (
    (*EARLY, *NORMED),
    ("unary", *BIASED, *NORMED),
    ("unary", "sqrt", *BIASED, *NORMED),
    EARLY,
    ("argsort", "view", "get_rows", "reshape", "soft_max", "reshape"),
)
#: Other groups that stay together.
_TOGETHER: Final = (
    ("mul", "sin", "sqr", "mul", "add"),
    ("rms_norm", "mul", "add", "mul"),
    ("rms_norm", "mul", "add"),
    ("rms_norm", "mul", "rope", "view", "set_rows"),
    ("rms_norm", "view", "set_rows"),
    ("rope", "view", "set_rows"),
)
#: Pairs of neighbours of which the second may follow the first at once.
_NEIGHBOURS: Final = frozenset(
    {
        ("mul_mat", "add"),
        ("mul_mat_id", "add_id"),
        ("mul_mat_id", "mul"),
        ("add", "add"),
        ("ssm_conv", "add"),
        ("ssm_conv", "unary"),
    }
)
#: Two neighbours → what may follow them from further away, as a third of their group.
_COMPLETED: Final = {("mul_mat_id", "add_id"): "mul", ("mul_mat", "add"): "add", ("ssm_conv", "add"): "unary"}


def for_vulkan(nodes: Sequence[Node]) -> Optimised:
    """Independent operations are brought together, and groups that run as one stay so."""
    return _Reordering(nodes).run()


class _Reordering:
    """The state of one ``ggml_vk_graph_optimize``."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._used = [False] * len(nodes)
        self._order: list[Node] = []
        self._done: set[int] = set()
        self._first = 0
        self._kept: dict[int, list[Node]] = {}
        self._uses: dict[int, int] = {}
        for node in nodes:
            for src in node.srcs:
                self._uses[id(src)] = self._uses.get(id(src), 0) + 1

    def run(self) -> Optimised:
        while self._first < len(self._nodes):
            group = self._group(self._first)
            if group:
                self._emit(range(self._first, self._first + len(group)))
            else:
                self._emit(self._independent())
        return Optimised(self._order, self._kept)

    def _emit(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._order.append(self._nodes[index])
            self._done.add(id(self._nodes[index]))
            self._used[index] = True
        while self._first < len(self._nodes) and self._used[self._first]:
            self._first += 1

    def _matches(self, pattern: Sequence[str], start: int) -> bool:
        end = start + len(pattern)
        return end <= len(self._nodes) and all(
            node.op == op and not used
            for node, op, used in zip(self._nodes[start:end], pattern, self._used[start:end], strict=True)
        )

    def _group(self, start: int) -> Sequence[str]:
        """The first pattern that the nodes from *start* are; a router's inputs are kept until it is through."""
        for pattern in _ROUTERS:
            if self._matches(pattern, start):
                last = start + len(pattern) - 1
                if last + 1 < len(self._nodes) and self._nodes[last + 1].op == "scale":
                    last += 1
                inside = self._nodes[start : start + len(pattern)]
                outside = [src for i, node in enumerate(inside) for src in node.srcs if src not in inside[:i]]
                keep(self._kept, self._nodes[last], outside)
                return pattern
        return next((pattern for pattern in _TOGETHER if self._matches(pattern, start)), ())

    def _begins_group(self, start: int) -> bool:
        return any(self._matches(pattern, start) for pattern in (*_ROUTERS, *_TOGETHER))

    def _independent(self) -> list[int]:
        """The next node, and those after it that depend on none that is still to come."""
        nodes, used, first = self._nodes, self._used, self._first
        current = [first]
        end = min(first + _AHEAD, len(nodes))
        for j in range(first + 1, end):
            if used[j] or nodes[j].op in _EMPTY or self._begins_group(j):
                continue
            waits = (c for c in range(first, j) if not used[c] and _depends(nodes[j], nodes[c]))
            if all(self._may_follow(c, j, current) for c in waits):
                current.append(j)
                self._pull(j, current)
        if nodes[current[-1]].op != "add":
            for j in range(first + 1, end):
                if used[j] or nodes[j].op not in _EMPTY:
                    continue
                if all(used[c] or c in current or not _depends(nodes[j], nodes[c]) for c in range(first, j)):
                    current.append(j)
        return current

    def _may_follow(self, c: int, j: int, current: Sequence[int]) -> bool:
        nodes = self._nodes
        if c != current[-1]:
            return False
        pair = (nodes[c].op, nodes[j].op)
        if pair in {("rms_norm", "mul"), ("unary", "mul")}:
            return all(self._used[v] or nodes[v].op in _EMPTY for v in range(c + 1, j))
        return j == c + 1 and pair in _NEIGHBOURS

    def _pull(self, j: int, current: list[int]) -> None:
        """Bring forward what runs as one with node *j*."""
        nodes = self._nodes
        node, before = nodes[j], nodes[j - 1].op if j else ""
        near = range(j + 1, min(j + _NEAR, len(nodes)))

        def take(k: int) -> None:
            current.append(k)
            self._used[k] = True

        turned = j
        if (before, node.op) == ("rms_norm", "mul"):
            turned = next((k for k in near if self._turns(nodes[k], node)), j)
            if turned != j:
                take(turned)
        if nodes[turned].op in {"rope", "rms_norm"}:
            self._pull_store(turned, take)
        partner = next((k for k in near if self._completes(nodes[k], node, before)), None)
        if partner is not None:
            take(partner)

    @staticmethod
    def _turns(candidate: Node, node: Node) -> bool:
        """Whether *candidate* is the rotation of the normalised *node*, with nothing else to wait for."""
        srcs = candidate.srcs
        return candidate.op == "rope" and srcs[0] is node and all(src.op == "none" for src in srcs[1:3])

    def _completes(self, candidate: Node, node: Node, before: str) -> bool:
        """Whether *candidate* is the last operation of a group that *node* and the one *before* it begin."""
        if node.op == "unary":
            if candidate.op != "mul" or all(src is not node for src in candidate.srcs):
                return False
            return self._ready(candidate.srcs[1] if candidate.srcs[0] is node else candidate.srcs[0])
        wanted = _COMPLETED.get((before, node.op))
        if wanted is None or candidate.op != wanted or candidate.srcs[0] is not node:
            return False
        return wanted == "unary" or self._ready(candidate.srcs[1])

    def _ready(self, node: Node) -> bool:
        return node.op == "none" or id(node) in self._done

    def _pull_store(self, turned: int, take: Callable[[int], None]) -> None:
        nodes, used = self._nodes, self._used
        view = None
        for k in range(turned + 1, min(turned + _NEAR, len(nodes))):
            if used[k]:
                continue
            if view is None:
                if nodes[k].op == "view" and nodes[k].srcs[0] is nodes[turned]:
                    view = k
                continue
            if nodes[k].op == "set_rows" and nodes[k].srcs[0] is nodes[view]:
                alone = self._uses[id(nodes[turned])] == self._uses[id(nodes[view])] == 1
                free = all(
                    used[c] or c == view or nodes[c].op in _EMPTY or not _depends(nodes[k], nodes[c])
                    for c in range(turned + 1, k)
                )
                if alone and free:
                    take(view)
                    take(k)
                return


def _depends(later: Node, earlier: Node) -> bool:
    """Whether *later* reads what *earlier* writes, or the other way round."""
    if any(src is earlier for src in later.srcs):
        return True
    if later.op not in _EMPTY and earlier.op not in _EMPTY:
        root, other = _root(later), _root(earlier)
        if any(_root(src) is other for src in later.srcs) or any(_root(src) is root for src in earlier.srcs):
            return True
    return _root(later) is _root(earlier)


def _root(node: Node) -> Node:
    return node.view or node

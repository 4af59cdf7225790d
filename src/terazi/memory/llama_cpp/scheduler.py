"""Replays ggml's backend scheduler: which backend runs which node, where the graph is cut, what is copied.

Source: ``ggml/src/ggml-backend.cpp:ggml_backend_sched_split_graph``, build b11434. Every backend is taken to
support every operation of these graphs, but for what a caller names. Backends are numbered in the engine's order;
the last is the CPU.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from terazi.memory.llama_cpp.allocator import Allocator
from terazi.memory.llama_cpp.graph import VIEW_OPS, Graph, Node
from terazi.memory.llama_cpp.optimise import Optimised

#: ``GGML_SCHED_MAX_COPIES``: how often each input is kept in pipeline mode.
PIPELINE_COPIES = 4
#: These don't follow their weights: the weights are too small to decide by.
_NOT_BY_WEIGHT = frozenset({"rope", "flash_attn"})
_NONE: Mapping[int, Callable[[Sequence[Node]], Optimised]] = MappingProxyType({})


class _Split:
    """A run of nodes on one backend, and what must be copied there first."""

    __slots__ = ("backend", "end", "inputs", "start")

    def __init__(self, backend: int, start: int) -> None:
        self.backend, self.start, self.end = backend, start, 0
        self.inputs: list[Node] = []


class Scheduler:
    """One reservation of one graph.

    Args:
        graph: built, with ``backend`` already set on the nodes that the engine pins.
        backends: number of backends, the CPU included.
        copies: 4 in pipeline mode, else 1.
        offloads: whether a backend takes over an operation whose weights lie in host memory.
        optimisers: what a backend does to its parts of the graph before they are placed, for those that do.
        lacks: whether an accelerator lacks an operation; the CPU then runs it.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        backends: int,
        copies: int = 1,
        offloads: Callable[[Node, int], bool] | None = None,
        optimisers: Mapping[int, Callable[[Sequence[Node]], Optimised]] = _NONE,
        lacks: Callable[[Node], bool] | None = None,
    ) -> None:
        self._graph = graph
        self._cpu = backends - 1
        self._copies = copies
        self._offloads = offloads
        self._optimisers = optimisers
        self._lacks = lacks

    def reserve(self, size_of: Callable[[Node, int], int]) -> list[int]:
        """Bytes of each backend's compute buffer, for tensors that take ``size_of(node, backend)``."""
        nodes, leaves = self.ordered()
        return Allocator(self._cpu + 1, size_of).run(nodes, leaves)

    def ordered(self) -> tuple[list[tuple[Node, int]], list[tuple[Node, int]]]:
        """Nodes and leaves, each with its backend, in the order in which the allocator sees them."""
        self._assign()
        splits = self._split()
        graph_inputs = self._keep_inputs() if self._copies > 1 else []
        return list(self._order(splits)), list(self._leaf_order(splits, graph_inputs))

    def fused_attention(self) -> list[int]:
        """The backends that run flash attention, in the order of the blocks."""
        self._assign()
        return [self._backend(node) for node in self._graph.nodes if node.op == "flash_attn"]

    def assign(self) -> None:
        """Give every node its backend."""
        self._assign()

    # passes 1 to 4: a backend for every node

    def _assign(self) -> None:
        graph, cpu = self._graph, self._cpu
        for node in (*graph.leaves, *graph.nodes):
            if node.backend is None:
                node.backend = self._given(node)
        real = [node for node in graph.nodes if node.op not in VIEW_OPS]
        left = [node for node in real if self._lacks(node)] if self._lacks else []
        real = [node for node in real if node not in left] if left else real
        for order in (real, real[::-1]):
            current: int | None = None
            for node in order:
                if node.backend is None:
                    node.backend = current
                else:
                    current = None if node.backend == cpu else node.backend
        for order in (real, real[::-1]):
            current = None
            for node in order:
                if node.backend is None:
                    node.backend = current
                else:
                    current = node.backend
        for node in left:
            node.backend = cpu
        for node in graph.nodes:
            if node.backend is None and node.view is not None:
                node.backend = node.view.backend
            for src in node.srcs:
                if src.backend is None:
                    src.backend = node.backend if src.view is None else src.view.backend

    def _given(self, node: Node) -> int | None:
        """``ggml_backend_sched_backend_id_from_cur``."""
        home = node.home if node.view is None else node.view.home
        if home is not None:
            return home
        if node.is_input:
            return self._cpu
        if node.op in _NOT_BY_WEIGHT:
            return None
        for src in node.srcs:
            if src.is_weight and src.home is not None:
                if src.home == self._cpu and src.plain_host and self._offloads is not None:
                    for backend in range(self._cpu):
                        if self._offloads(node, backend):
                            return backend
                return src.home
        return None

    # pass 5: cuts, and copies of what lies elsewhere

    def _reachable(self, src: Node, backend: int) -> bool:
        root = src.view or src
        where = root.home if root.home is not None else src.backend
        return (root.backend if where is None else where) == backend

    def _split(self) -> list[_Split]:
        nodes = self._graph.nodes
        first = next(i for i, node in enumerate(nodes) if node.op not in VIEW_OPS)
        split = _Split(self._backend(nodes[first]), 0)
        splits = [split]
        for index in range(first, len(nodes)):
            node = nodes[index]
            if node.op in VIEW_OPS:
                continue
            backend = self._backend(node)
            if backend != split.backend or (split.inputs and self._needs_weight(node, backend)):
                split.end = index
                split = _Split(backend, index)
                splits.append(split)
            srcs = node.srcs
            for position, src in enumerate(srcs):
                if src.backend != backend and not self._reachable(src, backend):
                    copies = self._copy(src, backend, split)
                    node.srcs = (*node.srcs[:position], copies[0], *node.srcs[position + 1 :])
        split.end = len(nodes)
        return splits

    def _needs_weight(self, node: Node, backend: int) -> bool:
        return any(
            src.is_weight and src.backend != backend and not self._reachable(src, backend) for src in node.srcs
        )

    def _copy(self, src: Node, backend: int, split: _Split) -> list[Node]:
        if src.copies is None:
            src.copies = {}
        made = src.copies.get(backend)
        if made is None:
            made = [Node("none", src.kind, src.ne, nb=src.nb) for _ in range(self._copies)]
            if self._copies > 1:
                for copy in made:
                    copy.is_input = copy.is_output = True
            src.copies[backend] = made
            split.inputs.append(src)
        return made

    @staticmethod
    def _backend(node: Node) -> int:
        if node.backend is None:
            raise AssertionError(f"no backend for {node.op}")
        return node.backend

    # pass 6 and the order in which the allocator sees everything

    def _keep_inputs(self) -> list[Node]:
        inputs = [leaf for leaf in self._graph.leaves if leaf.is_input]
        for leaf in inputs:
            backend = self._backend(leaf)
            if leaf.copies is None:
                leaf.copies = {}
            if backend not in leaf.copies:
                others = [Node("none", leaf.kind, leaf.ne, nb=leaf.nb) for _ in range(self._copies - 1)]
                leaf.copies[backend] = [leaf, *others]
                for copy in leaf.copies[backend]:
                    copy.is_input = copy.is_output = True
        return inputs

    def _order(self, splits: Sequence[_Split]) -> Iterator[tuple[Node, int]]:
        nodes = self._graph.nodes
        for split in splits:
            for src in split.inputs:
                copies = src.copies or {}
                # keeps the source alive until the copy is made
                yield Node("none", src.kind, src.ne, (src,), nb=src.nb, view=src), self._backend(src)
                yield copies[split.backend][0], split.backend
            part = nodes[split.start : split.end]
            optimise = self._optimisers.get(split.backend)
            if optimise is None:
                yield from ((node, self._backend(node)) for node in part)
                continue
            optimised = optimise(part)
            for node in optimised.nodes:
                yield node, self._backend(node)
                yield from ((keeper, split.backend) for keeper in optimised.keepers(node))

    def _leaf_order(self, splits: Sequence[_Split], inputs: Sequence[Node]) -> Iterator[tuple[Node, int]]:
        for leaf in inputs:
            backend = self._backend(leaf)
            for copy in (leaf.copies or {})[backend]:
                yield copy, backend
        if self._copies > 1:
            for split in splits:
                for src in split.inputs:
                    for copy in (src.copies or {})[split.backend]:
                        yield copy, split.backend
        for leaf in self._graph.leaves:
            yield leaf, self._backend(leaf)

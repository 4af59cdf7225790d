"""Replays ggml's graph allocator: live ranges, best fit, in-place reuse.

Source: ``ggml/src/ggml-alloc.c:ggml_gallocr_alloc_graph_impl`` and ``ggml_dyn_tallocr_*``, build b11434.
Buffers are taken to be as large as needed (those of the CPU, CUDA and RPC have no smaller limit that matters here).
"""

from collections.abc import Callable, Sequence

from terazi.memory.llama_cpp.graph import IN_PLACE, Node

#: Length of the open end of a buffer that nothing has been taken from.
ENDLESS = 1 << 62


class Arena:
    """One growing buffer: free blocks by address, the last one open-ended."""

    def __init__(self) -> None:
        self.blocks: list[list[int]] = [[0, ENDLESS]]
        self.peak = 0
        #: whether an empty tensor has ever left an empty block
        self.ragged = False

    def take(self, size: int) -> int:
        """The address of the best fitting free block; the open end only if no other fits."""
        if size < 0:
            raise ArithmeticError(size)  # no graph of real shapes has such a tensor
        blocks = self.blocks
        best, best_size = -1, ENDLESS
        for index in range(len(blocks) - 1):
            length = blocks[index][1]
            if size <= length <= best_size:
                best, best_size = index, length
        block = blocks[best]  # -1 is the open end
        address = block[0]
        block[0] += size
        block[1] -= size
        if block[1] == 0:
            del blocks[best]
        self.peak = max(self.peak, address + size)
        return address

    def release(self, address: int, size: int) -> None:
        """Give back a block, joined with free neighbours."""
        blocks = self.blocks
        later = len(blocks)
        for index, block in enumerate(blocks):
            start, length = block
            if start + length == address:
                block[1] += size
                if index + 1 < len(blocks) and block[0] + block[1] == blocks[index + 1][0]:
                    block[1] += blocks.pop(index + 1)[1]
                return
            if address + size == start:
                block[0] = address
                block[1] += size
                if index > 0 and blocks[index - 1][0] + blocks[index - 1][1] == address:
                    blocks[index - 1][1] += blocks.pop(index)[1]
                return
            if start >= address and index < later:
                later = index
                if not self.ragged:
                    break
        # TRAP: an empty tensor may leave an empty block in the middle of what is taken. From then on blocks may be
        # out of order, and the engine looks at all of them.
        self.ragged = self.ragged or not size
        blocks.insert(later, [address, size])


class Allocator:
    """The allocator of one graph over several buffers.

    Args:
        buffers: how many (one a backend).
        size_of: bytes that a node takes in a buffer, aligned.
    """

    def __init__(self, buffers: int, size_of: Callable[[Node, int], int]) -> None:
        self.arenas = [Arena() for _ in range(buffers)]
        self._size_of = size_of

    def run(self, nodes: Sequence[tuple[Node, int]], leaves: Sequence[tuple[Node, int]]) -> list[int]:
        """Place every node (given with its buffer) in order. Returns the peak of each buffer in bytes."""
        self._prepare(nodes, leaves)
        for node, buffer in nodes:
            self._step(node, buffer)
        return [arena.peak for arena in self.arenas]

    def _prepare(self, nodes: Sequence[tuple[Node, int]], leaves: Sequence[tuple[Node, int]]) -> None:
        """Count who needs whom; leaves and inputs get their places before all else."""
        for node, buffer in leaves:
            self._place(node, buffer)
        for node, buffer in nodes:
            if node.view is not None and node.op != "none":
                node.view.views += 1
            if node.is_input:
                self._place(node, buffer)
            for src in node.srcs:
                src.children += 1
                if src.is_input:
                    self._place(src, buffer)

    def _step(self, node: Node, buffer: int) -> None:
        for src in node.srcs:
            self._place(src, buffer)
        self._place(node, buffer)
        for src in node.srcs:
            self._let_go(src)

    def _place(self, node: Node, buffer: int) -> None:
        if node.allocated or node.home is not None or node.view is not None:
            return
        node.allocated = True
        if node.op in IN_PLACE and self._reuse(node, buffer):
            return
        node.owner = buffer
        node.address = self.arenas[buffer].take(self._size_of(node, buffer))

    def _reuse(self, node: Node, buffer: int) -> bool:
        """Take over the memory of a source that nobody else needs any more. Views never qualify."""
        for parent in node.srcs:
            if not parent.allocated or parent.is_output or parent.children != 1 or parent.views:
                continue
            if parent.kind != node.kind or parent.ne != node.ne or parent.nb != node.nb:
                continue
            node.owner, node.address = parent.owner, parent.address
            parent.allocated = False
            self._trim(parent, node, buffer)
            return True
        return False

    def _trim(self, parent: Node, node: Node, buffer: int) -> None:
        """Give back what *node* doesn't need of the memory that it took over."""
        owned, needed = self._size_of(parent, parent.owner), self._size_of(node, buffer)
        if owned > needed:
            self.arenas[parent.owner].release(parent.address + needed, owned - needed)

    def _let_go(self, src: Node) -> None:
        src.children -= 1
        if src.children or src.views:
            return
        root = src.view
        if root is None:
            root = src
        else:
            root.views -= 1
            if root.views or root.children:
                return
        if root.allocated and not root.is_output:
            self.arenas[root.owner].release(root.address, self._size_of(root, root.owner))
            root.allocated = False

"""The sheet on which a model's graph is drawn: its weights as tensors, its inputs, and the pieces all layers share.

Sources, b11434: ``src/llama-graph.cpp`` (``build_inp_embd``, ``build_norm``, ``build_lora_mm``). The order in which
things are added to the graph is the order in which the allocator sees them, so it is kept to the letter.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from terazi.errors import ModelFileError
from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.adapters import Adapter, place_adapter
from terazi.memory.llama_cpp.blocks import loop_count, trunk_length
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.graph import Graph, Node
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import BufferKind, Placement
from terazi.models.spec import ModelSpec

#: These take no batch of tokens and embeddings (``llm_arch_supports_mixed_batch``).
_NEVER_MIXED = frozenset({"cogvlm", "deepseek4", "granite_switch"})


class Batch(NamedTuple):
    """What is reserved for.

    Args:
        tokens: of all sequences together.
        outputs: logits rows.
        streams: separate caches.
        flash_attn: whether attention is one fused operation.
        windowed: whether there is a window cache beside the full one.
        pin_norms: whether norms are pinned to the device of their layer.
        slots: sequences in the batch; ``rows`` are those that the memory has room for.
        kept: recurrent states a slot, the last and those to go back to.
        context: cells that one sequence may use; ``all_cells`` are those of all.
        micro: the largest micro-batch.
        taken_apart: fused operations drawn step by step, as they would run elsewhere than their layer.
        v_transposed: whether V is stored one element a row, as it is where flash attention is off from the start.
        draft_head: the draft head is drawn, not the model.
        samples: tokens are picked in the graph.
    """

    tokens: int
    outputs: int
    streams: int
    flash_attn: bool
    windowed: bool
    pin_norms: bool
    slots: int = 1
    rows: int = 1
    kept: int = 1
    v_transposed: bool = False
    context: int = 0
    all_cells: int = 0
    micro: int = 0
    taken_apart: frozenset[str] = frozenset()
    draft_head: bool = False
    samples: bool = False


def index_by_name(placements: tuple[Placement, ...]) -> dict[str, list[Placement]]:
    """Where each tensor lies, duplicates in the order of *placements*."""
    by_name: dict[str, list[Placement]] = {}
    for placement in placements:
        by_name.setdefault(placement.tensor.name, []).append(placement)
    return by_name


class Sketch:
    """One graph in the making.

    Args:
        spec, family, settings, batch: what is drawn.
        placements: where the weights are.
        backends: device id → backend number; the host has the highest.
        layer_backends: the backend of each block, and of the output.
        adapters: LoRA adapters that are applied.
        steered: blocks behind which a control vector is added.
        by_name: *placements*, if somebody has sorted them by name already.
        blocks: which blocks are drawn; None is all that run.
    """

    def __init__(
        self,
        spec: ModelSpec,
        family: Family,
        settings: LlamaCppSettings,
        batch: Batch,
        *,
        placements: tuple[Placement, ...],
        backends: dict[str, int],
        layer_backends: tuple[int, ...],
        adapters: tuple[Adapter, ...] = (),
        steered: range = range(0),
        by_name: Mapping[str, list[Placement]] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> None:
        self.spec, self.family, self.settings, self.batch = spec, family, settings, batch
        self.backends, self.layer_backends = backends, layer_backends
        self.blocks = range(trunk_length(spec)) if blocks is None else blocks
        self.graph = Graph()
        #: the tokens' numbers, an input of the graph
        self.tokens = self.input(g.I32, batch.tokens)
        #: fused operations whose place the engine looks at, with their block
        self.fused: list[tuple[Node, int]] = []
        self._norm_kind = family.norm
        if family.norm == "by_file":
            rms = spec.metadata.get(f"{spec.architecture}.attention.layer_norm_rms_epsilon")
            self._norm_kind = "rms_norm" if rms else "norm"
        deep = spec.metadata.get(f"{spec.architecture}.n_deepstack_layers", 0) if family.deep_inputs else 0
        #: so many layers take a part of an image's embedding each, besides the first
        self.deep_inputs = deep if isinstance(deep, int) else 0
        #: by name; the copy of a tied embedding that serves as output matrix is the last of its name
        self._weights: dict[str, list[Node]] = {}
        self._placed = index_by_name(placements) if by_name is None else by_name
        #: which block a weight belongs to
        self.block_of: dict[Node, int] = {}
        self._pairs: dict[str, list[tuple[Node, Node]]] = {}
        for adapter in adapters:
            self._adapt(adapter, placements)
        loops = loop_count(spec)
        #: blocks that run again have the weights of those of the first time
        self._period = spec.block_count // loops if loops > 1 else 0
        self._steered = steered

    def _nodes(self, name: str) -> list[Node]:
        """All copies of the weight *name*; they become tensors when they are first asked for."""
        nodes = self._weights.get(name)
        if nodes is None and self._period and name.startswith("blk."):
            _, block, rest = name.split(".", 2)
            first = f"blk.{int(block) % self._period}.{rest}"
            nodes = self._weights[name] = self._made(name) if first == name else self._nodes(first)
        if nodes is None:
            nodes = self._weights[name] = self._made(name)
        return nodes

    def _made(self, name: str) -> list[Node]:
        nodes = [self._weight_node(placement) for placement in self._placed.get(name, ())]
        pairs = tuple(self._pairs.get(name, ()))
        if pairs:
            for node in nodes:
                node.adapters = pairs
        return nodes

    def _adapt(self, adapter: Adapter, placements: tuple[Placement, ...]) -> None:
        placed = place_adapter(adapter, placements)
        for first, second in zip(placed[::2], placed[1::2], strict=True):
            pair = []
            for half in (first, second):
                shape = half.tensor.shape
                node = g.leaf((shape[0], half.tensor.n_bytes // prod(shape[1:])), *shape)
                node.home = self.backends[half.device]
                pair.append(node)
            self._pairs.setdefault(first.weight, []).append((pair[0], pair[1]))

    def _weight_node(self, placement: Placement) -> Node:
        shape = placement.tensor.shape
        row = placement.tensor.n_bytes // prod(shape[1:])
        # of what is stored in blocks only the bytes of a row matter; what isn't may be reshaped
        node = g.leaf((shape[0], row) if row % shape[0] else (1, row // shape[0]), *shape)
        node.home = self.backends[placement.device]
        node.is_weight = True
        node.plain_host = placement.kind in {BufferKind.PLAIN, BufferKind.PINNED, BufferKind.LAZY}
        if placement.tensor.block is not None:
            self.block_of[node] = placement.tensor.block
        return node

    def steer(self, x: Node, block: int) -> Node:
        """``build_cvec``: what the control vector adds behind *block*."""
        if block not in self._steered:
            return x
        row = g.leaf(g.F32, self.spec.embedding_length)
        row.home = self.layer_backends[block]
        return g.like("add", x, row)

    def weight(self, name: str) -> Node | None:
        """The weight *name*, or None if the model has none."""
        nodes = self._nodes(name)
        return nodes[0] if nodes else None

    def need(self, name: str) -> Node:
        """The weight *name*.

        Raises:
            ModelFileError: if the model has none; the engine refuses such a file too.
        """
        node = self.weight(name)
        if node is None:
            raise ModelFileError(
                f"The model lacks the tensor {name}, which its architecture {self.spec.architecture} needs.",
                hint="The file is incomplete or mislabelled; get it again.",
            )
        return node

    def shared_weight(self, name: str, layer: int) -> Node | None:
        """The copy of *name* on the device of *layer*."""
        backend = self.layer_backends[layer]
        return next((node for node in reversed(self._nodes(name)) if node.home == backend), None)

    def output_matrix(self) -> Node:
        """``output.weight``, or the embedding where the model ties them."""
        return self.weight("output.weight") or self._nodes("token_embd.weight")[-1]  # tied: embeddings() needed it

    def input(self, kind: tuple[int, int], *ne: int) -> Node:
        """A graph input, which lives in host memory."""
        node = g.leaf(kind, *ne)
        node.is_input = True
        return node

    def embeddings(self) -> Node:
        """Token, embedding and mixed inputs are all in the graph; the first is used."""
        width, tokens = self.spec.embedding_length, self.batch.tokens
        given_width = width * (1 + self.deep_inputs)
        table = self.need("token_embd.weight")

        def look_up(ids: Node) -> Node:
            rows = g.get_rows(table, ids)
            for a, b in table.adapters:
                rows = g.like("add", rows, g.like("scale", g.mul_mat(b, g.get_rows(a, ids))))
            return Node("pad", g.F32, (given_width, *rows.ne[1:]), (rows,)) if self.deep_inputs else rows

        given = self.input(g.F32, given_width, tokens)
        x = look_up(self.tokens)
        roots = [x, given]
        if self.spec.architecture not in _NEVER_MIXED:
            mixed_ids, mixed_slots = self.input(g.I32, tokens), self.input(g.I64, tokens)
            mixed = g.like("dup", self.input(g.F32, given_width, tokens))
            roots.append(g.set_rows(mixed, look_up(mixed_ids), mixed_slots))
        for root in roots:
            self.graph.expand(root)
        if self.deep_inputs:
            x = g.view(x, (width, tokens), (x.nb[1],))
        if self.family.scaled_embeddings == "rows":
            x = g.like("mul", x, self.input(g.F32, 1, tokens))
        elif self.family.scaled_embeddings == "early":
            x = g.like("scale", x)
        self.graph.expand(x)
        if self.family.scaled_embeddings == "whole":
            x = g.like("scale", x)
        elif self.family.scaled_embeddings == "normed":
            x = g.like(self._norm_kind, x)
        return x

    def norm(self, x: Node, name: str, layer: int | None, *, kind: str | None = None) -> Node:
        """A norm with its weight and bias, if it has them. With a *layer* it may be pinned to that one's device.

        It is the family's, or of another *kind*.
        """
        # Falcon-H1 names one norm without the suffix
        weight, bias = self.weight(f"{name}.weight") or self.weight(name), self.weight(f"{name}.bias")
        x = g.like(kind or self._norm_kind, x)
        if (weight or bias) and layer is not None and self.batch.pin_norms:
            x.backend = self.layer_backends[layer]
        if weight:
            x = g.like("mul", x, weight)
        return g.like("add", x, bias) if bias else x

    def linear(self, x: Node, name: str) -> Node:
        """A matrix product with its scale and bias, if it has them."""
        x = g.mul_mat(self.need(f"{name}.weight"), x)
        scale, bias = self.weight(f"{name}.scale"), self.weight(f"{name}.bias")
        if scale:
            x = g.like("mul", x, scale)
        return g.like("add", x, bias) if bias else x

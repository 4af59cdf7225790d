"""Compute buffers: the engine's reservation, replayed on a symbolic graph.

Source: ``src/llama-context.cpp:sched_reserve`` and ``graph_reserve``, build b11434: a prompt graph of a whole
micro-batch and a generation graph of one token a sequence are reserved in turn; each buffer keeps the larger size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.adapters import Adapter
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, CUDA_ROW_PADDING, alignment_bytes, backend_of
from terazi.memory.llama_cpp.cache_rules import window_layers
from terazi.memory.llama_cpp.cache_types import is_quantised_cache
from terazi.memory.llama_cpp.drawings import draw
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.graph import F16, F32, Graph, Node
from terazi.memory.llama_cpp.hyper_connections import FUSED
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.limits import check_graph_size, check_single_sequence
from terazi.memory.llama_cpp.optimise import Optimised, for_cuda
from terazi.memory.llama_cpp.recurrent import StateLayer, number
from terazi.memory.llama_cpp.reorder import for_vulkan
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.scheduler import PIPELINE_COPIES, Scheduler
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.sketch import Batch, Sketch, index_by_name
from terazi.memory.llama_cpp.tape import Measure
from terazi.memory.llama_cpp.weights import Placement
from terazi.models.spec import ModelSpec
from terazi.units import pad

#: ``GGML_OP_OFFLOAD_MIN_BATCH``: from this batch size on, a CUDA device takes over products with host weights.
OFFLOAD_BATCH = 32
#: Last, ``sched_reserve`` reserves a prompt of a single sequence for these.
_ALONE = frozenset({"kimi-linear", "minimax-01"})


class Setup(NamedTuple):
    """What all reservations of one loaded model have in common.

    Args:
        backends: device id → backend number; the host has the highest.
        layer_backends: the backend of each block, and of the output.
        by_name: *placements* by the name of the tensor.
        cut: tensors are shared out to several devices (``-sm tensor``), which are one to the scheduler.
        adapters: LoRA adapters that are loaded.
        steered: blocks behind which a control vector is added.
    """

    spec: ModelSpec
    family: Family
    settings: LlamaCppSettings
    devices: tuple[Device, ...]
    placements: tuple[Placement, ...]
    by_name: Mapping[str, list[Placement]]
    backends: dict[str, int]
    layer_backends: tuple[int, ...]
    cut: bool
    adapters: tuple[Adapter, ...] = ()
    steered: range = range(0)

    def draw(
        self,
        batch: Batch,
        caches: tuple[CacheLayer, ...],
        states: tuple[StateLayer, ...],
        blocks: Sequence[int] | None = None,
    ) -> tuple[Sketch, Graph]:
        """The graph of one reservation, of all blocks or only of *blocks*."""
        sketch = Sketch(
            self.spec,
            self.family,
            self.settings,
            batch,
            placements=self.placements,
            backends=self.backends,
            layer_backends=self.layer_backends,
            by_name=self.by_name,
            blocks=blocks,
            adapters=tuple(adapter for adapter in self.adapters if adapter.applied),
            steered=self.steered,
        )
        return sketch, draw(sketch, caches, states)

    def scheduler(self, graph: Graph, *, pipeline: bool) -> Scheduler:
        """The scheduler of a graph."""
        return Scheduler(
            graph,
            backends=len(self.backends),
            copies=PIPELINE_COPIES if pipeline else 1,
            offloads=offloads(self.devices) if self.settings.op_offload and not self.cut else None,
            optimisers=self._optimisers(),
        )

    def _optimisers(self) -> dict[int, Callable[[Sequence[Node]], Optimised]]:
        return {
            self.backends[device.id]: for_cuda if backend_of(device) in CUDA_LIKE else for_vulkan
            for device in self.devices
            if backend_of(device) in CUDA_LIKE | {"vulkan"} and not self.cut
        }

    def check(self, size: int, resolved: Resolved) -> None:
        """Refuse a graph of *size* nodes and leaves that the engine would abort on."""
        check_graph_size(
            size,
            self.spec.architecture,
            tokens=resolved.n_tokens,
            tensors=len(self.placements),
            adapted=sum(len(adapter.pairs) for adapter in self.adapters),
        )


def setup_of(
    spec: ModelSpec,
    family: Family,
    settings: LlamaCppSettings,
    resolved: Resolved,
    placements: tuple[Placement, ...],
) -> Setup:
    """The setup for *placements*."""
    backends = {device.id: index for index, device in enumerate(resolved.devices)}
    backends[HOST] = len(resolved.devices)
    return Setup(
        spec=spec,
        family=family,
        settings=settings,
        devices=resolved.devices,
        placements=placements,
        by_name=index_by_name(placements),
        backends=backends,
        layer_backends=tuple(backends[device] for device in resolved.layer_devices),
        cut=bool(resolved.cut),
    )


def batch_of(
    resolved: Resolved, reservation: "Reservation", *, flash_attn: bool, pins: bool, windowed: bool
) -> Batch:
    """What is reserved for. *pins*: norms may be pinned to the device of their layer."""
    return Batch(
        tokens=reservation.tokens,
        outputs=reservation.outputs,
        streams=resolved.n_stream,
        flash_attn=flash_attn,
        windowed=windowed,
        pin_norms=pins and pins_norms(reservation.tokens, resolved),
        slots=reservation.slots,
        rows=resolved.n_seq_max,
        kept=resolved.kept_states,
        v_transposed=not resolved.flash_attn,
        context=resolved.n_ctx_seq,
        all_cells=resolved.n_ctx,
        micro=resolved.n_ubatch,
        draft_head=resolved.draft_head,
        samples=resolved.samples,
    )


def has_window(spec: ModelSpec, family: Family, resolved: Resolved, caches: tuple[CacheLayer, ...]) -> bool:
    """Whether the engine keeps a window cache beside the full one."""
    return any(window_layers(spec, family)) if resolved.draft_head else any(cache.window for cache in caches)


def pins_norms(tokens: int, resolved: Resolved) -> bool:
    """Norms are pinned in small batches, and if everything is offloaded (``llama_context::graph_get_cb``)."""
    return tokens < 32 or resolved.full_offload


class Reservation(NamedTuple):
    """One pass of ``sched_reserve``: its tokens, the logits that it computes, the sequences in it."""

    tokens: int
    outputs: int
    slots: int


def reservations(spec: ModelSpec, resolved: Resolved, *, pinned: bool = True) -> list[Reservation]:
    """The passes that may decide the size of a buffer.

    Raises:
        UsageError: for one that the engine would abort on.
    """
    slots = resolved.n_seq_max
    passes = [Reservation(resolved.n_tokens, resolved.n_outputs, slots)]
    if pinned and resolved.n_tokens < 4 * OFFLOAD_BATCH:
        # the generation graph can only be the larger one if the prompt graph is tiny
        passes.append(Reservation(slots, slots, slots))
    if slots > 1 and spec.architecture in _ALONE:
        alone = min(resolved.n_ctx, resolved.n_ubatch)
        check_single_sequence(alone, resolved.n_stream)
        passes += [Reservation(alone, resolved.n_outputs, 1)] if pinned else []
    return passes


def compute_bytes(
    spec: ModelSpec,
    family: Family,
    settings: LlamaCppSettings,
    resolved: Resolved,
    *,
    caches: tuple[CacheLayer, ...],
    placements: tuple[Placement, ...],
    states: tuple[StateLayer, ...] = (),
    pinned: bool = True,
    adapters: tuple[Adapter, ...] = (),
    steered: range = range(0),
) -> dict[str, int]:
    """Bytes of the compute buffer of the host and of each device in use.

    Args:
        spec, family, settings, resolved: what is loaded, and how.
        caches: from ``kv.cache_layers``.
        placements: from ``weights.place_tensors``.
        states: from ``recurrent.state_layers``.
        adapters: LoRA adapters that are loaded.
        steered: blocks behind which a control vector is added.
        pinned: False gives llama-fit-params' own estimate, which forgets the devices that norms are pinned to.

    Raises:
        UsageError: if the engine would abort over the size of the graph.
    """
    setup = setup_of(spec, family, settings, resolved, placements)
    setup = setup._replace(adapters=adapters, steered=steered)
    windowed = has_window(spec, family, resolved, caches)
    flash_attn = fuses_attention(setup, resolved, caches, states)
    apart = _taken_apart(setup, resolved, caches, states, flash_attn=flash_attn)
    size_of = sizes_on(resolved.devices)
    sizes = [0] * len(setup.backends)
    for reservation in reservations(spec, resolved, pinned=pinned):
        batch = batch_of(resolved, reservation, flash_attn=flash_attn, pins=pinned, windowed=windowed)
        batch = batch._replace(taken_apart=apart)
        _, graph = setup.draw(batch, caches, states)
        setup.check(len(graph.nodes) + len(graph.leaves), resolved)
        reserved = setup.scheduler(graph, pipeline=resolved.pipeline).reserve(size_of)
        sizes = [max(pair) for pair in zip(sizes, reserved, strict=True)]
    return named(setup, sizes)


def named(setup: Setup, sizes: Sequence[int]) -> dict[str, int]:
    """*sizes* by device; the host is always there."""
    return {device: sizes[index] for device, index in setup.backends.items() if sizes[index] or device == HOST}


def fuses_attention(
    setup: Setup, resolved: Resolved, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]
) -> bool:
    """Whether attention is one operation: ``resolve_fused_ops`` looks where it would run.

    It must run where its layer is, or none is fused.
    """
    if not resolved.flash_attn or not may_be_refused(setup.settings, resolved, [cache.device for cache in caches]):
        return resolved.flash_attn
    slots = resolved.n_seq_max
    windowed = has_window(setup.spec, setup.family, resolved, caches)
    probe = Reservation(slots, slots, slots)
    batch = batch_of(resolved, probe, flash_attn=True, pins=True, windowed=windowed)
    _, graph = setup.draw(batch, caches, states)
    setup.check(len(graph.nodes) + len(graph.leaves), resolved)
    return runs_beside_caches(setup, resolved, graph, caches)


def runs_beside_caches(setup: Setup, resolved: Resolved, graph: Graph, caches: tuple[CacheLayer, ...]) -> bool:
    """Whether every fused attention of *graph* runs where its layer is."""
    trunk, count = trunk_length(setup.spec), setup.spec.block_count
    drawn = range(trunk, count) if resolved.draft_head else range(trunk)
    attending = [cache.block for cache in caches if cache.block in drawn] or drawn
    layers = [setup.layer_backends[block] for block in attending]
    return setup.scheduler(graph, pipeline=resolved.pipeline).fused_attention() == layers


def may_be_refused(settings: LlamaCppSettings, resolved: Resolved, cache_devices: Sequence[str]) -> bool:
    """Whether the engine looks first where ``-fa auto`` would run, and could find it elsewhere than its layer.

    Beside a cache on a device, it always runs there. Encoders have none.
    """
    given = settings.flash_attn != "auto" or is_quantised_cache(settings.type_v)
    if given or not resolved.devices:
        return False
    return not cache_devices or HOST in cache_devices


def _taken_apart(
    setup: Setup,
    resolved: Resolved,
    caches: tuple[CacheLayer, ...],
    states: tuple[StateLayer, ...],
    *,
    flash_attn: bool,
) -> frozenset[str]:
    """Fused operations of hyper connections that would run elsewhere than their layer; they are drawn in steps."""
    apart: frozenset[str] = frozenset()
    slots = resolved.n_seq_max
    windowed = has_window(setup.spec, setup.family, resolved, caches)
    for kind in FUSED if resolved.devices and number(setup.spec, "hyper_connection.count") else ():
        probe = Reservation(slots, slots, slots)
        batch = batch_of(resolved, probe, flash_attn=flash_attn, pins=True, windowed=windowed)
        sketch, graph = setup.draw(batch._replace(taken_apart=apart), caches, states)
        setup.check(len(graph.nodes) + len(graph.leaves), resolved)
        setup.scheduler(graph, pipeline=resolved.pipeline).assign()
        if any(node.op == kind and node.backend != setup.layer_backends[block] for node, block in sketch.fused):
            apart |= {kind}
    return apart


def offloads(devices: tuple[Device, ...]) -> Callable[[Node, int], bool] | None:
    """``offload_op`` of the CUDA backend; RPC servers and Metal have none."""
    takes = [backend_of(device) in CUDA_LIKE | {"vulkan", "sycl"} for device in devices]
    if not any(takes):
        return None

    def takes_over(node: Node, backend: int) -> bool:
        if not takes[backend] or node.op == "get_rows":
            return False
        batch = node.ne[1] if node.op == "mul_mat" else node.ne[2] if node.op in {"mul_mat_id", "rope"} else 0
        return (batch or node.elements // node.ne[0]) >= OFFLOAD_BATCH

    return takes_over


def measure_of(devices: tuple[Device, ...]) -> Measure:
    """How the buffers of *devices* and of the host measure tensors."""
    cuda = [backend_of(device) in CUDA_LIKE for device in devices] + [False]

    def bytes_of(node: Node, buffer: int) -> int:
        return _cuda_bytes(node, node.n_bytes) if cuda[buffer] else node.n_bytes

    return Measure(bytes_of, (*(alignment_bytes(device) for device in devices), alignment_bytes(None)))


def sizes_on(devices: tuple[Device, ...]) -> Callable[[Node, int], int]:
    bytes_of, alignments = measure_of(devices)

    def size_of(node: Node, buffer: int) -> int:
        return pad(bytes_of(node, buffer), alignments[buffer])

    return size_of


def _cuda_bytes(node: Node, size: int) -> int:
    """``ggml_backend_cuda_buffer_type_get_alloc_size``: half-precision copies of a quantised cache, padded rows."""
    if node.op == "flash_attn":
        for cache in node.srcs[1:3]:
            if cache.kind not in {F16, F32}:
                size = pad(size, 128) + 2 * cache.elements
    block, width = node.kind
    if block > 1 and node.ne[0] % CUDA_ROW_PADDING:
        size += (CUDA_ROW_PADDING - node.ne[0] % CUDA_ROW_PADDING) // block * width
    return size

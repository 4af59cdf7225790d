"""Compute buffers: the engine's reservation, replayed on a symbolic graph.

Source: ``src/llama-context.cpp:sched_reserve`` and ``graph_reserve``, build b11434: a prompt graph of a whole
micro-batch and a generation graph of one token a sequence are reserved in turn; each buffer keeps the larger size.
"""

from collections.abc import Callable

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.adapters import Adapter
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, CUDA_ROW_PADDING, alignment_bytes, backend_of
from terazi.memory.llama_cpp.cache_rules import window_layers
from terazi.memory.llama_cpp.cache_types import is_quantised_cache
from terazi.memory.llama_cpp.drawings import draw
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.graph import F16, F32, Node
from terazi.memory.llama_cpp.hyper_connections import FUSED
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.limits import check_graph_size, check_single_sequence
from terazi.memory.llama_cpp.optimise import for_cuda
from terazi.memory.llama_cpp.recurrent import StateLayer, number
from terazi.memory.llama_cpp.reorder import for_vulkan
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.scheduler import PIPELINE_COPIES, Scheduler
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.sketch import Batch, Sketch
from terazi.memory.llama_cpp.weights import Placement
from terazi.models.spec import ModelSpec
from terazi.units import pad

#: ``GGML_OP_OFFLOAD_MIN_BATCH``: from this batch size on, a CUDA device takes over products with host weights.
OFFLOAD_BATCH = 32
#: Last, ``sched_reserve`` reserves a prompt of a single sequence for these.
_ALONE = frozenset({"kimi-linear", "minimax-01"})


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
    ids = {device.id: index for index, device in enumerate(resolved.devices)}
    ids[HOST] = len(resolved.devices)

    optimisers = {
        ids[device.id]: for_cuda if backend_of(device) in CUDA_LIKE else for_vulkan
        for device in resolved.devices
        if backend_of(device) in CUDA_LIKE | {"vulkan"} and not resolved.cut
    }
    taken_apart: frozenset[str] = frozenset()
    applied = tuple(adapter for adapter in adapters if adapter.applied)
    adapted = sum(len(adapter.pairs) for adapter in adapters)

    def schedule(tokens: int, outputs: int, *, flash_attn: bool, pins: bool, slots: int) -> Scheduler:
        return sketch_of(tokens, outputs, flash_attn=flash_attn, pins=pins, slots=slots)[1]

    def sketch_of(
        tokens: int, outputs: int, *, flash_attn: bool, pins: bool, slots: int
    ) -> tuple[Sketch, Scheduler]:
        sketch = Sketch(
            spec,
            family,
            settings,
            Batch(
                tokens=tokens,
                outputs=outputs,
                streams=resolved.n_stream,
                flash_attn=flash_attn,
                windowed=any(window_layers(spec, family)) if resolved.draft_head else any(c.window for c in caches),
                pin_norms=pins and (tokens < 32 or resolved.full_offload),
                slots=slots,
                rows=resolved.n_seq_max,
                kept=resolved.kept_states,
                v_transposed=not resolved.flash_attn,
                context=resolved.n_ctx_seq,
                all_cells=resolved.n_ctx,
                micro=resolved.n_ubatch,
                taken_apart=taken_apart,
                draft_head=resolved.draft_head,
                samples=resolved.samples,
            ),
            placements=placements,
            backends=ids,
            layer_backends=tuple(ids[device] for device in resolved.layer_devices),
            adapters=applied,
            steered=steered,
        )
        graph = draw(sketch, caches, states)
        check_graph_size(
            graph, spec.architecture, tokens=resolved.n_tokens, tensors=len(placements), adapted=adapted
        )
        return sketch, Scheduler(
            graph,
            backends=len(ids),
            copies=PIPELINE_COPIES if resolved.pipeline else 1,
            offloads=_offloads(resolved.devices) if settings.op_offload and not resolved.cut else None,
            optimisers=optimisers,
        )

    slots = resolved.n_seq_max
    flash_attn = resolved.flash_attn
    if flash_attn and _may_be_refused(settings, resolved, caches):
        # resolve_fused_ops: fused attention must run where its layer is, or none is fused
        drawn = range(trunk_length(spec), spec.block_count) if resolved.draft_head else range(trunk_length(spec))
        attending = [cache.block for cache in caches if cache.block in drawn] or drawn
        layers = [ids[resolved.layer_devices[block]] for block in attending]
        probe = schedule(slots, slots, flash_attn=True, pins=True, slots=slots)
        flash_attn = probe.fused_attention() == layers
    for kind in FUSED if resolved.devices and number(spec, "hyper_connection.count") else ():
        sketch, probe = sketch_of(slots, slots, flash_attn=flash_attn, pins=True, slots=slots)
        probe.assign()
        if any(
            node.op == kind and node.backend != ids[resolved.layer_devices[block]] for node, block in sketch.fused
        ):
            taken_apart |= {kind}
    passes = [(resolved.n_tokens, resolved.n_outputs, slots)]
    if pinned and resolved.n_tokens < 4 * OFFLOAD_BATCH:
        # the generation graph can only be the larger one if the prompt graph is tiny
        passes.append((slots, slots, slots))
    if slots > 1 and spec.architecture in _ALONE:
        alone = min(resolved.n_ctx, resolved.n_ubatch)
        check_single_sequence(alone, resolved.n_stream)
        passes += [(alone, resolved.n_outputs, 1)] if pinned else []
    sizes = [0] * len(ids)
    for tokens, outputs, sequences in passes:
        scheduler = schedule(tokens, outputs, flash_attn=flash_attn, pins=pinned, slots=sequences)
        sizes = [max(pair) for pair in zip(sizes, scheduler.reserve(sizes_on(resolved.devices)), strict=True)]
    return {device: sizes[index] for device, index in ids.items() if sizes[index] or device == HOST}


def _may_be_refused(settings: LlamaCppSettings, resolved: Resolved, caches: tuple[CacheLayer, ...]) -> bool:
    """Whether the engine looks first where ``-fa auto`` would run, and could find it elsewhere than its layer.

    Beside a cache on a device, it always runs there. Encoders have none.
    """
    given = settings.flash_attn != "auto" or is_quantised_cache(settings.type_v)
    if given or not resolved.devices:
        return False
    return not caches or any(cache.device == HOST for cache in caches)


def _offloads(devices: tuple[Device, ...]) -> Callable[[Node, int], bool] | None:
    """``offload_op`` of the CUDA backend; RPC servers and Metal have none."""
    takes = [backend_of(device) in CUDA_LIKE | {"vulkan", "sycl"} for device in devices]
    if not any(takes):
        return None

    def offloads(node: Node, backend: int) -> bool:
        if not takes[backend] or node.op == "get_rows":
            return False
        batch = node.ne[1] if node.op == "mul_mat" else node.ne[2] if node.op in {"mul_mat_id", "rope"} else 0
        return (batch or node.elements // node.ne[0]) >= OFFLOAD_BATCH

    return offloads


def sizes_on(devices: tuple[Device, ...]) -> Callable[[Node, int], int]:
    alignments = [alignment_bytes(device) for device in devices] + [alignment_bytes(None)]
    cuda = [backend_of(device) in CUDA_LIKE for device in devices] + [False]

    def size_of(node: Node, buffer: int) -> int:
        size = node.n_bytes
        if cuda[buffer]:
            size = _cuda_bytes(node, size)
        return pad(size, alignments[buffer])

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

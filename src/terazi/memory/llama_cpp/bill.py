"""Puts llama.cpp's bill together from the rules of this package."""

from collections.abc import Iterator

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Term
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, backend_of
from terazi.memory.llama_cpp.closed_form import compute_bytes as bound_compute_bytes
from terazi.memory.llama_cpp.compute import compute_bytes
from terazi.memory.llama_cpp.families import Family, family_of
from terazi.memory.llama_cpp.kv import CacheLayer, cache_layers
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.llama_cpp.weights import BufferKind, Placement, place_tensors, weight_buffers
from terazi.models.spec import ModelSpec
from terazi.units import MIB

#: MiB; ``cache_ram_mib`` of ``common/common.h``.
DEFAULT_CACHE_RAM_MIB = 8192
#: A slot; ``n_ctx_checkpoints`` of ``common/common.h``.
DEFAULT_CHECKPOINTS = 32

_KIND_NOTES = {
    BufferKind.PLAIN: "weights in host memory",
    BufferKind.DEVICE: "weights",
    BufferKind.REPACK: "weights repacked for this CPU, a second copy",
    BufferKind.AMX: "weights repacked for AMX, a second copy",
    BufferKind.PINNED: "weights in pinned host memory",
}


def weigh(spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...], isa: frozenset[str]) -> Bill:
    """The bytes that each device and the host will hold after llama.cpp has loaded *spec*.

    Args:
        spec: the model.
        settings: the command line, resolved by nobody yet: defaults are applied here as the tool would.
        devices: accelerators in the engine's order (RPC first, then discrete cards).
        isa: CPU flags of the host, which decide what is repacked.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    resolved = resolve(spec, settings, devices)
    family = family_of(spec)
    caches = cache_layers(spec, family, settings, resolved)
    placements = place_tensors(spec, settings, resolved, isa)
    lines = [
        *_weights(placements, settings, resolved, isa),
        *_caches(caches, LineBasis.EXACT if family else LineBasis.UPPER_BOUND),
        *_compute(spec, family, settings, resolved, caches=caches, placements=placements),
        *_overhead(spec, settings, resolved),
    ]
    reasons = []
    if family is None:
        reasons.append(
            f"The rules of architecture {spec.architecture!r} aren't known here: full-length K and V in every "
            "layer and a generous compute buffer are counted."
        )
    return Bill(
        engine="llama.cpp",
        build=BUILD,
        lines=tuple(lines),
        growth=tuple(_growth(settings, resolved, caches, family)),
        exact=family is not None,
        reasons=tuple(reasons),
    )


def _weights(
    placements: tuple[Placement, ...], settings: LlamaCppSettings, resolved: Resolved, isa: frozenset[str]
) -> Iterator[BillLine]:
    for buffer in weight_buffers(placements, settings, resolved, isa):
        yield BillLine(
            term=Term.WEIGHTS,
            device=buffer.device,
            bytes=min(buffer.tensor_bytes, buffer.buffer_bytes),
            formula=f"weights.{buffer.kind.value}",
            basis=LineBasis.EXACT,
            note=_KIND_NOTES[buffer.kind] + (", mapped from the file" if buffer.mapped else ""),
            reclaimable=buffer.mapped,
        )
        unused = buffer.buffer_bytes - buffer.tensor_bytes
        if unused > 0:
            yield BillLine(
                term=Term.WEIGHTS,
                device=buffer.device,
                bytes=unused,
                formula="weights.mapped-gaps",
                basis=LineBasis.EXACT,
                note="mapped along with them: tensors between the first and the last that live elsewhere",
                reclaimable=True,
            )


def _caches(caches: tuple[CacheLayer, ...], basis: LineBasis) -> Iterator[BillLine]:
    groups: dict[tuple[str, bool], list[CacheLayer]] = {}
    for cache in caches:
        groups.setdefault((cache.device, cache.window), []).append(cache)
    for (device, window), group in groups.items():
        yield BillLine(
            term=Term.KV,
            device=device,
            bytes=sum(cache.k_bytes + cache.v_bytes for cache in group),
            formula="kv.window" if window else "kv.full",
            basis=basis,
            note=f"{len(group)} layers of {group[0].cells} cells",
        )


def _compute(
    spec: ModelSpec,
    family: Family | None,
    settings: LlamaCppSettings,
    resolved: Resolved,
    *,
    caches: tuple[CacheLayer, ...],
    placements: tuple[Placement, ...],
) -> Iterator[BillLine]:
    if family is None:
        sizes, formula, basis = bound_compute_bytes(spec, resolved, caches), "compute.bound", LineBasis.UPPER_BOUND
    else:
        sizes = compute_bytes(spec, family, settings, resolved, caches=caches, placements=placements)
        formula, basis = "compute.replay", LineBasis.MODELLED
    for device, size in sizes.items():
        yield BillLine(
            term=Term.COMPUTE,
            device=device,
            bytes=size,
            formula=formula,
            basis=basis,
            note=f"graph of {resolved.n_tokens} tokens, {resolved.n_outputs} outputs",
        )


def _overhead(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    width = spec.vocab_size + (spec.embedding_length if settings.embedding else 0)
    yield BillLine(
        term=Term.OVERHEAD,
        device=HOST,
        bytes=4 * resolved.n_seq_max * width,
        formula="output-buffer",
        basis=LineBasis.EXACT,
        note="logits that the caller reads, one row a slot",
    )
    for device in resolved.devices:
        if backend_of(device) in CUDA_LIKE and device.context_bytes.value:
            yield BillLine(
                term=Term.OVERHEAD,
                device=device.id,
                bytes=round(device.context_bytes.value),
                formula="driver-context",
                basis=LineBasis.CATALOGUE,
                note=device.context_bytes.note or "what the driver takes before the first tensor",
            )


def _growth(
    settings: LlamaCppSettings,
    resolved: Resolved,
    caches: tuple[CacheLayer, ...],
    family: Family | None,
) -> Iterator[BillLine]:
    if settings.tool != "llama-server":
        return
    limit = DEFAULT_CACHE_RAM_MIB if settings.cache_ram_mib is None else settings.cache_ram_mib
    if limit > 0:
        yield BillLine(
            term=Term.OVERHEAD,
            device=HOST,
            bytes=limit * MIB,
            formula="prompt-cache",
            basis=LineBasis.UPPER_BOUND,
            note="prompts kept in host memory (--cache-ram), filled only under use",
        )
    count = DEFAULT_CHECKPOINTS if settings.ctx_checkpoints is None else settings.ctx_checkpoints
    window = sum(cache.k_bytes + cache.v_bytes for cache in caches if cache.window) // resolved.n_stream
    if count > 0 and window and not settings.swa_full and family is not None:
        yield BillLine(
            term=Term.OVERHEAD,
            device=HOST,
            bytes=count * resolved.n_seq_max * window,
            formula="context-checkpoints",
            basis=LineBasis.UPPER_BOUND,
            note=f"up to {count} copies of the window cache for each slot (--ctx-checkpoints)",
        )

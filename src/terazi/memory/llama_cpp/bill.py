"""Puts llama.cpp's bill together from the rules of this package."""

from collections.abc import Iterator

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bound import state_bytes
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, alignment_bytes, backend_of
from terazi.memory.llama_cpp.cache_rules import window_length
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.resolve import SERVERS, Resolved
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.llama_cpp.weights import BufferKind, WeightBuffer
from terazi.memory.llama_cpp.workings import Direct, Workings
from terazi.models.spec import ModelSpec
from terazi.units import MIB, pad

#: MiB; ``cache_ram_mib`` of ``common/common.h``.
DEFAULT_CACHE_RAM_MIB = 8192
#: A slot; ``n_ctx_checkpoints`` of ``common/common.h``.
DEFAULT_CHECKPOINTS = 32

#: ``--fit`` leaves this much free on each device (``fit_params_target`` of ``common/common.h``).
FIT_MARGIN_BYTES = 1024 * MIB

_KIND_NOTES = {
    BufferKind.PLAIN: "weights in host memory",
    BufferKind.DEVICE: "weights",
    BufferKind.REPACK: "weights repacked for this CPU, a second copy",
    BufferKind.AMX: "weights repacked for AMX, a second copy",
    BufferKind.PINNED: "weights in pinned host memory",
    BufferKind.LAZY: "a table that is read row by row",
}


def weigh(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    devices: tuple[Device, ...],
    isa: frozenset[str],
    companions: tuple[Companion, ...] = (),
    workings: Workings | None = None,
) -> Bill:
    """The bytes that each device and the host will hold after llama.cpp has loaded *spec*.

    Args:
        spec: the model.
        settings: the command line, resolved by nobody yet: defaults are applied here as the tool would.
        devices: accelerators in the engine's order (RPC first, then discrete cards).
        isa: CPU flags of the host, which decide what is repacked.
        companions: what is loaded beside the model; their lines say so (``BillLine.part``).
        workings: who works the parts out; ``Scale`` keeps them from one bill to the next.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    family = family_of(spec)
    work = workings or Direct(spec, family, devices, isa)
    resolved = work.resolve(settings)
    caches = work.caches(settings, resolved)
    states = work.states(settings, resolved)
    buffers = work.buffers(settings, resolved)
    lines = [
        *(_weights(buffer) for buffer in buffers),
        *_caches(caches, LineBasis.EXACT if family else LineBasis.UPPER_BOUND),
        *_state(spec, settings, resolved, states),
        *_compute(work, settings, resolved, known=family is not None),
        *_overhead(spec, settings, resolved),
    ]
    reasons = (
        *_reasons(spec, settings, resolved, family, lines),
        *(f"What {c.flag} loads isn't in this bill." for c in companions),
    )
    return Bill(
        engine="llama.cpp",
        build=BUILD,
        lines=tuple(lines),
        page_cache=tuple(_gap(buffer) for buffer in buffers if buffer.buffer_bytes > buffer.tensor_bytes),
        growth=tuple(_growth(spec, settings, resolved, caches, states=states, family=family)),
        exact=not reasons,
        reasons=reasons,
    )


def _reasons(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    family: Family | None,
    lines: list[BillLine],
) -> Iterator[str]:
    if family is None:
        yield (
            f"The rules of architecture {spec.architecture!r} aren't known here: full-length K and V in every "
            "layer and a generous compute buffer are counted."
        )
    if settings.draft_mtp:
        yield "The draft head's own cache and graph aren't in this bill."
    if settings.split_mode == "tensor" and len(resolved.devices) > 1:
        yield "With -sm tensor the engine cuts single tensors; here whole layers are shared out."
    if settings.fit and settings.tool != "llama-fit-params" and _fit_may_change(settings):
        for device in resolved.devices:
            held = sum(
                line.bytes for line in lines if line.device == device.id and line.formula != "driver-context"
            )
            if held > device.memory_free_bytes - FIT_MARGIN_BYTES:
                yield (
                    f"{device.id} would keep less than 1 GiB free, so the engine's --fit would move layers or cut "
                    "the context; this bill is of the settings as given. Say -ngl and -c, or --fit off."
                )


def _fit_may_change(settings: LlamaCppSettings) -> bool:
    """``common_params_fit_impl`` touches only what the caller left open, and gives up if layers are given."""
    placed = settings.n_gpu_layers is not None or settings.tensor_split or settings.override_tensor
    return settings.n_ctx == 0 or not (placed or settings.cpu_moe or settings.n_cpu_moe)


def _weights(buffer: WeightBuffer) -> BillLine:
    return BillLine(
        term=Term.WEIGHTS,
        device=buffer.device,
        # a mapping ends with its last tensor; the tensors' own sizes include padding behind it
        bytes=min(buffer.tensor_bytes, pad(buffer.buffer_bytes, alignment_bytes(None))),
        formula=f"weights.{buffer.kind.value}",
        basis=LineBasis.EXACT,
        memory=_weights_memory(buffer),
        note=_KIND_NOTES[buffer.kind] + (", mapped from the file" if buffer.mapped else ""),
    )


def _memory(device: str) -> Memory:
    return Memory.ANONYMOUS if device == HOST else Memory.DEVICE


def _weights_memory(buffer: WeightBuffer) -> Memory:
    if buffer.kind is BufferKind.PINNED:
        return Memory.PINNED
    return Memory.PAGE_CACHE if buffer.mapped else _memory(buffer.device)


def _gap(buffer: WeightBuffer) -> BillLine:
    return BillLine(
        term=Term.WEIGHTS,
        device=buffer.device,
        bytes=buffer.buffer_bytes - buffer.tensor_bytes,
        formula="weights.mapped-gaps",
        basis=LineBasis.EXACT,
        memory=Memory.PAGE_CACHE,
        note="mapped along with them: tensors between the first and the last that live elsewhere",
    )


def _caches(caches: tuple[CacheLayer, ...], basis: LineBasis) -> Iterator[BillLine]:
    groups: dict[tuple[str, bool], list[CacheLayer]] = {}
    for cache in caches:
        if not cache.shared:
            groups.setdefault((cache.device, cache.window), []).append(cache)
    for (device, window), group in groups.items():
        yield BillLine(
            term=Term.KV,
            device=device,
            bytes=sum(cache.k_bytes + cache.v_bytes for cache in group),
            formula="kv.window" if window else "kv.full",
            basis=basis,
            memory=_memory(device),
            note=f"{len(group)} layers of {group[0].cells} cells",
        )


def _state(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, states: tuple[StateLayer, ...] | None
) -> Iterator[BillLine]:
    """The recurrent state; at most what the file's keys allow if *states* aren't known."""
    known = states is not None
    sizes: dict[str, int] = {} if known else dict(state_bytes(spec, settings, resolved))
    for layer in states or ():
        sizes[layer.device] = sizes.get(layer.device, 0) + layer.n_bytes
    for device, size in sizes.items():
        yield BillLine(
            term=Term.STATE,
            device=device,
            bytes=size,
            formula="state.slots" if known else "state.bound",
            basis=LineBasis.EXACT if known else LineBasis.UPPER_BOUND,
            memory=_memory(device),
            note=f"recurrent state for {resolved.n_seq_max} sequences",
        )


def _compute(work: Workings, settings: LlamaCppSettings, resolved: Resolved, *, known: bool) -> Iterator[BillLine]:
    sizes = work.compute_bytes(settings, resolved)
    formula = "compute.replay" if known else "compute.bound"
    basis = _replay_basis(resolved) if known else LineBasis.UPPER_BOUND
    for device, size in sizes.items():
        yield BillLine(
            term=Term.COMPUTE,
            device=device,
            bytes=size,
            formula=formula,
            basis=basis,
            memory=_memory(device),
            note=f"graph of {resolved.n_tokens} tokens, logits for {resolved.n_outputs} of them",
        )


def _replay_basis(resolved: Resolved) -> LineBasis:
    """On the CPU the replay is the engine's own arithmetic; other backends round and pad in ways of their own."""
    return LineBasis.MODELLED if resolved.devices else LineBasis.EXACT


def _overhead(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    width = spec.vocab_size + (spec.embedding_length if settings.embedding else 0)
    yield BillLine(
        term=Term.OVERHEAD,
        device=HOST,
        bytes=4 * resolved.n_seq_max * width,
        formula="output-buffer",
        basis=LineBasis.EXACT,
        memory=Memory.ANONYMOUS,
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
                memory=Memory.DEVICE,
                note=device.context_bytes.note or "what the driver takes before the first tensor",
            )


def _growth(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    caches: tuple[CacheLayer, ...],
    *,
    states: tuple[StateLayer, ...] | None,
    family: Family | None,
) -> Iterator[BillLine]:
    if settings.tool not in SERVERS:
        return
    limit = DEFAULT_CACHE_RAM_MIB if settings.cache_ram_mib is None else settings.cache_ram_mib
    if limit > 0:
        yield BillLine(
            term=Term.OVERHEAD,
            device=HOST,
            bytes=limit * MIB,
            formula="prompt-cache",
            basis=LineBasis.UPPER_BOUND,
            memory=Memory.ANONYMOUS,
            note="prompts kept in host memory (--cache-ram), filled only under use",
        )
    count = DEFAULT_CHECKPOINTS if settings.ctx_checkpoints is None else settings.ctx_checkpoints
    slot = 0
    if family and not settings.swa_full:
        slot = _window_of_a_slot(window_length(spec, family), resolved, caches)
    # what can't be rolled back is kept: the window, and recurrent states
    slot += sum(4 * (layer.r_width + layer.s_width) for layer in states or ())
    if count > 0 and slot:
        yield BillLine(
            term=Term.OVERHEAD,
            device=HOST,
            bytes=count * resolved.n_seq_max * slot,
            formula="context-checkpoints",
            basis=LineBasis.UPPER_BOUND,
            memory=Memory.ANONYMOUS,
            note=f"up to {count} copies of its window cache and recurrent state for each slot (--ctx-checkpoints)",
        )


def _window_of_a_slot(length: int, resolved: Resolved, caches: tuple[CacheLayer, ...]) -> int:
    """What one sequence can hold in the window caches: its window and a micro-batch."""
    cells = length + resolved.n_ubatch
    rows = (cache.k_bytes + cache.v_bytes for cache in caches if cache.window)
    lengths = {cache.cells * resolved.n_stream for cache in caches if cache.window}
    return sum(rows) * min(cells, *lengths) // max(lengths) if lengths else 0

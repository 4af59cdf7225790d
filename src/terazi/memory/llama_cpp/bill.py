"""Puts llama.cpp's bill together from the rules of this package."""

from collections.abc import Iterator
from dataclasses import replace

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bound import state_bytes
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, PINNED_HOST, backend_of
from terazi.memory.llama_cpp.draft import DRAFT, Context, draft_context, settle
from terazi.memory.llama_cpp.draft_bill import with_draft
from terazi.memory.llama_cpp.draft_head import HEADS
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.growth import growth_lines
from terazi.memory.llama_cpp.kv import CacheGroup
from terazi.memory.llama_cpp.limits import MISFITS, misfit
from terazi.memory.llama_cpp.loading import loading_lines
from terazi.memory.llama_cpp.process import process_lines
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.llama_cpp.weights import (
    BufferKind,
    Placement,
    WeightBuffer,
    borrowed_placements,
    place_tensors,
)
from terazi.memory.llama_cpp.workings import Direct, KeptWorkings, Workings
from terazi.models.spec import ModelSpec
from terazi.units import MIB

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
    *,
    workings: KeptWorkings | None = None,
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
        ModelFileError: for a file whose tensors aren't what its architecture needs.
    """
    try:
        return _weigh(spec, settings, devices, isa=isa, companions=companions, workings=workings)
    except MISFITS as error:
        raise misfit(spec) from error


def _weigh(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    devices: tuple[Device, ...],
    *,
    isa: frozenset[str],
    companions: tuple[Companion, ...],
    workings: KeptWorkings | None,
) -> Bill:
    settings = settle(settings, companions)
    resolved = workings.resolve(settings) if workings else resolve(spec, settings, devices)

    def of_context(context: Context) -> Bill:
        borrowed: tuple[Placement, ...] = ()
        if context.borrows:
            borrowed = borrowed_placements(context.spec, place_tensors(spec, settings, resolved, isa))
            _check_borrowed(borrowed, context.resolved)
        work = Direct(context.spec, context.family, isa, borrowed)
        return _of_context(context.spec, context.settings, context.resolved, work)

    bill = _of_context(spec, settings, resolved, workings or Direct(spec, family_of(spec), isa))
    if settings.speculation.kinds is not None or companions:
        held = {device: bill.on(device).total_bytes for device in bill.devices()}
        draft = draft_context(spec, settings, resolved, devices, companions, held=held)
        bill = with_draft(bill, spec, settings, resolved, draft=draft, weigh_context=of_context)
    reasons = (
        *bill.reasons,
        *_fit_reasons(settings, resolved, bill),
        *(f"What {c.flag} loads isn't in this bill." for c in companions if c.part != DRAFT),
    )
    return replace(bill, reasons=reasons, exact=not reasons)


def _of_context(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, work: Workings) -> Bill:
    """What one model and its one context hold."""
    family = work.family
    buffers = work.buffers(settings, resolved)
    gaps = tuple(_gap(buffer, settings) for buffer in buffers if buffer.gap_bytes)
    lines = context_lines(spec, settings, resolved, work)
    caches, states = work.caches(settings, resolved), work.states(settings, resolved)
    return Bill(
        engine="llama.cpp",
        build=BUILD,
        lines=lines,
        page_cache=tuple(gap for gap in gaps if gap.memory is Memory.PAGE_CACHE),
        loading=tuple(loading_lines(settings, resolved, buffers)),
        process=tuple(process_lines(spec, settings, resolved)),
        growth=tuple(growth_lines(spec, family, settings, resolved, caches, states=states, buffers=buffers)),
        reasons=tuple(_reasons(spec, settings, resolved, family)),
    )


def context_lines(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, work: Workings
) -> tuple[BillLine, ...]:
    """The lines of one model and its one context, as the bill has them."""
    buffers = work.buffers(settings, resolved)
    gaps = (_gap(buffer, settings) for buffer in buffers if buffer.gap_bytes)
    basis = LineBasis.EXACT if work.family else LineBasis.UPPER_BOUND
    return (
        *(_weights(buffer, settings) for buffer in buffers),
        # what is locked can't be dropped, read or not
        *(gap for gap in gaps if gap.memory is Memory.PINNED),
        *_caches(work.cache_groups(settings, resolved), basis),
        *_state(spec, settings, resolved, work.states(settings, resolved)),
        *_compute(spec, settings, resolved, work),
        *_overhead(spec, settings, resolved),
    )


def _check_borrowed(borrowed: tuple[Placement, ...], resolved: Resolved) -> None:
    """The engine's scheduler aborts over a weight whose device isn't one of its own."""
    reach = {HOST, *(device.id for device in resolved.devices)}
    for placement in borrowed:
        if placement.device not in reach:
            raise UsageError(
                f"llama.cpp would abort: the draft needs the model's {placement.tensor.name} on "
                f"{placement.device}, which isn't one of its devices.",
                hint="Leave -devd out, or name that device with it.",
            )


def _reasons(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    family: Family | None,
) -> Iterator[str]:
    if family is None:
        yield (
            f"The rules of architecture {spec.architecture!r} aren't known here: full-length K and V in every "
            "layer and a generous compute buffer are counted."
        )
    elif resolved.draft_head and spec.architecture not in HEADS:
        yield f"The draft head of {spec.architecture} isn't drawn here: a generous compute buffer is counted."
    if settings.split_mode == "tensor" and len(resolved.devices) > 1:
        yield "With -sm tensor the engine cuts single tensors; here whole layers are shared out."


def _fit_reasons(settings: LlamaCppSettings, resolved: Resolved, bill: Bill) -> Iterator[str]:
    if settings.fit and settings.tool != "llama-fit-params" and _fit_may_change(settings):
        for device in resolved.devices:
            held = sum(
                line.bytes for line in bill.lines if line.device == device.id and line.formula != "driver-context"
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


def _weights(buffer: WeightBuffer, settings: LlamaCppSettings) -> BillLine:
    return BillLine(
        term=Term.WEIGHTS,
        device=buffer.device,
        bytes=buffer.tensor_bytes,
        formula=f"weights.{buffer.kind.value}",
        basis=LineBasis.EXACT,
        memory=_weights_memory(buffer, settings),
        note=_KIND_NOTES[buffer.kind]
        + (", mapped from the file" if buffer.mapped else "")
        + (", locked" if settings.mlock and _locks(buffer) else ""),
    )


def _memory(device: str) -> Memory:
    return Memory.ANONYMOUS if device == HOST else Memory.DEVICE


def _locks(buffer: WeightBuffer) -> bool:
    """Whether ``--load-mode mlock`` locks *buffer*: those of the host that are no copies in another layout."""
    return buffer.kind in {BufferKind.PLAIN, BufferKind.PINNED}


def _weights_memory(buffer: WeightBuffer, settings: LlamaCppSettings) -> Memory:
    if buffer.kind is BufferKind.PINNED or (settings.mlock and _locks(buffer)):
        return Memory.PINNED
    return Memory.PAGE_CACHE if buffer.mapped else _memory(buffer.device)


def _gap(buffer: WeightBuffer, settings: LlamaCppSettings) -> BillLine:
    locked = settings.mlock and _locks(buffer)
    return BillLine(
        term=Term.WEIGHTS,
        device=buffer.device,
        bytes=buffer.gap_bytes,
        formula="weights.mapped-gaps",
        basis=LineBasis.EXACT,
        memory=Memory.PINNED if locked else Memory.PAGE_CACHE,
        note="mapped along with them: tensors between the first and the last that live elsewhere"
        + (", locked too" if locked else ""),
    )


def _caches(groups: tuple[CacheGroup, ...], basis: LineBasis) -> Iterator[BillLine]:
    for group in groups:
        yield BillLine(
            term=Term.KV,
            device=group.device,
            bytes=group.n_bytes,
            formula="kv.window" if group.window else "kv.full",
            basis=basis,
            memory=_memory(group.device),
            note=f"{group.layers} layers of {group.cells} cells",
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


def _compute(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, work: Workings) -> Iterator[BillLine]:
    sizes = work.compute_bytes(settings, resolved)
    formula, basis = "compute.replay", _replay_basis(resolved)
    if work.family is None or (resolved.draft_head and spec.architecture not in HEADS):
        formula, basis = "compute.bound", LineBasis.UPPER_BOUND
    # the host's own lies in the first device's pinned memory, if it has some (``llama_context``)
    pinned = bool(resolved.devices) and backend_of(resolved.devices[0]) in PINNED_HOST
    for device, size in sizes.items():
        yield BillLine(
            term=Term.COMPUTE,
            device=device,
            bytes=size,
            formula=formula,
            basis=basis,
            memory=Memory.PINNED if pinned and device == HOST else _memory(device),
            note=f"graph of {resolved.n_tokens} tokens, logits for {resolved.n_outputs} of them",
        )


def _replay_basis(resolved: Resolved) -> LineBasis:
    """On the CPU the replay is the engine's own arithmetic; other backends round and pad in ways of their own."""
    return LineBasis.MODELLED if resolved.devices else LineBasis.EXACT


def _overhead(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    width = spec.vocab_size + (spec.embedding_length if settings.embedding else 0)
    # in pinned memory of the device that computes the output (``output_reserve``)
    last = next((device for device in resolved.devices if device.id == resolved.layer_devices[-1]), None)
    yield BillLine(
        term=Term.OVERHEAD,
        device=HOST,
        bytes=4 * resolved.n_seq_max * width,
        formula="output-buffer",
        basis=LineBasis.EXACT,
        memory=Memory.PINNED if backend_of(last) in PINNED_HOST else Memory.ANONYMOUS,
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

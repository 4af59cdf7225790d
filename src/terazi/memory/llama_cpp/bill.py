"""Puts llama.cpp's bill together from the rules of this package."""

from collections.abc import Iterator
from dataclasses import replace

from terazi.errors import ModelFileError, UsageError
from terazi.hardware.machine import Basis, Device
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.beside import NOTHING, Beside, weigh_beside
from terazi.memory.llama_cpp.blocks import unrolled
from terazi.memory.llama_cpp.bound import compute_bound_bytes, state_bytes
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, PINNED_HOST, backend_of
from terazi.memory.llama_cpp.compute import compute_bytes
from terazi.memory.llama_cpp.context import CACHELESS, Context
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.growth import growth_lines
from terazi.memory.llama_cpp.kv import CacheLayer, cache_layers
from terazi.memory.llama_cpp.loading import loading_lines
from terazi.memory.llama_cpp.process import process_lines
from terazi.memory.llama_cpp.recurrent import StateLayer, state_layers
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.llama_cpp.tensor_split import is_bound, over_devices
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer, weight_buffers
from terazi.memory.llama_cpp.weights import BufferKind, Placement, borrowed_placements, place_tensors
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
) -> Bill:
    """The bytes that each device and the host will hold after llama.cpp has loaded *spec*.

    Args:
        spec: the model.
        settings: the command line, resolved by nobody yet: defaults are applied here as the tool would.
        devices: accelerators in the engine's order (RPC first, then discrete cards).
        isa: CPU flags of the host, which decide what is repacked.
        companions: what is loaded beside the model; their lines say so (``BillLine.part``).

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
        ModelFileError: the model's keys leave out, or set to zero, what its architecture divides by.
    """
    try:
        return _weigh(spec, settings, devices, isa, companions)
    except ZeroDivisionError as error:
        # the rules divide by heads, groups, blocks and extents wherever the engine does; it fails there as well
        raise ModelFileError(
            f"{spec.name} contradicts itself: a size that {spec.architecture} models need is missing or zero.",
            hint="Download it again, or convert it with the current convert_hf_to_gguf.py of llama.cpp.",
        ) from error


def _weigh(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    devices: tuple[Device, ...],
    isa: frozenset[str],
    companions: tuple[Companion, ...],
) -> Bill:
    spec = unrolled(spec)
    speculates = settings.speculation.kinds is not None or bool(companions)
    if speculates:
        # most commands don't, and spare these imports
        from terazi.memory.llama_cpp.draft import draft_context, settle
        from terazi.memory.llama_cpp.draft_bill import with_draft

        settings = settle(settings, companions)
    resolved = resolve(spec, settings, devices)

    def of_context(context: Context) -> Bill:
        own = context.spec is spec and not context.resolved.draft_head
        return _of_context(context, isa, model if context.borrows else None, beside if own else NOTHING)

    model = Context(spec, settings, resolved, family_of(spec))
    beside = weigh_beside(companions, spec, settings, resolved, devices, isa=isa) if companions else NOTHING
    bill = of_context(model)
    if speculates:
        held = {device: bill.on(device).total_bytes for device in bill.devices()}
        draft = draft_context(spec, settings, resolved, devices, companions, held=held)
        bill = with_draft(bill, model, draft, of_context)
    reasons = (
        *bill.reasons,
        *_fit_reasons(settings, resolved, bill),
        *beside.reasons,
    )
    return replace(
        bill,
        # a projector is loaded last
        lines=(*bill.lines, *beside.projector),
        growth=(*bill.growth, *beside.growth),
        reasons=reasons,
        exact=not reasons,
    )


def _of_context(context: Context, isa: frozenset[str], lender: Context | None, beside: Beside = NOTHING) -> Bill:
    """What one model and its one context hold, with the adapters that are loaded into it.

    A draft may use weights and caches of the *lender* too.
    """
    spec, settings, resolved, family, _ = context
    if lender is None and spec.architecture in CACHELESS:
        raise UsageError(
            f"{spec.name} is a draft for another model, and reads that one's cache.",
            hint="Give the model itself with -m, and this file with -md and --spec-type draft-mtp.",
        )
    caches = _caches_of(context, lender)
    states = state_layers(spec, family, settings, resolved) if family else None
    placements = place_tensors(spec, settings, resolved, isa)
    buffers = weight_buffers(placements, settings, resolved, isa)
    borrowed: tuple[Placement, ...] = ()
    if lender:
        borrowed = borrowed_placements(spec, place_tensors(lender.spec, lender.settings, lender.resolved, isa))
        _check_borrowed(caches, borrowed, resolved)
    used = (*placements, *borrowed)

    def compute(beside: Beside) -> tuple[BillLine, ...]:
        return tuple(
            _compute(
                spec,
                family,
                settings,
                resolved,
                caches=caches,
                states=states,
                placements=used,
                beside=beside,
            )
        )

    # adapters are applied, and reserved for, before the first request; warming up is one
    computed = compute(beside if settings.warmup else beside.idle)
    later = () if settings.warmup or beside == beside.idle else _beyond(compute(beside), computed)
    gaps = tuple(_gap(buffer, settings) for buffer in buffers if buffer.gap_bytes)
    lines = [
        *(_weights(buffer, settings) for buffer in buffers),
        # what is locked can't be dropped, read or not
        *(gap for gap in gaps if gap.memory is Memory.PINNED),
        *_caches(caches, LineBasis.EXACT if family else LineBasis.UPPER_BOUND),
        *_state(spec, settings, resolved, states),
        *computed,
        *_overhead(spec, settings, resolved),
        *beside.lines,
    ]
    bill = Bill(
        engine="llama.cpp",
        build=BUILD,
        lines=tuple(lines),
        page_cache=tuple(gap for gap in gaps if gap.memory is Memory.PAGE_CACHE),
        loading=tuple(loading_lines(settings, resolved, buffers)),
        process=tuple(process_lines(spec, settings, resolved)),
        growth=(
            *growth_lines(spec, family, settings, resolved, caches, states=states, buffers=buffers),
            *later,
        ),
        reasons=tuple(_reasons(spec, resolved, family, beside)),
    )
    if not resolved.cut:
        return bill
    return over_devices(bill, spec, settings, resolved, family=family, caches=caches, placements=placements)


def _caches_of(context: Context, lender: Context | None) -> tuple[CacheLayer, ...]:
    spec, settings, resolved, family, _ = context
    if lender is None or family is None or spec.architecture not in CACHELESS:
        return cache_layers(spec, family, settings, resolved)
    from terazi.memory.llama_cpp.gemma4_assistant import shared_caches

    return shared_caches(spec, family, cache_layers(lender.spec, lender.family, lender.settings, lender.resolved))


def _check_borrowed(caches: tuple[CacheLayer, ...], borrowed: tuple[Placement, ...], resolved: Resolved) -> None:
    """The engine's scheduler aborts over a tensor whose device isn't one of its own."""
    reach = {HOST, *(device.id for device in resolved.devices)}
    used = [(placement.tensor.name, placement.device) for placement in borrowed]
    used += [(f"cache of block {cache.block}", cache.device) for cache in caches if cache.shared]
    for name, device in used:
        if device not in reach:
            raise UsageError(
                f"llama.cpp would abort: the draft needs the model's {name} on {device}, which isn't one of its "
                "devices.",
                hint="Leave -devd out, or name that device with it.",
            )


def _reasons(
    spec: ModelSpec,
    resolved: Resolved,
    family: Family | None,
    beside: Beside,
) -> Iterator[str]:
    if family is None and beside.adapters:
        yield "What adapters add to the graph isn't counted: the family isn't known here."
    if family is None:
        yield (
            f"The rules of architecture {spec.architecture!r} aren't known here: full-length K and V in every "
            "layer and a generous compute buffer are counted."
        )
    elif not _draws(spec, resolved):
        yield f"The draft head of {spec.architecture} isn't drawn here: a generous compute buffer is counted."
    if len(resolved.cut) > 1 and is_bound(spec, family):
        yield (
            f"How -sm tensor cuts the tensors of {spec.architecture} isn't known here: each device is counted as "
            "if it held all of them."
        )


def _draws(spec: ModelSpec, resolved: Resolved) -> bool:
    """Whether the graph of this context is known here, the family being known."""
    if not resolved.draft_head:
        return True
    from terazi.memory.llama_cpp.draft import draws_head

    return draws_head(spec)


def _fit_reasons(settings: LlamaCppSettings, resolved: Resolved, bill: Bill) -> Iterator[str]:
    # it gives up on cut tensors
    if settings.fit and settings.tool != "llama-fit-params" and not resolved.cut and _fit_may_change(settings):
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


def _compute(
    spec: ModelSpec,
    family: Family | None,
    settings: LlamaCppSettings,
    resolved: Resolved,
    *,
    caches: tuple[CacheLayer, ...],
    states: tuple[StateLayer, ...] | None,
    placements: tuple[Placement, ...],
    beside: Beside,
) -> Iterator[BillLine]:
    if family is None or not _draws(spec, resolved):
        sizes = compute_bound_bytes(spec, settings, resolved, caches, placements)
        formula, basis = "compute.bound", LineBasis.UPPER_BOUND
    else:
        sizes = compute_bytes(
            spec,
            family,
            settings,
            resolved,
            caches=caches,
            states=states or (),
            placements=placements,
            adapters=beside.adapters,
            steered=beside.steered,
        )
        formula, basis = "compute.replay", _replay_basis(resolved, family, beside)
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


def _beyond(larger: tuple[BillLine, ...], lines: tuple[BillLine, ...]) -> tuple[BillLine, ...]:
    """What the first request with adapters adds to the compute buffers *lines*."""
    held = {line.device: line.bytes for line in lines}
    more = (replace(line, bytes=line.bytes - held.get(line.device, 0)) for line in larger)
    note = "the graph with its adapters, from the first request on"
    return tuple(replace(line, formula="compute.adapted", note=note) for line in more if line.bytes > 0)


def _replay_basis(resolved: Resolved, family: Family, beside: Beside) -> LineBasis:
    """On the CPU the replay is the engine's own arithmetic; other backends round and pad in ways of their own.

    Outside the plain decoder some weights are multiplied without their adapters; which isn't told apart here.
    """
    plain = family.drawing == "decoder" and not (family.latent or family.sparse or family.recurrent)
    changed = bool(beside.adapters or beside.steered)
    return LineBasis.MODELLED if resolved.devices or (changed and not plain) else LineBasis.EXACT


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
                # a card that nobody measured gets what a line through others says
                basis=LineBasis.CATALOGUE if device.context_bytes.basis is Basis.CATALOGUE else LineBasis.MODELLED,
                memory=Memory.DEVICE,
                note=device.context_bytes.note or "what the driver takes before the first tensor",
            )

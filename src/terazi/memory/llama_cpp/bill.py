"""Puts llama.cpp's bill together from the rules of this package."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.beside import NOTHING, Beside, weigh_beside
from terazi.memory.llama_cpp.blocks import unrolled
from terazi.memory.llama_cpp.bound import compute_bound_bytes
from terazi.memory.llama_cpp.compute import compute_bytes
from terazi.memory.llama_cpp.context import CACHELESS, Context
from terazi.memory.llama_cpp.families import attends_everywhere, family_of
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.growth import growth_lines
from terazi.memory.llama_cpp.kv import CacheGroup, CacheLayer, cache_groups, cache_layers
from terazi.memory.llama_cpp.limits import MISFITS, check_keys, misfit
from terazi.memory.llama_cpp.lines import (
    cache_lines,
    compute_lines,
    gap_line,
    overhead_lines,
    state_lines,
    weights_line,
)
from terazi.memory.llama_cpp.loading import loading_lines
from terazi.memory.llama_cpp.process import process_lines
from terazi.memory.llama_cpp.reasons import bound_reasons, draws, fit_reasons
from terazi.memory.llama_cpp.recurrent import StateLayer, state_layers
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer, weight_buffers
from terazi.memory.llama_cpp.weights import Placement, borrowed_placements, place_tensors
from terazi.memory.llama_cpp.workings import Kept
from terazi.models.spec import ModelSpec


def weigh(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    devices: tuple[Device, ...],
    isa: frozenset[str],
    companions: tuple[Companion, ...] = (),
    *,
    kept: Kept | None = None,
) -> Bill:
    """The bytes that each device and the host will hold after llama.cpp has loaded *spec*.

    Args:
        spec: the model.
        settings: the command line, resolved by nobody yet: defaults are applied here as the tool would.
        devices: accelerators in the engine's order (RPC first, then discrete cards).
        isa: CPU flags of the host, which decide what is repacked.
        companions: what is loaded beside the model; their lines say so (``BillLine.part``).
        kept: keeps the parts of the model's bills from one to the next (``Scale``).

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
        ModelFileError: for a file whose tensors aren't what its architecture needs.
    """
    try:
        return _weigh(unrolled(spec), settings, devices, isa=isa, companions=companions, kept=kept)
    except MISFITS as error:
        raise misfit(spec) from error


def _weigh(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    devices: tuple[Device, ...],
    *,
    isa: frozenset[str],
    companions: tuple[Companion, ...],
    kept: Kept | None,
) -> Bill:
    speculates = settings.speculation.kinds is not None or bool(companions)
    if speculates:
        # most commands don't, and spare these imports
        from terazi.memory.llama_cpp.draft import draft_context, settle
        from terazi.memory.llama_cpp.draft_bill import with_draft

        settings = settle(settings, companions)
    resolved = kept.resolve(settings) if kept else resolve(spec, settings, devices)

    def of_context(context: Context) -> Bill:
        own = context.spec is spec and not context.resolved.draft_head
        return _of_context(context, isa, model if context.borrows else None, beside if own else NOTHING)

    model = Context(spec, settings, resolved, family_of(spec))
    beside = weigh_beside(companions, spec, settings, resolved, devices, isa=isa) if companions else NOTHING
    bill = _of_context(model, isa, None, beside, kept)
    if speculates:
        held = {device: bill.on(device).total_bytes for device in bill.devices()}
        draft = draft_context(spec, settings, resolved, devices, companions, held=held)
        bill = with_draft(bill, model, draft, of_context)
    reasons = (
        *bill.reasons,
        *fit_reasons(settings, resolved, bill),
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


def _of_context(
    context: Context,
    isa: frozenset[str],
    lender: Context | None,
    beside: Beside = NOTHING,
    kept: Kept | None = None,
) -> Bill:
    """What one model and its one context hold, with the adapters that are loaded into it.

    A draft may use weights and caches of the *lender* too.
    """
    spec, settings, resolved, family, _ = context
    if lender is None and spec.architecture in CACHELESS:
        raise UsageError(
            f"{spec.name} is a draft for another model, and reads that one's cache.",
            hint="Give the model itself with -m, and this file with -md and --spec-type draft-mtp.",
        )
    if kept:
        caches, states = kept.caches(settings, resolved), kept.states(settings, resolved)
        placements, buffers = kept.placements(settings, resolved), kept.buffers(settings, resolved)
    else:
        caches = _caches_of(context, lender)
        if lender is None and attends_everywhere(spec):
            check_keys(spec, caches)
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
                kept=kept,
            )
        )

    # adapters are applied, and reserved for, before the first request; warming up is one
    computed = compute(beside if settings.warmup else beside.idle)
    later = () if settings.warmup or beside == beside.idle else _beyond(compute(beside), computed)
    gaps = tuple(gap_line(buffer, settings) for buffer in buffers if buffer.gap_bytes)
    groups = kept.cache_groups(settings, resolved) if kept else cache_groups(caches)
    bill = Bill(
        engine="llama.cpp",
        build=BUILD,
        lines=(*_lines(context, buffers, groups, states, computed), *beside.lines),
        page_cache=tuple(gap for gap in gaps if gap.memory is Memory.PAGE_CACHE),
        loading=tuple(loading_lines(settings, resolved, buffers)),
        process=tuple(process_lines(spec, settings, resolved)),
        growth=(
            *growth_lines(spec, family, settings, resolved, caches, states=states, buffers=buffers),
            *later,
        ),
        reasons=tuple(bound_reasons(spec, resolved, family, beside)),
    )
    if not resolved.cut:
        return bill
    # few commands cut tensors, and the others spare the import
    from terazi.memory.llama_cpp.tensor_split import over_devices

    return over_devices(bill, spec, settings, resolved, family=family, caches=caches, placements=placements)


def kept_lines(context: Context, kept: Kept) -> tuple[BillLine, ...]:
    """The lines of one model and its one context, and nothing else of its bill."""
    spec, settings, resolved, family, _ = context
    known = family is not None and draws(spec, resolved)
    basis = _replay_basis(resolved, family, NOTHING) if family and known else None
    groups, slots = kept.cache_groups(settings, resolved), resolved.n_seq_max
    return (
        *kept.once("weights", lambda: _buffers(kept.buffers(settings, resolved), settings)),
        *kept.once(groups, lambda: cache_lines(groups, _cache_basis(family))),
        *kept.once(
            ("state", slots), lambda: state_lines(spec, settings, resolved, kept.states(settings, resolved))
        ),
        *compute_lines(kept.compute_bytes(settings, resolved), resolved, basis),
        *kept.once(("overhead", slots, settings.embedding), lambda: overhead_lines(spec, settings, resolved)),
    )


def _lines(
    context: Context,
    buffers: tuple[WeightBuffer, ...],
    groups: tuple[CacheGroup, ...],
    states: tuple[StateLayer, ...] | None,
    computed: Iterable[BillLine],
) -> tuple[BillLine, ...]:
    spec, settings, resolved, family, _ = context
    return (
        *_buffers(buffers, settings),
        *cache_lines(groups, _cache_basis(family)),
        *state_lines(spec, settings, resolved, states),
        *computed,
        *overhead_lines(spec, settings, resolved),
    )


def _buffers(buffers: tuple[WeightBuffer, ...], settings: LlamaCppSettings) -> Iterator[BillLine]:
    yield from (weights_line(buffer, settings) for buffer in buffers)
    # what is locked can't be dropped, read or not
    gaps = (gap_line(buffer, settings) for buffer in buffers if buffer.gap_bytes)
    yield from (gap for gap in gaps if gap.memory is Memory.PINNED)


def _cache_basis(family: Family | None) -> LineBasis:
    return LineBasis.EXACT if family else LineBasis.UPPER_BOUND


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
    kept: Kept | None,
) -> Iterator[BillLine]:
    known = family is not None and draws(spec, resolved)
    basis = _replay_basis(resolved, family, beside) if family and known else None
    if kept and not beside.adapters and not beside.steered:
        sizes = kept.compute_bytes(settings, resolved)
    elif family is None or not known:
        sizes = compute_bound_bytes(spec, settings, resolved, caches, placements)
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
    return compute_lines(sizes, resolved, basis)


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

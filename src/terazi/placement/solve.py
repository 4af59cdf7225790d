"""Chooses the settings that nobody pinned, and says why.

In: ``ModelSpec``, ``Machine``, ``Workload``, pins, a score. Out: ``Plan | Refusal``. ``search`` finds layouts for
one set of settings; here are the choices above it: context, slots, cache type, micro-batch. ``finish`` takes the
best of what fits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from terazi.errors import UsageError
from terazi.hardware.machine import Machine
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.resolve import MAX_SEQUENCES
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.appraiser import Appraiser, ByScore, Score
from terazi.placement.capacity import capacity_of
from terazi.placement.finish import Candidate, finish, unweighed
from terazi.placement.plan import Plan, Refusal, Verdict
from terazi.placement.polish import FEW, polish
from terazi.placement.scales import Scales
from terazi.placement.search import Found, Search, largest
from terazi.units import pad

#: The engine pads a slot's context to this many cells.
CELLS = 256
#: A context that a plan doesn't go below on its own account only to keep every layer on the cards.
_COMFORTABLE = 4096
#: What an offloaded plan is content with when nobody asked for more: each further token pushes layers out.
_OFFLOADED = 8192
#: The cache type that is tried where f16 leaves layers in RAM: that it loses little is assumed, not measured here,
#: so it must gain a good deal (``finish``). Smaller types are only ever offered.
_SMALLER_CACHE, _PRECISION = "q8_0", "it gives up precision of the cache"
#: Numbers of cards that heads divide by, as a rule; and what a pin of leaves no other split mode.
_CUT_OVER = frozenset({2, 4, 8})
_LAYOUT = frozenset(
    {"split_mode", "tensor_split", "n_gpu_layers", "main_gpu", "override_tensor", "cpu_moe", "n_cpu_moe"}
)
#: A micro-batch for prompts that are longer than the usual one.
_LARGE_MICRO_BATCH = 2048


def solve(
    spec: ModelSpec,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    score: Score | Appraiser | None = None,
    companions: tuple[Companion, ...] = (),
) -> Plan | Refusal:
    """The best plan for *workload*, or why there is none and what would fit.

    Each user is promised ``context`` tokens: one slot a user with a cache of its own (``-np U --no-kv-unified
    -c U*context``). A unified cache of the same size could be filled by one user, and every stream would attend
    over all cells; a sliding window costs one micro-batch more a slot this way (``llama-kv-cache-iswa.cpp``), which
    the bill counts.

    Args:
        spec: the model.
        machine: what it is to run on, with what others hold of it.
        workload: what is to be served. Limits that no plan keeps make a refusal.
        pins: settings by the field names of ``LlamaCppSettings``; a None is no pin.
        score: judges plans that fit, higher is better; an ``Appraiser`` also says how fast each device is at a
            layer, which limits a plan misses, and figures for the explanations. Without it bandwidths decide.
        companions: what is loaded beside the model.

    Raises:
        UsageError: for an unknown pin, or what llama.cpp itself refuses.
    """
    pins = checked_pins(pins)
    if workload.users > MAX_SEQUENCES and "n_parallel" not in pins:
        raise UsageError(
            f"llama.cpp serves at most {MAX_SEQUENCES} users at once, not {workload.users}.",
            hint=f"Say --users {MAX_SEQUENCES} or fewer; more can wait their turn, or share several servers.",
        )
    appraiser = ByScore(score) if callable(score) else score
    search = Search(
        spec=spec,
        machine=machine,
        capacity=capacity_of(machine),
        pins=pins,
        scales=Scales(machine.host.isa),
        companions=companions,
        appraiser=appraiser,
    )
    base = base_settings(workload, pins)
    reasons: list[str] = []
    settings, found = _with_context(search, base, workload, reasons)
    if not found.fits:
        # a plan that fits, as most do, spares the import
        from terazi.placement.refuse import refuse

        return refuse(search, workload, settings, found.closest)
    candidates = [Candidate(judged) for judged in found.fits]
    candidates += _variants(search, settings, workload, found)
    candidates += _better(search, settings, workload, candidates)
    plan = finish(search, workload, candidates, reasons, found.lacking)
    missed = appraiser.misses(plan) if appraiser is not None else ""
    if missed:
        from terazi.placement.refuse import refuse_slow

        return refuse_slow(search, workload, settings, plan, missed)
    return plan


def _better(
    search: Search, settings: LlamaCppSettings, workload: Workload, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """What lies around the best of *candidates* and is better; one card that holds all has nothing around it."""
    appraiser = search.appraiser
    fixed = "n_gpu_layers" in search.pins or not search.devices(settings)
    if appraiser is None or fixed or not search.may_judge():
        return []

    def score(settings: LlamaCppSettings) -> float:
        return appraiser.score(unweighed(settings, workload))

    plain = [c.judged for c in candidates if not c.gives_up and not c.offered and not c.judged.resolved.cut]
    best = max(plain, key=lambda judged: score(judged.settings))
    if best.settings.override_tensor != settings.override_tensor:
        return []  # which experts lie elsewhere was made for its cuts
    if search.total > FEW and search.fastest_alone(settings, best):
        return []
    # the other choices of the best one, on all devices
    around = replace(best.settings, devices=settings.devices)
    return [Candidate(judged) for judged in polish(search, around, best, score)[-1:]]


def _variants(search: Search, settings: LlamaCppSettings, workload: Workload, found: Found) -> Iterator[Candidate]:
    """Other settings that may be faster, as far as there is time to weigh them."""
    if search.appraiser is None or not search.machine.devices:
        return
    offloaded = all(judged.verdict is Verdict.FITS_OFFLOADED for judged in found.fits)
    if offloaded and _may_shrink_cache(search, settings) and search.may_judge():
        smaller = search.run(replace(settings, type_k=_SMALLER_CACHE, type_v=_SMALLER_CACHE))
        yield from (Candidate(judged, _PRECISION) for judged in smaller.fits[:1])
    larger = min(_LARGE_MICRO_BATCH, settings.n_batch)
    long = workload.prompt > settings.n_ubatch and larger > settings.n_ubatch
    if long and "n_ubatch" not in search.pins and search.may_judge():
        yield from (Candidate(judged) for judged in search.run(replace(settings, n_ubatch=larger)).fits[:1])
    yield from _other_modes(search, settings, workload, found)


def _other_modes(
    search: Search, settings: LlamaCppSettings, workload: Workload, found: Found
) -> Iterator[Candidate]:
    """Fewer slots than users where each slot's cache pushes layers into RAM; every layer cut over equal cards."""
    offloaded = all(judged.verdict is Verdict.FITS_OFFLOADED for judged in found.fits)
    free = not {"n_parallel", "n_ctx", "kv_unified"} & set(search.pins)
    slots = settings.n_parallel or 1
    if offloaded and free and slots > 1:
        each = settings.n_ctx // slots
        for fewer in dict.fromkeys((slots // 2, slots // 4, 1)):
            less = replace(settings, n_parallel=fewer, n_ctx=fewer * each)
            if fewer and search.may_judge() and search.likely_whole(less):
                said = f"{workload.users - fewer} of {workload.users} users would wait for a slot"
                yield from (Candidate(judged, said) for judged in search.run(less).fits[:1])
                break
    cards = search.devices(settings)
    alike = len({(d.name, d.memory_total_bytes) for d in cards}) == 1 and not any(d.unified_memory for d in cards)
    if not (alike and len(cards) in _CUT_OVER) or _LAYOUT & set(search.pins) or not search.may_judge():
        return
    cut = replace(settings, split_mode="tensor", n_gpu_layers=search.total, tensor_split=(), devices=())
    try:
        judged = search.weigh(cut)
    except UsageError:  # a model whose tensors can't be cut, a cache type that can't
        return
    if not judged.shortfall:
        # experimental in the engine's own words (``-sm`` in ``common/arg.cpp``), so nobody gets it unasked
        yield Candidate(judged, "the engine calls it experimental, so say --split-mode tensor for it", offered=True)


def _may_shrink_cache(search: Search, settings: LlamaCppSettings) -> bool:
    spec = search.spec
    fused = settings.flash_attn != "off" and spec.key_length % 32 == 0 and spec.value_length % 32 == 0
    grows = any(heads for heads in spec.head_count_kv)
    return fused and grows and not {"type_k", "type_v"} & set(search.pins)


def checked_pins(pins: Mapping[str, object]) -> dict[str, object]:
    """The pins that are set.

    Raises:
        UsageError: for a name that isn't a setting.
    """
    known = {f.name for f in fields(LlamaCppSettings)}
    for name in pins:
        if name not in known:
            raise UsageError(f"There is no setting {name!r}.", hint=f"Settings are: {', '.join(sorted(known))}.")
    return {name: value for name, value in pins.items() if value is not None}


def base_settings(workload: Workload, pins: Mapping[str, object]) -> LlamaCppSettings:
    """What a plan starts from: one slot a user, separate caches, no ``--fit`` behind its back; then the pins."""
    base = LlamaCppSettings(n_parallel=max(1, workload.users), kv_unified=False, fit=False)
    return replace(base, **pins)  # type: ignore[arg-type]  # the names are checked, the values are the caller's


def with_context(settings: LlamaCppSettings, context: int) -> LlamaCppSettings:
    """*settings* with *context* tokens for every slot (a unified cache holds as many in all)."""
    slots = max(1, settings.n_parallel or 1)
    return replace(settings, n_ctx=slots * pad(context, CELLS))


def context_steps(longest: int) -> list[int]:
    """Contexts to try, ascending: powers of two and one and a half of them from 512, and *longest* itself."""
    steps = {longest}
    power = 512
    while power < longest:
        steps |= {power, power * 3 // 2}
        power *= 2
    return sorted(s for s in steps if s <= longest)


def _with_context(
    search: Search, base: LlamaCppSettings, workload: Workload, reasons: list[str]
) -> tuple[LlamaCppSettings, Found]:
    spec = search.spec
    if base.n_ctx > 0:
        reasons.append(f"Context as pinned: {base.n_ctx} tokens in all.")
        return base, search.run(base)
    if workload.context is not None:
        settings = with_context(base, workload.context)
        reasons.append(f"Context {workload.context} tokens a user, as asked.")
        if workload.context > spec.context_length:
            reasons.append(f"The model was trained for {spec.context_length} tokens; beyond that it may ramble.")
        return settings, search.run(settings)
    longest = max(1, spec.context_length)
    settings = with_context(base, longest)
    # the CPU alone has one layout, so the hint would cost as much as the answer
    worth_a_try = not search.devices(base) or search.likely_whole(settings)
    if worth_a_try and _whole(found := search.run(settings)) is not None:
        reasons.append(f"Context {longest} tokens a user: the model's training length, and it fits.")
        return settings, found
    steps = context_steps(longest)
    comfortable = [s for s in steps[:-1] if s >= min(_COMFORTABLE, longest)]
    best = largest(
        comfortable,
        lambda c: search.likely_whole(with_context(base, c)),
        lambda c: _whole(search.run(with_context(base, c))),
    )
    if best is not None:
        where = "wholly on the cards" if search.devices(base) else "in RAM"
        reasons.append(
            f"Context {best[0]} tokens a user of the {longest} trained for: the longest step that fits {where}."
        )
        return with_context(base, best[0]), best[1]
    modest = [s for s in steps if s <= _OFFLOADED]
    best = largest(
        modest, lambda c: search.likely(with_context(base, c)), lambda c: _any(search.run(with_context(base, c)))
    )
    if best is not None:
        reasons.append(
            f"Context {best[0]} tokens a user of the {longest} trained for: some layers stay in RAM as it is,"
            " and each further token would push more of them out."
        )
        return with_context(base, best[0]), best[1]
    settings = with_context(base, steps[0])
    return settings, search.run(settings)


def _any(found: Found) -> Found | None:
    return found if found.fits else None


def _whole(found: Found) -> Found | None:
    """*found* if one of it leaves nothing in RAM that a card could hold, or if no card may be used."""
    if not found.fits:
        return None
    whole = any(f.verdict is Verdict.FITS or not f.resolved.devices for f in found.fits[:1])
    return found if whole else None

"""Chooses the settings that nobody pinned, and says why.

In: ``ModelSpec``, ``Machine``, ``Workload``, pins, a score. Out: ``Plan | Refusal``. ``search`` finds layouts for
one context; here are the choices above it: context, slots, cache type, prompt cache.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from terazi.errors import UsageError
from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST, Bill
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import capacity_of
from terazi.placement.explain import explain_layout
from terazi.placement.identity import plan_id
from terazi.placement.judge import Judged, growth_reason, memlock_reason
from terazi.placement.plan import Plan, Refusal, Verdict
from terazi.placement.scales import Scales
from terazi.placement.search import Found, Search, largest
from terazi.units import MIB, format_bytes, pad

#: The engine pads a slot's context to this many cells.
CELLS = 256
#: A context that a plan doesn't go below on its own account only to keep every layer on the cards.
_COMFORTABLE = 4096
#: What an offloaded plan is content with when nobody asked for more: each further token pushes layers out.
_OFFLOADED = 8192
#: llama.cpp's default prompt cache; more brings little, less than the second figure isn't worth its upkeep.
_CACHE_RAM_MIB, _CACHE_RAM_MIN_MIB = 8192, 256
_CHECKPOINTS = 32

Score = Callable[[Plan], float]


def solve(
    spec: ModelSpec,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    score: Score | None = None,
) -> Plan | Refusal:
    """The best plan for *workload*, or why there is none and what would fit.

    Each user is promised ``context`` tokens: one slot a user with a cache of its own (``-np U --no-kv-unified
    -c U*context``). A unified cache of the same size could be filled by one user, and every stream would attend
    over all cells; a sliding window costs one micro-batch more a slot this way (``llama-kv-cache-iswa.cpp``), which
    the bill counts.

    Args:
        pins: settings by the field names of ``LlamaCppSettings``; a None is no pin.
        score: judges plans that fit, higher is better; without it the fewest and fastest cards win.

    Raises:
        UsageError: for an unknown pin, or what llama.cpp itself refuses.
    """
    pins = checked_pins(pins)
    search = Search(
        spec=spec, machine=machine, capacity=capacity_of(machine), pins=pins, scales=Scales(machine.host.isa)
    )
    base = base_settings(workload, pins)
    reasons: list[str] = []
    settings, found = _with_context(search, base, workload, reasons)
    if not found.fits:
        # a plan that fits, as most do, spares the import
        from terazi.placement.refuse import refuse

        return refuse(
            search, workload, settings, found.closest, lambda alt: finish(search, workload, alt, (), None)
        )
    return finish(search, workload, found, tuple(reasons), score)


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
    """*found* if its best leaves nothing in RAM that a card could hold, or if no card may be used."""
    if not found.fits:
        return None
    best = found.fits[0]
    return found if best.verdict is Verdict.FITS or not best.resolved.devices else None


def finish(search: Search, workload: Workload, found: Found, reasons: tuple[str, ...], score: Score | None) -> Plan:
    """The best of what fits as a plan, with the host's later growth planned too."""
    plans = [_plan(search, workload, judged, reasons) for judged in found.fits]
    if score is None or len(plans) == 1:
        return plans[0]
    marks = [score(plan) for plan in plans]
    best = max(range(len(plans)), key=lambda i: (marks[i], -i))
    if best:
        why = f"Preferred to the first layout that fits: it scores {marks[best]:.3g} against {marks[0]:.3g}."
        return replace(plans[best], reasons=(*plans[best].reasons, why))
    return plans[0]


def _plan(search: Search, workload: Workload, judged: Judged, reasons: tuple[str, ...]) -> Plan:
    judged, growth = _plan_growth(search, judged)
    settings = judged.settings
    said = [
        *reasons,
        *_slots_reason(settings, judged),
        *explain_layout(search.machine, judged, search.pins),
        *growth,
    ]
    kv = sum(s.kv_bytes for s in judged.shares)
    if kv:
        kind = settings.type_k if settings.type_k == settings.type_v else f"{settings.type_k}/{settings.type_v}"
        pinned = "as pinned" if {"type_k", "type_v"} & set(search.pins) else "nothing forces a smaller type"
        said.append(f"KV cache in {kind}: {format_bytes(kv)}; {pinned}.")
    if judged.bill.reasons:
        said += judged.bill.reasons
    return Plan(
        id=plan_id(search.spec, search.machine, settings, search.companions),
        engine=judged.bill.engine,
        settings=settings,
        workload=workload,
        verdict=judged.verdict,
        devices=judged.shares,
        bill=judged.bill,
        reasons=tuple(said),
    )


def _regrown(bill: Bill, settings: LlamaCppSettings) -> Bill:
    """*bill* after a change of the prompt cache or the checkpoints, which nothing else depends on."""
    growth = []
    for line in bill.growth:
        size = line.bytes
        if line.formula == "prompt-cache" and settings.cache_ram_mib is not None:
            size = settings.cache_ram_mib * MIB
        elif line.formula == "context-checkpoints" and settings.ctx_checkpoints is not None:
            size = line.bytes // _CHECKPOINTS * settings.ctx_checkpoints
        if size:
            growth.append(replace(line, bytes=size))
    return replace(bill, growth=tuple(growth))


def _slots_reason(settings: LlamaCppSettings, judged: Judged) -> list[str]:
    slots, each = judged.resolved.n_seq_max, judged.resolved.n_ctx_seq
    if slots == 1:
        return []
    if judged.resolved.unified:
        return [f"{slots} slots share {each} tokens (--kv-unified as pinned): one user can fill them all."]
    return [
        f"{slots} slots of {each} tokens with a cache each (-c {settings.n_ctx}), so that no user takes another's."
    ]


def _plan_growth(search: Search, judged: Judged) -> tuple[Judged, list[str]]:
    """Set the prompt cache and the checkpoints to what RAM leaves, unless they are pinned."""
    settings, room = judged.settings, max(0, judged.host.capacity_bytes - judged.bill.needed_bytes(HOST))
    checkpoints = sum(
        line.bytes for line in judged.bill.growth if line.device == HOST and line.formula == "context-checkpoints"
    )
    said: list[str] = []
    if checkpoints > room // 2 and "ctx_checkpoints" not in search.pins:
        each = checkpoints // _CHECKPOINTS
        count = (room // 2) // each if each else 0
        settings = replace(settings, ctx_checkpoints=count)
        checkpoints = count * each
        said.append(
            f"Context checkpoints: {count} a slot, what half of the free {format_bytes(room)} of RAM holds."
        )
    if "cache_ram_mib" not in search.pins:
        free_mib = max(0, room - checkpoints) // MIB
        cache = min(_CACHE_RAM_MIB, free_mib)
        cache = cache if cache >= _CACHE_RAM_MIN_MIB else 0
        settings = replace(settings, cache_ram_mib=cache)
        limit = "the engine's default" if cache == _CACHE_RAM_MIB else "what RAM leaves after the reserve"
        said.append(f"Prompt cache up to {cache} MiB of RAM: {limit}.")
    if settings != judged.settings:
        judged = judged._replace(settings=settings, bill=_regrown(judged.bill, settings))
    return judged, [*said, *(w for w in (growth_reason(judged), memlock_reason(judged, search.machine)) if w)]

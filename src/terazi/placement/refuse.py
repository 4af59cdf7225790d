"""When nothing fits: how much is missing where, and the nearest things that would fit, each really solved.

In: a search and the settings that failed. Out: ``Refusal``. If no change of settings is enough, the reason names
the memory that would do and the size of file that would fit.
"""

from collections.abc import Iterator
from dataclasses import replace

from terazi.errors import UsageError
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.placement.finish import Candidate, finish
from terazi.placement.judge import Judged
from terazi.placement.plan import Alternative, Plan, Refusal
from terazi.placement.search import Found, Search, largest
from terazi.units import format_bytes, pad

_CELLS = 256
_SHORTEST = 512
#: Alternatives that a refusal names.
_NAMED = 3


def refuse(search: Search, workload: Workload, settings: LlamaCppSettings, closest: Judged) -> Refusal:
    """The refusal of *settings*, whose best layout was *closest*."""
    alternatives = _alternatives(search, workload, settings, _NAMED)
    missing = ", ".join(
        f"{s.device} lacks {format_bytes(s.missing_bytes)} ({format_bytes(s.needed_bytes)} needed,"
        f" {format_bytes(s.capacity_bytes)} usable{'; ' + s.why if s.why else ''})"
        for s in closest.shortfall
    )
    reason = f"It doesn't fit: {missing}."
    trained, asked = search.spec.context_length, workload.context or 0
    if 0 < trained < asked:
        reason += f" The model was trained for {trained} tokens, and {asked} a user are asked for."
    if not alternatives:
        reason += " " + _what_would_do(search, settings)
    return Refusal(
        reason=reason,
        shortfall=closest.shortfall,
        alternatives=tuple(alternatives),
        closest=closest.shares,
        bill=closest.bill,
        settings=closest.settings,
        workload=workload,
    )


def refuse_slow(search: Search, workload: Workload, settings: LlamaCppSettings, plan: Plan, missed: str) -> Refusal:
    """The refusal of what fits and is too slow: *plan* is the best, and misses a limit of *workload*."""
    alternatives = _alternatives(search, workload, settings, _NAMED - 1)
    # the last thing that can be given up is the limit itself
    alternatives.append(
        Alternative(
            settings=plan.settings,
            change="no such limit",
            gives_up=missed,
            total_bytes=plan.bill.total_bytes,
        )
    )
    return Refusal(
        reason=f"It fits, but is too slow: {missed}.",
        shortfall=(),
        alternatives=tuple(alternatives),
        closest=plan.devices,
        bill=plan.bill,
        settings=plan.settings,
        workload=workload,
    )


def _alternatives(search: Search, workload: Workload, settings: LlamaCppSettings, count: int) -> list[Alternative]:
    """The first *count* changes after which it fits and keeps the limits of *workload*."""
    named: list[Alternative] = []
    for change, gives_up, found in _changes(search, settings):
        plan = finish(search, workload, [Candidate(judged) for judged in found.fits])
        if search.appraiser is not None and search.appraiser.misses(plan):
            continue
        named.append(
            Alternative(settings=plan.settings, change=change, gives_up=gives_up, total_bytes=plan.bill.total_bytes)
        )
        if len(named) == count:
            break
    return named


def _changes(search: Search, settings: LlamaCppSettings) -> Iterator[tuple[str, str, Found]]:
    """What could be given up, the least painful first; only what then fits."""
    yield from _more_in_ram(search, settings)
    yield from _smaller_cache(search, settings)
    yield from _shorter_context(search, settings)
    yield from _fewer_users(search, settings)
    yield from _smaller_batch(search, settings)
    yield from _everything_smaller(search, settings)


def _more_in_ram(search: Search, settings: LlamaCppSettings) -> Iterator[tuple[str, str, Found]]:
    fixed = {"n_gpu_layers", "tensor_split", "devices", "split_mode", "main_gpu", "n_cpu_moe"} & set(search.pins)
    if not fixed or not search.machine.devices:
        return
    free = replace(search, pins={k: v for k, v in search.pins.items() if k not in fixed})
    loose = replace(settings, n_gpu_layers=None, tensor_split=(), devices=(), split_mode="layer", main_gpu=0)
    found = _tried(free, replace(loose, n_cpu_moe=0))
    if found is None:
        return
    now = found.fits[0].resolved.layer_devices.count(HOST)
    change = f"another layout: -ngl {found.fits[0].settings.n_gpu_layers}"
    yield change, f"{now} layers in RAM" if now else "the layout that was asked for", found


def _smaller_cache(search: Search, settings: LlamaCppSettings) -> Iterator[tuple[str, str, Found]]:
    if {"type_k", "type_v"} & set(search.pins) or settings.flash_attn == "off":
        return
    for kind, loss in (("q8_0", "a little precision of the cache"), ("q4_0", "precision of the cache, noticeably")):
        if settings.type_k in {kind, "q4_0"}:
            continue
        found = _tried(search, replace(settings, type_k=kind, type_v=kind))
        if found is not None:
            yield f"KV cache in {kind}", loss, found
            return


def _smaller_batch(search: Search, settings: LlamaCppSettings) -> Iterator[tuple[str, str, Found]]:
    if "n_ubatch" in search.pins:
        return
    for size in (256, 128, 64):
        if size < settings.n_ubatch:
            found = _tried(search, replace(settings, n_ubatch=size))
            if found is not None:
                yield f"micro-batch of {size}", f"prompt speed (micro-batch of {settings.n_ubatch})", found
                return


def _shorter_context(search: Search, settings: LlamaCppSettings) -> Iterator[tuple[str, str, Found]]:
    if "n_ctx" in search.pins:
        return
    slots = max(1, settings.n_parallel or 1)
    asked = settings.n_ctx // slots
    # no more than what the model was trained for
    trained = search.spec.context_length
    steps = range(_SHORTEST, min(asked, trained + _CELLS - trained % _CELLS) if trained else asked, _CELLS)

    def with_each(context: int) -> LlamaCppSettings:
        return replace(settings, n_ctx=slots * context)

    best = largest(steps, lambda n: _likely(search, with_each(n)), lambda n: _tried(search, with_each(n)))
    if best is not None:
        yield f"context of {best[0]} tokens a user", f"{asked - best[0]} of {asked} tokens of context", best[1]


def _fewer_users(search: Search, settings: LlamaCppSettings) -> Iterator[tuple[str, str, Found]]:
    users = settings.n_parallel or 1
    if users < 2 or {"n_parallel", "n_ctx"} & set(search.pins) or settings.kv_unified:
        return
    each = settings.n_ctx // users

    def with_users(count: int) -> LlamaCppSettings:
        return replace(settings, n_parallel=count, n_ctx=count * each)

    best = largest(
        range(1, users), lambda n: _likely(search, with_users(n)), lambda n: _tried(search, with_users(n))
    )
    if best is not None:
        count = f"{best[0]} user" if best[0] == 1 else f"{best[0]} users"
        yield f"{count} at once", f"{users - best[0]} of {users} streams", best[1]


def _everything_smaller(search: Search, settings: LlamaCppSettings) -> Iterator[tuple[str, str, Found]]:
    """One change isn't enough: the smallest of everything that isn't pinned."""
    found = _tried(search, smallest(search, settings))
    if found is None:
        return
    done = found.fits[0]
    slots, each = done.resolved.n_seq_max, done.resolved.n_ctx_seq
    change = f"{slots} user{'s' if slots > 1 else ''}, {each} tokens, KV in {done.settings.type_k}"
    yield f"{change}, micro-batch of {done.settings.n_ubatch}", "context, users, prompt speed and precision", found


def smallest(search: Search, settings: LlamaCppSettings) -> LlamaCppSettings:
    """*settings* with everything at its least that isn't pinned."""
    pins = search.pins
    if "n_parallel" not in pins and "n_ctx" not in pins:
        settings = replace(settings, n_parallel=1)
    if "n_ctx" not in pins:
        slots = max(1, settings.n_parallel or 1)
        settings = replace(settings, n_ctx=slots * pad(min(_SHORTEST, max(1, search.spec.context_length)), _CELLS))
    if "n_ubatch" not in pins:
        settings = replace(settings, n_ubatch=min(64, settings.n_ubatch))
    if not {"type_k", "type_v"} & set(pins) and settings.flash_attn != "off":
        small = replace(settings, type_k="q4_0", type_v="q4_0")
        settings = small if _allowed(search, small) else settings
    return settings


def _what_would_do(search: Search, settings: LlamaCppSettings) -> str:
    """The least memory for the least settings, and the file size that would fit in what there is."""
    try:
        closest = search.run(smallest(search, settings)).closest
    except UsageError:
        return "No change of settings is enough."
    spec = search.spec
    missing = "; ".join(
        f"{format_bytes(s.needed_bytes)} on {s.device} where {format_bytes(s.capacity_bytes)} are usable"
        for s in closest.shortfall
    )
    # what is not weights stays; the weights may take the rest of all budgets
    budget = search.capacity.host_bytes + sum(
        size for name, size in search.capacity.device_bytes.items() if name not in search.capacity.shared
    )
    besides = sum(closest.bill.needed_bytes(s.id) - s.weights_bytes for s in closest.shares)
    for_weights = max(0, budget - besides)
    said = f"Even the smallest settings need {missing}, so add {format_bytes(closest.missing_bytes)}"
    if not spec.parameter_count or not for_weights:
        return f"{said}."
    bits = 8 * for_weights / spec.parameter_count
    kind = next((name for name, need in _QUANTISATIONS if need <= bits), None)
    size = f"a file of at most {format_bytes(for_weights)} ({bits:.1f} bits a weight)"
    return (
        f"{said}, or take {size}: {kind} or smaller." if kind else f"{said}; no quantisation is that small: {size}."
    )


#: Bits a weight of whole files, rounded up (llama.cpp ``tools/quantize/README.md``, Llama 3.1 8B).
_QUANTISATIONS = (
    ("F16", 16.0),
    ("Q8_0", 8.6),
    ("Q6_K", 6.6),
    ("Q5_K_M", 5.8),
    ("Q4_K_M", 4.9),
    ("Q3_K_M", 4.1),
    ("Q2_K", 3.2),
    ("IQ2_XS", 2.6),
    ("IQ1_S", 2.1),
)


def _allowed(search: Search, settings: LlamaCppSettings) -> bool:
    spec = search.spec
    return spec.key_length % 32 == 0 and spec.value_length % 32 == 0 and settings.flash_attn != "off"


def _likely(search: Search, settings: LlamaCppSettings) -> bool:
    try:
        return search.likely(settings)
    except UsageError:
        return False


def _tried(search: Search, settings: LlamaCppSettings) -> Found | None:
    if not _likely(search, settings):
        return None
    try:
        found = search.run(settings)
    except UsageError:
        return None
    return found if found.fits else None

"""From layouts that fit to one plan: the best by whoever judges, why, and why not the others.

In: ``Search``, judged candidates. Out: ``Plan``, with the host's later growth planned too.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from terazi.memory.bill import HOST, Bill
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.placement.explain import explain_layout, name_option
from terazi.placement.identity import plan_id
from terazi.placement.judge import Judged, growth_reason, memlock_reason
from terazi.placement.plan import Plan, Rejected, Verdict
from terazi.placement.search import Search
from terazi.units import MIB, format_bytes

#: llama.cpp's default prompt cache; more brings little, less than the second figure isn't worth its upkeep.
_CACHE_RAM_MIB, _CACHE_RAM_MIN_MIB = 8192, 256
_CHECKPOINTS = 32
#: How much better a plan must score that gives up something: precision of the cache, a slot a user.
_WORTH = 0.15


class Candidate(NamedTuple):
    """One layout that fits.

    Args:
        gives_up: what nobody agreed to give up, as a clause: it must gain a good deal to be taken.
        offered: it is only ever offered, whatever it gains.
    """

    judged: Judged
    gives_up: str = ""
    offered: bool = False


def finish(
    search: Search,
    workload: Workload,
    candidates: Sequence[Candidate],
    reasons: Sequence[str] = (),
    lacking: Sequence[Rejected] = (),
) -> Plan:
    """The best of *candidates*; of those that keep the workload's limits, if any does."""
    plans = [plan_of(search, workload, c.judged, reasons) for c in candidates]
    appraiser = search.appraiser
    if appraiser is None or len(plans) == 1:
        others = [Rejected(option=name_option(c.judged, candidates[0].judged), why="") for c in candidates[1:]]
        return replace(plans[0], rejected=_distinct([*(o for o in others if o.why), *lacking]))
    marks = [appraiser.score(plan) for plan in plans]
    takeable = [i for i, c in enumerate(candidates) if not c.offered]
    keeping = [i for i in takeable if not appraiser.misses(plans[i])] or takeable
    best = _best(keeping, marks, [bool(c.gives_up) for c in candidates])
    chosen = candidates[best].judged
    rejected = [
        Rejected(
            option=name_option(candidates[i].judged, chosen),
            why=_why(
                appraiser.misses(plan),
                appraiser.against(plan, plans[best]),
                _caveat(candidates[i]) if marks[i] > marks[best] else "",
            ),
        )
        for i, plan in enumerate(plans)
        if i != best
    ]
    plain = max((marks[i] for i in keeping if not candidates[i].gives_up), default=0.0)
    said = plans[best].reasons
    if candidates[best].gives_up and plain:
        gives = candidates[best].gives_up
        said += (f"{gives[0].upper()}{gives[1:]}, for {100 * (marks[best] / plain - 1):.0f} % more speed.",)
    return replace(plans[best], reasons=said, rejected=_distinct([*rejected, *lacking]))


def _caveat(candidate: Candidate) -> str:
    if candidate.offered or not candidate.gives_up:
        return candidate.gives_up
    return f"{candidate.gives_up}: too little for that"


def _why(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _best(among: Sequence[int], marks: Sequence[float], lossy: Sequence[bool]) -> int:
    def key(index: int) -> tuple[float, int]:
        return marks[index], -index

    plain = [i for i in among if not lossy[i]]
    losing = [i for i in among if lossy[i]]
    if not plain or not losing:
        return max(plain or losing, key=key)
    first, second = max(plain, key=key), max(losing, key=key)
    return second if marks[second] > marks[first] + _WORTH * abs(marks[first]) else first


def _distinct(rejected: Sequence[Rejected]) -> tuple[Rejected, ...]:
    """Each option once, and only with a reason."""
    seen: dict[str, Rejected] = {}
    for one in rejected:
        if one.why:
            seen.setdefault(one.option, one)
    return tuple(seen.values())


def plan_of(search: Search, workload: Workload, judged: Judged, reasons: Sequence[str] = ()) -> Plan:
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
        pinned = "nothing forces a smaller type"
        if {"type_k", "type_v"} & set(search.pins):
            pinned = "as pinned"
        elif settings.type_k != LlamaCppSettings().type_k:
            pinned = "in f16 it would leave more of the layers in RAM"
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


def unweighed(settings: LlamaCppSettings, workload: Workload) -> Plan:
    """A plan to be scored before anybody knows whether it fits: without a bill."""
    return Plan(
        id=repr(settings),  # plans of one search differ in nothing else
        engine="llama.cpp",
        settings=settings,
        workload=workload,
        verdict=Verdict.FITS,
        devices=(),
        bill=Bill(engine="llama.cpp", build=BUILD, lines=()),
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

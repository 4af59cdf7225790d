"""The bill of one vLLM engine: every rank's lines, what its KV cache holds, and whether vLLM would start.

In: ``ModelSpec``, ``VllmSettings``, devices, the host. Out: ``Appraisal``, of which ``weigh`` gives the bill alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from terazi.hardware.machine import Device, Host
from terazi.memory.bill import Bill
from terazi.memory.vllm.architectures import has_own_class
from terazi.memory.vllm.build import BUILD
from terazi.memory.vllm.lines import bill_lines, file_pages
from terazi.memory.vllm.model import VllmModel, read_model
from terazi.memory.vllm.objections import Objection, objections
from terazi.memory.vllm.pool import KvPool, MixedPagesError
from terazi.memory.vllm.ranks import Case, Rank, free_for_engine, pool_of, ranks_of
from terazi.memory.vllm.resolve import Resolved, resolve
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.vllm.target import target_of, usable
from terazi.memory.vllm.weights import IndivisibleError
from terazi.models.spec import ModelSpec
from terazi.units import format_bytes


class Appraisal(NamedTuple):
    """One engine, weighed. ``pool`` is None if the caches aren't known or a size can't be divided."""

    bill: Bill
    model: VllmModel
    resolved: Resolved
    ranks: tuple[Rank, ...]
    pool: KvPool | None
    objections: tuple[Objection, ...]


def weigh(
    spec: ModelSpec,
    settings: VllmSettings,
    devices: Sequence[Device],
    host: Host,
    draft: ModelSpec | None = None,
) -> Bill:
    """The bill of *settings* on *devices*; without a card that vLLM supports, of its CPU build.

    Raises:
        UsageError: a value that vLLM has no meaning for.
    """
    return appraise(spec, settings, devices, host, draft).bill


def appraise(
    spec: ModelSpec,
    settings: VllmSettings,
    devices: Sequence[Device],
    host: Host,
    draft: ModelSpec | None = None,
) -> Appraisal:
    """Everything about *settings*: bill, KV cache, objections.

    *draft* is the model of ``--speculative-config`` that guesses tokens (method ``draft_model``).

    Raises:
        UsageError: a value that vLLM has no meaning for.
    """
    model = read_model(spec)
    target = target_of(devices, host.isa)
    cards = usable(devices)
    resolved = resolve(model, settings, target)
    case = Case(spec, model, settings, resolved, cards, host, draft)
    found = list(objections(spec, model, settings, resolved, cards=len(cards)))
    reasons = list(spec.reasons)
    if model.unknown:
        reasons.append(f"the caches of {model.model_type} aren't known here: {model.unknown}")
    if not has_own_class(model.config):
        reasons.append("vLLM has no class of its own for this model; its Transformers backend may hold more")
    ranks: tuple[Rank, ...] = ()
    pool: KvPool | None = None
    if not found or all(o.code not in {"heads", "layers"} for o in found):
        try:
            ranks = tuple(ranks_of(case))
        except IndivisibleError as error:
            found.append(
                Objection(
                    code="divide", message=f"vLLM stops: {error}", hint="use a smaller --tensor-parallel-size"
                )
            )
    if ranks and not model.unknown:
        try:
            pool = pool_of(case, ranks)
        except MixedPagesError as error:
            found.append(
                Objection(code="pages", message=f"vLLM can't group these layers: {error}", hint="use another model")
            )
    found += _memory_objections(case, ranks, pool)
    guessed = sorted({name for rank in ranks for name in rank.weights.guessed})
    if guessed:
        reasons.append(
            f"{len(guessed)} tensors such as {guessed[0]} are of no known kind and counted whole on every rank"
        )
    lines = tuple(bill_lines(case, ranks, pool))
    bill = Bill(
        engine="vllm",
        build=BUILD,
        lines=lines,
        page_cache=tuple(file_pages(spec)),
        exact=not reasons,
        reasons=tuple(reasons),
    )
    return Appraisal(bill=bill, model=model, resolved=resolved, ranks=ranks, pool=pool, objections=tuple(found))


def _memory_objections(case: Case, ranks: Sequence[Rank], pool: KvPool | None) -> Iterator[Objection]:
    settings, resolved, cards, host = case.settings, case.resolved, case.cards, case.host
    explicit = settings.kv_cache_memory_bytes is not None
    utilization = f"--gpu-memory-utilization {settings.gpu_memory_utilization:g}"
    if resolved.target.gpu:
        # vLLM looks once the driver's context is there
        free = {card.id: free_for_engine(card) for card in cards}
        for rank in ranks:
            if rank.requested > free[rank.device]:
                yield Objection(
                    code="free",
                    message=f"{rank.device} has {format_bytes(free[rank.device])} free, and vLLM wants"
                    f" {format_bytes(rank.requested)} ({utilization})",
                    hint="lower --gpu-memory-utilization, or free the card",
                )
                break
    elif ranks and not explicit and ranks[0].requested > host.usable_ram_bytes:
        yield Objection(
            code="free",
            message=f"the host has {format_bytes(host.usable_ram_bytes)} free, and vLLM wants"
            f" {format_bytes(ranks[0].requested)} ({utilization})",
            hint="set VLLM_CPU_KVCACHE_SPACE, or lower --gpu-memory-utilization",
        )
    if pool is None or pool.fits:
        return
    if pool.checked_bytes <= 0:
        yield Objection(
            code="blocks",
            message="nothing is left for the KV cache: weights and working memory take"
            f" {format_bytes(max(r.requested - r.available for r in ranks))} of"
            f" {format_bytes(min(r.requested for r in ranks))}",
            hint="use more cards (-tp), a smaller quantisation, or a lower --max-num-batched-tokens",
        )
    else:
        longest = f"; the longest that fits is {pool.longest}" if pool.longest else ""
        yield Objection(
            code="cache",
            message=f"a sequence of {pool.max_model_len} tokens needs {format_bytes(pool.needed_bytes)} of cache,"
            f" and {format_bytes(pool.checked_bytes)} are left{longest}",
            hint=f"use --max-model-len {pool.longest}" if pool.longest else "use more cards, or a smaller model",
        )

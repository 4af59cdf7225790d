"""The bill of one vLLM engine: every rank's lines, what its KV cache holds, and whether vLLM would start.

In: ``ModelSpec``, ``VllmSettings``, devices, the host. Out: ``Appraisal``, of which ``weigh`` gives the bill alone.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from terazi.hardware.machine import Device, Host
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.vllm.model import VllmModel, read_model
from terazi.memory.vllm.objections import Objection, objections
from terazi.memory.vllm.pool import KvPool, MixedPagesError, plan_pool
from terazi.memory.vllm.profile import CPU_WORKER_BYTES, FRONT_BYTES, Profile, profile_of
from terazi.memory.vllm.resolve import Resolved, resolve
from terazi.memory.vllm.settings import BUILD, VllmSettings
from terazi.memory.vllm.target import target_of, usable
from terazi.memory.vllm.weights import IndivisibleError, Ranks, RankWeights, rank_weights, rounding_of
from terazi.models.spec import ModelSpec
from terazi.units import format_bytes


class Rank(NamedTuple):
    """One worker process.

    Args:
        number: of its process.
        stage: its pipeline stage.
        device: where it lives; ``Host`` on CPU.
        weights: bytes by kind.
        profile: what is modelled on a card; None on CPU.
        requested: the share of the device that vLLM takes in all.
        available: what is left of it for the KV cache.
    """

    number: int
    stage: int
    device: str
    weights: RankWeights
    profile: Profile | None
    requested: int
    available: int


class Appraisal(NamedTuple):
    """One engine, weighed. ``pool`` is None if the caches aren't known or a size can't be divided."""

    bill: Bill
    model: VllmModel
    resolved: Resolved
    ranks: tuple[Rank, ...]
    pool: KvPool | None
    objections: tuple[Objection, ...]


def weigh(spec: ModelSpec, settings: VllmSettings, devices: Sequence[Device], host: Host) -> Bill:
    """The bill of *settings* on *devices*; without a card that vLLM supports, of its CPU build.

    Raises:
        UsageError: a value that vLLM has no meaning for.
    """
    return appraise(spec, settings, devices, host).bill


def appraise(spec: ModelSpec, settings: VllmSettings, devices: Sequence[Device], host: Host) -> Appraisal:
    """Everything about *settings*: bill, KV cache, objections.

    Raises:
        UsageError: a value that vLLM has no meaning for.
    """
    model = read_model(spec)
    target = target_of(devices, host.isa)
    cards = usable(devices)
    resolved = resolve(model, settings, target)
    case = _Case(spec, model, settings, resolved, cards, host)
    found = list(objections(spec, model, settings, resolved, cards=len(cards)))
    reasons = list(spec.reasons)
    if model.unknown:
        reasons.append(f"the caches of {model.model_type} aren't known here: {model.unknown}")
    ranks: tuple[Rank, ...] = ()
    pool: KvPool | None = None
    if not found or all(o.code not in {"heads", "layers"} for o in found):
        try:
            ranks = tuple(_ranks(case))
        except IndivisibleError as error:
            found.append(
                Objection(
                    code="divide", message=f"vLLM stops: {error}", hint="use a smaller --tensor-parallel-size"
                )
            )
    if ranks and not model.unknown:
        try:
            pool = _pool(settings, resolved, ranks)
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
    lines = tuple(_lines(case, ranks, pool))
    bill = Bill(
        engine="vllm",
        build=BUILD,
        lines=lines,
        page_cache=tuple(_page_cache(spec)),
        exact=not reasons,
        reasons=tuple(reasons),
    )
    return Appraisal(bill=bill, model=model, resolved=resolved, ranks=ranks, pool=pool, objections=tuple(found))


class _Case(NamedTuple):
    """What is weighed, and where."""

    spec: ModelSpec
    model: VllmModel
    settings: VllmSettings
    resolved: Resolved
    cards: Sequence[Device]
    host: Host


def _ranks(case: _Case) -> Iterator[Rank]:
    """Ranks of all replicas; those of one stage hold the same, so each stage is weighed once."""
    spec, model, settings, resolved, cards, host = case
    tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
    experts = tensor * settings.data_parallel if settings.expert_parallel else 1
    by_stage = [
        rank_weights(
            spec,
            model,
            Ranks(tensor, experts, resolved.stages[stage], stage == 0, stage == pipeline - 1),
            model_bytes=resolved.element_bytes,
            online=resolved.online,
            rounding=rounding_of(resolved.target),
        )
        for stage in range(pipeline)
    ]
    for index in range(settings.world_size * settings.data_parallel):
        stage = index % settings.world_size // tensor
        weights = by_stage[stage]
        if not resolved.target.gpu:
            requested, available = _cpu_budget(settings, host, weights.total_bytes, index)
            yield Rank(index, stage, HOST, weights, None, requested, available)
            continue
        if index >= len(cards):
            return
        profile = profile_of(model, settings, resolved, last=stage == pipeline - 1)
        card = cards[index]
        requested = ceil(card.memory_total_bytes * settings.gpu_memory_utilization)
        on_card = max(0, weights.total_bytes + profile.rope - settings.cpu_offload_bytes)
        used = on_card + profile.forward + profile.sampler + profile.graphs + profile.libraries
        available = requested - used
        if settings.kv_cache_memory_bytes is not None:
            available = settings.kv_cache_memory_bytes
        yield Rank(index, stage, card.id, weights, profile, requested, available)


def free_for_engine(card: Device) -> int:
    """What of *card* is free once the driver's context is made: vLLM's share must not be more."""
    return card.memory_free_bytes - round(card.context_bytes.value or 0)


def _cpu_budget(settings: VllmSettings, host: Host, weights: int, rank: int) -> tuple[int, int]:
    """``CPUWorker.determine_available_memory``: (what the worker may take, what is left for its cache).

    A share of the memory of the node that the worker is bound to, or of the cgroup's limit if that is tighter.
    """
    node = host.numa[rank % len(host.numa)] if host.numa else None
    total = (node.memory_bytes if node is not None else None) or host.ram_total_bytes
    if host.memory_limit_bytes is not None:
        total = min(total, host.memory_limit_bytes)
    requested = ceil(total * settings.gpu_memory_utilization)
    if settings.kv_cache_memory_bytes is not None:
        return requested, settings.kv_cache_memory_bytes
    return requested, requested - weights - CPU_WORKER_BYTES


def _pool(settings: VllmSettings, resolved: Resolved, ranks: Sequence[Rank]) -> KvPool:
    """One pool for all ranks of a replica: the one with the least memory a block decides."""
    replica = ranks[: settings.world_size]
    stages = range(settings.pipeline_parallel)
    least = [min((r.available for r in replica if r.stage == stage), default=0) for stage in stages]
    return plan_pool(
        resolved.caches,
        resolved.stages,
        least,
        resolved.limits,
        one_table=resolved.one_table,
        override_blocks=settings.num_gpu_blocks_override,
        fit_length=resolved.fit_length,
    )


def _memory_objections(case: _Case, ranks: Sequence[Rank], pool: KvPool | None) -> Iterator[Objection]:
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


def _lines(case: _Case, ranks: Sequence[Rank], pool: KvPool | None) -> Iterator[BillLine]:
    model, settings, resolved, cards = case.model, case.settings, case.resolved, case.cards
    contexts = {card.id: card.context_bytes for card in cards}
    for rank in ranks:
        memory = Memory.ANONYMOUS if rank.device == HOST else Memory.DEVICE
        yield from _weight_lines(case, rank, memory, len(ranks))
        if pool is not None:
            yield BillLine(
                term=Term.STATE if model.attention_free else Term.KV,
                device=rank.device,
                bytes=pool.blocks * pool.block_bytes[rank.stage],
                formula="kv.blocks",
                basis=LineBasis.EXACT if _budget_is_exact(settings) else LineBasis.MODELLED,
                memory=memory,
                note=f"{pool.blocks} blocks of {format_bytes(pool.block_bytes[rank.stage])},"
                f" {pool.tokens} tokens{_of(rank, ranks)}",
            )
        if rank.profile is None:
            yield _line(
                Term.OVERHEAD,
                HOST,
                CPU_WORKER_BYTES,
                "overhead.worker",
                memory=memory,
                note=f"± 0.3 GiB{_of(rank, ranks)}",
            )
            continue
        context = contexts[rank.device]
        for term, size, formula, note in (
            (
                Term.COMPUTE,
                rank.profile.forward,
                "compute.forward",
                f"± 40 %, {resolved.max_num_batched_tokens} tokens",
            ),
            (Term.COMPUTE, rank.profile.sampler, "compute.sampler", f"± 50 %, {resolved.max_num_seqs} rows"),
            (Term.COMPUTE, rank.profile.graphs, "compute.cuda-graphs", "-0.9 to +2 GiB"),
            (Term.OVERHEAD, rank.profile.libraries, "overhead.libraries", "± 0.15 GiB"),
        ):
            yield _line(term, rank.device, size, formula, memory=memory, note=note)
        if context.value:
            yield BillLine(
                term=Term.OVERHEAD,
                device=rank.device,
                bytes=round(context.value),
                formula="driver-context",
                basis=LineBasis.CATALOGUE,
                memory=memory,
                note="outside vLLM's budget",
            )
    if ranks:
        yield _line(
            Term.OVERHEAD,
            HOST,
            FRONT_BYTES,
            "overhead.front",
            memory=Memory.ANONYMOUS,
            note="API server and engine, ± 0.6 GiB",
        )
    if resolved.target.gpu and settings.cpu_offload_bytes:
        moved = sum(min(settings.cpu_offload_bytes, r.weights.total_bytes) for r in ranks)
        yield _line(
            Term.WEIGHTS,
            HOST,
            moved,
            "weights.offloaded",
            memory=Memory.PINNED,
            note="--cpu-offload-gb, all ranks",
        )
    if settings.kv_offloading_bytes:
        yield BillLine(
            term=Term.KV,
            device=HOST,
            bytes=settings.kv_offloading_bytes,
            formula="kv.offloaded",
            basis=LineBasis.EXACT,
            memory=Memory.PINNED,
            note="--kv-offloading-size, all ranks",
        )


def _weight_lines(case: _Case, rank: Rank, memory: Memory, count: int) -> Iterator[BillLine]:
    settings, quantised = case.settings, case.resolved.quantization is not None
    offload = settings.cpu_offload_bytes if rank.device != HOST else 0
    weights = rank.weights
    rope = rank.profile.rope if rank.profile else 0
    for size, formula, basis in (
        (weights.plain_bytes, "weights.linear", LineBasis.EXACT),
        (weights.quantised_bytes, "weights.quantised", LineBasis.MODELLED),
        (weights.expert_bytes, "weights.experts", LineBasis.MODELLED if quantised else LineBasis.EXACT),
        (weights.embedding_bytes, "weights.embeddings", LineBasis.EXACT),
        (weights.tower_bytes, "weights.towers", LineBasis.UPPER_BOUND if count > 1 else LineBasis.EXACT),
        (rope, "weights.positions", LineBasis.MODELLED),
    ):
        moved = min(offload, size)
        offload -= moved
        if size > moved:
            yield BillLine(
                term=Term.WEIGHTS,
                device=rank.device,
                bytes=size - moved,
                formula=formula,
                basis=LineBasis.MODELLED if settings.quantization else basis,
                memory=memory,
                note=f"rank {rank.number}" if count > 1 else "",
            )


def _budget_is_exact(settings: VllmSettings) -> bool:
    """Whether the bytes for the cache are said rather than measured by the engine."""
    return settings.kv_cache_memory_bytes is not None or settings.num_gpu_blocks_override is not None


def _of(rank: Rank, ranks: Sequence[Rank]) -> str:
    return f", rank {rank.number}" if len(ranks) > 1 else ""


def _line(term: Term, device: str, size: int, formula: str, *, memory: Memory, note: str) -> BillLine:
    return BillLine(
        term=term, device=device, bytes=size, formula=formula, basis=LineBasis.MODELLED, memory=memory, note=note
    )


def _page_cache(spec: ModelSpec) -> Iterator[BillLine]:
    if spec.file_bytes:
        yield BillLine(
            term=Term.WEIGHTS,
            device=HOST,
            bytes=spec.file_bytes,
            formula="weights.file",
            basis=LineBasis.EXACT,
            memory=Memory.PAGE_CACHE,
            note="read once while loading",
        )

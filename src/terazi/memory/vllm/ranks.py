"""The ranks of an engine: where each lives, what it holds, and what it leaves for the KV cache.

In: model, settings, cards, host. Out: ``Rank``s, ``KvPool``. Sources: ``v1/worker/gpu_worker.py`` and
``cpu_worker.py:determine_available_memory``, ``v1/core/kv_cache_utils.py:get_kv_cache_configs``, vLLM 0.32.0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Final, NamedTuple

from terazi.hardware.machine import Device, Host
from terazi.memory.bill import HOST
from terazi.memory.vllm.model import VllmModel, read_model
from terazi.memory.vllm.pool import KvPool, Placed, plan_pool
from terazi.memory.vllm.profile import CPU_WORKER_BYTES, Profile, profile_of
from terazi.memory.vllm.resolve import Resolved, resolve
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.vllm.weights import Ranks, RankWeights, rank_weights, rounding_of
from terazi.models.spec import ModelSpec

#: The part of a bill line that the draft model is for.
DRAFT: Final = "draft"


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
        draft_bytes: weights of the draft model, on the last stage.
    """

    number: int
    stage: int
    device: str
    weights: RankWeights
    profile: Profile | None
    requested: int
    available: int
    draft_bytes: int = 0


class Case(NamedTuple):
    """What is weighed, and where."""

    spec: ModelSpec
    model: VllmModel
    settings: VllmSettings
    resolved: Resolved
    cards: Sequence[Device]
    host: Host
    draft: ModelSpec | None


def ranks_of(case: Case) -> Iterator[Rank]:
    """Ranks of all replicas; those of one stage hold the same, so each stage is weighed once."""
    spec, model, settings, resolved, cards, host, _ = case
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
    draft = _draft_weights(case)
    for index in range(settings.world_size * settings.data_parallel):
        stage = index % settings.world_size // tensor
        weights = by_stage[stage]
        drafted = draft if stage == pipeline - 1 else 0
        if not resolved.target.gpu:
            requested, available = _cpu_budget(settings, host, weights.total_bytes + drafted, index)
            yield Rank(index, stage, HOST, weights, None, requested, available, drafted)
            continue
        if index >= len(cards):
            return
        profile = profile_of(model, settings, resolved, last=stage == pipeline - 1)
        card = cards[index]
        requested = ceil(card.memory_total_bytes * settings.gpu_memory_utilization)
        on_card = max(0, weights.total_bytes + profile.rope - settings.cpu_offload_bytes)
        used = on_card + drafted + profile.forward + profile.sampler + profile.graphs + profile.libraries
        available = requested - used
        if settings.kv_cache_memory_bytes is not None:
            available = settings.kv_cache_memory_bytes
        yield Rank(index, stage, card.id, weights, profile, requested, available, drafted)


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


def _draft_settings(case: Case) -> VllmSettings:
    """The draft's own: as the target's, but for its ranks, and never in stages."""
    speculation = case.settings.speculation
    ranks = (speculation.tensor_parallel if speculation else None) or case.settings.tensor_parallel
    return replace(
        case.settings,
        tensor_parallel=ranks,
        pipeline_parallel=1,
        layer_partition=(),
        block_size=case.resolved.block_size,
        max_model_len=case.resolved.max_model_len,
        quantization=None,
        speculation=None,
    )


def _draft_weights(case: Case) -> int:
    """Bytes of the draft on each rank of the last stage, with embeddings and a head of its own."""
    if case.draft is None:
        return 0
    settings, model = _draft_settings(case), read_model(case.draft)
    resolved = resolve(model, settings, case.resolved.target)
    ranks = Ranks(settings.tensor_parallel, 1, range(model.layers), first=True, last=True)
    return rank_weights(case.draft, model, ranks, model_bytes=resolved.element_bytes).total_bytes


def _caches(case: Case) -> tuple[Placed, ...]:
    """The target's caches, then the draft's, which lie on the last stage."""
    if case.draft is None:
        return case.resolved.caches
    drafted = resolve(read_model(case.draft), _draft_settings(case), case.resolved.target).caches
    last = case.resolved.stages[-1][-1]
    return (*case.resolved.caches, *(Placed(last, p.spec) for p in drafted))


def pool_of(case: Case, ranks: Sequence[Rank]) -> KvPool:
    """One pool for all ranks of a replica: the one with the least memory a block decides."""
    settings, resolved = case.settings, case.resolved
    replica = ranks[: settings.world_size]
    stages = range(settings.pipeline_parallel)
    least = [min((r.available for r in replica if r.stage == stage), default=0) for stage in stages]
    return plan_pool(
        _caches(case),
        resolved.stages,
        least,
        resolved.limits,
        one_table=resolved.one_table,
        override_blocks=settings.num_gpu_blocks_override,
        fit_length=resolved.fit_length,
    )

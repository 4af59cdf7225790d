"""When vLLM would not start, or not hold what is asked: what is missing, and the nearest settings that fit."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from terazi.hardware.machine import Machine
from terazi.memory.vllm.objections import divides_heads
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.vllm.target import usable
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.plan import Alternative, Refusal
from terazi.placement.vllm_trial import Trial

_ALTERNATIVES: Final = 3
#: Tokens of a usual block of the cache.
_BLOCK: Final = 16
#: Smaller shares of a card that are tried where it isn't free.
_SHARES: Final = (0.9, 0.85, 0.8, 0.7, 0.5)
#: Objections that more memory or a smaller cache would answer.
_OF_MEMORY: Final = frozenset({"free", "blocks", "cache"})


def refusal_of(
    spec: ModelSpec, machine: Machine, tried: Trial, workload: Workload, *, users: int, hopeless: str = ""
) -> Refusal:
    """The refusal of *tried*, which came nearest; *hopeless* says why no setting of this model could fit."""
    return Refusal(
        reason=f"{hopeless} {tried.reason}".strip(),
        shortfall=tried.shortfall,
        alternatives=()
        if hopeless
        else tuple(
            islice(chain(_fewer_users(tried, users), _alternatives(spec, machine, tried, users)), _ALTERNATIVES)
        ),
        closest=tried.shares,
        bill=tried.appraisal.bill,
        settings=tried.settings,
        workload=workload,
    )


def _fewer_users(tried: Trial, users: int) -> Iterator[Alternative]:
    """As many as the cache holds at once, where it is only that too many are wanted."""
    pool = tried.appraisal.pool
    count = int(pool.concurrency) if pool is not None and tried.crowded else 0
    if 0 < count < users and not tried.appraisal.objections and not tried.shortfall:
        yield Alternative(
            settings=tried.settings,
            change=f"{count} user{'s' * (count > 1)} at once",
            gives_up=f"{users - count} of {users} streams, which would wait",
            total_bytes=tried.appraisal.bill.total_bytes,
        )


def _alternatives(spec: ModelSpec, machine: Machine, tried: Trial, users: int) -> Iterator[Alternative]:
    """Settings near the refused ones that fit, the smallest change first."""
    for change, gives_up, settings in _changes(machine, tried, users):
        other = Trial(spec, machine, settings, users, tried.draft)
        if other.fits:
            yield Alternative(
                settings=settings,
                change=change,
                gives_up=gives_up,
                total_bytes=other.appraisal.bill.total_bytes,
            )


def _changes(machine: Machine, tried: Trial, users: int) -> Iterator[tuple[str, str, VllmSettings]]:
    codes = {o.code for o in tried.appraisal.objections}
    yield from _corrections(tried, codes)
    if codes <= _OF_MEMORY:
        yield from _savings(machine, tried, codes, users)


def _corrections(tried: Trial, codes: set[str]) -> Iterator[tuple[str, str, VllmSettings]]:
    """What vLLM's own checks would take instead."""
    settings, model = tried.settings, tried.appraisal.model
    if codes & {"heads", "divide"}:
        for size in range(settings.tensor_parallel - 1, 0, -1):
            if divides_heads(model, size):
                yield f"-tp {size}", "nothing but speed", replace(settings, tensor_parallel=size)
    if codes & {"pipeline", "layers"}:
        yield "-pp 1", "nothing but room", replace(settings, pipeline_parallel=1, layer_partition=())
    if "length" in codes:
        longest = model.max_length
        yield (
            f"--max-model-len {longest}",
            "length beyond the model's own",
            replace(settings, max_model_len=longest),
        )
    if "dtype" in codes:
        other = "half" if tried.appraisal.resolved.dtype == "bfloat16" else "bfloat16"
        yield f"--dtype {other}", "the range of the other type", replace(settings, dtype=other)
    if "batch" in codes:
        fewer = replace(settings, max_num_seqs=None, max_num_batched_tokens=None)
        yield "vLLM's own batch limits", "the limits given", fewer


def _savings(
    machine: Machine, tried: Trial, codes: set[str], users: int
) -> Iterator[tuple[str, str, VllmSettings]]:
    """What takes less memory, or spreads it."""
    settings, appraisal = tried.settings, tried.appraisal
    pool, gpu = appraisal.pool, appraisal.resolved.target.gpu
    if "free" in codes:
        for share in _SHARES:
            if share < settings.gpu_memory_utilization:
                fewer = replace(settings, gpu_memory_utilization=share)
                yield f"--gpu-memory-utilization {share:g}", "room in the KV cache", fewer
    if pool is not None and pool.longest and not pool.fits:
        shorter = replace(settings, max_model_len=pool.longest)
        yield f"--max-model-len {pool.longest}", "longer sequences", shorter
    if tried.crowded and pool is not None:
        each = pool.tokens // users // _BLOCK * _BLOCK
        if 0 < each < pool.max_model_len:
            yield f"--max-model-len {each}", "longer sequences", replace(settings, max_model_len=each)
    if settings.kv_cache_dtype == "auto" and gpu:
        yield "--kv-cache-dtype fp8", "precision of the cache", replace(settings, kv_cache_dtype="fp8")
    if not settings.enforce_eager and gpu:
        yield "--enforce-eager", "the speed of CUDA graphs", replace(settings, enforce_eager=True)
    cards = len(usable(machine.devices)) // (settings.pipeline_parallel * settings.data_parallel)
    for size in range(settings.tensor_parallel + 1, cards + 1):
        if divides_heads(appraisal.model, size):
            yield f"-tp {size}", "other uses of those cards", replace(settings, tensor_parallel=size)

"""What a vLLM plan makes each pipeline stage read and compute: from the engine's own bill to ``Stage`` nouns.

In: ``Appraisal`` (each rank's weights, caches, pool), ``VllmSettings``, ``Machine``. Out: ``VllmLoad``. Bytes come
from the bill, so the forecast can't disagree with it.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.vllm.bill import Appraisal, appraise
from terazi.memory.vllm.model import CacheKind, VllmModel
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.vllm.weights import RankWeights
from terazi.models.spec import ModelSpec
from terazi.performance.collectives import Fabric, fabric_of
from terazi.performance.links import slot_bytes_per_s
from terazi.performance.stage import Stage
from terazi.performance.traffic import CacheRows

#: Bits of a stored weight by quantisation method, scales included, where the config doesn't say.
_BITS: Final = {"mxfp4": 4.25, "gpt_oss_mxfp4": 4.25, "modelopt_fp4": 4.5, "awq": 4.25, "gptq": 4.25, "fp8": 8.0}
_BIT_KEYS: Final = (
    "quantization_config.bits",
    "quantization_config.w_bit",
    "quantization_config.config_groups.group_0.weights.num_bits",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLoad:
    """One replica, stage by stage.

    Args:
        stages: in order.
        ranks: the devices of each stage.
        bits: of a weight, which decides in what type it is multiplied.
        slots: sequences of the asked length that run at once.
        chunk: prompt tokens of a step.
        replicas: data-parallel copies.
        between: the fabric from one stage to the next.
        gpu: whether it runs on cards.
    """

    stages: tuple[Stage, ...]
    ranks: tuple[tuple[str, ...], ...]
    bits: float
    slots: int
    chunk: int
    replicas: int
    between: Fabric
    appraisal: Appraisal


def load_of(spec: ModelSpec, settings: VllmSettings, machine: Machine, *, length: int) -> VllmLoad:
    """The load of *settings*, with sequences that grow to *length* tokens.

    Raises:
        UsageError: a value that vLLM has no meaning for.
    """
    appraisal = appraise(spec, settings, machine.devices, machine.host)
    model, resolved, pool = appraisal.model, appraisal.resolved, appraisal.pool
    replica = appraisal.ranks[: settings.world_size]
    bits = _bits(model, resolved.quantization, resolved.element_bytes)
    stages: list[Stage] = []
    names: list[tuple[str, ...]] = []
    for number, span in enumerate(resolved.stages):
        own = tuple(r.device for r in replica if r.stage == number)
        weights = next(r.weights for r in replica if r.stage == number)
        last = number == len(resolved.stages) - 1
        stages.append(_stage(spec, settings, machine, appraisal, _Part(own, span, weights, last)))
        names.append(own)
    tokens = pool.tokens if pool is not None and pool.tokens else length
    slots = max(1, min(resolved.max_num_seqs, int(tokens / max(1, length))))
    chunk = resolved.max_num_batched_tokens if settings.chunked_prefill is not False else max(length, 2048)
    heads = tuple(own[0] for own in names if own)
    return VllmLoad(
        stages=tuple(stages),
        ranks=tuple(names),
        bits=bits,
        slots=slots,
        chunk=max(1, chunk),
        replicas=settings.data_parallel,
        between=fabric_of(machine, heads),
        appraisal=appraisal,
    )


class _Part(NamedTuple):
    """One stage: its devices, its layers, what a rank of it holds, whether it is the last."""

    devices: tuple[str, ...]
    layers: range
    weights: RankWeights
    last: bool


def _stage(spec: ModelSpec, settings: VllmSettings, machine: Machine, appraisal: Appraisal, part: _Part) -> Stage:
    model, resolved = appraisal.model, appraisal.resolved
    own, span, weights, last = part
    bits = _bits(model, resolved.quantization, resolved.element_bytes)
    tensor, size = settings.tensor_parallel, resolved.element_bytes
    head = model.vocab_size * model.hidden_size * size / tensor if last else 0.0
    dense = weights.plain_bytes + weights.quantised_bytes + head
    elements = (weights.plain_bytes + head) / size + 8 * weights.quantised_bytes / bits
    experts, used = spec.expert_count, spec.expert_used_count
    expert_elements = 8 * weights.expert_bytes / bits
    share = used / experts if experts else 0.0
    caches, state, growing = _caches(appraisal, span)
    streamed = min(float(settings.cpu_offload_bytes), dense + weights.expert_bytes)
    if streamed:
        kept = 1 - streamed / (dense + weights.expert_bytes)
        dense, expert_bytes = dense * kept, weights.expert_bytes * kept
    else:
        expert_bytes = float(weights.expert_bytes)
    first = next((d for d in machine.devices if own and d.id == own[0]), None)
    expert_layers = sum(1 for b in span if _has_experts(spec, b)) if experts else 0
    return Stage(
        layers=len(span),
        hidden=model.hidden_size,
        dense_bytes=dense,
        dense_flops=2 * elements,
        expert_layers=expert_layers,
        expert_bytes=expert_bytes,
        expert_flops=2 * share * expert_elements,
        experts=experts,
        experts_used=used,
        expert_ranks=tensor * settings.data_parallel if settings.expert_parallel else 1,
        pair_flops=4.0 * growing * model.attention_heads * model.head_size / tensor,
        caches=caches,
        state_bytes=state,
        tensor=tensor,
        fabric=fabric_of(machine, own if HOST not in own else ()),
        streamed_bytes=streamed,
        slot_bytes_per_s=slot_bytes_per_s(first) if first is not None else 8e9,
        graph=not settings.enforce_eager,
    )


def _caches(appraisal: Appraisal, span: range) -> tuple[tuple[CacheRows, ...], float, int]:
    """One rank's cache rows of the stage, its recurrent state of a stream, and how many layers grow."""
    rows: dict[int | None, float] = {}
    state, growing = 0.0, 0
    for placed in appraisal.resolved.caches:
        if placed.layer not in span:
            continue
        cache = placed.spec
        if cache.kind is CacheKind.STATE:
            state += cache.state_bytes
            continue
        window = cache.window or None
        rows[window] = rows.get(window, 0.0) + cache.token_bytes
        growing += window is None
    return tuple(CacheRows(row, window) for window, row in rows.items()), state, growing


def _has_experts(spec: ModelSpec, block: int) -> bool:
    return any(t.block == block and ".experts" in t.name for t in spec.tensors) if spec.tensors else True


def _bits(model: VllmModel, method: str | None, element_bytes: int) -> float:
    if method is None:
        return 8.0 * element_bytes
    said = next((model.config.value(key) for key in _BIT_KEYS if model.config.value(key) is not None), None)
    if isinstance(said, int | float) and not isinstance(said, bool) and 1 <= said <= 16:
        return float(said) + (0.25 if said < 8 else 0.0)
    return next((bits for name, bits in _BITS.items() if name in method), 8.0)

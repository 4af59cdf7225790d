"""Seconds of a step or a prompt from what each tensor type's kernels took on this very device.

In: ``DeviceCalibration`` and what a device has to do. Out: seconds. One bandwidth and one rate of operations can't
say how a CPU fares: a byte of ``q4_1`` takes it twice as long as one of ``q8_0``, and sixteen tokens at once take
``q4_K``, which is multiplied in blocks, hardly longer than four, while ``q4_1`` takes four times as long.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import place_tensors
from terazi.models.ggml_types import TYPE_BY_NAME
from terazi.models.spec import ModelSpec, Tensor
from terazi.performance.calibration import DeviceCalibration, KernelTime
from terazi.performance.routing import distinct_experts
from terazi.performance.traffic import DeviceTraffic, is_expert, skipped_blocks

#: Tables of which a token reads one row, unless tied to the output.
_EMBEDDING = "token_embd.weight"
_LOOKUPS = frozenset({_EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"})


class Matrices(NamedTuple):
    """Matrices of one type together: bytes, and rows that a token is multiplied with."""

    n_bytes: float = 0.0
    rows: float = 0.0


class KernelWork(NamedTuple):
    """The matrices that one device multiplies with, by ggml's name of their type.

    Args:
        dense: those that every token passes.
        experts: those of all routed experts.
        output: the output matrix: only tokens that are to be sampled pass it.
    """

    dense: Mapping[str, Matrices]
    experts: Mapping[str, Matrices]
    output: Mapping[str, Matrices]


#: How much longer a real model's matrices and layers take a CPU than made-up ones of the very same shape:
#: SmolLM2-135M Q4_1 on a virtual core of an EPYC, llama.cpp b11434, November 2026, took 1.13, 1.10, 1.04, 1.07 and
#: 1.02 times as long with 1, 4, 16, 24 and 96 tokens at once. The median; for cards nothing is known.
REAL_OVER_MADE_UP = 1.07
#: From so many tokens at once on a CPU computes attention in tiles, which is faster by half and more
#: (``GGML_FA_TILE_Q`` in ``ggml-cpu/common.h``, b11434).
ATTENTION_TILE = 64
_NOTHING = KernelWork({}, {}, {})


def kernel_work(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, isa: frozenset[str]
) -> Mapping[str, KernelWork]:
    """What each device multiplies with, ``Host`` included; vectors count as nothing, a layer's cost has them."""
    found: dict[str, KernelWork] = {}
    tied = not any(t.name == "output.weight" for t in spec.tensors)
    last_block = spec.block_count - skipped_blocks(spec)

    def put(device: str, tensor: Tensor, part: str) -> None:
        work = found.setdefault(device, KernelWork({}, {}, {}))
        into = getattr(work, part)
        before = into.get(tensor.dtype, Matrices())
        rows = math.prod(tensor.shape[1:])
        into[tensor.dtype] = Matrices(before.n_bytes + tensor.n_bytes, before.rows + rows)

    for placement in place_tensors(spec, settings, resolved, isa):
        tensor = placement.tensor
        if tensor.name in _LOOKUPS or len(tensor.shape) < 2:
            continue
        if tensor.block is not None and tensor.block >= last_block:
            continue
        part = "output" if tensor.name == "output.weight" else "experts" if is_expert(tensor) else "dense"
        put(placement.device, tensor, part)
    if tied:
        for tensor in spec.tensors:
            if tensor.name == _EMBEDDING:
                put(resolved.layer_devices[-1], tensor, "output")
    return found


def at_batch(batches: Sequence[tuple[int, float]], tokens: float) -> float:
    """Between the measured batches on a straight line; beyond the last, as steeply as at the end.

    Raises:
        ValueError: nothing was measured.
    """
    if not batches:
        raise ValueError("no batches")
    if tokens <= batches[0][0] or len(batches) == 1:
        return batches[0][1]
    for (a, low), (b, high) in pairwise(batches):
        if tokens <= b:
            return low + (high - low) * (tokens - a) / (b - a)
    (a, low), (b, high) = batches[-2:]
    # a batch never takes less than a smaller one did, whatever noise says
    return high + max(0.0, high - low) * (tokens - b) / (b - a)


def kernel_of(kernels: Sequence[KernelTime], dtype: str) -> KernelTime:
    """The measured kernel of *dtype*; of one that wasn't measured, that of the next in bytes an element.

    Raises:
        ValueError: nothing was measured.
    """
    if not kernels:
        raise ValueError("no kernels")
    same = next((k for k in kernels if k.dtype.lower() == dtype.lower()), None)
    if same is not None:
        return same
    wanted = next((kind for name, kind in TYPE_BY_NAME.items() if name.lower() == dtype.lower()), None)
    if wanted is None:
        return kernels[0]

    def apart(kernel: KernelTime) -> float:
        kind = TYPE_BY_NAME[kernel.dtype]
        return abs(math.log(wanted.block_bytes / wanted.block_size * kind.block_size / kind.block_bytes))

    return min(kernels, key=apart)


def weights_s(calibration: DeviceCalibration, by_type: Mapping[str, Matrices], tokens: float) -> float:
    """Seconds for the matrices *by_type*, *tokens* at once."""
    seconds = 0.0
    for dtype, matrices in by_type.items():
        kernel = kernel_of(calibration.kernels, dtype)
        seconds += matrices.n_bytes * at_batch(kernel.batches, tokens)
        seconds += matrices.rows * at_batch(kernel.rows, tokens) if kernel.rows else 0.0
    return seconds


def kernels_step_s(
    calibration: DeviceCalibration,
    spec: ModelSpec,
    work: KernelWork | None,
    load: DeviceTraffic,
    *,
    batch: int,
    depth: float,
) -> float:
    """Seconds of one device's part of a decode step for *batch* streams, each *depth* tokens deep."""
    work = work or _NOTHING
    seconds = weights_s(calibration, work.dense, batch) + weights_s(calibration, work.output, batch)
    seconds += _experts_s(calibration, spec, work, batch)
    seconds += load.layers * at_batch(calibration.layer_batches, batch)
    seconds *= _real(calibration)
    rate = calibration.attention_flops_per_s
    if rate is not None:
        pairs = sum(min(depth, c.window) if c.window is not None else depth for c in load.caches)
        seconds += batch * pairs * flops_per_pair(spec) / rate
    elif calibration.kv_bytes_per_s is not None:
        seconds += batch * load.kv_bytes(depth) / calibration.kv_bytes_per_s
    if work.output:
        seconds += calibration.step_s + batch * (calibration.token_s + spec.vocab_size * calibration.vocab_s)
    return seconds


def kernels_prompt_s(
    calibration: DeviceCalibration,
    spec: ModelSpec,
    work: KernelWork | None,
    load: DeviceTraffic,
    *,
    tokens: int,
    micro_batch: int,
    cached: int = 0,
    logits: bool = True,
) -> float:
    """Seconds of one device's part of a prompt of *tokens* tokens, of which *cached* are in the cache already.

    Without *logits* it isn't a prompt's end.
    """
    work = work or _NOTHING
    fresh = max(1, tokens - cached)
    whole, rest = divmod(fresh, micro_batch)
    seconds = 0.0
    for size, count in ((micro_batch, whole), (rest, 1)):
        if size and count:
            once = weights_s(calibration, work.dense, size) + _experts_s(calibration, spec, work, size)
            once += load.layers * at_batch(calibration.layer_batches, size)
            seconds += count * (_real(calibration) * once + (calibration.step_s if work.output else 0.0))
    seconds += _real(calibration) * weights_s(calibration, work.output, 1) if logits else 0.0
    few = fresh < ATTENTION_TILE or not calibration.prefill_attention_flops_per_s
    rate = calibration.attention_flops_per_s if few else calibration.prefill_attention_flops_per_s
    if rate is not None:
        pairs = load.pairs(tokens) - (load.pairs(cached) if cached else 0.0)
        seconds += pairs * flops_per_pair(spec) / rate
    return seconds


def flops_per_pair(spec: ModelSpec) -> float:
    """Operations of attention for one token and one token of its past, in one layer."""
    return 2.0 * max(spec.head_count, default=0) * (spec.key_length + spec.value_length)


def _real(calibration: DeviceCalibration) -> float:
    return REAL_OVER_MADE_UP if calibration.device == HOST else 1.0


def _experts_s(calibration: DeviceCalibration, spec: ModelSpec, work: KernelWork, tokens: int) -> float:
    """Only the experts that are touched are read, and each sees its share of the tokens."""
    if not work.experts or not spec.expert_count:
        return 0.0
    touched = distinct_experts(spec.expert_count, spec.expert_used_count, tokens)
    each = max(1.0, tokens * spec.expert_used_count / touched)
    return weights_s(calibration, work.experts, each) * touched / spec.expert_count

"""Seconds of one decode step or one prompt on one device, from bytes, operations and a handful of constants.

In: work and rates. Out: seconds. The constants live in ``efficiency``; what there is to read lives in ``traffic``.

A decode step reads every active weight once for the whole batch and each stream's own cache, so

    t = weights/(eta·bandwidth) + caches/(eta·bandwidth) + unpack·packed weights/flops + layers·c
        + extra operations/(phi·flops)

(Williams et al., "Roofline", CACM 2009; the per-layer term *c* is launch and synchronisation time, without which
one constant fraction of the bandwidth misses small models on fast cards by half). The operations of the first
stream are inside *eta*, because *eta* is fitted on single-stream runs; ``batch - 1`` more streams pay for theirs.
A prompt is worked in micro-batches. Beside its operations each of them passes the weights through memory, quantised
ones unpacked to 16 bits and back (llama.cpp ggml-cuda.cu:ggml_cuda_op_mul_mat_cublas), and every token passes
through each layer's smaller kernels, which cost by the width of the model rather than by its weights.
"""

from typing import NamedTuple

#: Bytes that unpacking a quantised weight to 16 bits writes and reads again.
UNPACKED_BYTES = 4.0
#: The most tokens that are multiplied token by token (``MMVQ_MAX_BATCH_SIZE``).
SMALL_BATCH = 8
#: Routed experts multiply in many small matrices: share of the dense rate that they reach in a prompt (gpt-oss 20B
#: and 120B and Qwen3 30B on GB10, Gemma 4 26B on RX 9070 XT; ``benchmarks/fit_speed.py``).
EXPERT_COMPUTE = 0.5
#: Bytes that a run without flash attention moves for each pair of tokens and head: scores in 32 bits, several
#: passes (llama.cpp rows of May 2024, prompts of 4096 and 8192 tokens; ``benchmarks/fit_speed.py``).
SCORE_BYTES = 26.0


class Efficiency(NamedTuple):
    """How much of its data sheet a class of device delivers under llama.cpp.

    Args:
        memory: fraction of the peak bandwidth while decoding (eta).
        layer_s: seconds of fixed cost a layer (c).
        compute: fraction of the peak FP16 rate while prefilling (phi).
        unpack: operations that unpacking one quantised weight costs while decoding, where that isn't hidden.
        passes: how much of a micro-batch's passage of weights through memory shows beside its operations.
        width_s: seconds that a prompt's token costs in each layer for each element of its hidden state.
        small_batch: how many times the operations of a prompt those of a second to eighth token with quantised
            weights cost: up to there llama.cpp multiplies token by token (ggml-cuda/mmvq.cuh).
    """

    memory: float
    layer_s: float
    compute: float
    unpack: float = 0.0
    passes: float = 0.0
    width_s: float = 0.0
    small_batch: float = 0.0


class Rates(NamedTuple):
    """What one device can do: peak bytes per second, peak FLOP per second, and its class's efficiency.

    The other four are of a calibrated machine: seconds of a step and of each of its streams whatever the model,
    bytes per second of caches, operations per second of streams after the first; None is as the class.
    """

    bandwidth: float
    flops: float
    efficiency: Efficiency
    step_s: float = 0.0
    token_s: float = 0.0
    kv_bytes_per_s: float | None = None
    batch_flops_per_s: float | None = None


class PromptWork(NamedTuple):
    """What a whole prompt makes one device do.

    Args:
        tokens: of the prompt.
        batches: micro-batches that it is worked in.
        layers: repeating layers on this device.
        hidden: elements of a token's hidden state.
        flops: operations with weights of the dense kind, and of attention.
        expert_flops: operations with routed experts.
        read_bytes: weights that one micro-batch reads.
        packed_weights: quantised weights that one micro-batch unpacks.
        score_bytes: attention scores that a run without flash attention moves.
    """

    tokens: int
    batches: int
    layers: int
    hidden: int
    flops: float
    expert_flops: float = 0.0
    read_bytes: float = 0.0
    packed_weights: float = 0.0
    score_bytes: float = 0.0


def decode_step_s(
    rates: Rates,
    *,
    read_bytes: float,
    kv_bytes: float,
    layers: int,
    flops_per_token: float,
    batch: int,
    packed_weights: float = 0.0,
    hidden: int = 0,
) -> float:
    """Seconds that one device needs for its part of a step that yields one token for each of *batch* streams.

    Args:
        read_bytes: weights read once for the batch.
        kv_bytes: cache and state read, all streams together.
        layers: repeating layers on this device.
        flops_per_token: operations of one token on this device.
        packed_weights: quantised weights among those read.
        hidden: elements of a token's hidden state.
    """
    e = rates.efficiency
    memory_s = read_bytes / (e.memory * rates.bandwidth)
    cache_s = kv_bytes / (rates.kv_bytes_per_s or e.memory * rates.bandwidth)
    unpack_s = e.unpack * packed_weights / rates.flops
    rate = rates.batch_flops_per_s or e.compute * rates.flops
    extra_s = (batch - 1) * (flops_per_token / rate + layers * hidden * e.width_s)
    if rates.batch_flops_per_s is None:
        extra_s += e.small_batch * (min(batch, SMALL_BATCH) - 1) * 2 * packed_weights / rate
    fixed_s = rates.step_s + batch * rates.token_s + layers * e.layer_s
    return memory_s + cache_s + unpack_s + fixed_s + extra_s


def prompt_s(rates: Rates, work: PromptWork) -> float:
    """Seconds that one device needs for its part of a prompt.

    A short prompt, or a slow memory, makes the weights' passage the limit rather than the operations.
    """
    e = rates.efficiency
    compute_s = (work.flops + work.expert_flops / EXPERT_COMPUTE) / (e.compute * rates.flops)
    passed = work.read_bytes + UNPACKED_BYTES * work.packed_weights
    passes_s = e.passes * work.batches * passed / rates.bandwidth
    memory_s = work.batches * work.read_bytes / (e.memory * rates.bandwidth)
    launches_s = work.batches * (work.layers * e.layer_s + rates.step_s)
    widths_s = work.tokens * work.layers * work.hidden * e.width_s
    return max(compute_s + passes_s, memory_s) + max(widths_s, launches_s) + work.score_bytes / rates.bandwidth

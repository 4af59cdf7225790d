"""Seconds of one decode step or one prompt on one device, from bytes, operations and a handful of constants.

In: work and rates. Out: seconds. The constants live in ``efficiency``; what there is to read lives in ``traffic``.

A decode step reads every active weight once for the whole batch and each stream's own cache, so

    t = (weights + caches) / (eta·bandwidth) + layers·c + extra operations / (phi·flops)

(Williams et al., "Roofline", CACM 2009; the per-layer term *c* is launch and synchronisation time, without which
one constant fraction of the bandwidth misses small models on fast cards by half). The operations of the first
stream are inside *eta*, because *eta* is fitted on single-stream runs; ``batch - 1`` more streams pay for theirs.
"""

from typing import NamedTuple


class Efficiency(NamedTuple):
    """How much of its data sheet a class of device delivers under llama.cpp.

    Args:
        memory: fraction of the peak bandwidth while decoding (eta).
        layer_s: seconds of fixed cost a layer (c).
        compute: fraction of the peak FP16 rate while prefilling (phi).
    """

    memory: float
    layer_s: float
    compute: float


class Rates(NamedTuple):
    """What one device can do: peak bytes per second, peak FLOP per second, and its class's efficiency."""

    bandwidth: float
    flops: float
    efficiency: Efficiency


def decode_step_s(
    rates: Rates, *, read_bytes: float, kv_bytes: float, layers: int, flops_per_token: float, batch: int
) -> float:
    """Seconds that one device needs for its part of a step that yields one token for each of *batch* streams.

    Args:
        read_bytes: weights read once for the batch.
        kv_bytes: cache and state read, all streams together.
        layers: repeating layers on this device.
        flops_per_token: operations of one token on this device.
    """
    e = rates.efficiency
    memory_s = (read_bytes + kv_bytes) / (e.memory * rates.bandwidth)
    extra_s = (batch - 1) * flops_per_token / (e.compute * rates.flops)
    return memory_s + layers * e.layer_s + extra_s


def prefill_s(
    rates: Rates, *, flops: float, read_bytes_per_batch: float, kv_bytes: float, layers: int, batches: int
) -> float:
    """Seconds that one device needs for its part of a prompt of *batches* micro-batches.

    A short prompt, or a slow memory, makes the weights' passage the limit rather than the operations.
    """
    e = rates.efficiency
    compute_s = flops / (e.compute * rates.flops)
    memory_s = (batches * read_bytes_per_batch + kv_bytes) / (e.memory * rates.bandwidth)
    return max(compute_s, memory_s) + batches * layers * e.layer_s


def distinct_experts(experts: int, used: int, batch: int) -> float:
    """How many of *experts* a batch touches in one layer when each token draws *used* at random: E(1-(1-k/E)^B).

    Real routing is skewed, so this is an upper bound: gpt-oss-120b at 32 streams on a GB10 leaves room for at most
    55 experts a layer where this formula says 82 (llama.cpp ``benches/dgx-spark``, November 2025).
    """
    if experts <= 0:
        return 0.0
    share = min(1.0, used / experts)
    return float(experts * (1 - (1 - share) ** max(1, batch)))

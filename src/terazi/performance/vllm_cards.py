"""What a card delivers under vLLM, and how far off such a guess has been.

In: a ``Device`` or a ``Host``, how the weights are stored. Out: a ``Rank`` with what it rests on. The constants are
those of ``benchmarks/fit_serving.py`` over ``benchmarks/data/measured_serving.csv`` and ``measured_vllm.csv``
(vLLM 0.11-0.18 on H100 SXM, one set for all 13 models); other cards keep them and bring their own bandwidth and
operations. RTX 3090 rows of the second table check that.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from terazi.hardware.machine import Device, Host
from terazi.memory.vllm.target import Platform, Target
from terazi.performance.calibration import Calibration
from terazi.performance.efficiency import Ground, speed_of_device, speed_of_host
from terazi.performance.stage import Rank

#: Share of the bandwidth that weights and caches are read at.
MEMORY, KV_MEMORY = 0.79, 0.92
#: Share of the listed rate that large GEMMs reach: 16 bits, 8 bits, and weights that are unpacked on the way. The
#: kernels that unpack (Marlin) multiply as Ampere does, which is half of what Hopper can: two RTX 3090 read a
#: prompt of a 27B in 4 bits at 1,956 tok/s, 0.72 of their listed rate (club-3090 issue 698).
COMPUTE: Final[Mapping[str, float]] = {"16": 0.65, "8": 0.70, "4": 0.35}
#: Seconds a layer inside a CUDA graph, and what routed experts add; seconds a step; seconds each stream adds.
LAYER_S, EXPERT_S, STEP_S, TOKEN_S = 37e-6, 40e-6, 0.5e-3, 58e-6
#: Without a graph each layer's dozen kernels are launched one by one (44-69 us a call in aiconfigurator's tables).
EAGER_LAYER_S: Final = 120e-6
#: Cards from this compute capability on multiply in 8 bits at twice the rate.
_FLOAT8_FROM: Final = 89
#: Cards from this one on multiply by warp groups, which unpacking kernels don't.
_WARP_GROUPS_FROM: Final = 90
#: The card of the table.
_MEASURED: Final = ("H100 SXM5", "H100 80GB HBM3")
#: The CPU build: no table says; a step's fixed costs are assumed.
_CPU_STEP_S, _CPU_TOKEN_S = 3e-3, 0.2e-3

#: Measured over predicted that eight rows of ten stay within, from below and from above: per token, to the first
#: token, prompts. Unseen cards from the RTX 3090 rows.
TOKEN_SPREAD: Final[Mapping[Ground, tuple[float, float]]] = {
    Ground.CALIBRATED: (0.88, 1.14),
    Ground.SAME_CARD: (0.80, 1.20),
    Ground.UNSEEN_CARD: (0.75, 1.40),
    Ground.THIN_CLASS: (0.55, 1.80),
    Ground.ASSUMED: (0.40, 2.50),  # assumed
}
FIRST_SPREAD: Final[Mapping[Ground, tuple[float, float]]] = {
    Ground.CALIBRATED: (0.80, 1.25),
    Ground.SAME_CARD: (0.70, 1.40),
    Ground.UNSEEN_CARD: (0.55, 1.80),
    Ground.THIN_CLASS: (0.45, 2.20),
    Ground.ASSUMED: (0.33, 3.00),  # assumed
}


class Card(NamedTuple):
    """One rank's rates, what they rest on, and that in words."""

    rank: Rank
    ground: Ground
    words: str


def bits_class(bits: float) -> str:
    """``16``, ``8`` or ``4``: how weights of *bits* bits are multiplied."""
    if bits > 8:
        return "16"
    return "8" if bits > 5 else "4"


def card_rank(
    device: Device, target: Target, bits: float, *, graph: bool = True, calibration: Calibration | None = None
) -> Card:
    """What *device* should deliver with weights of *bits* bits."""
    found = calibration.device(device.id, device.name) if calibration is not None else None
    known = speed_of_device(device, found)
    kind = bits_class(bits)
    listed = device.flops_fp16.value or known.rates.flops
    capability = target.capability or 0
    double = kind == "8" and capability >= _FLOAT8_FROM
    flops = listed * (2.0 if double else 1.0)
    compute = COMPUTE[kind]
    if kind == "4" or (kind == "8" and not double):
        compute = COMPUTE["4"] if capability >= _WARP_GROUPS_FROM else COMPUTE["16"]
    bandwidth = known.rates.bandwidth
    memory, kv_memory = MEMORY, KV_MEMORY
    if found is not None and found.decode_bytes_per_s is not None:
        memory = kv_memory = 1.0
    if found is not None and found.prefill_flops_per_s is not None:
        flops, compute = found.prefill_flops_per_s, 1.0
    ground, words = known.ground, known.words
    if ground is not Ground.CALIBRATED and ground is not Ground.ASSUMED:
        same = any(name in device.name for name in _MEASURED)
        ground = Ground.SAME_CARD if same else Ground.UNSEEN_CARD
        words = (
            f"{device.name}: measured runs of vLLM on this very card"
            if same
            else f"{device.name}: {bandwidth / 1e9:.0f} GB/s under constants of vLLM on H100"
        )
        if target.platform is not Platform.CUDA:
            ground = Ground.THIN_CLASS
    layer_s = found.layer_s if found is not None and found.layer_s is not None else LAYER_S
    rank = Rank(
        bandwidth=bandwidth,
        memory=memory,
        kv_memory=kv_memory,
        flops=flops,
        attention_flops=listed,
        compute=compute,
        layer_s=layer_s if graph else layer_s + EAGER_LAYER_S,
        expert_s=EXPERT_S if graph else EXPERT_S + EAGER_LAYER_S,
        step_s=STEP_S if found is None else found.step_s or STEP_S,
        token_s=TOKEN_S if found is None else found.token_s or TOKEN_S,
    )
    return Card(rank, ground, words)


def host_rank(host: Host, calibration: Calibration | None = None) -> Card:
    """What the CPU build should deliver."""
    found = calibration.device("Host", host.cpu_name or "CPU") if calibration is not None else None
    known = speed_of_host(host, found)
    e = known.rates.efficiency
    rank = Rank(
        bandwidth=known.rates.bandwidth,
        memory=e.memory,
        kv_memory=e.memory,
        flops=known.rates.flops,
        attention_flops=known.rates.flops,
        compute=e.compute,
        layer_s=e.layer_s,
        expert_s=e.layer_s,
        step_s=known.rates.step_s or _CPU_STEP_S,
        token_s=known.rates.token_s or _CPU_TOKEN_S,
    )
    ground = Ground.CALIBRATED if known.ground is Ground.CALIBRATED else Ground.ASSUMED
    return Card(rank, ground, f"{known.words}; vLLM's CPU build was never measured here")

"""The constants: what each class of device delivers under llama.cpp, and how far off such a guess has been.

In: a ``Device`` or a ``Host``. Out: its class, its rates, and what they rest on. Every number without "assumed"
beside it is a line of ``benchmarks/fit_speed.py``'s print-out over ``benchmarks/data/measured_speed.csv``
(llama.cpp rows of 2023-2026, each with its source); a change of the table shows there first.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from terazi.hardware.host import cpu_flops
from terazi.hardware.machine import Basis, Device, Figure, Host
from terazi.performance.card_factors import decode_factor, prompt_factor
from terazi.performance.roofline import Efficiency, Rates

if TYPE_CHECKING:
    from terazi.performance.calibration import DeviceCalibration


class CardClass(StrEnum):
    """Devices that share constants."""

    GEFORCE = "geforce"
    PRO = "pro"  # NVIDIA workstation and inference cards with GDDR
    HBM = "hbm"  # NVIDIA data-centre cards with HBM
    AMD = "amd"
    APPLE = "apple"
    SOC = "soc"  # memory shared with the CPU: GB10, Strix Halo, integrated graphics
    CPU = "cpu"
    OTHER = "other"


class Ground(StrEnum):
    """What a speed figure rests on; it sets the width of the interval."""

    CALIBRATED = "calibrated"  # timed on this machine
    SAME_CARD = "same-card"  # this very card is in the table
    UNSEEN_CARD = "unseen-card"  # its class is, with four cards or more
    THIN_CLASS = "thin-class"  # its class has three cards or fewer
    ASSUMED = "assumed"  # not even the bandwidth is known


#: Classes whose decode constants are fitted together: they behave alike once the bandwidth is accounted for.
DECODE_POOL: Final[Mapping[CardClass, str]] = {
    CardClass.GEFORCE: "nvidia",
    CardClass.PRO: "nvidia",
    CardClass.HBM: "hbm",
    CardClass.AMD: "amd",
    CardClass.APPLE: "apple",
    CardClass.SOC: "soc",
    CardClass.CPU: "cpu",
    CardClass.OTHER: "amd",
}

#: The same for prompts: one set of constants holds for every NVIDIA card.
PROMPT_POOL: Final[Mapping[CardClass, str]] = {
    CardClass.GEFORCE: "nvidia",
    CardClass.PRO: "nvidia",
    CardClass.HBM: "nvidia",
    CardClass.AMD: "amd",
    CardClass.APPLE: "apple",
    CardClass.SOC: "soc",
    CardClass.OTHER: "amd",
}

#: RTX 3090, 8B Q4_0, 1 to 8 tokens at once: 6.5, 7.2, 7.7, 8.5, 9.7, 11.3, 12.5, 14.0 ms (llama.cpp PR 15802).
_SMALL_BATCH: Final = 5.0
#: Of a prompt on any NVIDIA card with tensor cores (phi, passes, width).
_NVIDIA_PROMPT: Final = (0.76, 0.52, 5.8e-10)


def _nvidia(memory: float, layer_s: float) -> Efficiency:
    compute, passes, width_s = _NVIDIA_PROMPT
    return Efficiency(
        memory=memory, layer_s=layer_s, compute=compute, passes=passes, width_s=width_s, small_batch=_SMALL_BATCH
    )


#: The constants of each class. Apple's narrow GPUs show what unpacking costs; elsewhere it hides behind the memory.
#: The CPU's one row can't tell eta from c: a barrier of 20 us a layer is assumed, and phi too: the rate of
#: the instruction set is a ceiling, of which an i9-13900K reached 0.7 and two shared virtual cores of an EPYC 0.1.
CLASSES: Final[Mapping[CardClass, Efficiency]] = {
    CardClass.GEFORCE: _nvidia(0.84, 50e-6),
    CardClass.PRO: _nvidia(0.84, 50e-6),
    CardClass.HBM: _nvidia(0.72, 130e-6),
    CardClass.AMD: Efficiency(memory=0.78, layer_s=100e-6, compute=0.41),
    CardClass.APPLE: Efficiency(memory=0.88, layer_s=200e-6, compute=0.70, unpack=5.0),
    CardClass.SOC: Efficiency(
        memory=0.84, layer_s=60e-6, compute=0.40, passes=0.52, width_s=5.8e-10, small_batch=1.0
    ),
    CardClass.CPU: Efficiency(memory=0.70, layer_s=20e-6, compute=0.25),
    CardClass.OTHER: Efficiency(memory=0.78, layer_s=100e-6, compute=0.41),
}

#: llama.cpp multiplies with 16-bit accumulation, which GeForce cards do at twice the rate that the catalogue lists.
_GEFORCE_DOUBLE: Final = 2.0

#: Classes with three cards or fewer in the table.
THIN_CLASSES: Final = frozenset({CardClass.HBM, CardClass.AMD, CardClass.SOC, CardClass.CPU, CardClass.OTHER})

#: Measured over predicted that eight runs of ten stay within, from below and from above.
DECODE_SPREAD: Final[Mapping[Ground, tuple[float, float]]] = {
    Ground.CALIBRATED: (0.91, 1.10),  # where the calibration has too few runs for a spread of its own
    Ground.SAME_CARD: (0.90, 1.10),
    Ground.UNSEEN_CARD: (0.87, 1.13),
    Ground.THIN_CLASS: (0.73, 1.38),
    Ground.ASSUMED: (0.40, 2.50),  # assumed
}

#: The same for prompts; wider, because a class's cards differ by half in the fraction that they reach.
PREFILL_SPREAD: Final[Mapping[Ground, tuple[float, float]]] = {
    Ground.CALIBRATED: (0.85, 1.18),
    Ground.SAME_CARD: (0.82, 1.17),
    Ground.UNSEEN_CARD: (0.70, 1.28),
    Ground.THIN_CLASS: (0.63, 1.48),
    Ground.ASSUMED: (0.33, 3.00),  # assumed
}

#: Assumed where a figure is missing.
_ASSUMED_CARD_BANDWIDTH: Final = 300e9
#: Bytes per second that one core takes in while it unpacks quantised weights, before eta: eight cores of an
#: i9-13900K took 12 GB/s each, two shared virtual cores of an EPYC 7 GB/s each.
_ASSUMED_CORE_BANDWIDTH: Final = 10e9
_ASSUMED_RAM_BANDWIDTH: Final = 50e9  # two channels of ordinary memory
_ASSUMED_CORE_FLOPS: Final = 20e9
#: What a token of the smallest model in the table reads (Llama 3.2 3B, Q4_K_M).
_SMALLEST_READ: Final = 2.02e9
#: Cards without usable FP16 (GTX 10 series) compute in FP32 and int8: at least this many operations per byte.
_MIN_FLOPS_PER_BYTE: Final = 25.0
#: Apple's newest chips list no rate; those that do have 25 to 38 operations a byte, the later ones 33 to 40.
_APPLE_FLOPS_PER_BYTE: Final = 34.0

# Compiled when first used (``re`` keeps them): a machine without cards needs none.
_HBM: Final = r"\b(A30|A100|H100|H200|H20|GH200|B100|B200|GB200|B300|V100|P100|A800|H800)"
_SOC: Final = r"(?i)GB10|Strix|Ryzen|8060S|Jetson|Thor|Orin"


class Speed(NamedTuple):
    """One device's rates, what they rest on, and that in words; the spreads are a calibrated machine's own."""

    rates: Rates
    card_class: CardClass
    ground: Ground
    words: str
    decode_spread: tuple[float, float] | None = None
    prefill_spread: tuple[float, float] | None = None


def classify(device: Device) -> CardClass:
    """The class of *device*, by vendor and name."""
    vendor, name = device.vendor.lower(), device.name
    if "apple" in vendor or name.startswith("Apple"):
        return CardClass.APPLE
    if re.search(_SOC, name) or device.unified_memory:
        return CardClass.SOC
    if "amd" in vendor or "radeon" in name.lower():
        return CardClass.AMD
    if "nvidia" in vendor or device.backend.upper().startswith("CUDA"):
        if re.search(_HBM, name):
            return CardClass.HBM
        return CardClass.GEFORCE if re.search(r"GeForce|GTX|TITAN", name) else CardClass.PRO
    return CardClass.OTHER


def with_factor(efficiency: Efficiency, factor: float) -> Efficiency:
    """Constants that decode *factor* times as fast."""
    return efficiency._replace(
        memory=efficiency.memory * factor,
        layer_s=efficiency.layer_s / factor,
        unpack=efficiency.unpack / factor,
    )


def with_prompt_factor(efficiency: Efficiency, factor: float) -> Efficiency:
    """Constants that prefill *factor* times as fast."""
    return efficiency._replace(
        compute=efficiency.compute * factor,
        passes=efficiency.passes / factor,
        width_s=efficiency.width_s / factor,
    )


def prompt_flops(card_class: CardClass, listed: float | None, bandwidth: float) -> float:
    """The rate that a prompt's operations are measured against: with 16-bit accumulation, as llama.cpp does."""
    if listed is None and card_class is CardClass.APPLE:
        return _APPLE_FLOPS_PER_BYTE * bandwidth
    doubled = (listed or 0.0) * (_GEFORCE_DOUBLE if card_class is CardClass.GEFORCE else 1.0)
    return max(doubled, _MIN_FLOPS_PER_BYTE * bandwidth)


def speed_of_device(device: Device, calibrated: "DeviceCalibration | None" = None) -> Speed:
    """What *device* should deliver; what was *calibrated* on this machine counts before any table."""
    card_class = classify(device)
    efficiency = CLASSES[card_class]
    factor = decode_factor(device.name)
    known = _known(device.memory_bandwidth)
    bandwidth = known if known is not None else _ASSUMED_CARD_BANDWIDTH
    if known is None:
        ground, words = Ground.ASSUMED, f"{device.name}: bandwidth not known, {bandwidth / 1e9:.0f} GB/s assumed"
    elif factor is not None:
        ground, words = Ground.SAME_CARD, f"{device.name}: measured runs of this very card"
    elif card_class in THIN_CLASSES:
        ground = Ground.THIN_CLASS
        words = f"{device.name}: {bandwidth / 1e9:.0f} GB/s, few measured cards of its class ({card_class})"
    else:
        ground = Ground.UNSEEN_CARD
        words = f"{device.name}: {bandwidth / 1e9:.0f} GB/s, measured runs of other {card_class} cards"
    if factor is not None:
        efficiency = with_factor(efficiency, factor)
    flops = prompt_flops(card_class, _known(device.flops_fp16), bandwidth)
    prompt = prompt_factor(device.name)
    if prompt is not None:
        efficiency = with_prompt_factor(efficiency, prompt)
    speed = Speed(
        rates=Rates(bandwidth=bandwidth, flops=flops, efficiency=efficiency),
        card_class=card_class,
        ground=ground,
        words=words,
    )
    return speed if calibrated is None else with_calibration(speed, calibrated)


def with_calibration(speed: Speed, found: "DeviceCalibration") -> Speed:
    """*speed* with what was measured on this machine in place of the class's constants."""
    rates, e = speed.rates, speed.rates.efficiency
    if found.decode_bytes_per_s is not None:
        rates = rates._replace(bandwidth=found.decode_bytes_per_s)
        e = e._replace(memory=1.0, unpack=0.0)
    if found.layer_s is not None:
        e = e._replace(layer_s=found.layer_s)
    if found.prefill_flops_per_s is not None:
        rates = rates._replace(flops=found.prefill_flops_per_s)
        e = e._replace(compute=1.0, passes=0.0, width_s=0.0)
    rates = rates._replace(
        efficiency=e,
        step_s=found.step_s,
        token_s=found.token_s,
        kv_bytes_per_s=found.kv_bytes_per_s,
        batch_flops_per_s=found.batch_flops_per_s,
    )
    return speed._replace(
        rates=rates,
        ground=Ground.CALIBRATED,
        words=f"{found.name}: calibrated on this machine, {found.points} runs",
        decode_spread=found.decode_spread,
        prefill_spread=found.prefill_spread,
    )


def speed_of_host(host: Host, calibrated: "DeviceCalibration | None" = None) -> Speed:
    """What the CPU and its RAM should deliver; what was *calibrated* on this machine counts first."""
    name = host.cpu_name or "CPU"
    cores = max(1, host.cores)
    known = _known(host.ram_bandwidth)
    basis = host.ram_bandwidth.basis
    bandwidth = known if known is not None else _ASSUMED_RAM_BANDWIDTH
    if known is None or basis is not Basis.MEASURED:
        bandwidth = min(bandwidth, cores * _ASSUMED_CORE_BANDWIDTH)
    sure = known is not None and basis is not Basis.ASSUMED
    flops = _known(host.flops) or _known(cpu_flops(host.isa, cores)) or cores * _ASSUMED_CORE_FLOPS
    if sure:
        words = f"{name}: RAM at {bandwidth / 1e9:.0f} GB/s ({basis}), few measured CPUs"
    else:
        words = f"{name}: RAM bandwidth assumed, not measured: {bandwidth / 1e9:.0f} GB/s for {cores} cores"
    speed = Speed(
        rates=Rates(bandwidth=bandwidth, flops=flops, efficiency=CLASSES[CardClass.CPU]),
        card_class=CardClass.CPU,
        ground=Ground.THIN_CLASS if sure else Ground.ASSUMED,
        words=words,
    )
    return speed if calibrated is None else with_calibration(speed, calibrated)


def small_model_factor(read_bytes: float) -> float:
    """How much wider an interval gets, each way, for a model below the table's smallest on a card.

    There the launches decide, not the bytes, and no run says how well the cost per layer carries over: assumed to
    be off by half at a twentieth of the size.
    """
    return float(max(1.0, _SMALLEST_READ / max(read_bytes, 1.0)) ** 0.14)


def _known(figure: Figure) -> float | None:
    return figure.value if figure.value is not None and figure.value > 0 else None

"""The constants: what each class of device delivers under llama.cpp, and how far off such a guess has been.

In: a ``Device`` or a ``Host``. Out: its class, its rates, and what they rest on. Every number without "assumed"
beside it is a line of ``benchmarks/fit_speed.py``'s print-out over ``benchmarks/data/measured_speed.csv``
(llama.cpp rows of 2023-2026, each with its source); a change of the table shows there first.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

from terazi.hardware.host import cpu_flops
from terazi.hardware.machine import Basis, Device, Figure, Host
from terazi.performance.roofline import Efficiency, Rates


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
    CardClass.OTHER: "all",
}

#: eta, c, phi per class. AMD's own three cards disagree by a factor of three, so AMD takes the constants of all
#: cards. The CPU's one row can't tell eta from c: a barrier of 20 us a layer is assumed, and phi too: the rate of
#: the instruction set is a ceiling, of which an i9-13900K reached 0.7 and two shared virtual cores of an EPYC 0.1.
CLASSES: Final[Mapping[CardClass, Efficiency]] = {
    CardClass.GEFORCE: Efficiency(memory=0.84, layer_s=50e-6, compute=0.87),
    CardClass.PRO: Efficiency(memory=0.84, layer_s=50e-6, compute=0.30),
    CardClass.HBM: Efficiency(memory=0.72, layer_s=130e-6, compute=0.32),
    CardClass.AMD: Efficiency(memory=0.80, layer_s=50e-6, compute=0.48),
    CardClass.APPLE: Efficiency(memory=0.76, layer_s=210e-6, compute=0.63),
    CardClass.SOC: Efficiency(memory=0.84, layer_s=60e-6, compute=0.31),
    CardClass.CPU: Efficiency(memory=0.70, layer_s=20e-6, compute=0.25),
    CardClass.OTHER: Efficiency(memory=0.80, layer_s=50e-6, compute=0.40),
}

#: Classes with three cards or fewer in the table.
THIN_CLASSES: Final = frozenset({CardClass.HBM, CardClass.AMD, CardClass.SOC, CardClass.CPU, CardClass.OTHER})

#: Measured over predicted, median of the card's rows. Keys are the catalogue's names.
CARD_FACTOR: Final[Mapping[str, float]] = {
    "GeForce RTX 2080 Ti": 0.91,
    "GeForce RTX 3060 12 GB": 0.96,
    "GeForce RTX 3070": 1.01,
    "GeForce RTX 3080": 0.96,
    "GeForce RTX 3090": 0.92,
    "GeForce RTX 3090 Ti": 0.94,
    "GeForce RTX 4070": 1.00,
    "GeForce RTX 4070 Ti": 1.09,
    "GeForce RTX 4070 Ti SUPER": 1.00,
    "GeForce RTX 5060 Ti 16 GB": 1.06,
    "RTX A4000": 1.02,
    "RTX 5000 Ada Generation": 1.05,
    "RTX 6000 Ada Generation": 1.04,
    "A40 PCIe": 0.90,
    "RTX PRO 6000 Blackwell": 0.90,
    "A100 SXM4 80 GB": 0.96,
    "H100 PCIe 80 GB": 0.99,
    "Tesla V100 PCIe 32 GB": 1.13,
    "Apple M1 (8-core GPU)": 0.96,
    "Apple M1 Max": 0.77,
    "Apple M1 Ultra": 0.92,
    "Apple M2 Ultra (76)": 1.12,
    "Apple M4 (10)": 1.17,
    "DGX Spark (GB10)": 0.99,
    "Radeon AI PRO R9700": 1.02,
    "Radeon RX 7900 XT": 0.60,
    "Radeon RX 9070 XT": 1.27,
}

#: Measured over predicted that eight runs of ten stay within, from below and from above.
DECODE_SPREAD: Final[Mapping[Ground, tuple[float, float]]] = {
    Ground.SAME_CARD: (0.88, 1.10),
    Ground.UNSEEN_CARD: (0.80, 1.22),
    Ground.THIN_CLASS: (0.60, 1.60),
    Ground.ASSUMED: (0.40, 2.50),  # assumed
}

#: The same for prompts; wider, because a class's cards differ by half in the fraction that they reach.
PREFILL_SPREAD: Final[Mapping[Ground, tuple[float, float]]] = {
    Ground.SAME_CARD: (0.75, 1.30),
    Ground.UNSEEN_CARD: (0.65, 1.45),
    Ground.THIN_CLASS: (0.50, 2.00),
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

# Compiled when first used (``re`` keeps them): a machine without cards needs none.
_HBM: Final = r"\b(A30|A100|H100|H200|H20|GH200|B100|B200|GB200|B300|V100|P100|A800|H800)"
_SOC: Final = r"(?i)GB10|Strix|Ryzen|8060S|Jetson|Thor|Orin"


class Speed(NamedTuple):
    """One device's rates, what they rest on, and that in words."""

    rates: Rates
    card_class: CardClass
    ground: Ground
    words: str


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


def card_factor(name: str) -> float | None:
    """The measured factor of the card called *name* by its driver or by the catalogue; None if it isn't there."""
    return _factor_by_key().get(_key(name))


def with_factor(efficiency: Efficiency, factor: float) -> Efficiency:
    """Constants that decode *factor* times as fast."""
    return Efficiency(
        memory=efficiency.memory * factor, layer_s=efficiency.layer_s / factor, compute=efficiency.compute
    )


def speed_of_device(device: Device) -> Speed:
    """What *device* should deliver."""
    card_class = classify(device)
    efficiency = CLASSES[card_class]
    factor = card_factor(device.name)
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
    flops = max(_known(device.flops_fp16) or 0.0, _MIN_FLOPS_PER_BYTE * bandwidth)
    return Speed(
        rates=Rates(bandwidth=bandwidth, flops=flops, efficiency=efficiency),
        card_class=card_class,
        ground=ground,
        words=words,
    )


def speed_of_host(host: Host) -> Speed:
    """What the CPU and its RAM should deliver."""
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
    return Speed(
        rates=Rates(bandwidth=bandwidth, flops=flops, efficiency=CLASSES[CardClass.CPU]),
        card_class=CardClass.CPU,
        ground=Ground.THIN_CLASS if sure else Ground.ASSUMED,
        words=words,
    )


def small_model_factor(read_bytes: float) -> float:
    """How much wider an interval gets, each way, for a model below the table's smallest on a card.

    There the launches decide, not the bytes, and no run says how well the cost per layer carries over: assumed to
    be off by half at a twentieth of the size.
    """
    return float(max(1.0, _SMALLEST_READ / max(read_bytes, 1.0)) ** 0.14)


def _known(figure: Figure) -> float | None:
    return figure.value if figure.value is not None and figure.value > 0 else None


def _key(name: str) -> str:
    return re.sub(r"nvidia|amd|[^a-z0-9]", "", name.lower())


@cache
def _factor_by_key() -> Mapping[str, float]:
    return {_key(name): factor for name, factor in CARD_FACTOR.items()}

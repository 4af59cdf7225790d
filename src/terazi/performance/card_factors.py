"""What single cards were measured to deliver beside their class: a factor for decode and one for prompts.

In: a card's name as its driver or the catalogue writes it. Out: measured over predicted, or None. Each figure is a
line of ``benchmarks/fit_speed.py``'s print-out over ``benchmarks/data/measured_speed.csv``.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

#: Measured over predicted, median of the card's rows. Keys are the catalogue's names.
DECODE_FACTOR: Final[Mapping[str, float]] = {
    "GeForce RTX 3070": 1.01,
    "GeForce RTX 3080": 0.96,
    "GeForce RTX 4070 Ti": 1.09,
    "GeForce RTX 3090": 0.92,
    "RTX 5000 Ada Generation": 1.05,
    "RTX 6000 Ada Generation": 1.04,
    "A40 PCIe": 0.90,
    "A100 SXM4 80 GB": 0.96,
    "H100 PCIe 80 GB": 0.99,
    "Apple M1 (8-core GPU)": 0.98,
    "Apple M1 Max": 0.82,
    "Apple M2 Ultra (76)": 1.03,
    "Radeon AI PRO R9700": 1.18,
    "RTX PRO 6000 Blackwell": 0.90,
    "GeForce RTX 3090 Ti": 0.94,
    "Apple M4 (10)": 1.19,
    "Tesla V100 PCIe 32 GB": 1.13,
    "GeForce RTX 2080 Ti": 0.91,
    "Apple M1 Ultra": 0.94,
    "GeForce RTX 3060 12 GB": 0.96,
    "DGX Spark (GB10)": 0.99,
    "GeForce RTX 4070 Ti SUPER": 1.00,
    "GeForce RTX 4070": 1.00,
    "RTX A4000": 1.02,
    "Radeon RX 7900 XT": 0.91,
    "Radeon RX 9070 XT": 1.49,
    "GeForce RTX 5060 Ti 16 GB": 1.06,
    "Radeon RX 7900 XTX": 1.00,
    "Radeon RX 6700 XT": 0.99,
    "Arc B580": 1.00,
    "GeForce RTX 5090": 1.09,
}

#: The same for prompts.
PROMPT_FACTOR: Final[Mapping[str, float]] = {
    "GeForce RTX 3070": 0.98,
    "GeForce RTX 3080": 1.08,
    "GeForce RTX 4070 Ti": 1.07,
    "GeForce RTX 3090": 1.03,
    "RTX 5000 Ada Generation": 1.07,
    "RTX 6000 Ada Generation": 1.01,
    "A40 PCIe": 0.90,
    "A100 SXM4 80 GB": 0.93,
    "H100 PCIe 80 GB": 0.97,
    "Apple M1 (8-core GPU)": 0.79,
    "Apple M1 Max": 0.75,
    "Apple M2 Ultra (76)": 0.91,
    "DGX Spark (GB10)": 0.79,
    "Radeon Instinct MI50": 1.51,
    "Tesla V100 PCIe 32 GB": 0.98,
    "Apple M2 (10-core GPU)": 1.04,
    "Apple M4 (10)": 1.19,
    "Radeon RX 9070 XT": 0.91,
    "Radeon RX 7900 XTX": 0.98,
    "Radeon RX 7900 XT": 0.85,
    "Radeon RX 6700 XT": 1.37,
    "Radeon RX 6800 XT": 1.06,
    "Arc B580": 0.71,
}


def decode_factor(name: str) -> float | None:
    """How much faster or slower than its class the card called *name* decodes; None if it was never measured."""
    return _keyed("decode").get(_key(name))


def prompt_factor(name: str) -> float | None:
    """The same for prompts."""
    return _keyed("prompt").get(_key(name))


def _key(name: str) -> str:
    return re.sub(r"nvidia|amd|[^a-z0-9]", "", name.lower())


@cache
def _keyed(kind: str) -> Mapping[str, float]:
    table = DECODE_FACTOR if kind == "decode" else PROMPT_FACTOR
    return {_key(name): factor for name, factor in table.items()}

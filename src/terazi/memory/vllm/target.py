"""What vLLM runs on: the CPU, or cards of one maker; and what a card's generation can do.

In: ``Device``s, the host's instruction sets. Out: ``Target``. Compute capabilities are NVIDIA's published ones.
"""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from terazi.hardware.machine import Device


class Platform(StrEnum):
    """``vllm.platforms.current_platform``."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"


#: Names → compute capability × 10; the first that matches counts.
_CAPABILITIES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), capability)
    for pattern, capability in (
        (r"\bGB10\b|DGX Spark", 121),
        (r"\bGB?300\b|\bB300\b", 103),
        (r"\bGB200\b|\bB200\b|\bB100\b", 100),
        (r"RTX PRO \d|RTX (?:Pro )?\d000 Blackwell|\b50[5-9]0\b", 120),
        (r"\bGH200\b|\bH[12]\d0\b|\bH800\b|\bH20\b", 90),
        (r"\bL40S?\b|\bL4\b|\bL20\b|\b40[5-9]0\b|RTX \d000 Ada|\bAda\b", 89),
        (r"Orin", 87),
        (r"\bA100\b|\bA800\b|\bA30\b|CMP 170", 80),
        (r"\b30[5-9]0\b|\bA(?:10G?|16|2|40|[2456]000|4500|5500)\b", 86),
        (r"\bT4\b|\b20[6-8]0\b|\b16[56]0\b|Quadro RTX|TITAN RTX|\bT\d{3,4}\b", 75),
        (r"\bV100\b|TITAN V|GV100|Xavier", 70),
        (r"\bP100\b", 60),
        (r"\bP40\b|\bP4\b|\b10[5-8]0\b|TITAN X", 61),
        (r"\bM40\b|\bM60\b|\b9[5-8]0\b", 52),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of hardware.

    ``capability`` is NVIDIA's compute capability times ten (86 for an RTX 3090); None if it isn't known or there is
    none. ``memory_bytes`` and ``name`` are the first card's: vLLM takes its defaults from that one.
    """

    platform: Platform
    capability: int | None = None
    memory_bytes: int = 0
    name: str = ""
    isa: frozenset[str] = frozenset()

    @property
    def gpu(self) -> bool:
        """Whether there are cards."""
        return self.platform is not Platform.CPU


def target_of(devices: Sequence[Device], isa: AbstractSet[str]) -> Target:
    """What vLLM would run on: the first card that it supports decides; without one it is the CPU's build."""
    for device in devices:
        if device.backend in {"cuda", "rocm"}:
            return Target(
                platform=Platform.CUDA if device.backend == "cuda" else Platform.ROCM,
                capability=capability_of(device.name) if device.backend == "cuda" else None,
                memory_bytes=device.memory_total_bytes,
                name=device.name,
                isa=frozenset(isa),
            )
    return Target(platform=Platform.CPU, isa=frozenset(isa))


def usable(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The cards that one engine can use: all of the first supported card's kind."""
    kind = next((d.backend for d in devices if d.backend in {"cuda", "rocm"}), None)
    return tuple(d for d in devices if d.backend == kind)


def capability_of(name: str) -> int | None:
    """Compute capability × 10 of the NVIDIA card *name*; None if the name isn't known."""
    return next((capability for pattern, capability in _CAPABILITIES if pattern.search(name)), None)

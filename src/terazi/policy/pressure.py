"""Reads a sample against limits: what is short, in words, and how many bytes would have to come back."""

from collections.abc import Iterator
from dataclasses import dataclass

from terazi.policy.guard_messages import HOST, Card, Limits, Sample

#: Hysteresis of temperatures in degrees, for an ease of one: a share of 95 degrees would ask for a cold card.
_EASE_C = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One figure and its limit. ``ease`` is how far it must get away from the limit to count as better."""

    value: float
    limit: float
    ease: float
    least: bool  # it is short when it is less than the limit; else when it is more
    text: str

    def short(self, *, eased: bool) -> bool:
        """Whether it is past its limit; ``eased``: or not clearly on the right side again."""
        slack = self.ease if eased else 0.0
        return self.value < self.limit + slack if self.least else self.value > self.limit - slack


def gauges(limits: Limits, sample: Sample, ease: float) -> Iterator[Gauge]:
    """Every figure that was measured and has a limit."""
    if limits.ram_free is not None and sample.ram_total_bytes and sample.ram_available_bytes is not None:
        share = sample.ram_available_bytes / sample.ram_total_bytes
        yield Gauge(
            value=share,
            limit=limits.ram_free,
            ease=ease * limits.ram_free,
            least=True,
            text=f"{share:.1%} of RAM is available, the limit is {limits.ram_free:.1%}",
        )
    for device, card in sample.cards.items():
        yield from _of_card(limits, device, card, ease)
    if limits.pressure is not None and sample.pressure is not None:
        yield Gauge(
            value=sample.pressure,
            limit=limits.pressure,
            ease=ease * limits.pressure,
            least=False,
            text=f"all work stood still for memory {sample.pressure:.0f} % of the time, the limit is "
            f"{limits.pressure:.0f} %",
        )
    if limits.swap_in is not None and sample.swap_in_per_s is not None:
        yield Gauge(
            value=sample.swap_in_per_s,
            limit=limits.swap_in,
            ease=ease * limits.swap_in,
            least=False,
            text=f"{mib(sample.swap_in_per_s)} a second come back from swap, the limit is {mib(limits.swap_in)}",
        )
    if limits.disk_free is not None and sample.disk_free_bytes is not None:
        yield Gauge(
            value=sample.disk_free_bytes,
            limit=limits.disk_free,
            ease=ease * limits.disk_free,
            least=True,
            text=f"{mib(sample.disk_free_bytes)} of disk are left for the state, the limit is "
            f"{mib(limits.disk_free)}",
        )


def _of_card(limits: Limits, device: str, card: Card, ease: float) -> Iterator[Gauge]:
    wanted = wanted_free(limits, card)
    if wanted is not None and card.free_bytes is not None:
        yield Gauge(
            value=card.free_bytes,
            limit=wanted,
            ease=ease * wanted,
            least=True,
            text=f"{mib(card.free_bytes)} of {device} are free, the limit is {mib(wanted)}",
        )
    if limits.temperature_c is not None and card.temperature_c is not None:
        yield Gauge(
            value=card.temperature_c,
            limit=limits.temperature_c,
            ease=ease * _EASE_C,
            least=False,
            text=f"{device} has {card.temperature_c:.0f} °C, the limit is {limits.temperature_c:.0f} °C",
        )


def wanted_free(limits: Limits, card: Card) -> float | None:
    """Bytes of a card that should be free; None without a limit."""
    if limits.vram_free is None:
        return None
    wanted = limits.vram_free * card.total_bytes
    return wanted if card.spare_bytes is None else min(wanted, card.spare_bytes / 2)


def need(limits: Limits, sample: Sample, ease: float) -> dict[str, int]:
    """Bytes that must come back on each device until *limits* are clearly met; never empty.

    Stalls and swapping show a shortage that ``MemAvailable`` doesn't: then any byte of RAM helps.
    """
    found: dict[str, int] = {}
    if limits.ram_free is not None and sample.ram_total_bytes and sample.ram_available_bytes is not None:
        missing = limits.ram_free * (1 + ease) * sample.ram_total_bytes - sample.ram_available_bytes
        if missing > 0:
            found[HOST] = int(missing) + 1
    for device, card in sample.cards.items():
        wanted = wanted_free(limits, card)
        if wanted is not None and card.free_bytes is not None and wanted * (1 + ease) > card.free_bytes:
            found[device] = int(wanted * (1 + ease) - card.free_bytes) + 1
    return found or {HOST: 1}


def figures(limits: Limits, sample: Sample) -> str:
    """All that is measured, for the line that says that it is better."""
    return "; ".join(gauge.text for gauge in gauges(limits, sample, 0.0)) or "nothing can be measured here"


def mib(n: float) -> str:
    """For people."""
    return f"{n / (1 << 20):.0f} MiB"

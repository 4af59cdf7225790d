"""The catalogue: what data sheets say about a graphics card, found by a loosely written name.

In: the packaged table's text, a name as a person or a driver writes it. Out: ``GpuRecord``.
The table itself (``data/gpus.csv``) is read by ``hardware.probe.catalogue``; it names the source of each figure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from terazi.errors import UsageError
from terazi.units import GIB, MIB, TIB

#: Words that makers and drivers sprinkle over a name without telling two cards apart.
_NOISE: Final = frozenset(
    (
        *(
            "nvidia",
            "geforce",
            "rtx",
            "gtx",
            "tesla",
            "quadro",
            "blackwell",
            "generation",
            "workstation",
            "edition",
        ),
        *("amd", "radeon", "rx", "instinct", "oam", "accelerator", "intel", "arc", "apple", "series"),
        *("graphics", "gpu", "cpu", "core", "cores", "c", "r", "tm", "corporation", "corp", "inc"),
    )
)
#: Form factors: they tell variants apart, but a person may leave them out when only one variant exists.
_OPTIONAL: Final = frozenset(("pcie", "sxm", "nvl", "server"))
#: "12 GB", "12GiB", "12g"; not the "3090 ti" of a name.
_SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,7}(?:\.\d{1,6})?)(?:\s*([mgt])i?b|([mgt]))(?![a-z0-9])")
_TOKEN = re.compile(r"[a-z]+|\d+")
_PARENTHESES = re.compile(r"\(([^)]*)\)")
#: A driver shows less than the nominal size: up to 1/16 less with inline ECC, plus what firmware keeps.
_DRIVER_SHOWS_AT_LEAST: Final = 0.88
_MEMORY_TOLERANCE: Final = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord:
    """One row of the catalogue. Bytes, bytes per second, FLOP per second, watts; unknown is ``None``.

    ``memory_min_bytes`` and ``memory_max_bytes`` differ only where a chip is sold with several sizes.
    ``driver_total_bytes`` is what the driver was seen to print as the card's total.
    ``nvlink_bytes_per_s`` is one way: half of what data sheets print.
    ``flops_fp16`` counts FP32 accumulation, which is the slower rate on GeForce cards.
    """

    name: str
    vendor: str
    memory_min_bytes: int
    memory_max_bytes: int
    driver_total_bytes: int | None
    bandwidth_bytes_per_s: float
    flops_fp16: float | None
    flops_note: str
    tdp_w: float | None
    sm_count: int | None
    pcie_generation: int | None
    pcie_lanes: int | None
    nvlink_bytes_per_s: float | None
    nvlink_topology: str
    unified: bool
    aliases: tuple[str, ...]
    pci_ids: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class _Name:
    """A name taken apart: tokens that must match, tokens that may, and a memory size if it holds one."""

    required: frozenset[str]
    optional: frozenset[str]
    memory_bytes: float | None

    @property
    def tokens(self) -> frozenset[str]:
        return self.required | self.optional


def _take_apart(text: str) -> _Name:
    lowered = text.lower().replace("super", " super ").replace("+", " ")
    memory = None
    for number, spaced, glued in _SIZE.findall(lowered):
        memory = float(number) * {"m": MIB, "g": GIB, "t": TIB}[spaced or glued]
    lowered = re.sub(r"hbm\de?|gddr\dx?", " ", _SIZE.sub(" ", lowered))
    lowered = re.sub(r"sxm\d?", " sxm ", lowered)
    inside = " ".join(_PARENTHESES.findall(lowered))
    optional = frozenset(_TOKEN.findall(inside)) - _NOISE
    outside = frozenset(_TOKEN.findall(_PARENTHESES.sub(" ", lowered))) - _NOISE
    return _Name(outside - _OPTIONAL, optional | (outside & _OPTIONAL), memory)


def find_size_bytes(text: str) -> int | None:
    """The memory size in *text* ("RTX 3060 12GB"), in bytes, or ``None``. "GB" means GiB: cards are sold so."""
    memory = _take_apart(text).memory_bytes
    return None if memory is None else round(memory)


@dataclass(frozen=True, slots=True)
class _Match:
    record: GpuRecord
    left_out: int  # what the row's name says and the question doesn't


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All rows, searchable by name or PCI id."""

    records: tuple[GpuRecord, ...]
    _names: tuple[tuple[GpuRecord, _Name], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Take every row's names apart once."""
        names = tuple((r, _take_apart(n)) for r in self.records for n in (r.name, *r.aliases))
        object.__setattr__(self, "_names", names)

    def find(self, name: str, memory_bytes: float | None = None) -> GpuRecord:
        """The one card that *name* means. Case, spaces and vendor words don't count; every other word does,
        so "3090" is never "3090 Ti" and a laptop card is never the desktop card.

        Args:
            name: as typed or as a driver prints it; may hold a size ("RTX 3060 12GB").
            memory_bytes: what the driver reports as the card's total, to choose between variants.

        Raises:
            UsageError: if the name fits several cards (the message lists them), or none (the hint does).
        """
        found = self._match(name, memory_bytes)
        if len(found) > 1:
            fewest = min(m.left_out for m in found)
            closest = [m for m in found if m.left_out == fewest]
            # A full name wins over longer ones; two names that both leave something open stay ambiguous.
            found = closest if fewest == 0 else found
        names = list(dict.fromkeys(m.record.name for m in found))
        if len(names) == 1:
            return found[0].record
        if names:
            raise UsageError(
                f"{name.strip()!r} fits several cards: {'; '.join(names)}", hint="write one of those names"
            )
        nearest = self.nearest(name)
        raise UsageError(
            f"no card named {name.strip()[:80]!r} is in the catalogue",
            hint=f"the nearest names are: {'; '.join(nearest)}" if nearest else "write a name such as RTX 3090",
        )

    def find_or_none(self, name: str, memory_bytes: float | None = None) -> GpuRecord | None:
        """Like ``find``, for names that a driver gave: ``None`` if there is no single match."""
        try:
            return self.find(name, memory_bytes)
        except UsageError:
            return None

    def by_pci_id(self, pci_id: str, revision: str, memory_bytes: float | None = None) -> tuple[GpuRecord, ...]:
        """Cards with this ``vendor:device`` (hex, lower case), narrowed by revision and memory where that helps."""
        exact = [r for r in self.records if f"{pci_id}:{revision}" in r.pci_ids]
        found = exact or [
            r for r in self.records if any(i == pci_id or i.startswith(pci_id + ":") for i in r.pci_ids)
        ]
        sized = [r for r in found if memory_bytes is not None and _driver_size_fits(r, memory_bytes)]
        return tuple(sized or found)

    def nearest(self, name: str, count: int = 5) -> tuple[str, ...]:
        """Names that look like *name*, best first."""
        import difflib

        wanted = _take_apart(name[:200])
        if not wanted.tokens:  # a vendor's word alone, which never tells two cards apart
            said = name[:200].strip().lower()
            return tuple(r.name for r in self.records if said and said in r.name.lower())[:count]
        squeezed = "".join(sorted(wanted.tokens))

        def likeness(own: _Name) -> tuple[int, float]:
            shared = sum(len(t) for t in own.tokens & wanted.tokens)
            plain = "".join(sorted(own.tokens))
            return shared, difflib.SequenceMatcher(None, squeezed, plain).ratio()

        scored = [(likeness(own), record.name) for record, own in self._names]
        ranked = sorted((s for s in scored if s[0] >= (1, 0.0) or s[0][1] > 0.5), reverse=True)
        return tuple(dict.fromkeys(name for _, name in ranked))[:count]

    def _match(self, name: str, memory_bytes: float | None) -> list[_Match]:
        asked = _take_apart(name)
        found = []
        for record, own in self._names:
            if not own.required or not own.required <= asked.tokens or not asked.tokens <= own.tokens:
                continue
            if asked.memory_bytes is not None and not _nominal_size_fits(record, asked.memory_bytes):
                continue
            if memory_bytes is not None and not _driver_size_fits(record, memory_bytes):
                continue
            unsaid = own.memory_bytes is not None and asked.memory_bytes is None and memory_bytes is None
            found.append(_Match(record, len(own.optional - asked.tokens) + unsaid))
        return found


def _nominal_size_fits(record: GpuRecord, memory_bytes: float) -> bool:
    low, high = 1 - _MEMORY_TOLERANCE, 1 + _MEMORY_TOLERANCE
    return record.memory_min_bytes * low <= memory_bytes <= record.memory_max_bytes * high


def _driver_size_fits(record: GpuRecord, memory_bytes: float) -> bool:
    low, high = _DRIVER_SHOWS_AT_LEAST, 1 + _MEMORY_TOLERANCE
    return record.memory_min_bytes * low <= memory_bytes <= record.memory_max_bytes * high


def parse_catalogue(text: str) -> Catalogue:
    """Read the table: CSV with a header row; lines that begin with ``#`` are comments.

    Raises:
        ValueError: if a row lacks a column or holds a malformed number (the table is packaged, so that is a bug).
    """
    import csv

    lines: Iterable[str] = (line for line in text.splitlines() if not line.startswith("#"))
    return Catalogue(tuple(_parse_row(row) for row in csv.DictReader(lines)))


def _parse_row(row: Mapping[str, str]) -> GpuRecord:
    smallest, _, largest = row["memory_gib"].partition("-")
    flops, flops_note = _flops(row)
    both_ways = _number(row["nvlink_gb_s_both_ways"])
    driver_total_mib = _number(row["driver_total_mib"])
    return GpuRecord(
        name=row["name"],
        vendor=row["vendor"],
        memory_min_bytes=round(float(smallest) * GIB),
        memory_max_bytes=round(float(largest or smallest) * GIB),
        driver_total_bytes=None if driver_total_mib is None else round(driver_total_mib * MIB),
        bandwidth_bytes_per_s=float(row["bandwidth_gb_s"]) * 1e9,
        flops_fp16=flops,
        flops_note=flops_note,
        tdp_w=_number(row["tdp_w"]),
        sm_count=_integer(row["sm_count"]),
        pcie_generation=_integer(row["pcie_gen"]),
        pcie_lanes=_integer(row["pcie_lanes"]),
        nvlink_bytes_per_s=None if both_ways is None else both_ways * 1e9 / 2,
        nvlink_topology=row["nvlink_topology"],
        unified=row["unified"] == "yes",
        aliases=tuple(a for a in row["aliases"].split(";") if a),
        pci_ids=tuple(i for i in row["pci_ids"].split(";") if i),
        note=row["notes"],
    )


def _flops(row: Mapping[str, str]) -> tuple[float | None, str]:
    """FP16 rate with FP32 accumulation. Pascal's 1:64 FP16 is never used by llama.cpp, which takes FP32 there:
    a quarter of the dp4a rate (four 8-bit products per FP32 lane)."""
    fp16, int8 = _number(row["fp16_tflops_fp32acc"]), _number(row["int8_tops"])
    source = row["source_compute"]
    if fp16 is None:
        return None, f"no FP16 rate published ({source})"
    if fp16 < 1 and int8 is not None:
        return int8 / 4 * 1e12, "FP32 rate, since FP16 runs at 1:64 on this card"
    return fp16 * 1e12, f"dense, FP32 accumulation; {source}"


def _number(text: str) -> float | None:
    return float(text) if text else None


def _integer(text: str) -> int | None:
    return int(float(text)) if text else None

"""Machines that aren't here: "2x RTX 3090 nvlink + 64GiB ddr4" becomes a ``Machine``.

    MACHINE := PART { "+" PART }                       at most one RAM part
    PART    := [N "x"] CARD [SIZE] ["x" N] { FLAG }    CARD: a catalogue name, or RPC (then SIZE is its memory)
             | SIZE [ "ddr" G ["-" MT/s] ] [ C "-channel" ] [ N "-core" ] ["ram"] ["cpu"]
    FLAG    := "nvlink" | "p2p" | "pcie" GENERATION "x" LANES | "cap" WATTS "W"

"GB" means GiB here: memory modules and cards are sold that way. What isn't said is assumed, and a note says what.
"""

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from terazi.errors import UsageError
from terazi.hardware.catalogue import Catalogue, GpuRecord, find_size_bytes
from terazi.hardware.machine import Basis, Machine, PcieLink
from terazi.hardware.preset_machine import CardPart, RamPart, build_machine
from terazi.units import GIB, MIB, TIB

EXAMPLE: Final = 'write for example --on "2x RTX 3090 nvlink + 64GiB ddr4"'
#: llama.cpp drives at most 16 devices (GGML_CUDA_MAX_DEVICES in ggml-cuda.h, b11434).
MAX_DEVICES: Final = 16
_MAX_TEXT: Final = 500

_PCIE = re.compile(r"\bpci-?e\s*(?:gen\s*)?(\d)(?:\.0)?\s*x\s*(\d{1,2})\b", re.IGNORECASE)
_CAP = re.compile(r"\bcap(?:ped)?\s*(?:at\s*)?(\d{1,4}(?:\.\d+)?)\s*w\b", re.IGNORECASE)
_FLAG = re.compile(r"\b(nvlink|p2p)\b", re.IGNORECASE)
_COUNT_FIRST = re.compile(r"^\s*(\d{1,2})\s*[x*]\s*", re.IGNORECASE)
_COUNT_LAST = re.compile(r"(?:(?<=\s)|(?<=\d))[x*]\s*(\d{1,2})\s*$", re.IGNORECASE)
_RAM_WORD = re.compile(
    r"(?P<size>\d{1,7}(?:\.\d{1,6})?\s*[mgt](?:i?b)?)|(?:lp)?ddr(?P<ddr>[345])(?:\s*-?\s*(?P<rate>\d{4,5}))?"
    r"|(?P<channels>\d{1,2})\s*-?\s*channels?|(?P<dual>dual)\s*-?\s*channel|(?P<cores>\d{1,3})\s*-?\s*cores?"
    r"|ram|memory|cpu|host|only|[\s,]+",
    re.IGNORECASE,
)


def parse_machine(text: str, catalogue: Catalogue) -> Machine:
    """Read a preset.

    Raises:
        UsageError: naming the part that wasn't understood, with a hint.
    """
    if len(text) > _MAX_TEXT:
        raise UsageError(f"the machine is described in {len(text)} characters, more than {_MAX_TEXT}", hint=EXAMPLE)
    parts = [p.strip() for p in re.sub(r"(?i)\bmax\s*\+", "max ", text).replace("×", "x").split("+")]
    if not any(parts):
        raise UsageError("the machine is empty", hint=EXAMPLE)
    ram: RamPart | None = None
    groups: list[CardPart] = []
    for part in parts:
        if not part:
            raise UsageError(
                f"there is an empty part in {text.strip()!r}",
                hint="put a card or an amount of RAM on both sides of +",
            )
        found = _parse_ram(part)
        if found is None:
            groups.append(_parse_cards(part, catalogue))
        elif ram is not None:
            _fail(part, "is a second amount of RAM", "give the RAM once")
        else:
            ram = found
    _check(groups, ram)
    return build_machine(" ".join(text.split()), groups, ram or RamPart())


def _fail(part: str, why: str, hint: str = EXAMPLE) -> NoReturn:
    raise UsageError(f"{part!r} {why}", hint=hint)


def _parse_ram(part: str) -> RamPart | None:
    position = 0
    said: dict[str, str] = {}
    while position < len(part):
        word = _RAM_WORD.match(part, position)
        if word is None or word.end() == position:
            return None
        new = {k: v for k, v in word.groupdict().items() if v is not None}
        if new.keys() & said.keys():
            _fail(part, "says something about the RAM twice")
        said.update(new)
        position = word.end()
    size = find_size_bytes(said["size"] + ("" if said["size"][-1] in "bB" else "B")) if "size" in said else None
    if size is not None and not 128 * MIB <= size <= 64 * TIB:
        _fail(part, "is no amount of RAM between 128 MiB and 64 TiB")
    channels, cores = said.get("channels"), said.get("cores")
    if (channels is not None and not 1 <= int(channels) <= 24) or (cores is not None and int(cores) < 1):
        _fail(part, "has an impossible number of channels or cores")
    return RamPart(
        size_bytes=size,
        ddr=int(said["ddr"]) if "ddr" in said else None,
        rate=int(said["rate"]) if "rate" in said else None,
        channels=2 if "dual" in said else int(channels) if channels else None,
        cores=int(cores) if cores else None,
    )


def _parse_cards(part: str, catalogue: Catalogue) -> CardPart:
    rest = part
    pcie = _PCIE.search(rest)
    rest = _PCIE.sub(" ", rest)
    cap = _CAP.search(rest)
    rest = _CAP.sub(" ", rest)
    flags = {f.lower() for f in _FLAG.findall(rest)}
    rest = _FLAG.sub(" ", rest).strip(" ,")
    first, last = _COUNT_FIRST.search(rest), None
    if first is not None:
        rest = rest[first.end() :]
    else:
        last = _COUNT_LAST.search(rest)
        rest = rest if last is None else rest[: last.start()]
    counted = first or last
    count = int(counted.group(1)) if counted else 1
    if not 1 <= count <= MAX_DEVICES:
        _fail(part, f"asks for {count} devices", f"llama.cpp drives 1 to {MAX_DEVICES}")
    size = find_size_bytes(rest)
    return CardPart(
        part=part,
        count=count,
        record=_find(part, rest, catalogue),
        size_bytes=size,
        nvlink="nvlink" in flags,
        p2p="p2p" in flags,
        pcie=None if pcie is None else _pcie(part, int(pcie.group(1)), int(pcie.group(2))),
        cap_w=None if cap is None else float(cap.group(1)),
        said=rest.strip(),
    )


def _pcie(part: str, generation: int, lanes: int) -> PcieLink:
    if not 1 <= generation <= 6 or lanes not in {1, 2, 4, 8, 16}:
        _fail(
            part,
            "has no PCIe link that exists",
            "write for example pcie3x4: generation 1 to 6, then 1, 2, 4, 8 or 16 lanes",
        )
    return PcieLink(generation=generation, lanes=lanes, basis=Basis.ASSUMED)


def _find(part: str, name: str, catalogue: Catalogue) -> GpuRecord | None:
    if re.match(r"rpc\b", name.strip(), re.IGNORECASE):
        leftover = re.sub(r"(?i)\brpc\b|[\d.]+\s*[mgt]i?b?", "", name).strip()
        if leftover or find_size_bytes(name) is None:
            _fail(part, "is no RPC device with a memory size", 'write for example "2x RPC 24GiB"')
        return None
    try:
        return catalogue.find(name)
    except UsageError as error:
        if amount := re.match(r"\s*[\d.]+\s*[mgt]i?b\s+(?=.*ddr|.*ram|.*channel|.*core)(.*)", part, re.IGNORECASE):
            _fail(
                part,
                f"starts like RAM, but {amount[1].strip()!r} isn't understood",
                "RAM is ddr3, ddr4 or ddr5: " + EXAMPLE,
            )
        if "," in part:
            _fail(part, "is no card of the catalogue", "put a + between cards: " + EXAMPLE)
        if re.fullmatch(r"\s*\d{1,6}\s*", part):
            _fail(part, "is no card, and as RAM it lacks its unit", f"write {part.strip()}GiB")
        raise UsageError(f"in {part!r}: {error.message}", hint=error.hint) from None


def _check(groups: Sequence[CardPart], ram: RamPart | None) -> None:
    """What can't be together."""
    total = sum(g.count for g in groups)
    if total > MAX_DEVICES:
        raise UsageError(f"the machine has {total} devices", hint=f"llama.cpp drives at most {MAX_DEVICES}")
    for group in groups:
        record = group.record
        if group.cap_w is not None and group.cap_w < 1:
            _fail(group.part, "has a power cap below 1 W", 'write for example "cap 250W"')
        if group.nvlink:
            if record is None or record.nvlink_bytes_per_s is None:
                _fail(
                    group.part,
                    f"has no NVLink{'' if record is None else f': the {record.name} has none'}",
                    "leave nvlink out",
                )
            if group.count < 2:
                _fail(group.part, "joins one card to nothing by NVLink", 'write for example "2x RTX 3090 nvlink"')
        if record is None or not record.unified:
            continue
        if group.count > 1 or any(g.record is not None for g in groups if g is not group):
            _fail(
                group.part,
                f"is a whole machine ({record.name}), so it can't be counted or combined",
                "name it alone, or with RPC devices",
            )
        if ram is not None and ram.size_bytes is not None:
            _fail(
                group.part,
                "shares one memory between CPU and GPU, so there is no other RAM",
                'write for example "Apple M3 Max 64GB"',
            )
        if group.size_bytes is None and record.memory_min_bytes != record.memory_max_bytes:
            sold = f"{record.memory_min_bytes // GIB} to {record.memory_max_bytes // GIB}"
            _fail(
                group.part,
                f"is sold with {sold} GB",
                f'say which, for example "{group.said} {record.memory_max_bytes // GIB}GB"',
            )

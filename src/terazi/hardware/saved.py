"""A machine as JSON and back, so that it can be saved, compared and planned for elsewhere.

In: ``Machine``, or what ``json.loads`` made of a file that a person may have written. Out: the other one.
Reading is bounded and checked by hand: every key, every type, every size.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final, NoReturn, TypeAlias, TypeVar

from terazi.errors import UsageError
from terazi.hardware.machine import Basis, Device, Figure, Host, Link, Machine, NumaNode, PcieLink

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

SCHEMA: Final = "terazi.machine/1"
_MAX_ITEMS: Final = 4096
_MAX_TEXT: Final = 2000
_MAX_BYTES: Final = 2**60
_Noun = TypeVar("_Noun")


def machine_to_json(machine: Machine) -> dict[str, Json]:
    """The machine as plain JSON values, with its ``schema``."""
    made = _plain(machine)
    assert isinstance(made, dict)  # noqa: S101 - a dataclass becomes a dict
    return made


def _plain(value: object) -> Json:
    if isinstance(value, Basis):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, frozenset):
        return [_plain(v) for v in sorted(value)]
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]  # only nouns are left


def machine_from_json(obj: object) -> Machine:
    """Read a saved machine.

    Raises:
        UsageError: if it isn't one, naming the place that is wrong.
    """
    return _Reader("machine", obj).machine()


class _Reader:
    """One JSON object with the path to it, so that each complaint says where."""

    def __init__(self, path: str, obj: object) -> None:
        self.path = path
        if not isinstance(obj, dict):
            self._fail("", "is not an object")
        if not all(isinstance(k, str) for k in obj):
            self._fail("", "has a key that is no text")
        self.obj: Mapping[str, object] = obj

    def _fail(self, key: str, why: str) -> NoReturn:
        place = f"{self.path}.{key}" if key else self.path
        raise UsageError(
            f"not a saved machine: {place} {why}",
            hint=f"save one with: terazi weigh demo --json; its schema is {SCHEMA}",
        )

    def only(self, noun: type) -> None:
        known = {f.name for f in fields(noun)}
        unknown = sorted(k for k in self.obj if k not in known)
        if unknown:
            self._fail("", f"has unknown keys: {', '.join(repr(k[:40]) for k in unknown[:5])}")

    def text(self, key: str) -> str:
        value = self.obj.get(key)
        if not isinstance(value, str) or len(value) > _MAX_TEXT:
            self._fail(key, "is not a short text")
        return value

    def text_or_none(self, key: str) -> str | None:
        return None if self.obj.get(key) is None else self.text(key)

    def number(self, key: str) -> float:
        value = self.obj.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fail(key, "is not a number")
        if isinstance(value, float) and not math.isfinite(value):
            self._fail(key, "is not finite")
        if not 0 <= value <= 1e24:
            self._fail(key, "is negative or absurdly large")
        return value

    def number_or_none(self, key: str) -> float | None:
        return None if self.obj.get(key) is None else self.number(key)

    def whole(self, key: str, *, low: int = 0, high: int = _MAX_BYTES) -> int:
        value = self.obj.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            self._fail(key, "is not a whole number")
        if not low <= value <= high:
            self._fail(key, f"is not between {low} and {high}")
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self.obj.get(key) is None else self.whole(key)

    def flag(self, key: str) -> bool:
        value = self.obj.get(key, False)
        if not isinstance(value, bool):
            self._fail(key, "is neither true nor false")
        return value

    def items(self, key: str) -> list[object]:
        value = self.obj.get(key, [])
        if not isinstance(value, list) or len(value) > _MAX_ITEMS:
            self._fail(key, f"is not a list of at most {_MAX_ITEMS}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.items(key)
        for value in found:
            if not isinstance(value, str) or len(value) > _MAX_TEXT:
                self._fail(key, "holds something that is not a short text")
        return tuple(str(v) for v in found)

    def basis(self, key: str) -> Basis:
        value = self.text(key)
        if value not in set(Basis):
            self._fail(key, f"is none of {', '.join(Basis)}")
        return Basis(value)

    def nouns(self, key: str, read: Callable[["_Reader"], _Noun]) -> tuple[_Noun, ...]:
        return tuple(read(_Reader(f"{self.path}.{key}[{i}]", item)) for i, item in enumerate(self.items(key)))

    def figure(self, key: str) -> Figure:
        inner = _Reader(f"{self.path}.{key}", self.obj.get(key))
        inner.only(Figure)
        note = inner.text("note") if "note" in inner.obj else ""
        return Figure(value=inner.number_or_none("value"), basis=inner.basis("basis"), note=note)

    def machine(self) -> Machine:
        if self.obj.get("schema") != SCHEMA:
            self._fail("schema", f"is not {SCHEMA!r}")
        self.only(Machine)
        made = Machine(
            name=self.text("name"),
            host=_read_host(_Reader(f"{self.path}.host", self.obj.get("host"))),
            devices=self.nouns("devices", _read_device),
            links=self.nouns("links", _read_link),
            notes=self.texts("notes"),
        )
        ids = [d.id for d in made.devices]
        if len(set(ids)) != len(ids):
            self._fail("devices", "holds two devices with one id")
        strays = [i for link in made.links for i in (link.a, link.b) if i not in ids]
        if strays:
            self._fail("links", f"names the device {strays[0][:40]!r}, which isn't there")
        return made


def _read_host(r: _Reader) -> Host:
    r.only(Host)
    return Host(
        cpu_name=r.text_or_none("cpu_name"),
        isa=frozenset(r.texts("isa")),
        cores=r.whole("cores", low=1, high=2**20),
        sockets=r.whole_or_none("sockets"),
        ram_total_bytes=r.whole("ram_total_bytes"),
        ram_available_bytes=r.whole("ram_available_bytes"),
        memory_limit_bytes=r.whole_or_none("memory_limit_bytes"),
        memory_limit_used_bytes=r.whole_or_none("memory_limit_used_bytes"),
        swap_total_bytes=r.whole("swap_total_bytes"),
        swap_used_bytes=r.whole("swap_used_bytes"),
        memlock_limit_bytes=r.whole_or_none("memlock_limit_bytes"),
        ram_bandwidth=r.figure("ram_bandwidth"),
        flops=r.figure("flops"),
        numa=r.nouns("numa", _read_numa),
        notes=r.texts("notes"),
    )


def _read_numa(r: _Reader) -> NumaNode:
    r.only(NumaNode)
    cpus = r.items("cpus")
    if not all(isinstance(c, int) and not isinstance(c, bool) and 0 <= c < 2**20 for c in cpus):
        r._fail("cpus", "holds something that is no CPU number")  # noqa: SLF001 - this module's own reader
    whole = tuple(c for c in cpus if isinstance(c, int))
    return NumaNode(id=r.whole("id"), cpus=whole, memory_bytes=r.whole_or_none("memory_bytes"))


def _read_device(r: _Reader) -> Device:
    r.only(Device)
    link = r.obj.get("pcie")
    return Device(
        id=r.text("id"),
        name=r.text("name"),
        vendor=r.text("vendor"),
        backend=r.text("backend"),
        memory_total_bytes=r.whole("memory_total_bytes"),
        memory_free_bytes=r.whole("memory_free_bytes"),
        memory_bandwidth=r.figure("memory_bandwidth"),
        flops_fp16=r.figure("flops_fp16"),
        tdp_w=r.figure("tdp_w"),
        idle_w=r.figure("idle_w"),
        power_cap_w=r.number_or_none("power_cap_w"),
        pcie=None if link is None else _read_pcie(_Reader(f"{r.path}.pcie", link)),
        context_bytes=r.figure("context_bytes"),
        unified_memory=r.flag("unified_memory"),
        pci_address=r.text_or_none("pci_address"),
        notes=r.texts("notes"),
    )


def _read_pcie(r: _Reader) -> PcieLink:
    r.only(PcieLink)
    return PcieLink(
        generation=r.whole("generation", low=1, high=8),
        lanes=r.whole("lanes", low=1, high=32),
        basis=r.basis("basis"),
    )


def _read_link(r: _Reader) -> Link:
    r.only(Link)
    kind = r.text("kind")
    if kind not in {"nvlink", "pcie-p2p", "host", "ethernet"}:
        r._fail("kind", "is none of nvlink, pcie-p2p, host, ethernet")  # noqa: SLF001 - this module's own reader
    return Link(a=r.text("a"), b=r.text("b"), kind=kind, bandwidth=r.figure("bandwidth"))

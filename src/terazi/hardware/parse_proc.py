"""What /proc says about CPU and memory, from its text.

In: the text of /proc/cpuinfo, /proc/meminfo. Out: plain nouns; nothing here opens a file.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

#: Flags that decide which kernels ggml's CPU backend can run, as /proc/cpuinfo spells them (left) and as Terazi
#: names them (right). x86 says "flags", ARM says "Features".
_ISA_NAMES: Final = {
    "sse2": "sse2", "sse4_2": "sse4_2", "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi2": "bmi2",
    "avx_vnni": "avx_vnni", "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512vl": "avx512vl",
    "avx512_vnni": "avx512_vnni", "avx512vbmi": "avx512vbmi", "avx512_bf16": "avx512_bf16", "amx_int8": "amx_int8",
    "amx_tile": "amx_tile", "amx_bf16": "amx_bf16",
    "asimd": "neon", "neon": "neon", "asimddp": "dotprod", "asimdhp": "fp16", "fphp": "fp16", "i8mm": "i8mm",
    "bf16": "bf16", "sve": "sve", "sve2": "sve2", "sme": "sme",
}  # fmt: skip

#: "CPU part" of ARM's own cores (implementer 0x41), which /proc/cpuinfo gives instead of a name (MIDR_EL1 in ARM's
#: reference manuals).
_ARM_PARTS: Final = {
    "0xd03": "Cortex-A53", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76", "0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd41": "Cortex-A78",
    "0xd49": "Neoverse N2",
    "0xd4f": "Neoverse V2", "0xd87": "Cortex-A725", "0xd85": "Cortex-X925",
}  # fmt: skip


class CpuInfo(NamedTuple):
    """``cpus`` are the logical CPUs that the kernel runs; ``threads_per_core`` is ``None`` where it isn't said."""

    name: str | None
    isa: frozenset[str]
    cpus: tuple[int, ...]
    sockets: int | None
    threads_per_core: int | None


class MemInfo(NamedTuple):
    """Bytes. ``available_bytes`` is the kernel's own estimate where it gives one (since Linux 3.14)."""

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int


def parse_cpuinfo(text: str) -> CpuInfo:
    """Read /proc/cpuinfo of x86 or ARM."""
    cpus: list[int] = []
    fields: dict[str, str] = {}
    packages: set[str] = set()
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if not colon:
            continue
        if key == "processor" and value.isdecimal():
            cpus.append(int(value))
        elif key == "physical id":
            packages.add(value)
        fields.setdefault(key, value)
    flags = fields.get("flags") or fields.get("Features") or ""
    siblings, cores = fields.get("siblings", ""), fields.get("cpu cores", "")
    threads = int(siblings) // int(cores) if siblings.isdecimal() and cores.isdecimal() and int(cores) else None
    return CpuInfo(
        name=_cpu_name(fields),
        isa=frozenset(_ISA_NAMES[f] for f in flags.split() if f in _ISA_NAMES),
        cpus=tuple(cpus),
        sockets=len(packages) or None,
        threads_per_core=threads or None,
    )


def _cpu_name(fields: dict[str, str]) -> str | None:
    if "model name" in fields:
        return " ".join(fields["model name"].split())
    if fields.get("CPU implementer") == "0x41" and fields.get("CPU part") in _ARM_PARTS:
        return f"ARM {_ARM_PARTS[fields['CPU part']]}"
    return fields.get("Model") or fields.get("Hardware")


#: Bit of ``CapEff``.
_CAP_IPC_LOCK = 14


def parse_meminfo(text: str) -> MemInfo | None:
    """Read /proc/meminfo; ``None`` if it doesn't even hold the total."""
    kib: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdecimal():
            kib[key.strip()] = int(number[0])
    if not kib.get("MemTotal"):
        return None
    available = kib.get("MemAvailable", _sum(kib, ("MemFree", "Buffers", "Cached")))
    swap = kib.get("SwapTotal", 0)
    return MemInfo(
        total_bytes=kib["MemTotal"] * 1024,
        available_bytes=min(available, kib["MemTotal"]) * 1024,
        swap_total_bytes=swap * 1024,
        swap_used_bytes=max(0, swap - kib.get("SwapFree", swap)) * 1024,
    )


def _sum(kib: dict[str, int], keys: Iterable[str]) -> int:
    return sum(kib.get(k, 0) for k in keys)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list format: ``0-3,8,10-11`` → 0, 1, 2, 3, 8, 10, 11. Malformed pieces are left out."""
    cpus: list[int] = []
    for piece in text.strip().split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            continue
        end = int(last) if dash else int(first)
        if end - int(first) < 2**16:
            cpus.extend(range(int(first), end + 1))
    return tuple(cpus)


def parse_node_meminfo(text: str) -> int | None:
    """Total bytes from /sys/devices/system/node/nodeN/meminfo ("Node 0 MemTotal: 1234 kB")."""
    for line in text.splitlines():
        words = line.split()
        if "MemTotal:" in words[:-1]:
            value = words[words.index("MemTotal:") + 1]
            return int(value) * 1024 if value.isdecimal() else None
    return None


def parse_memlock_limit(limits: str, status: str) -> int | None:
    """How many bytes this process may lock, from /proc/self/limits and /proc/self/status; ``None`` is no limit.

    With the capability CAP_IPC_LOCK (capabilities(7), bit 14) the limit doesn't count.
    """
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == "CapEff" and int(value.strip() or "0", 16) >> _CAP_IPC_LOCK & 1:
            return None
    for line in limits.splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[0]
            return int(soft) if soft.isdecimal() else None
    return None

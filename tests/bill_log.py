"""A bill in the shape of llama.cpp's log: MiB by device and buffer, as it prints them."""

from terazi.hardware.machine import Basis, Device, Figure
from terazi.memory.bill import Bill, Term

MIB = 1024 * 1024
UNKNOWN = Figure(value=None, basis=Basis.ASSUMED)


def stand_ins(count: int) -> tuple[Device, ...]:
    """Devices as RPC servers on this host's CPU report themselves."""
    return tuple(
        Device(
            id=f"RPC{index}",
            name="stand-in",
            vendor="none",
            backend="rpc",
            memory_total_bytes=16 << 30,
            memory_free_bytes=16 << 30,
            memory_bandwidth=UNKNOWN,
            flops_fp16=UNKNOWN,
            tdp_w=UNKNOWN,
        )
        for index in range(count)
    )


def mib(size: int) -> float:
    """As the log prints it."""
    return float(f"{size / MIB:.2f}")


def buffers(bill: Bill, device: str, term: Term, part: str = "") -> list[float]:
    """The buffers behind the lines of one part: a mapping and its gaps are one."""
    sizes: dict[str, int] = {}
    for line in (*bill.lines, *bill.page_cache):
        if line.device == device and line.term is term and line.part == part:
            name = "weights.plain" if line.formula == "weights.mapped-gaps" else line.formula
            sizes[name] = sizes.get(name, 0) + line.bytes
    return sorted(mib(size) for size in sizes.values() if size)

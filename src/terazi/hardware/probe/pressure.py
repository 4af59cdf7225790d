"""Reads how pressed for memory this machine is: cheap enough for every second."""

import os
from typing import NamedTuple

from terazi.hardware.parse_cgroup import find_folder
from terazi.hardware.parse_pressure import parse_count, parse_full_avg10
from terazi.hardware.parse_proc import parse_meminfo
from terazi.hardware.probe.files import Tree
from terazi.hardware.probe.host import read_memory_limit


class Pressure(NamedTuple):
    """Bytes, pages and percent; ``None`` is what can't be read.

    Attributes:
        total_bytes, available_bytes: of the system, or of the tightest control group if that leaves less.
        stalled_percent: of ten seconds, in which all work stood still for memory; in the group, or on the system.
        swapped_in_pages: so far, on the whole system.
        oom_kills: so far, in this program's control group, or else on the system.
    """

    total_bytes: int | None
    available_bytes: int | None
    stalled_percent: float | None
    swapped_in_pages: int | None
    oom_kills: int | None


def read_pressure(root: str = "/") -> Pressure:
    """One look at the system whose ``proc`` and ``sys`` are below *root*."""
    tree = Tree(root)
    memory = parse_meminfo(tree.text("proc/meminfo") or "")
    total = None if memory is None else memory.total_bytes
    available = None if memory is None else memory.available_bytes
    vmstat = tree.text("proc/vmstat")
    folder = find_folder("memory", tree.text("proc/self/cgroup") or "", tree.text("proc/self/mountinfo") or "")
    limit = read_memory_limit(tree, folder)
    if limit is not None and limit.used_bytes is not None:
        left = max(0, limit.limit_bytes - limit.used_bytes)
        if available is None or left < available:
            total, available = limit.limit_bytes, left
    stalled = oom = None
    if folder is not None and folder.version == 2:
        own = folder.chain()[0] if folder.group != "/" else None
        if own is not None:
            stalled = parse_full_avg10(tree.text(f"{own}/memory.pressure"))
            oom = parse_count(tree.text(f"{own}/memory.events"), "oom_kill")
    if stalled is None:
        stalled = parse_full_avg10(tree.text("proc/pressure/memory"))
    return Pressure(
        total_bytes=total,
        available_bytes=available,
        stalled_percent=stalled,
        swapped_in_pages=parse_count(vmstat, "pswpin"),
        oom_kills=parse_count(vmstat, "oom_kill") if oom is None else oom,
    )


def page_bytes() -> int:
    """Of memory and swap."""
    return os.sysconf("SC_PAGE_SIZE")

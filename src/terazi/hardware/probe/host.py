"""Reads the host: CPU, memory, control groups, NUMA."""

import os
import re

from terazi.hardware.host import cpu_flops, ram_bandwidth
from terazi.hardware.machine import Host, NumaNode
from terazi.hardware.parse_cgroup import (
    GroupFiles,
    GroupFolder,
    MemoryLimit,
    cpu_quota,
    find_folder,
    tightest_memory,
)
from terazi.hardware.parse_proc import (
    CpuInfo,
    MemInfo,
    parse_cpu_list,
    parse_cpuinfo,
    parse_meminfo,
    parse_memlock_limit,
    parse_node_meminfo,
)
from terazi.hardware.probe.files import Tree

_NODE = re.compile(r"node(\d+)")


def read_host(tree: Tree) -> Host:
    """The computer around the cards. What can't be read is said in a note."""
    notes: list[str] = []
    cpu = parse_cpuinfo(tree.text("proc/cpuinfo") or "")
    memory = parse_meminfo(tree.text("proc/meminfo") or "")
    if memory is None:
        memory = MemInfo(total_bytes=0, available_bytes=0, swap_total_bytes=0, swap_used_bytes=0)
        notes.append("/proc/meminfo can't be read, so no RAM is counted on")
    cgroup, mounts = tree.text("proc/self/cgroup") or "", tree.text("proc/self/mountinfo") or ""
    cores = _count_cores(tree, cpu, find_folder("cpu", cgroup, mounts), notes)
    limit = read_memory_limit(tree, find_folder("memory", cgroup, mounts))
    if limit is not None and limit.limit_bytes >= memory.total_bytes:
        limit = None  # it binds nothing
    numa = _read_numa(tree)
    physical = max(1, cores // (cpu.threads_per_core or 1))
    return Host(
        cpu_name=cpu.name,
        isa=cpu.isa,
        cores=cores,
        sockets=cpu.sockets,
        ram_total_bytes=memory.total_bytes,
        ram_available_bytes=memory.available_bytes,
        memory_limit_bytes=None if limit is None else limit.limit_bytes,
        memory_limit_used_bytes=None if limit is None else limit.used_bytes,
        swap_total_bytes=memory.swap_total_bytes,
        swap_used_bytes=memory.swap_used_bytes,
        memlock_limit_bytes=parse_memlock_limit(
            tree.text("proc/self/limits") or "", tree.text("proc/self/status") or ""
        ),
        # Without measuring, neither the modules nor their number can be told: SMBIOS needs root.
        ram_bandwidth=ram_bandwidth(),
        flops=cpu_flops(cpu.isa, physical),
        numa=numa,
        notes=tuple(notes),
    )


def _count_cores(tree: Tree, cpu: CpuInfo, folder: GroupFolder | None, notes: list[str]) -> int:
    """CPUs that this process may use: affinity (cpusets show there too), then the tightest quota of the chain."""
    cores = len(os.sched_getaffinity(0)) if tree.live else len(cpu.cpus)
    if cores == 0:
        notes.append("/proc/cpuinfo lists no CPU, so one is counted")
        cores = 1
    quotas = []
    for group in folder.chain() if folder is not None else ():
        names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota = cpu_quota(*(tree.text(f"{group}/{name}") for name in names))
        if quota is not None:
            quotas.append(quota)
    if not quotas or min(quotas) >= cores:
        return cores
    # Rounded down: a thread more than the quota would be stopped for part of every period, and stall all others.
    allowed = max(1, int(min(quotas)))
    notes.append(f"a CPU quota allows {min(quotas):g} of {cores} CPUs")
    return allowed


def read_memory_limit(tree: Tree, folder: GroupFolder | None) -> MemoryLimit | None:
    """The tightest limit of the groups that this process is in; None without any."""
    if folder is None:
        return None
    if folder.version == 1:
        limits, usage = ["memory.limit_in_bytes"], "memory.usage_in_bytes"
    else:
        limits, usage = ["memory.max", "memory.high"], "memory.current"
    return tightest_memory(
        GroupFiles(
            limits=tuple(tree.text(f"{group}/{name}") for name in limits),
            usage=tree.text(f"{group}/{usage}"),
            stat=tree.text(f"{group}/memory.stat"),
        )
        for group in folder.chain()
    )


def _read_numa(tree: Tree) -> tuple[NumaNode, ...]:
    nodes = []
    for name in tree.names("sys/devices/system/node"):
        match = _NODE.fullmatch(name)
        if match is None:
            continue
        folder = f"sys/devices/system/node/{name}"
        nodes.append(
            NumaNode(
                id=int(match.group(1)),
                cpus=parse_cpu_list(tree.text(f"{folder}/cpulist") or ""),
                memory_bytes=parse_node_meminfo(tree.text(f"{folder}/meminfo") or ""),
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.id))

"""What the kernel tells about an engine's processes: CPU time, memory, whether they are stopped, who was killed.

Cheap enough for every second. All of it is None or empty where it can't be known (another system, a process that
has just ended).
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from terazi.hardware.parse_cgroup import find_folder
from terazi.supervisor.group import figures
from terazi.supervisor.identity import family, stopped

#: (device id, bytes) that the driver counts for a process; None if it counts none, or can't be asked.
DeviceMemory = Callable[[int], tuple[tuple[str, int], ...] | None]

#: Seconds of memory samples that are kept.
KEPT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """One moment of an engine's processes together. Bytes; None where it can't be known.

    Args:
        wall_s: Unix time.
        anonymous_bytes: resident memory that only swap could take.
        file_bytes: resident pages of mapped files.
        swapped_bytes: of it that swap has taken.
        available_bytes: what the whole system could still give.
        device_bytes: (device id, bytes), the last that was measured.
    """

    wall_s: float
    anonymous_bytes: int | None
    file_bytes: int | None
    swapped_bytes: int | None
    available_bytes: int | None
    device_bytes: tuple[tuple[str, int], ...] | None = None


class Curve:
    """The last minutes of an engine's memory, a sample a second.

    Args:
        device_memory: what the driver last counted for a process; must not block.
    """

    def __init__(self, *, kept: int = KEPT, device_memory: DeviceMemory | None = None) -> None:
        self._samples: deque[MemorySample] = deque(maxlen=kept)
        self._device_memory = device_memory

    def look(self, pid: int) -> tuple[int, ...]:
        """Take a sample of *pid* and its descendants, if it still runs; who they are."""
        pids = family(pid)
        found = memory_of(pids)
        if found is not None:
            device = None if self._device_memory is None else self._device_memory(pid)
            self._samples.append(
                MemorySample(
                    wall_s=time.time(),
                    anonymous_bytes=found[0],
                    file_bytes=found[1],
                    swapped_bytes=found[2],
                    available_bytes=available_bytes(),
                    device_bytes=device,
                )
            )
        return pids if found is not None else ()

    def clear(self) -> None:
        """Another process begins."""
        self._samples.clear()

    @property
    def samples(self) -> tuple[MemorySample, ...]:
        """Oldest first."""
        return tuple(self._samples)


def memory_of(pids: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(anonymous, file, swapped) bytes of *pids* together; None if none of them can be read.

    ``RssAnon``, ``RssFile`` and ``VmSwap`` of ``/proc/PID/status`` (proc_pid_status(5)).
    """
    sums, read = [0, 0, 0], False
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                for place, name in enumerate(("RssAnon:", "RssFile:", "VmSwap:")):
                    if line.startswith(name):
                        sums[place] += int(line.split()[1]) * 1024
                        read = True
    return (sums[0], sums[1], sums[2]) if read else None


def available_bytes() -> int | None:
    """``MemAvailable`` of the whole system."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def cpu_s(pid: int, group: str | None = None) -> float | None:
    """CPU seconds that *pid* and what it has started have used so far; None if it can't be known.

    With a control group the kernel's own sum (``cpu.stat``), else the sum over the living.
    """
    if group is not None and (used := figures(group, "cpu.stat").get("usage_usec")) is not None:
        return used / 1e6
    if sys.platform != "linux":
        import psutil

        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            return times.user + times.system
        return None
    total, read = 0.0, False
    for one in family(pid):
        with suppress(OSError, ValueError, IndexError):
            # utime and stime, fields 14 and 15 (proc_pid_stat(5)); the name in parentheses may hold anything
            fields = Path(f"/proc/{one}/stat").read_bytes().rpartition(b")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            read = True
    return total if read else None


def is_stopped(pid: int) -> bool:
    """Whether the kernel lets it do nothing."""
    return stopped(pid)


# --- who was killed for want of memory ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKills:
    """How often the kernel has ended a process for want of memory: in the engine's control group, in that of this
    program and those above it, in the whole system. None where it isn't counted."""

    engine: int | None = None
    service: int | None = None
    machine: int | None = None

    def since(self, before: "OomKills") -> str | None:
        """Where one has been since *before*, as a clause; None if nowhere."""
        for name, where in (
            ("engine", "in its control group"),
            ("service", "in Terazi's"),
            ("machine", "on the machine"),
        ):
            now, then = getattr(self, name), getattr(before, name)
            if now is not None and then is not None and now > then:
                return where
        return None


def oom_kills(group: str | None = None) -> OomKills:
    """The counts now: ``oom_kill`` of ``memory.events`` (v2), ``memory.oom_control`` (v1), ``/proc/vmstat``."""
    service = _own_memory_group()
    return OomKills(
        engine=None if group is None else figures(group, "memory.events").get("oom_kill"),
        service=None if service is None else figures(*service).get("oom_kill"),
        machine=figures("/proc", "vmstat").get("oom_kill"),
    )


@cache
def _own_memory_group() -> tuple[str, str] | None:
    try:
        cgroup, mounts = Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    found = find_folder("memory", cgroup, mounts)
    if found is None:
        return None
    name = "memory.events" if found.version == 2 else "memory.oom_control"
    return f"{found.mount}/{found.group.strip('/')}".rstrip("/"), name

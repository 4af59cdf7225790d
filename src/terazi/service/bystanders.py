"""What else this machine is doing: a measurement beside other work measures the other work too."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

#: Of all cores' time, what others may take before a measurement is worth nothing.
MOST_OTHERS = 0.1
_LOOK_S = 1.0
_IDLE = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guests count as user time already


class Business(NamedTuple):
    """The share of all cores' time that was taken, and who took most: (name, pid, share)."""

    share: float
    busiest: tuple[tuple[str, int, float], ...]

    def words(self) -> str:
        """In a sentence."""
        names = ", ".join(f"{name} (pid {pid}, {share:.0%})" for name, pid, share in self.busiest)
        return f"{self.share:.0%} of the CPU time goes to other work{': ' + names if names else ''}"


def look(seconds: float = _LOOK_S) -> Business:
    """Watch for *seconds* what everything on this machine takes while we take nothing."""
    cores = psutil.cpu_count() or 1
    before = _times()
    began = time.monotonic()
    first = _by_process()
    time.sleep(seconds)
    passed = time.monotonic() - began
    share = (_times() - before) / passed / cores
    took = [
        (name, pid, (spent - first[pid][1]) / passed / cores)
        for pid, (name, spent) in _by_process().items()
        if pid in first
    ]
    busiest = sorted((row for row in took if row[2] >= 0.02), key=lambda row: -row[2])
    return Business(max(0.0, share), tuple(busiest[:3]))


def _times() -> float:
    """Seconds of CPU that all processes have used, stolen time of a virtual machine included."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name) for name in times._fields if name not in _IDLE))


def _by_process() -> dict[int, tuple[str, float]]:
    found = {}
    own = psutil.Process().pid
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None and process.pid != own:
            found[process.pid] = (str(process.info["name"]), times.user + times.system)
    return found


def too_busy(found: Sequence[Business]) -> bool:
    """Whether every look found others at work: one that didn't may be taken at its word."""
    return all(business.share > MOST_OTHERS for business in found)

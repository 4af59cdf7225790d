"""A made-up ``/proc`` and ``/sys`` whose memory a test changes."""

from pathlib import Path

MIB = 1 << 20
V2 = "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"


class Box:
    """A root folder whose figures a test changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set(available=8000)
        self.write("proc/self/cgroup", "0::/terazi.service\n")
        self.write("proc/self/mountinfo", V2)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def set(self, *, available: int, stalled: float = 0.0, swapped: int = 0) -> None:
        """MiB, percent, pages."""
        self.write("proc/meminfo", f"MemTotal: {16000 * 1024} kB\nMemAvailable: {available * 1024} kB\n")
        self.write(
            "proc/pressure/memory", f"some avg10=99.00 total=1\nfull avg10={stalled:.2f} avg60=0.00 total=1\n"
        )
        self.write("proc/vmstat", f"nr_free_pages 5\npswpin {swapped}\noom_kill 2\n")

    def group(self, *, limit: int, used: int, kills: int = 0) -> None:
        """A control group's memory in MiB."""
        base = "sys/fs/cgroup/terazi.service"
        self.write(f"{base}/memory.max", f"{limit * MIB}\n")
        self.write(f"{base}/memory.current", f"{used * MIB}\n")
        self.write(f"{base}/memory.stat", "inactive_file 0\n")
        self.write(f"{base}/memory.events", f"low 0\noom_kill {kills}\n")
        self.write(f"{base}/memory.pressure", "full avg10=3.50 avg60=0.00 total=1\n")

"""A control group of its own for each engine, where the system lets us make one (cgroup v2, a folder that we may
write to): what the engine starts can't leave it, one word ends all of it, and the kernel counts its memory.

Without one (a container whose ``/sys/fs/cgroup`` is read-only, macOS) the process group and the tags of
``identity`` do the same less surely. The files: Documentation/admin-guide/cgroup-v2.rst of the kernel;
``cgroup.kill`` is there since Linux 5.14.
"""

import os
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from terazi.hardware.parse_cgroup import find_folder
from terazi.supervisor.identity import owner_id

PREFIX = "terazi-"
_END_WITHIN_S = 2.0


@cache
def home() -> str | None:
    """This process's own folder in the unified hierarchy; None if there is none, or it isn't ours to divide."""
    if sys.platform != "linux":
        return None
    try:
        cgroup, mounts = Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    found = find_folder("", cgroup, mounts)  # only the unified hierarchy has no controller's name
    folder = None if found is None or found.version != 2 else f"{found.mount}/{found.group.strip('/')}".rstrip("/")
    return folder if folder and os.access(folder, os.W_OK) else None


def make_group(run_id: str) -> str | None:
    """The folder of a new group; None where it can't be had."""
    base = home()
    if base is None:
        return None
    folder = f"{base}/{PREFIX}{owner_id()}-{run_id}"
    try:
        os.mkdir(folder)  # noqa: PTH102
    except OSError:
        return None
    if not os.path.exists(f"{folder}/cgroup.kill"):  # noqa: PTH110 - an old kernel: no way to end it for sure
        remove_group(folder)
        return None
    return folder


def end_group(folder: str) -> bool:
    """Kill all that is in it, and remove it. False if something doesn't die. Blocks for 2 s at most."""
    try:
        Path(f"{folder}/cgroup.kill").write_text("1")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    end = time.monotonic() + _END_WITHIN_S
    while populated(folder) and time.monotonic() < end:
        time.sleep(0.005)
    return remove_group(folder)


def remove_group(folder: str) -> bool:
    """Remove an empty group; False if it isn't empty."""
    try:
        os.rmdir(folder)  # noqa: PTH106
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def populated(folder: str) -> bool:
    """Whether a process is in it."""
    return figures(folder, "cgroup.events").get("populated", 0) != 0


def members(folder: str) -> set[int]:
    """The processes in it; empty if it isn't there."""
    with suppress(OSError, ValueError):
        return {int(line) for line in Path(f"{folder}/cgroup.procs").read_text().split()}
    return set()


def figures(folder: str, name: str) -> dict[str, int]:
    """A flat-keyed file (``memory.events``, ``cpu.stat``) as numbers; empty if it isn't there."""
    found = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in Path(f"{folder}/{name}").read_text().splitlines():
            key, _, value = line.partition(" ")
            with suppress(ValueError):
                found[key] = int(value)
    return found

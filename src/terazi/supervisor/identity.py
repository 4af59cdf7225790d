"""Who a process is, beyond its number: when it started, whose tags it carries, whether it still runs.

Every engine is started with two variables in its environment, which its descendants inherit: ``TERAZI_RUN_ID``,
random for each start, and ``TERAZI_OWNER``, random for each Terazi. A descendant that made itself a session of its
own is found by them.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

RUN_ID = "TERAZI_RUN_ID"
OWNER = "TERAZI_OWNER"
#: A family that forks faster than it is killed is looked through so often.
_ROUNDS = 50


@cache
def owner_id() -> str:
    """The random tag of this Terazi."""
    return os.urandom(16).hex()


def boot_id() -> str:
    """What changes when the machine is started anew."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return f"{psutil.boot_time():.0f}"


def start_time(pid: int) -> str | None:
    """When *pid* started, as the kernel tells it; None if there is no such process, or only its remains."""
    if sys.platform == "linux":
        try:
            # the name, in parentheses, may hold anything; field 22 counts from behind it (proc_pid_stat(5))
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        return fields[19].decode() if len(fields) > 19 and fields[0] not in {b"Z", b"X"} else None
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def run_id_of(pid: int) -> str | None:
    """The run id in the environment that *pid* was started with."""
    if sys.platform == "linux":
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        found = next((e for e in entries if e.startswith(RUN_ID.encode() + b"=")), None)
        return found.partition(b"=")[2].decode("ascii", "replace") if found is not None else None
    import psutil

    try:
        return psutil.Process(pid).environ().get(RUN_ID)
    except psutil.Error:
        return None


def running(pid: int) -> bool:
    """Whether *pid* still holds anything: what only waits to be reaped doesn't."""
    return start_time(pid) is not None


def stopped(pid: int) -> bool:
    """Whether the kernel has it stopped (SIGSTOP, a debugger): it can't work, and hears nothing but SIGKILL."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    return False


def tagged(run_id: str) -> Iterator[int]:
    """Every process that was started with *run_id* in its environment, other than this one."""
    for pid in _pids():
        if pid != os.getpid() and run_id_of(pid) == run_id and running(pid):
            yield pid


def end_tagged(run_id: str, *, spare: int | None = None) -> int:
    """SIGKILL to whatever carries *run_id*, until nothing does any more; how many there were.

    Of use after the engine itself has gone. *spare* is a process that isn't touched, whatever it carries.
    """
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        found = [pid for pid in tagged(run_id) if pid != spare and pid not in ended]
        if not found:
            break
        for pid in found:
            _kill(pid, run_id)
            ended.add(pid)
    for pid in ended:  # ours to reap if this is the first process of a container
        with suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
    return len(ended)


def _kill(pid: int, run_id: str) -> None:
    """SIGKILL, if *pid* still is who it was: on Linux a handle keeps the number from meaning another meanwhile."""
    with suppress(OSError):
        if sys.platform != "linux":
            os.kill(pid, signal.SIGKILL)
            return
        handle = os.pidfd_open(pid)
        try:
            if run_id_of(pid) == run_id:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def family(pid: int) -> tuple[int, ...]:
    """*pid* and its living descendants, as far as parents tell (Linux; elsewhere *pid* alone)."""
    found, rest = [], [pid]
    while rest:
        one = rest.pop()
        found.append(one)
        with suppress(OSError, ValueError):
            for task in os.listdir(f"/proc/{one}/task"):  # noqa: PTH208 - each second, for each engine
                rest += [int(word) for word in Path(f"/proc/{one}/task/{task}/children").read_text().split()]
    return tuple(dict.fromkeys(found))


def _pids() -> Iterator[int]:
    if sys.platform == "linux":
        for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs more than the listing
            if name.isdecimal():
                yield int(name)
        return
    import psutil

    yield from psutil.pids()

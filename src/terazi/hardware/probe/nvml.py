"""Runs the child that asks the NVIDIA driver, and ends it at the deadline."""

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import subprocess

    from terazi.hardware.parse_nvml import NvmlReport

_CHILD: Final = __file__.rpartition("/")[0] + "/nvml_child.py"
_MAX_OUTPUT: Final = 1024 * 1024
#: How long a killed child may take to disappear; one that sleeps inside the driver can't be reaped sooner.
_REAP_S: Final = 1.0
_LIBRARY: Final = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
)  # fmt: skip


class ChildAnswer(NamedTuple):
    """What the child printed, and why it stopped if it didn't end by itself."""

    text: str
    failure: str | None


def driver_present(root: str) -> bool:
    """A cheap sign of an NVIDIA driver: its /proc folder, its device node, or (on this machine) its library."""
    import os

    if any(os.path.exists(os.path.join(root, p)) for p in ("proc/driver/nvidia/version", "dev/nvidiactl")):  # noqa: PTH110, PTH118
        return True
    if root != "/":
        return False
    own = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    return any(os.path.exists(f"{folder}/{_LIBRARY}") for folder in (*own, *_LIBRARY_FOLDERS))  # noqa: PTH110


def ask_driver(deadline_s: float) -> ChildAnswer:
    """Start the child, read what it prints for at most *deadline_s* seconds, and leave no process behind."""
    import os
    import select
    import subprocess
    import sys
    import time

    end = time.monotonic() + deadline_s
    child = subprocess.Popen(
        # -P: this folder's own modules must not stand in for the standard library's.
        [sys.executable, "-P", _CHILD, str(deadline_s + 2)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdout is not None  # noqa: S101 - asked for a pipe above
    pipe = child.stdout.fileno()
    got = bytearray()
    failure: str | None = None
    try:
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                failure = f"NVIDIA driver did not answer within {deadline_s:g} s"
                break
            piece = os.read(pipe, 65536)
            if not piece:
                break
            got += piece
            if len(got) > _MAX_OUTPUT:
                failure = "the NVIDIA driver's answer was too long"
                break
    finally:
        if failure is not None or child.poll() is None:
            stopped = _stop(child, ask_first=failure is None)
            if not stopped:
                failure = f"{failure or 'NVIDIA probe stuck'}; process {child.pid} is stuck in the driver"
        child.stdout.close()
    if failure is None and child.returncode != 0:
        failure = f"the NVIDIA probe ended with status {child.returncode}"
    return ChildAnswer(text=got.decode(errors="replace"), failure=failure)


def read_cards(*, root: str = "/", deadline_s: float = 5.0) -> "NvmlReport | None":
    """The cards and who computes on them, as the driver says now; None without a driver. It starts a process."""
    if not driver_present(root):
        return None
    from terazi.hardware.parse_nvml import parse_nvml

    return parse_nvml(ask_driver(deadline_s).text)


def read_process_memory(
    pid: int, *, root: str = "/", deadline_s: float = 5.0
) -> tuple[tuple[str, int], ...] | None:
    """(device id, bytes) that the driver counts for *pid*, its context included; None if it names no such process.

    In a container the driver may name processes by the host's numbers, and then says nothing here.
    """
    report = read_cards(root=root, deadline_s=deadline_s)
    if report is None:
        return None
    ids = {gpu.index: f"CUDA{place}" for place, gpu in enumerate(report.gpus)}
    found = tuple((ids[index], used) for index, its, used in report.processes if its == pid and index in ids)
    return found or None


def _stop(child: "subprocess.Popen[bytes]", *, ask_first: bool) -> bool:
    """End the child; False if even SIGKILL didn't within a second."""
    import subprocess

    if ask_first:  # it has closed its output and is about to exit
        try:
            child.wait(timeout=_REAP_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return True
    child.kill()
    try:
        child.wait(timeout=_REAP_S)
    except subprocess.TimeoutExpired:
        return False
    return True

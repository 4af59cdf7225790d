"""Outlives Terazi by a moment: ends whatever its engines started, when Terazi itself was killed.

``python -I -S warden.py OWNER GROUPS``. Only the standard library; nothing of Terazi is imported. Standard input
is a pipe whose other end only Terazi holds; it ends when Terazi does, however that ends. An engine dies with Terazi
by the parent-death signal (``shim.py``); a process that the engine has started doesn't, and one in a session of its
own is in no group that could be killed. They carry ``TERAZI_OWNER=OWNER`` in their environment, or are in a control
group ``GROUPS/terazi-OWNER-…`` (GROUPS is empty where there are none).
"""

import contextlib
import glob
import os
import signal
import sys
import time

#: So many looks in a row must find nothing, and so many there are at most.
QUIET_ROUNDS, MOST_ROUNDS = 3, 200


def wait_for_the_end() -> None:
    """Return when the other end of standard input is closed."""
    while os.read(0, 4096):
        pass


def end_groups(pattern: str) -> bool:
    """Kill what is in control groups and remove them; whether any is left."""
    left = False
    for folder in glob.glob(pattern):  # noqa: PTH207 - this file starts in a hurry
        with contextlib.suppress(OSError), open(f"{folder}/cgroup.kill", "w") as file:  # noqa: PTH123
            file.write("1")
        try:
            os.rmdir(folder)  # noqa: PTH106
        except FileNotFoundError:
            continue
        except OSError:  # its processes are still dying
            left = True
    return left


def end_tagged(tag: bytes) -> bool:
    """SIGKILL to all whose environment has *tag*; whether there were any."""
    found = False
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
            if tag in file.read().split(b"\0"):
                found = True
                os.kill(int(name), signal.SIGKILL)
    return found


def main(argv: list[str]) -> None:
    """Wait, then clean up."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # it ends when Terazi does, and not before
        signal.signal(number, signal.SIG_IGN)
    owner, groups = argv[1], argv[2]
    wait_for_the_end()
    quiet = rounds = 0
    while quiet < QUIET_ROUNDS and rounds < MOST_ROUNDS:
        left = bool(groups) and end_groups(f"{glob.escape(groups)}/terazi-{owner}-*")
        quiet = 0 if end_tagged(f"TERAZI_OWNER={owner}".encode()) or left else quiet + 1
        rounds += 1
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv)

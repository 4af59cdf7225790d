"""Runs as its own tiny process between Terazi and the engine: ties the engine's life to Terazi's, then becomes it.

``python -I -S shim.py PARENT_PID WATCH_FD GROUP COMMAND…``. Only the standard library; nothing of Terazi is
imported. The process id stays the same through ``exec``.

- Linux: the parent-death signal (SIGKILL) survives ``exec``. It is set first and the parent is looked at
  afterwards, so that a parent that died in between is noticed. The signal is bound to the *thread* that started
  this process: Terazi spawns engines from the thread of its event loop, which lives as long as Terazi.
- Elsewhere (WATCH_FD is not -1): a child is left behind that reads a pipe whose other end only Terazi holds, and
  kills the process group when the pipe ends.

GROUP is the folder of a control group to go into before anything else, or ``-``. That it can't be entered costs
only what a group is good for.
"""

import contextlib
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
#: The shell's conventions: found but not runnable, not found.
CANNOT_RUN, NOT_FOUND = 126, 127


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies (``prctl(2)``)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        problem = os.strerror(ctypes.get_errno())
        sys.exit(f"terazi: cannot tie the engine to this process: {problem}")


def leave_watcher(fd: int) -> None:
    """Fork a process that kills the group when the pipe *fd* ends, and that ends with its parent, the engine."""
    engine = os.getpid()
    if os.fork() != 0:
        os.close(fd)
        return
    while os.getppid() == engine:
        readable, _, _ = select.select([fd], [], [], 0.5)
        if readable and os.read(fd, 1) == b"":
            os.killpg(os.getpgid(engine), signal.SIGKILL)
    os._exit(0)


def main(argv: list[str]) -> None:
    """Become the command; never returns."""
    parent, fd, group, command = int(argv[1]), int(argv[2]), argv[3], argv[4:]
    if group != "-":
        with contextlib.suppress(OSError), open(f"{group}/cgroup.procs", "w") as file:  # noqa: PTH123
            file.write("0")
    if fd < 0:
        die_with_parent()
    else:
        leave_watcher(fd)
    if os.getppid() != parent:
        os._exit(CANNOT_RUN)
    try:
        os.execvpe(command[0], command, os.environ)  # noqa: S606 - becoming the engine is what this file is for
    except OSError as problem:
        print(f"terazi: cannot run {command[0]}: {problem.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_FOUND if isinstance(problem, FileNotFoundError) else CANNOT_RUN)


if __name__ == "__main__":
    main(sys.argv)

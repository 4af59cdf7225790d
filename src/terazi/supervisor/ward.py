"""Keeps one ``warden.py`` beside this process for as long as it runs engines (Linux)."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from terazi.supervisor.group import home
from terazi.supervisor.identity import owner_id

WARDEN = Path(__file__).with_name("warden.py")


class _Warden:
    """Its process, and the end of the pipe that says that this process lives."""

    pid: int | None = None
    pipe: int | None = None


def ensure_warden() -> int | None:
    """Start it if it doesn't run; its process id. None where it isn't needed, or can't be started.

    The pipe's end is closed by the kernel when this process is gone, and is inherited by nobody.
    """
    if sys.platform != "linux":
        return None
    if _Warden.pid is not None and _lives(_Warden.pid):
        return _Warden.pid
    _let_go()
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        # in a session of its own, so that no terminal and no killpg reaches it; with none of our tags, or it would
        # end itself
        _Warden.pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(WARDEN), owner_id(), home() or ""],
            {"PATH": os.environ.get("PATH", "")},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_DUP2, nothing, 1),
                (os.POSIX_SPAWN_DUP2, nothing, 2),
            ],
            setsid=True,
        )
        _Warden.pipe = writing
    except (OSError, NotImplementedError):  # the latter where the C library knows no POSIX_SPAWN_SETSID
        os.close(writing)
        return None
    finally:
        os.close(reading)
        os.close(nothing)
    return _Warden.pid


def _lives(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _let_go() -> None:
    if _Warden.pipe is not None:
        with suppress(OSError):
            os.close(_Warden.pipe)
    _Warden.pid = _Warden.pipe = None

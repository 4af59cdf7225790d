"""One engine process: spawned in its own session, tied to this process's life, its output handed on as it comes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from terazi.engines.base import LaunchSpec
from terazi.supervisor.group import end_group, make_group
from terazi.supervisor.identity import OWNER, RUN_ID, end_tagged, owner_id
from terazi.supervisor.vitals import OomKills, oom_kills
from terazi.supervisor.ward import ensure_warden

SHIM = Path(__file__).with_name("shim.py")
#: A chatty engine must not be slowed by a Terazi that is busy for a moment.
PIPE_BYTES = 1024 * 1024
#: How long output may still come after the process has gone, if a grandchild holds the pipe.
LAST_WORDS_S = 0.5


class EngineProcess(asyncio.SubprocessProtocol):
    """A running engine. Made by :meth:`spawn`.

    ``gone`` ends with the exit code (None if by a signal) and the signal (None if by itself), once the process is
    reaped, its output is read, and what it had started is ended too. ``group`` is the folder of its control group,
    if it has one of its own. ``oom_before`` and ``oom_after`` count who was killed for want of memory.
    """

    def __init__(self, on_output: Callable[[bytes], None], *, run_id: str = "", group: str | None = None) -> None:
        self._on_output = on_output
        self._run_id = run_id
        self.group = group
        self._cleared = self._heard_out = False
        self.oom_before = self.oom_after = OomKills()
        self._transport: asyncio.SubprocessTransport | None = None
        self._watch_fd: int | None = None
        self._reaped = False
        self.gone: asyncio.Future[tuple[int | None, int | None]] = asyncio.get_running_loop().create_future()
        self.pid = 0

    @classmethod
    async def spawn(cls, spec: LaunchSpec, *, run_id: str, on_output: Callable[[bytes], None]) -> "EngineProcess":
        """Start *spec* through the shim.

        Call it on the thread that lives as long as this program: the parent-death signal belongs to the thread.

        Raises:
            OSError: if not even the shim can be started.
        """
        ensure_warden()
        env = {k: v for k, v in os.environ.items() if not k.startswith(spec.unset_env)} if spec.unset_env else None
        env = {**(os.environ if env is None else env), **dict(spec.env), RUN_ID: run_id, OWNER: owner_id()}
        group = make_group(run_id)
        reading, writing = (-1, None) if sys.platform == "linux" else os.pipe()
        shim = [sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), str(reading), group or "-"]
        try:
            transport, process = await asyncio.get_running_loop().subprocess_exec(
                lambda: cls(on_output, run_id=run_id, group=group),
                *shim,
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=env,
                pass_fds=() if writing is None else (reading,),
            )
        except BaseException:
            if group is not None:
                end_group(group)
            raise
        finally:
            if writing is not None:
                os.close(reading)
        process.pid = transport.get_pid()
        process.oom_before = oom_kills(group)
        process.watch(writing)
        return process

    def watch(self, fd: int | None) -> None:
        """Hold *fd*, the end of the shim's pipe that says that this program lives, until the engine is gone."""
        self._watch_fd = fd

    def signal(self, number: signal.Signals) -> None:
        """Send *number* to the process group; nothing happens if the process is gone."""
        if not self._reaped and self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    # --- what asyncio calls -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process is there."""
        process = cast(asyncio.SubprocessTransport, transport)  # uvloop's own doesn't derive from it
        self._transport = process
        self.pid = process.get_pid() or 0
        pipe = process.get_pipe_transport(1)
        file = pipe.get_extra_info("pipe") if pipe is not None else None
        if file is not None and sys.platform == "linux":
            import fcntl

            with suppress(OSError):
                fcntl.fcntl(file.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        """The engine wrote."""
        del fd
        self._on_output(data if isinstance(data, bytes) else data.encode())

    def process_exited(self) -> None:
        """The process was reaped: what it left in its group ends too; last words may still be in the pipe."""
        self._reaped = True
        # a spawn that was cancelled halfway has no number here, and group 0 would be this program's own
        if self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        loop = asyncio.get_running_loop()
        loop.call_later(LAST_WORDS_S, self._heard_all)
        clearing = loop.run_in_executor(None, self._clear)
        clearing.add_done_callback(lambda _: self._has_cleared())

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is reaped and the pipe has ended."""
        del exc
        self._heard_all()

    def _clear(self) -> None:
        """End what the engine has started and left, in whatever session it is."""
        self.oom_after = oom_kills(self.group)
        if self.group is not None:
            end_group(self.group)
        if self._run_id:
            end_tagged(self._run_id)

    def _has_cleared(self) -> None:
        self._cleared = True
        self._finish()

    def _heard_all(self) -> None:
        self._heard_out = True
        self._finish()

    def _finish(self) -> None:
        if self.gone.done() or self._transport is None or not (self._cleared and self._heard_out):
            return
        status = self._transport.get_returncode()
        self._transport.close()
        if self._watch_fd is not None:
            os.close(self._watch_fd)
            self._watch_fd = None
        code = status if status is not None and status >= 0 else None
        self.gone.set_result((code, -status if status is not None and status < 0 else None))


def free_port() -> int:
    """A TCP port on 127.0.0.1 that is free now; it may be gone a moment later, so be ready to ask again."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
    return port


def resident(pid: int) -> tuple[int | None, int | None]:
    """Resident bytes of *pid* that only swap could take, and those of mapped files; None where they can't be known.

    ``RssAnon`` and ``RssFile`` of ``/proc/PID/status`` (proc_pid_status(5)), Linux only.
    """
    found: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssFile:")):
                name, n_kib = line.split()[:2]
                found[name] = int(n_kib) * 1024
    return found.get("RssAnon:"), found.get("RssFile:")


def activity(pid: int) -> tuple[int, int] | None:
    """Bytes resident and bytes read so far, as a sign of life; None if they can't be known here."""
    try:
        if sys.platform == "linux":
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            return pages * os.sysconf("SC_PAGE_SIZE"), int(io["rchar"]) + int(io["read_bytes"])
        import psutil

        with suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss, 0
    except (OSError, ValueError, KeyError, IndexError):
        pass
    return None

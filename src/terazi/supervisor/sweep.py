"""Records of running engines, and the sweep that ends engines whose Terazi is gone.

A record is ``RUN_DIR/engines/RUN_ID.json``. A process is an orphan of ours only if all of this holds: its Terazi
(pid and start time) is dead, the machine hasn't been booted since, the process with the recorded pid started at the
recorded time, and its own environment carries the recorded random run id. A name or a pid alone never is enough.
"""

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from terazi.supervisor.group import end_group, members
from terazi.supervisor.identity import boot_id, end_tagged, run_id_of, start_time


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """Who runs for whom. ``start`` and ``owner_start`` are the kernel's words (clock ticks since boot on Linux).

    ``group`` is the folder of its control group, if it has one of its own.
    """

    run_id: str
    pid: int
    start: str
    owner_pid: int
    owner_start: str
    boot_id: str
    model: str = ""
    group: str = ""
    schema: str = "terazi.engine-record/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was done about one record: ``killed`` is True if a process of ours was ended."""

    run_id: str
    pid: int
    killed: bool
    reason: str


def write_record(run_dir: str, run_id: str, pid: int, model: str, *, group: str = "") -> Path | None:
    """Note that *pid* runs for this process; None if the process is gone already or the disk says no."""
    start, owner = start_time(pid), start_time(os.getpid())
    if start is None or owner is None:
        return None
    record = EngineRecord(
        run_id=run_id,
        pid=pid,
        start=start,
        owner_pid=os.getpid(),
        owner_start=owner,
        boot_id=boot_id(),
        model=model,
        group=group,
    )
    folder = Path(run_dir) / "engines"
    path, new = folder / f"{run_id}.json", folder / f"{run_id}.json.new"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(json.dumps(asdict(record)))
        new.chmod(0o600)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        return None
    return path


def read_records(run_dir: str) -> tuple[tuple[Path, EngineRecord | None], ...]:
    """Every record file and what it says (None: unreadable)."""
    folder = Path(run_dir) / "engines"
    return tuple((path, _read(path)) for path in sorted(folder.glob("*.json")))


def sweep_orphans(run_dir: str, *, grace_s: float = 2.0) -> tuple[Swept, ...]:
    """End the engines that a dead Terazi left, and remove the records of what is over.

    Blocks for *grace_s* and a little more for each orphan that doesn't heed SIGTERM. Records of a living Terazi
    are left alone.
    """
    return tuple(
        done for path, record in read_records(run_dir) if (done := _sweep(path, record, grace_s)) is not None
    )


def _sweep(path: Path, record: EngineRecord | None, grace_s: float) -> Swept | None:
    if record is None:
        path.unlink(missing_ok=True)
        return Swept(run_id=path.stem, pid=0, killed=False, reason="the record can't be read")
    same_boot = record.boot_id == boot_id()
    if same_boot and start_time(record.owner_pid) == record.owner_start:
        return None
    killed, reason = False, "the machine was started anew since"
    if same_boot:
        killed, reason = _end(record, grace_s)
        if children := _end_children(record):
            killed, reason = True, f"{reason}; {children} of its children were left"
    path.unlink(missing_ok=True)
    return Swept(run_id=record.run_id, pid=record.pid, killed=killed, reason=reason)


def _end(record: EngineRecord, grace_s: float) -> tuple[bool, str]:
    """SIGTERM, then SIGKILL, to the group of a process that surely is the recorded one."""
    fd = _hold(record.pid)
    try:
        why_not = _not_ours(record)
        if why_not:
            return False, why_not
        own_group = _group(record.pid) == record.pid
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            if _not_ours(record):
                break
            with suppress(ProcessLookupError):
                if own_group:
                    os.killpg(record.pid, number)
                else:
                    os.kill(record.pid, number)
            if _wait_gone(record, fd, wait_s):
                break
    except PermissionError:
        return False, "it belongs to another user"
    else:
        gone = bool(_not_ours(record))
        return gone, "its Terazi is gone" if gone else "it does not die: it is stuck in the kernel"
    finally:
        if fd is not None:
            os.close(fd)


def _end_children(record: EngineRecord) -> int:
    """SIGKILL to what the engine left, whatever group or session it is in: the run id was inherited, or it is still
    in the control group that bears the run id."""
    held = 0
    if record.group and record.run_id in record.group:
        held = len(members(record.group) - {record.pid})
        end_group(record.group)
    return held + end_tagged(record.run_id, spare=record.pid)


def _not_ours(record: EngineRecord) -> str:
    """Why the process with the recorded pid isn't the recorded one; empty if it is."""
    start = start_time(record.pid)
    if start is None:
        return "it has ended"
    if start != record.start:
        return "the pid belongs to another process now"
    if run_id_of(record.pid) != record.run_id:
        return "the process doesn't carry the run id"
    return ""


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _hold(pid: int) -> int | None:
    """A handle that keeps the pid from meaning another process while we look (Linux)."""
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" else None
    except OSError:
        return None


def _wait_gone(record: EngineRecord, fd: int | None, wait_s: float) -> bool:
    if fd is not None:
        readable, _, _ = select.select([fd], [], [], wait_s)
        return bool(readable)
    end = time.monotonic() + wait_s
    while not _not_ours(record):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def _read(path: Path) -> EngineRecord | None:
    try:
        if path.stat().st_size > 64 * 1024:
            return None
        data = json.loads(path.read_text())
        record = EngineRecord(**data)
    except (OSError, ValueError, TypeError):
        return None
    texts: tuple[object, ...] = (record.run_id, record.start, record.owner_start, record.boot_id)
    pids: tuple[object, ...] = (record.pid, record.owner_pid)
    well = all(isinstance(t, str) and t for t in texts) and all(isinstance(n, int) and n > 0 for n in pids)
    return record if well and record.pid > 1 else None

"""The orphan sweep: it ends what surely is ours, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadline import alive, until
from terazi.supervisor.identity import boot_id, start_time
from terazi.supervisor.sweep import read_records, sweep_orphans, write_record

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries a run id, in a group of its own."""
    process = subprocess.Popen(
        ["/bin/sleep", "60"], env={**os.environ, "TERAZI_RUN_ID": "abc123"}, start_new_session=True
    )
    until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
    yield process
    process.kill()
    process.wait()


def record(folder: Path, pid: int, **change: object) -> Path:
    """A record of *pid* whose Terazi is dead, unless *change* says otherwise."""
    path = write_record(str(folder), "abc123", pid, "demo")
    assert path is not None
    data = {**json.loads(path.read_text()), "owner_pid": dead_pid(), "owner_start": "1", **change}
    path.write_text(json.dumps(data))
    return path


def dead_pid() -> int:
    """A pid that was somebody's a moment ago."""
    done = subprocess.Popen(["/bin/true"])
    done.wait()
    return done.pid


def test_orphan_of_a_dead_terazi_is_ended(orphan: subprocess.Popen[bytes], tmp_path: Path) -> None:
    path = record(tmp_path, orphan.pid)
    (swept,) = sweep_orphans(str(tmp_path))
    assert (swept.pid, swept.killed) == (orphan.pid, True)
    assert not alive(orphan.pid)
    assert not path.exists()
    assert sweep_orphans(str(tmp_path)) == ()


def test_orphan_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        env={**os.environ, "TERAZI_RUN_ID": "abc123"},
        start_new_session=True,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        record(tmp_path, process.pid)
        (swept,) = sweep_orphans(str(tmp_path), grace_s=0.2)
        assert swept.killed
        assert process.wait(3) == -9


def test_children_that_a_dead_engine_left_are_ended(tmp_path: Path) -> None:
    told = tmp_path / "child"
    code = f"(exec sleep 60) & echo $! > {told}.new; mv {told}.new {told}; exec sleep 60"
    engine = subprocess.Popen(
        ["/bin/sh", "-c", code], env={**os.environ, "TERAZI_RUN_ID": "abc123"}, start_new_session=True
    )
    until(told.exists)
    child = int(told.read_text())
    record(tmp_path, engine.pid)
    engine.kill()
    engine.wait()
    assert alive(child)
    (swept,) = sweep_orphans(str(tmp_path))
    assert swept.killed
    assert "1 of its children" in swept.reason
    until(lambda: not alive(child))


def test_engine_of_a_living_terazi_is_left_alone(orphan: subprocess.Popen[bytes], tmp_path: Path) -> None:
    path = write_record(str(tmp_path), "abc123", orphan.pid, "demo")
    assert path is not None
    assert sweep_orphans(str(tmp_path)) == ()
    assert alive(orphan.pid)
    assert path.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"start": "12345"}, "belongs to another process now"),
        ({"run_id": "somebody-else"}, "doesn't carry the run id"),
        ({"boot_id": "another-boot"}, "started anew"),
    ],
)
def test_process_that_may_be_somebody_elses_is_not_killed(
    orphan: subprocess.Popen[bytes], tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    path = record(tmp_path, orphan.pid, **change)
    (swept,) = sweep_orphans(str(tmp_path))
    assert not swept.killed
    assert reason in swept.reason
    assert alive(orphan.pid)
    assert not path.exists(), "a stale record goes"


def test_owner_pid_that_is_somebody_elses_now_counts_as_dead(
    orphan: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    record(tmp_path, orphan.pid, owner_pid=os.getpid(), owner_start="1")
    (swept,) = sweep_orphans(str(tmp_path))
    assert swept.killed


def test_record_of_an_ended_engine_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "engines" / "abc123.json"
    path.parent.mkdir()
    fields = {"run_id": "abc123", "pid": dead_pid(), "start": "1", "owner_pid": dead_pid(), "owner_start": "1"}
    path.write_text(json.dumps({**fields, "boot_id": boot_id()}))
    (swept,) = sweep_orphans(str(tmp_path))
    assert (swept.killed, swept.reason) == (False, "it has ended")


INIT = '{"run_id":"a","pid":1,"start":"1","owner_pid":2,"owner_start":"1","boot_id":"b"}'


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', INIT])
def test_broken_record_is_removed_and_harms_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engines" / "x.json"
    path.parent.mkdir()
    path.write_text(text)
    assert [r for _, r in read_records(str(tmp_path))] == [None]
    (swept,) = sweep_orphans(str(tmp_path))
    assert not swept.killed
    assert not path.exists()


def test_start_time_tells_processes_apart(orphan: subprocess.Popen[bytes]) -> None:
    assert start_time(orphan.pid) not in {None, start_time(os.getppid())}
    assert start_time(dead_pid()) is None

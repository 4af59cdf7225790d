"""Terazi is killed with SIGKILL at each phase: no engine may outlive it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deadline import alive, until
from supervised import FAKE, PARENT, REPO, told


def engines(folder: Path) -> list[int]:
    """Pids whose command line names this test's folder, the shim's included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(FAKE).encode() in line and str(folder).encode() in line and b"-c" not in line.split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if alive(pid)]


@pytest.mark.parametrize("phase", ["starting", "loading", "ready"])
def test_no_engine_outlives_its_terazi(phase: str, tmp_path: Path) -> None:
    flags = ["--fake-load-s", "30"] if phase == "loading" else []
    ledger = ["--fake-ledger", str(tmp_path / "ledger")]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(FAKE), str(tmp_path), *flags, *ledger],
        env={**os.environ, "PYTHONPATH": str(REPO / "src")},
    )
    try:
        if phase == "starting":  # the shim has just been forked, or hasn't run a line yet
            until(lambda: engines(tmp_path) or "loading" in told(tmp_path))
        else:
            until(lambda: phase in told(tmp_path))
            pid = told(tmp_path)[phase]
            assert pid is not None
            assert alive(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: not engines(tmp_path), within_s=3)


def test_shim_whose_parent_is_gone_starts_nothing(tmp_path: Path) -> None:
    """The parent died before the shim could ask for the signal: another one has its place."""
    shim = REPO / "src" / "terazi" / "supervisor" / "shim.py"
    trace = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(shim), "1", "-1", "-", "/bin/sh", "-c", f"echo > {trace}"], check=False
    )
    assert done.returncode == 126
    assert not trace.exists()


def test_shim_becomes_the_engine_under_the_same_pid() -> None:
    shim = REPO / "src" / "terazi" / "supervisor" / "shim.py"
    command = [sys.executable, "-I", "-S", str(shim), str(os.getpid()), "-1", "-", "/bin/sh", "-c", "echo $$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid


def test_without_a_parent_death_signal_a_watcher_kills_the_group() -> None:
    """The way of systems without prctl: the pipe's other end closes when its holder dies."""
    shim = REPO / "src" / "terazi" / "supervisor" / "shim.py"
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", str(shim), str(os.getpid()), str(reading), "-", "/bin/sleep", "60"]
    process = subprocess.Popen(command, start_new_session=True, pass_fds=(reading,))
    os.close(reading)
    try:
        until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        assert process.poll() is None
        os.close(writing)
        assert process.wait(5) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()

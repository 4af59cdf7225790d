"""The folder of a verification: whose it is, and what becomes of one whose process was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from running import environment
from terazi.service import scratch

HOLD = """
from terazi.service.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    input()
"""


def held(folder: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A process that works in such a folder, and the folder, made to look old."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**environment(folder), "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    made = Path(process.stdout.readline().strip())
    (made / "twin.gguf").write_bytes(b"x")
    os.utime(made, (1, 1))
    return process, made


def test_what_a_killed_verification_left_is_swept_and_what_a_running_one_holds_is_not(tmp_path: Path) -> None:
    killed, left = held(tmp_path)
    running, kept = held(tmp_path)
    with killed, running:
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        assert left.exists()
        assert scratch.sweep(str(tmp_path)) == 1
        assert not left.exists()
        assert (kept / "twin.gguf").exists()
        running.communicate("\n", 10)
    assert not kept.exists()


def test_links_and_young_folders_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(other)
    young = tmp_path / f"{scratch.PREFIX}young"
    young.mkdir()
    (tmp_path / f"{scratch.PREFIX}file").touch()
    assert scratch.sweep(str(tmp_path)) == 0
    assert other.exists()
    assert young.exists()
    monkeypatch.setattr(scratch, "_YOUNG_S", -1.0)
    assert scratch.sweep(str(tmp_path)) == 1
    assert not young.exists()

"""``make run`` before there is anything: what it says to a machine that isn't ready, and what it leaves alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from running import REPO


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_old_python_is_told_before_it_has_to_read_anything(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    # what a Python that is too old does: answer the question for its version with no, and name itself
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.6.15 && exit\n[ "$1" = -c ] && exit 1\nexit 99\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", "run", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"],
        cwd=REPO,
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode != 0
    error, hint = done.stderr.splitlines()[:2]
    assert error == "error: Terazi needs Python 3.11 or newer, and this is Python 3.6.15"
    assert hint.startswith("hint: ")
    assert not (tmp_path / "venv").exists()


def test_a_folder_that_is_no_environment_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = subprocess.run(
        [sys.executable, str(REPO / "tools" / "setup.py"), "run"],
        env={**os.environ, "TERAZI_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"TERAZI_VLLM": "no"}, "VLLM=no"), ({"TERAZI_VLLM_PYTHON": "/opt/python"}, "/opt/python")],
)
def test_vllm_is_left_out_on_request_and_where_there_is_one(
    tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    place = {"TERAZI_VLLM_VENV": str(tmp_path / "vllm"), "PYTHONPATH": str(REPO / "tools")}
    done = subprocess.run(
        [sys.executable, "-c", "import setup; setup.install_vllm()"],
        env={**os.environ, "TERAZI_VLLM": "yes", **place, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert said in done.stderr or "x86-64" in done.stderr
    assert not (tmp_path / "vllm").exists()

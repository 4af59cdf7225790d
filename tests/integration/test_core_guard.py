"""The guard itself: a core test that opens a file, a socket or a process fails, even if it swallows the error."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "file": "open('/etc/hostname')",
    "socket": "import socket; socket.socket()",
    "process": "import subprocess; subprocess.Popen(['true'])",
    "listing": "import os; os.listdir('/')",
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("swallow", [False, True])
def test_core_test_with_io_fails(case: str, swallow: bool, tmp_path: Path) -> None:
    repo = Path(__file__).parents[2]
    body = (
        f"    try:\n        {CASES[case]}\n    except Exception:\n        pass\n"
        if swallow
        else f"    {CASES[case]}\n"
    )
    conftest = (repo / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    unit = tmp_path / "unit"
    unit.mkdir()
    (unit / "test_bad.py").write_text(f"def test_bad():\n{body}\n\ndef test_good():\n    assert sum([1]) == 1\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            "--rootdir",
            str(tmp_path),
            str(unit),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "did I/O" in done.stdout

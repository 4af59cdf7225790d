"""What fuzzing once found, and the seeds it begins with, in a process whose memory is limited."""

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parents[1] / "fuzz" / "fuzz.py"


def test_the_corpus_is_answered_in_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--replay"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # KiB: a count in a file that is believed asks for gigabytes
    assert int(done.stdout) < 200 * 1024


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in (FUZZ.parent / "corpus").rglob("*") if path.is_file()]
    assert sizes
    assert sum(sizes) < 100_000

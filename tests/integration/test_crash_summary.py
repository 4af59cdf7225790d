"""What a person sees of an engine's end: a line as it happens, and a summary behind the log."""

import json
import os
import re
import signal
import sys
from pathlib import Path

from deadline import until
from running import REPO, terazi, up

ENGINE = REPO / "tests" / "fakes" / "engine.py"


def test_a_kill_from_outside_is_told_kept_and_shown(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{ENGINE}" "$@"\n')
    program.chmod(0o755)
    with up(tmp_path, "demo", "--context", "512", TERAZI_LLAMA_SERVER=str(program)) as running:
        running.url()
        (engine,) = running.engines()
        assert "last crash" not in terazi(tmp_path, "logs").stderr
        os.kill(engine.pid, signal.SIGKILL)
        until(lambda: [other for other in running.engines() if other.pid != engine.pid], 10)
        (path,) = (tmp_path / "crashes").glob("*.json")
        crash = json.loads(path.read_text())
        assert crash["schema"] == "terazi.crash/1"
        assert (crash["pid"], crash["by"]) == (engine.pid, "somebody else")
        assert path.stat().st_mode & 0o077 == 0, "a log may hold what people asked"
        shown = terazi(tmp_path, "logs")
        assert shown.returncode == 0, shown.stderr
        assert re.search(
            r"last crash: the engine of \S+ was ended by SIGKILL, which something outside", shown.stderr
        )
        assert str(path) in shown.stderr
        assert "last crash" not in shown.stdout, "stdout is the log"
        assert running.end() == 0

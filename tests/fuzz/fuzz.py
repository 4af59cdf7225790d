"""Coverage-guided fuzzing with atheris: ``python tests/fuzz/fuzz.py [SECONDS] [TARGET ...]``.

The targets (``targets.py``; default: all) share the time. New inputs go to a scratch folder, beginning from the corpus
in the tree; a finding is kept as ``tests/fuzz/findings/TARGET-...`` and ends the run with its traceback. Each target
runs in a process of its own with a limit on its memory, so that a count in a file that is believed is a finding too.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
#: One input may take this long, and a process may ask for so much address space.
SECONDS, ADDRESS_SPACE = 10, 4 << 30
#: Longer inputs find nothing that shorter ones don't.
LONGEST = 1 << 14


def main() -> int:
    """Run the targets one after the other, or one of them here."""
    if sys.argv[1:2] == ["--here"]:
        return _here(sys.argv[2], sys.argv[3:])
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    names = sys.argv[2:] or ["header", "weights", "config", "command"]
    # a header has by far the most behind it
    shares = {name: 5 if name == "header" else 1 for name in names}
    for name in names:
        time = max(1, seconds * shares[name] // sum(shares.values()))
        print(f"fuzzing {name} for {time} s", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            findings = FOLDER / "findings"
            findings.mkdir(exist_ok=True)
            flags = [
                f"-max_total_time={time}",
                f"-timeout={SECONDS}",
                f"-max_len={LONGEST}",
                f"-artifact_prefix={findings}/{name}-",
                "-rss_limit_mb=0",
                "-print_final_stats=1",
            ]
            command = [sys.executable, __file__, "--here", name, *flags, scratch, str(FOLDER / "corpus" / name)]
            code = subprocess.run(command, check=False).returncode
        if code:
            return code
    return 0


def _here(name: str, flags: list[str]) -> int:
    import atheris

    for folder in (FOLDER.parents[1] / "src", FOLDER.parent, FOLDER):
        sys.path.insert(0, str(folder))
    with atheris.instrument_imports(include=["terazi"]):
        from targets import TARGETS
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    atheris.Setup([sys.argv[0], *flags], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())

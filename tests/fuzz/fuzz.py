"""Coverage-guided fuzzing with atheris: ``python tests/fuzz/fuzz.py [SECONDS] [TARGET ...]``.

The targets (``targets.py``; default: all) share the time. New inputs go to a scratch folder, beginning from the
corpus in the tree; a finding is kept as ``tests/fuzz/findings/TARGET-...`` and ends the run with its traceback.
Each target runs in a process of its own with a limit on its address space, so that a count in a file that is
believed is a finding too. ``--replay`` runs the corpus once, without atheris, and prints the process's peak memory
in KiB.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
#: One input may take this long, and a process may ask for so much address space.
SECONDS, ADDRESS_SPACE = 25, 1 << 30
#: Longer inputs find nothing that shorter ones don't.
LONGEST = 1 << 14
#: A header has by far the most behind it.
SHARES = {"header": 5, "weights": 1, "config": 1, "command": 1}


def main() -> int:
    """Run the targets one after the other, or one of them here, or the corpus."""
    if sys.argv[1:2] == ["--here"]:
        return explore(sys.argv[2], sys.argv[3:])
    if sys.argv[1:2] == ["--replay"]:
        return replay()
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    names = sys.argv[2:] or list(SHARES)
    findings = FOLDER / "findings"
    findings.mkdir(exist_ok=True)
    for name in names:
        time = max(1, seconds * SHARES[name] // sum(SHARES[n] for n in names))
        print(f"fuzzing {name} for {time} s", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
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


def explore(name: str, flags: list[str]) -> int:
    """Fuzz one target in this process."""
    import atheris

    find_sources()
    with atheris.instrument_imports(include=["terazi"]):
        from targets import TARGETS
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    atheris.Setup([sys.argv[0], *flags], TARGETS[name])
    atheris.Fuzz()
    return 0


def replay() -> int:
    """Run every input of the corpus once."""
    find_sources()
    from targets import TARGETS

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for name, target in TARGETS.items():
        for path in sorted((FOLDER / "corpus" / name).iterdir()):
            target(path.read_bytes())
    print(Path("/proc/self/status").read_text(encoding="ascii").split("VmHWM:")[1].split()[0])
    return 0


def find_sources() -> None:
    """Let the targets and what they use be imported from this tree."""
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parents[1] / "src")]


if __name__ == "__main__":
    sys.exit(main())

"""Start-up of the commands that people wait for, as multiples of bare Python, paired in one run.

    python benchmarks/bench_startup.py [ROUNDS]

Prints the median of each, and its multiple of ``python -c pass``. The aims: ``terazi --help`` at most 4×,
``terazi weigh demo`` at most 7.5×, with ``--json`` at most 8×. Run it where the package is compiled to bytecode
(``make bench`` sees to it).
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

TERAZI = Path(sys.executable).parent / "terazi"
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "terazi --help": [str(TERAZI), "--help"],
    "terazi weigh demo": [str(TERAZI), "weigh", "demo"],
    "terazi weigh demo --json": [str(TERAZI), "weigh", "demo", "--json"],
}


def main() -> None:
    """Alternate the commands, so that a busy moment hits all of them."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - began)
    base = statistics.median(times["python -c pass"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:<26} {median * 1000:7.1f} ms  {median / base:5.2f} x")


if __name__ == "__main__":
    main()

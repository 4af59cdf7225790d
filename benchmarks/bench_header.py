"""Compares reading a model's header with merely reading the header's bytes.

The model is a sparse 70B file with a 128k vocabulary and 280k merges (7 MB of header), in the page cache. Both
sides run alternately and their medians are compared, in three settings:

- *first*: once in a fresh process, imports not counted, which is how a command meets it;
- *repeated*: over and over in one process, where the allocator hands the reader the same memory again;
- *process*: the whole process, start-up and imports counted.

Run: ``PYTHONPATH=src:tests python benchmarks/bench_header.py [--rounds N] [--json]``
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model_zoo import llama70b
from terazi.models.sources import load_model

REPO = Path(__file__).parents[1]
MERGES = 280_147

READ = "file = open({path!r}, 'rb', buffering=0); file.read({length}); file.close()"
LOAD = "load_model({path!r})"
IMPORT = "from terazi.models.sources import load_model"
#: Prints seconds of the statement, and the process's peak memory in KiB. VmHWM and not ``ru_maxrss``: the latter
#: counts what the parent held when it forked.
TIMED = """import time
{setup}
start = time.perf_counter()
{statement}
print(time.perf_counter() - start, open('/proc/self/status').read().split('VmHWM:')[1].split()[0])
"""


def run(code: str) -> tuple[float, str]:
    """Wall time of a fresh interpreter that runs *code*, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return time.perf_counter() - start, done.stdout


def main() -> None:
    """Run the comparison and print a table, or JSON."""
    parser = argparse.ArgumentParser(description="Reading a header against reading its bytes.")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(llama70b(Path(folder) / "70b.gguf", merges=MERGES))
        length = load_model(path).files[0].data_offset
        results = measure(path, length, options.rounds)
    if options.json:
        print(json.dumps(results))
        return
    print(f"header of {length / 1e6:.2f} MB, medians of {options.rounds} alternating rounds")
    print(f"{'setting':<10} {'read bytes':>11} {'read header':>12} {'ratio':>6}")
    for name in ("first", "repeated", "process"):
        read, load = results[f"{name}_read_s"], results[f"{name}_load_s"]
        print(f"{name:<10} {read * 1e3:>8.2f} ms {load * 1e3:>9.2f} ms {load / read:>6.2f}")
    bare, imports = results["bare_process_s"] * 1e3, results["import_s"] * 1e3
    print(f"bare interpreter {bare:.2f} ms, with imports {imports:.2f} ms")
    print(f"peak memory of the process that reads the header: {results['peak_bytes'] / 2**20:.1f} MiB")


def measure(path: str, length: int, rounds: int) -> dict[str, float]:
    """Medians in seconds, peak memory in bytes."""
    read, load = READ.format(path=path, length=length), LOAD.format(path=path)
    samples: dict[str, list[float]] = {}
    peak = 0

    def add(name: str, seconds: float) -> None:
        samples.setdefault(name, []).append(seconds)

    for _ in range(rounds):
        # The reading process imports nothing of Terazi, the other one before its clock starts.
        seconds, _ = run(read)
        add("process_read_s", seconds)
        seconds, _ = run(f"{IMPORT}; {load}")
        add("process_load_s", seconds)
        add("bare_process_s", run("pass")[0])
        add("import_s", run(IMPORT)[0])
        first, _ = run(TIMED.format(setup=IMPORT, statement=read))[1].split()
        add("first_read_s", float(first))
        first, memory = run(TIMED.format(setup=IMPORT, statement=load))[1].split()
        add("first_load_s", float(first))
        peak = max(peak, int(memory) * 1024)
        for name, act in (
            ("repeated_read_s", lambda: read_bytes(path, length)),
            ("repeated_load_s", lambda: load_model(path)),
        ):
            start = time.perf_counter()
            act()
            add(name, time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in samples.items()} | {"peak_bytes": peak}


def read_bytes(path: str, length: int) -> None:
    """Read the header's bytes and drop them."""
    with Path(path).open("rb", buffering=0) as file:
        file.read(length)


if __name__ == "__main__":
    main()

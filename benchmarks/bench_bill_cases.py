"""Grades the bill over measured commands, through the product: a table of the families and every miss.

    PYTHONPATH=src:tests python benchmarks/bench_bill_cases.py [NAME…]

The cases are ``tests/golden/bill_cases.json`` (and, with ``--published``, ``tests/golden/published_models.json``):
headers of published models, commands, and the bytes that llama.cpp b11434 reserved for them. Each model is written
as a sparse file with its whole vocabulary, and its commands go through one ``terazi weigh --commands``. A cell is
one device of one command. A miss is printed with both figures and with the bill's own reasons.
Commands that the engine refuses are not among them (``test_limits.py`` has those), nor are two whose compute
buffers of 23 and 37 GiB were never really reserved.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import bill_cases
import published_twins
from terazi.units import KIB, MIB

REPO = Path(__file__).parents[1]
GOLDEN = REPO / "tests" / "golden"
#: Room for anything: what is graded is the bill, not the verdict.
MACHINE = "3x RPC 4096GiB + 8TiB"
COLUMNS = (
    "commands", "cells", "weights =", "cache =", "compute =", "compute in 64 KiB", "in 5 % or 16 MiB",
    "total in 0.1 %", "in 1 %", "said exact",
)  # fmt: skip
Json: TypeAlias = dict[str, Any]
Question: TypeAlias = tuple[str, str, bill_cases.Case]


@dataclass
class Grades:
    """Counts of one family. ``cells`` are devices of commands that the engine did not refuse."""

    commands: int = 0
    cells: int = 0
    weights: int = 0
    kept: int = 0
    compute: int = 0
    within_64_kib: int = 0
    within_5_percent: int = 0
    totals_within_a_thousandth: int = 0
    totals_within_a_hundredth: int = 0
    claimed_exact: int = 0
    misses: list[str] = field(default_factory=list)


def main() -> int:
    """Weigh, grade and print; 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description="Grade the bill over measured commands.")
    parser.add_argument("names", nargs="*", help="models or architectures; all if none is given")
    parser.add_argument("--published", action="store_true", help="the headers of published_models.json, too")
    options = parser.parse_args()
    models = bill_cases.load(GOLDEN / "bill_cases.json")
    if options.published:
        models |= published_twins.load()
    if options.names:
        models = {
            name: model
            for name, model in models.items()
            if name in options.names or model.spec.architecture in options.names
        }
    grades: dict[str, Grades] = defaultdict(Grades)
    for name, model in models.items():
        # one at a time: a file is sparse, but its vocabulary isn't
        questions = [(name, model.spec.architecture, case) for case in model.cases]
        for (_, family, case), document in zip(questions, answers(name, model), strict=True):
            grade(grades[family], name, case, document)
    print(*table(grades), sep="\n")
    return 0 if aims_met(grades) else 1


def answers(name: str, model: bill_cases.Measured) -> Iterator[Json]:
    """What ``terazi weigh`` says about each command of *model*, in order."""
    with tempfile.TemporaryDirectory() as folder:
        path = published_twins.write_published(Path(folder), model.spec, vocab_size=model.spec.vocab_size)
        commands = Path(folder) / "commands"
        # measured without mapping the file
        words = [
            [case.command[0], "-m", str(path), *case.command[1:], "--load-mode", "none"] for case in model.cases
        ]
        commands.write_text("".join(shlex.join(line) + "\n" for line in words), encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-m", "terazi", "weigh", "--commands", str(commands), "--on", MACHINE],
            env={**os.environ, "PYTHONPATH": str(REPO / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
    documents = [json.loads(line) for line in run.stdout.splitlines()]
    if len(documents) != len(model.cases):
        raise RuntimeError(f"{name}: {len(documents)} answers to {len(model.cases)} commands: {run.stderr}")
    yield from documents


def grade(grades: Grades, name: str, case: bill_cases.Case, document: Json) -> None:
    """Count one command, its cells and its misses."""
    grades.commands += 1
    label = f"{name} {case.name}"
    if "error" in document:
        grades.misses.append(f"{label}: not weighed: {document['error']['message']}")
        grades.cells += len(case.expected)
        return
    shares = {share["id"]: share for share in document["plan"]["devices"]}
    reasons = "; ".join(document["bill"]["reasons"]) or "no reason known"
    grades.claimed_exact += document["bill"]["exact"]
    expected_total = total = 0
    for device, (weights, kept, compute) in case.expected.items():
        share = shares.get(device, defaultdict(int))
        ours = (share["weights_bytes"], share["kv_bytes"] + share["state_bytes"], share["compute_bytes"])
        grades.cells += 1
        grades.weights += ours[0] == weights
        grades.kept += ours[1] == kept
        grades.compute += ours[2] == compute
        off = abs(ours[2] - compute)
        grades.within_64_kib += off <= 64 * KIB
        grades.within_5_percent += off <= max(0.05 * compute, 16 * MIB)
        for what, mine, theirs in zip(
            ("weights", "cache and state", "compute"), ours, case.expected[device], strict=True
        ):
            if mine != theirs:
                grades.misses.append(
                    f"{label}: {device} {what} {mine}, engine {theirs} ({mine - theirs:+d}): {reasons}"
                )
        expected_total += weights + kept + compute
        total += sum(ours)
    grades.totals_within_a_thousandth += abs(total - expected_total) <= 0.001 * expected_total
    grades.totals_within_a_hundredth += abs(total - expected_total) <= 0.01 * expected_total


def table(grades: dict[str, Grades]) -> Iterator[str]:
    """The families, their sum, and every miss."""
    yield "| family | " + " | ".join(COLUMNS) + " |"
    yield "|---|" + "--:|" * len(COLUMNS)
    for family, one in [*sorted(grades.items()), ("**all**", _sum(grades))]:
        yield (
            f"| {family} | {one.commands} | {one.cells} | {one.weights} | {one.kept} | {one.compute} | "
            f"{one.within_64_kib} | {one.within_5_percent} | {one.totals_within_a_thousandth} | "
            f"{one.totals_within_a_hundredth} | {one.claimed_exact} |"
        )
    misses = [miss for one in grades.values() for miss in one.misses]
    yield ""
    yield f"{len(misses)} misses" + (":" if misses else "")
    yield from (f"- {miss}" for miss in misses)


def aims_met(grades: dict[str, Grades]) -> bool:
    """Weights and caches always; compute within 64 KiB on 90 % and within 5 % or 16 MiB on 99 %; totals."""
    all_ = _sum(grades)
    return (
        all_.weights == all_.kept == all_.cells
        and all_.within_64_kib >= 0.9 * all_.cells
        and all_.within_5_percent >= 0.99 * all_.cells
        and all_.totals_within_a_thousandth >= 0.95 * all_.commands
        and all_.totals_within_a_hundredth == all_.commands
    )


def _sum(grades: dict[str, Grades]) -> Grades:
    total = Grades()
    for one in grades.values():
        for name in Grades.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(one, name))
    return total


if __name__ == "__main__":
    sys.exit(main())

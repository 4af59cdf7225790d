"""What ``terazi weigh --json`` prints has the keys that the reference page names, and no others."""

import json
import re
from pathlib import Path

import pytest

from running import REPO, terazi

PAGE = (REPO / "docs" / "reference" / "documents.md").read_text(encoding="utf-8")
#: Parts whose keys are those of a noun with a table of its own, or are told in words.
ELSEWHERE = {"machine", "workload", "forecast", "power", "verification", "companions"}


def named() -> set[str]:
    table = PAGE.split("## The weighing", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (("--on", "16GiB ddr4"), {"refusal.reason", "refusal.shortfall", "refusal.alternatives"}),
        (("--on", "RTX 3060 12GB + 1GiB", "--users", "64", "--context", "8192"), set()),
    ],
)
def test_printed_keys_are_the_documented_ones(words: tuple[str, ...], absent: set[str], tmp_path: Path) -> None:
    printed = json.loads(terazi(tmp_path, "weigh", "demo", "--json", *words).stdout)
    keys = set(printed)
    for key, value in printed.items():
        if isinstance(value, dict) and key not in ELSEWHERE:
            keys |= {f"{key}.{inner}" for inner in value}
    assert keys == named() - absent


def test_a_command_that_cant_be_weighed_has_the_documented_shape(tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.write_text("llama-server --nonsense\n")
    told = json.loads(terazi(tmp_path, "weigh", "--commands", str(commands)).stdout)
    assert told["schema"] == "terazi.error/1"
    assert set(told) == {"schema", "command", "error"}
    assert set(told["error"]) == {"message", "hint", "exit_code"}

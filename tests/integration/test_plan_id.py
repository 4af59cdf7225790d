"""The plan id must be the same in every process, whatever Python's hash seed is."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = (
    "from specs import smollm2, machine, card;"
    "from terazi.memory.llama_cpp.settings import LlamaCppSettings;"
    "from terazi.placement.identity import plan_id;"
    "print(plan_id(smollm2(), machine(card(0)), LlamaCppSettings()))"
)


def _id(seed: str) -> str:
    env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    return subprocess.run([sys.executable, "-c", CODE], env=env, check=True, capture_output=True, text=True).stdout


def test_plan_id_does_not_depend_on_the_process() -> None:
    assert _id("1") == _id("2") != ""

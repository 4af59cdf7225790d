"""A program that supervises the fake engine, to be killed by tests."""

import json
from pathlib import Path

REPO = Path(__file__).parents[1]
FAKE = REPO / "tests" / "fakes" / "engine.py"

PARENT = """
import asyncio, json, os, sys
from terazi.engines.base import LaunchSpec
from terazi.supervisor.runner import EngineRunner

fake, folder, *flags = sys.argv[1:]

def launch(port):
    return LaunchSpec(plan_id="p", engine="llama.cpp", model_name="fake",
                      argv=(sys.executable, "-S", fake, "--port", str(port), *flags),
                      base_url=f"http://127.0.0.1:{port}", api_key="")

def tell(state):
    line = json.dumps({"phase": state.phase.value, "pid": state.pid})
    with open(folder + "/phases", "a") as file:
        file.write(line + "\\n")

async def main():
    runner = EngineRunner(launch, run_dir=folder, log_path=folder + "/log", on_change=tell)
    runner.start()
    await runner.wait_ready()
    await asyncio.Event().wait()

asyncio.run(main())
"""


def told(folder: Path) -> dict[str, int | None]:
    """Phase → pid, as far as the parent has come."""
    path = folder / "phases"
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["phase"]: entry["pid"] for entry in map(json.loads, lines)}

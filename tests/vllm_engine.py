"""The real vLLM for tests: where it is, questions to its functions, an engine that starts and is ended."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import pytest

from terazi.engines.vllm.observe import LoadReport, read_log
from terazi.models.from_safetensors import spec_of
from terazi.models.hf_config import parse_config
from terazi.models.spec import ModelSpec, Tensor
from terazi.supervisor.process import free_port

ROOT = Path(__file__).resolve().parent.parent
PYTHON = Path(os.environ.get("TERAZI_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
#: The build that the rules are for runs on Linux with an x86-64 CPU; ``make test VLLM=no`` leaves it out.
LEFT_OUT = os.environ.get("TERAZI_VLLM") == "no" or sys.platform != "linux" or platform.machine() != "x86_64"
needs_vllm = pytest.mark.skipif(LEFT_OUT, reason="vLLM is left out (VLLM=no), or can't run on this machine")
CONFIGS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/golden/vllm/configs.json").read_text())

_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1}
Rows = dict[str, tuple[str, tuple[int, ...]]]


def ask(questions: Sequence[dict[str, Any]], *, deadline_s: float = 560) -> dict[str, dict[str, Any]]:
    """The answers of vLLM's own functions, by the question's ``id``."""
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "tests/ask_vllm.py")],
        input="".join(json.dumps(q) + "\n" for q in questions),
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline_s,
        env={**os.environ, "PYTHONPATH": ""},
    )
    lines = [line.removeprefix("ANSWER ") for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    answers = {told["id"]: told for told in map(json.loads, lines)}
    assert len(answers) == len(questions), done.stderr[-3000:]
    return answers


def spec_from(name: str, config: dict[str, Any], rows: Rows) -> ModelSpec:
    """A model of these tensors: name → (type as safetensors spells it, shape)."""
    tensors = []
    for tensor, (dtype, shape) in rows.items():
        size = _BYTES[dtype]
        for extent in shape:
            size *= extent
        found = _BLOCK.search(tensor)
        tensors.append(Tensor(tensor, shape, dtype, size, 0, 0, int(found[1]) if found else None))
    parsed = parse_config(json.dumps(config).encode(), name)
    return spec_of(parsed, tuple(tensors), form="safetensors", name=name, origin=name)


def start(model: Path, arguments: Sequence[str], environment: dict[str, str], log: Path) -> LoadReport:
    """Start the API server, read its log until it is ready or gives up, end it and all that it started."""
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), *arguments]
    settings = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **environment}
    with (
        TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True) as scratch,  # its sockets need a short path
        log.open("w") as output,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**settings, "TMPDIR": scratch},
            start_new_session=True,
        ) as process,
    ):
        end = monotonic() + 200
        try:
            while True:
                report = read_log(log.read_text(errors="replace").splitlines())
                if report.ready or process.poll() is not None or monotonic() > end:
                    return read_log(log.read_text(errors="replace").splitlines())
                sleep(0.2)
        finally:
            os.killpg(process.pid, signal.SIGKILL)

"""The machine that the tests run on, against what its own tools say."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from terazi.hardware.probe import load_catalogue, read_machine
from terazi.hardware.saved import machine_from_json, machine_to_json


def test_this_machine_is_what_its_own_tools_say() -> None:
    host = read_machine().host
    nproc = shutil.which("nproc")
    if nproc is not None:
        allowed = int(subprocess.run([nproc], capture_output=True, text=True, check=True).stdout)
        # A CPU quota can only take away from what affinity allows.
        assert host.cores == allowed or any("quota" in note for note in host.notes)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host.ram_total_bytes == pytest.approx(total, rel=0.01)
    assert 0 < host.ram_available_bytes <= host.ram_total_bytes
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    if model:
        assert host.cpu_name == " ".join(model[0].partition(":")[2].split())


def test_this_machine_can_be_saved() -> None:
    machine = read_machine()
    assert machine_from_json(machine_to_json(machine)) == machine


def test_affinity_is_obeyed() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from terazi.hardware.probe import read_machine; print(read_machine().host.cores)"
    )
    src = Path(__file__).parents[3] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(src)},
    )  # fmt: skip
    assert done.stdout.strip() == "1"


def test_reading_is_cheap() -> None:
    """Ordinary start-up pays for this; the bound is loose because test machines are busy."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("asking a real NVIDIA driver takes longer")
    read_machine()
    spans = []
    for _ in range(5):
        started = time.process_time()
        read_machine()
        spans.append(time.process_time() - started)
    assert min(spans) < 0.008


def test_the_packaged_table_names_the_source_of_every_row() -> None:
    table = Path(sys.modules["terazi.hardware"].__path__[0]) / "data" / "gpus.csv"
    text = table.read_text(encoding="utf-8")
    header = next(line for line in text.splitlines() if not line.startswith("#"))
    assert {"source_basic", "source_compute", "source_nvlink", "notes"} <= set(header.split(","))
    assert "UNVERIFIED" in text
    assert len(load_catalogue().records) > 95

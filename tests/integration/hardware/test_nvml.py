"""The NVIDIA probe against a stand-in driver library: unequal cards, a lost one, an init error, a hang."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from terazi.hardware.machine import Basis, Machine
from terazi.hardware.probe import nvml, read_cards, read_machine, read_process_memory
from terazi.service import driver

STUB = Path(__file__).parents[2] / "fakes" / "nvml_stub.c"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
MIB = 1024**2

TWO_CARDS = {
    "count": 2,
    "driver": "575.51.03",
    "0.name": "NVIDIA GeForce RTX 3060",
    "0.uuid": "GPU-aaaa-1",
    "0.bus": "00000000:01:00.0",
    "0.total": 12288 * MIB,
    "0.free": 11800 * MIB,
    "0.used": 100 * MIB,
    "0.reserved": 388 * MIB,
    "0.limit": 170000,
    "0.draw": 12000,
    "0.gen": 4,
    "0.width": 16,
    "0.width_now": 4,
    "1.name": "NVIDIA GeForce RTX 3090",
    "1.uuid": "GPU-bbbb-2",
    "1.bus": "00000000:0A:00.0",
    "1.total": 24576 * MIB,
    "1.free": 24260 * MIB,
    "1.used": 0,
    "1.reserved": 316 * MIB,
    "1.limit": 280000,
    "1.draw": 22000,
    "1.gen": 4,
    "1.width": 16,
    "1.width_now": 16,
}

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the stand-in driver library with")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(STUB)],
        check=True,
        capture_output=True,
    )
    return folder


Probe = Callable[..., Machine]


@pytest.fixture
def probe(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Probe, None, None]:
    """Reads a machine whose driver answers as the given keys say, and checks that no child is left."""
    root = tmp_path / "root"
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.51.03\n")
    (root / "proc/meminfo").write_text("MemTotal: 134217728 kB\nMemAvailable: 100000000 kB\n")
    answers = tmp_path / "answers"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(answers))
    before = _children()

    def read(keys: dict[str, object], *, deadline_s: float = 20.0, visible: str | None = None) -> Machine:
        answers.write_text("".join(f"{k}={v}\n" for k, v in keys.items()))
        return read_machine(str(root), nvml_deadline_s=deadline_s, visible=visible)

    yield read
    assert _children() == before


def _children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_two_unequal_cards(probe: Probe) -> None:
    machine = probe(TWO_CARDS)
    assert [d.id for d in machine.devices] == ["CUDA0", "CUDA1"]
    small, large = machine.devices
    assert (small.memory_total_bytes, small.memory_free_bytes) == (12288 * MIB, 11800 * MIB)
    assert (large.memory_total_bytes, large.memory_free_bytes) == (24576 * MIB, 24260 * MIB)
    assert large.pci_address == "0000:0a:00.0"
    assert (large.power_cap_w, large.tdp_w.value) == (280, 350)
    assert (large.memory_bandwidth.value, large.memory_bandwidth.basis) == (936.2e9, Basis.CATALOGUE)
    # The slot holds four lanes, though card and board could do sixteen.
    assert small.pcie is not None
    assert (small.pcie.generation, small.pcie.lanes, small.pcie.basis) == (4, 4, Basis.READ)
    assert [(link.kind, link.bandwidth.value) for link in machine.links] == [("host", small.pcie.bytes_per_s)]
    assert any("CUDA_DEVICE_ORDER" in note for note in machine.notes)


def test_what_one_process_holds_is_told_by_card(probe: Probe, tmp_path: Path) -> None:
    probe(TWO_CARDS | {"0.pid": 4711, "0.pid_used": 300 * MIB, "1.pid": 4711, "1.pid_used": 20 * 1024 * MIB})
    root = str(tmp_path / "root")
    held = read_process_memory(4711, root=root)
    assert held == (("CUDA0", 300 * MIB), ("CUDA1", 20 * 1024 * MIB))
    assert read_process_memory(4712, root=root) is None, "a process that the driver doesn't name"
    probe(TWO_CARDS)
    assert read_process_memory(4711, root=root) is None, "a driver that doesn't say"
    assert read_process_memory(4711, root=str(tmp_path)) is None, "no driver"


def test_heat_and_slowing_are_told_by_card(probe: Probe, tmp_path: Path) -> None:
    """0x4 is a power cap that is kept to, 0x1 an idle card; 0x20 is the driver that slows for heat."""
    probe(TWO_CARDS | {"0.temp": 61, "0.slowed": 0x5, "1.temp": 97, "1.slowed": 0x24})
    report = read_cards(root=str(tmp_path / "root"))
    assert report is not None
    assert [(gpu.temperature_c, gpu.slowed) for gpu in report.gpus] == [(61, False), (97, True)]
    probe(TWO_CARDS)
    report = read_cards(root=str(tmp_path / "root"))
    assert report is not None
    assert [(gpu.temperature_c, gpu.slowed) for gpu in report.gpus] == [(None, None)] * 2
    assert read_cards(root=str(tmp_path)) is None


def test_what_the_driver_last_said_is_kept_for_those_who_can_not_wait(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(TWO_CARDS | {"0.pid": 4711, "0.pid_used": 300 * MIB, "1.temp": 97, "1.slowed": 0x40})
    monkeypatch.setattr(driver, "read_cards", lambda: read_cards(root=str(tmp_path / "root")))
    known = driver.Driver()
    assert known.memory_of(4711) is None, "it was never asked"
    cards = known.cards()
    assert cards["CUDA1"].throttled
    assert cards["CUDA1"].free_bytes == 24260 * MIB
    assert (cards["CUDA0"].temperature_c, cards["CUDA0"].throttled) == (None, False)
    assert known.memory_of(4711) == (("CUDA0", 300 * MIB),)


def test_nvlink_and_p2p_are_told_apart(probe: Probe) -> None:
    cards = TWO_CARDS | {"0.name": "NVIDIA GeForce RTX 3090", "0.total": 24576 * MIB}
    bridged = probe(cards | {"0-1.nvlink": 0, "0-1.p2p": 0})
    assert [(link.kind, link.bandwidth.value) for link in bridged.links] == [("nvlink", 56.25e9)]
    direct = probe(cards | {"0-1.p2p": 0})
    assert [link.kind for link in direct.links] == ["pcie-p2p"]
    neither = probe(cards)
    assert [link.kind for link in neither.links] == ["host"]


def test_a_lost_card_is_said_and_the_other_is_kept(probe: Probe) -> None:
    machine = probe(TWO_CARDS | {"0.lost": 1})
    assert [(d.id, d.name) for d in machine.devices] == [("CUDA0", "NVIDIA GeForce RTX 3090")]
    assert any("GPU 0" in note and "lost" in note for note in machine.notes)


def test_an_init_error_is_said_and_the_host_is_kept(probe: Probe) -> None:
    machine = probe(TWO_CARDS | {"init": 18})
    assert machine.devices == ()
    assert machine.host.ram_total_bytes == 128 * 1024**3
    assert any("mismatch" in note for note in machine.notes)


def test_a_missing_library_is_said(probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    machine = probe(TWO_CARDS)
    if machine.devices:
        pytest.skip("a real NVIDIA driver library is installed here")
    assert any("NVIDIA driver can't be asked" in note for note in machine.notes)


@pytest.mark.parametrize("where", ["init", "memory0", "memory1"])
def test_a_driver_that_hangs_costs_no_more_than_the_deadline(probe: Probe, where: str) -> None:
    started = time.monotonic()
    machine = probe(TWO_CARDS | {"hang": where}, deadline_s=1.5)
    assert time.monotonic() - started < 1.5 + 2
    assert any("did not answer within 1.5 s" in note for note in machine.notes)
    assert machine.host.ram_total_bytes == 128 * 1024**3
    # What was told before the hang isn't lost.
    assert len(machine.devices) == (1 if where == "memory1" else 0)


def test_old_drivers_count_the_reserve_as_used(probe: Probe) -> None:
    machine = probe(TWO_CARDS | {"old_driver": 1})
    assert [d.memory_free_bytes for d in machine.devices] == [11800 * MIB, 24260 * MIB]


def test_unified_memory_without_a_memory_answer_is_the_hosts_ram(probe: Probe) -> None:
    machine = probe({"count": 1, "0.name": "NVIDIA GB10", "0.bus": "0000000F:01:00.0"})
    (device,) = machine.devices
    assert device.unified_memory
    assert device.memory_total_bytes == machine.host.ram_total_bytes
    assert device.memory_free_bytes == machine.host.ram_available_bytes


def test_an_unknown_card_has_no_invented_speed(probe: Probe) -> None:
    machine = probe(TWO_CARDS | {"1.name": "NVIDIA GeForce RTX 4090 Laptop GPU", "1.total": 16376 * MIB})
    laptop = machine.devices[1]
    assert laptop.memory_bandwidth.value is None
    assert laptop.memory_bandwidth.note
    assert laptop.tdp_w.value == 280  # from the driver


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["RTX 3060", "RTX 3090"]),
        ("1", ["RTX 3090"]),
        ("1,0", ["RTX 3090", "RTX 3060"]),
        ("GPU-bbbb", ["RTX 3090"]),
        ("0,7,1", ["RTX 3060"]),
        ("0,0", []),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_devices_follow_cudas_rule(probe: Probe, visible: str | None, names: list[str]) -> None:
    machine = probe(TWO_CARDS, visible=visible)
    assert [d.name.removeprefix("NVIDIA GeForce ") for d in machine.devices] == names
    assert [d.id for d in machine.devices] == [f"CUDA{i}" for i in range(len(names))]


def test_a_hung_child_ends_itself_if_its_parent_died(library: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_text("hang=init\n")
    child = Path(nvml.__file__).with_name("nvml_child.py")
    done = subprocess.run(
        [sys.executable, "-P", str(child), "0.5"],
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(answers)},
        check=False,
        timeout=30,
    )
    assert done.returncode == -signal.SIGALRM

"""A card whose driver is a stand-in: what it has free, and whether it is there at all, is what a test writes."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "fakes" / "nvml_stub.c"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
MIB = 1024**2


def build(folder: Path) -> Path:
    """Compile the stand-in driver library into *folder*."""
    if COMPILER is None:
        pytest.skip("no C compiler to build the stand-in driver library with")
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(STUB)],
        check=True,
        capture_output=True,
    )
    return folder


@dataclass
class FakeCard:
    """An RTX 3060 as the driver tells of it, and as the fake engine lists it."""

    library: Path
    answers: Path
    monkeypatch: pytest.MonkeyPatch
    keys: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = {
            "count": 1, "driver": "575.51.03", "0.name": "NVIDIA GeForce RTX 3060", "0.uuid": "GPU-aaaa-1",
            "0.bus": "00000000:01:00.0", "0.total": 12288 * MIB, "0.free": 11800 * MIB, "0.used": 488 * MIB,
            "0.limit": 170000, "0.gen": 4, "0.width": 16, "0.width_now": 16,
            "log": self.answers.with_suffix(".asked"),
        }  # fmt: skip
        self.set()
        self.monkeypatch.setenv("LD_LIBRARY_PATH", str(self.library))
        self.monkeypatch.setenv("FAKE_NVML", str(self.answers))
        self.monkeypatch.setenv(
            "FAKE_ENGINE_DEVICES", "  CUDA0: NVIDIA GeForce RTX 3060 (12288 MiB, 11800 MiB free)"
        )

    def set(self, free: int | None = None, **keys: object) -> None:
        """Bytes that are free now, and other answers, in effect from the next question on."""
        self.keys |= keys
        if free is not None:
            self.keys |= {"0.free": free, "0.used": 12288 * MIB - free}
        new = self.answers.with_suffix(".new")
        new.write_text("".join(f"{key}={value}\n" for key, value in self.keys.items()))
        new.replace(self.answers)

    def questions(self) -> int:
        """How often the driver has been asked so far."""
        log = self.answers.with_suffix(".asked")
        return log.stat().st_size if log.exists() else 0

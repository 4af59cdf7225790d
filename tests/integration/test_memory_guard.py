"""The guard over a made-up ``/proc``: what it reads, and what it has others do about it."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from fake_root import Box
from terazi.hardware.probe import read_pressure
from terazi.policy.guard_messages import Card, Stage
from terazi.service.config_guard import GuardTable
from terazi.service.guard import Guard

MIB = 1 << 20


class Hands:
    """Writes down what was asked for."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.need: list[Mapping[str, int]] = []
        self.looks_calm = 0

    def pause(self, reason: str) -> None:
        self.done.append("pause")
        assert reason

    def resume(self) -> None:
        self.done.append("resume")

    def shed(self, need: Mapping[str, int], reason: str) -> None:
        self.done.append("shed")
        self.need.append(need)
        assert reason

    def shrink(self, need: Mapping[str, int], reason: str) -> None:
        self.done.append("shrink")
        self.need.append(need)
        assert reason

    def calm(self) -> None:
        self.looks_calm += 1


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "root")


def test_what_is_read_of_a_system(box: Box) -> None:
    found = read_pressure(str(box.folder))
    assert found == (16000 * MIB, 8000 * MIB, 0.0, 0, 2)


def test_the_control_group_counts_where_it_leaves_less(box: Box) -> None:
    box.group(limit=4000, used=3900, kills=7)
    found = read_pressure(str(box.folder))
    assert found == (4000 * MIB, 100 * MIB, 3.5, 0, 7)
    box.group(limit=15999, used=10)
    assert read_pressure(str(box.folder)).available_bytes == 8000 * MIB


def test_a_root_without_anything_has_no_figures(tmp_path: Path) -> None:
    assert read_pressure(str(tmp_path)) == (None, None, None, None, None)


def test_this_machine_has_figures() -> None:
    found = read_pressure()
    assert found.total_bytes
    assert found.available_bytes
    assert found.available_bytes < found.total_bytes


async def run(guard: Guard, looks: int) -> None:
    """So many looks at the pace of the settings."""
    for _ in range(looks):
        await guard.look()
        await asyncio.sleep(0.02)


async def test_pressure_pauses_sheds_shrinks_and_is_forgotten(
    box: Box, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hands = Hands()
    table = GuardTable(every_s=0.01, settle_s=0.1)
    guard = Guard(table, hands, state_dir=tmp_path, root=str(box.folder), cards=dict)
    await run(guard, 3)
    assert hands.done == []
    box.set(available=100)
    await run(guard, 12)
    assert hands.done[:3] == ["pause", "shed", "shrink"]
    assert hands.need[0]["Host"] == pytest.approx((0.06 * 1.25 * 16000 - 100) * MIB, rel=1e-6)
    assert guard.stage == Stage.SHRINKING
    box.set(available=8000)
    await run(guard, 30)
    assert hands.done[-1] == "resume"
    lines = [line for line in caplog.messages if line.startswith("guard: ")]
    assert [line.split()[1] for line in lines] == ["paused", "shedding", "shrinking", "shedding", "paused", "open"]
    assert "0.6% of RAM is available" in lines[0]


async def test_swapping_in_is_measured_as_a_rate(box: Box, tmp_path: Path) -> None:
    hands = Hands()
    guard = Guard(GuardTable(every_s=0.01), hands, state_dir=tmp_path, root=str(box.folder), cards=dict)
    for look in range(5):
        box.set(available=8000, swapped=look * 100_000)
        await run(guard, 1)
    assert hands.done[0] == "pause"


async def test_a_card_is_short_when_others_take_what_was_free_after_loading(box: Box, tmp_path: Path) -> None:
    hands, free = Hands(), [200 * MIB]
    guard = Guard(
        GuardTable(every_s=0.01, settle_s=60),
        hands,
        state_dir=tmp_path,
        root=str(box.folder),
        cards=lambda: {"CUDA0": Card(total_bytes=24000 * MIB, free_bytes=free[0])},
        cards_every_s=0,
    )
    await run(guard, 5)
    assert hands.done == [], "200 of 24,000 MiB were left free on purpose"
    free[0] = 10 * MIB
    await run(guard, 8)
    assert hands.done[:2] == ["pause", "shed"]
    assert set(hands.need[0]) == {"CUDA0"}


async def test_a_full_disk_pauses(box: Box, tmp_path: Path) -> None:
    hands = Hands()
    table = GuardTable.model_validate({"every_s": 0.01, "pause": {"disk_free": "1000000GiB"}})
    guard = Guard(table, hands, state_dir=tmp_path, root=str(box.folder), cards=dict)
    await run(guard, 10)
    assert hands.done == ["pause"]

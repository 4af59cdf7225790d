"""What people report of cards whose memory comes back late, or that are gone, with a driver that is a stand-in.

The numbers are those of the table in ``docs/reference/failures.md``.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from deadline import alive, until_async
from fake_card import MIB, FakeCard, build
from live_service import Home, home_in, serving
from terazi.hardware.probe import read_machine
from terazi.placement.capacity import capacity_of

COLD = "replicas = {min = 0}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in driver's folder."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Empty."""
    return home_in(tmp_path, monkeypatch)


@pytest.fixture
def card(library: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    """The only card of this machine, with nearly all of it free."""
    return FakeCard(library, home.folder / "nvml", monkeypatch)


async def test_10_a_load_waits_until_the_memory_of_the_one_before_is_measured_free(
    home: Home, card: FakeCard
) -> None:
    """llama-swap#97: the next load began before the driver had given back what the killed process held."""
    home.models = {"a": COLD, "b": COLD}
    home.faults("a", "--fake-device CUDA0")
    home.faults("b", "--fake-device CUDA0")
    reserve = 11800 * MIB - capacity_of(read_machine()).device_bytes["CUDA0"]
    async with serving(home):
        need = int((await home.ps())["a"]["needs"]["CUDA0"])
        free = reserve + need + need // 2  # all the rest is another program's
        card.set(free=free)
        assert (await home.ask("a")).whole
        card.set(free=free - need)
        second = home.asking("b")
        await until_async(lambda: home.order() == ["a"] and home.running() == [])
        looks = card.questions()
        await until_async(lambda: card.questions() >= looks + 4)
        assert home.order() == ["a"], "the process is gone, but its memory is not free yet"
        assert not second.done()
        card.set(free=free)
        assert (await second).whole
        assert home.order() == ["a", "b"]


@pytest.mark.usefixtures("card")
async def test_26_an_engine_whose_card_is_gone_does_not_serve_from_ram_without_a_word(home: Home) -> None:
    """ollama#10053, ollama#5581: after a suspend the card was gone, and the processor answered, slowly."""
    home.models = {"a": ""}
    home.faults("a", "--fake-device CUDA0", "", "--fake-device CUDA0")
    async with serving(home):
        first = home.starts()[0]
        assert (await home.ask("a")).whole
        os.kill(first, signal.SIGKILL)
        asking = home.asking("a")
        await until_async(lambda: len(home.starts()) == 3, 15)
        slow = home.starts()[1]
        assert not alive(slow), "it was ended for being in RAM"
        assert (await asyncio.wait_for(asking, 15)).whole
        by = [entry["pid"] for entry in home.events("a", "accepted") if entry["shape"] == "chat"]
        assert by == [first, home.starts()[2]]


@pytest.mark.usefixtures("card")
async def test_26_a_model_whose_card_never_comes_back_is_refused_with_the_reason(home: Home) -> None:
    """The same at the first load: a clear refusal instead of an answer at a tenth of the speed."""
    home.models = {"a": COLD}
    home.faults("a", "")
    async with serving(home):
        said = await asyncio.wait_for(home.ask("a", stream=False), 15)
        assert said.status == 503
        assert "the accelerator is missing or was refused" in said.body
        assert home.running() == []
        assert home.asked("a") == 0

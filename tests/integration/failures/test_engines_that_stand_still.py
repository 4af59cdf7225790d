"""What people report of engines that live and do nothing, or were thought to, tried on a whole service.

The numbers are those of the table in ``docs/reference/failures.md``.
"""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from deadline import until_async
from live_service import Home, home_in, serving
from terazi.policy.progress import Patience
from terazi.service import deployment

COLD = "replicas = {min = 0}"


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as often as in a service; how long an engine may be silent is set in each test."""
    monkeypatch.setattr(deployment, "Patience", partial(Patience, look_s=0.3))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Empty."""
    return home_in(tmp_path, monkeypatch)


async def test_17_an_engine_that_is_healthy_and_generates_nothing_is_replaced_and_its_streams_go_on(
    home: Home,
) -> None:
    """vllm#39863, vllm#36451, Fastllm-proxy#19: health said 200 for 85 minutes, and no token came."""
    # it answers questions, so it has as long as a batch of a prompt may take: a small one here
    home.models = {"a": "settings = {context = 512, users = 2, batch = 32, micro_batch = 32}"}
    home.engine = "stuck_s = 1"
    home.faults("a", "--fake-hang-after 20 --fake-tokens 30", "--fake-tokens 30")
    async with serving(home):
        async with asyncio.timeout(15):
            said = await home.ask("a", tokens=30)
        assert said.whole
        assert len(home.starts()) == 2
        assert said.text == (await home.ask("a", tokens=30)).text
        assert said.body.count(": resumed after ") == 1


async def test_17_an_engine_whose_process_is_stopped_is_replaced_and_its_streams_go_on(home: Home) -> None:
    """The same by SIGSTOP: nothing closes a connection, and nothing answers."""
    home.models = {"a": ""}
    home.engine = "stuck_s = 1"
    home.faults("a", "--fake-tokens 60 --fake-token-delay-s 0.02", "--fake-tokens 60")
    async with serving(home):
        asking = home.asking("a", tokens=60)
        await home.until_asked("a")
        os.kill(home.starts()[0], signal.SIGSTOP)
        async with asyncio.timeout(15):
            said = await asking
        assert said.whole
        assert len(home.starts()) == 2
        assert said.text == (await home.ask("a", tokens=60)).text


@pytest.mark.parametrize("work", ["tokens", "prompt"])
async def test_18_a_busy_engine_that_is_late_with_its_health_is_left_alone(home: Home, work: str) -> None:
    """gonka#1421: under load the health check was missed, and a working engine was restarted eight times a day."""
    home.models = {"a": ""}
    home.engine = "stuck_s = 1"
    slow = {
        "tokens": "--fake-token-delay-s 0.03 --fake-tokens 90",
        "prompt": "--fake-prompt-delay-s 2.5 --fake-busy-prompt --fake-tokens 90",
    }
    home.faults("a", f"--fake-busy-answer-delay-s 30 {slow[work]}")
    async with serving(home):
        said = await home.ask("a", tokens=90)
        assert said.whole
        assert len(home.starts()) == 1
        assert (await home.ps())["a"]["restarts"] == 0


async def test_20_a_call_that_hangs_keeps_no_other_model_from_loading(home: Home) -> None:
    """LocalAI#10578: the watchdog waited for a hung call and held what the loader waited for."""
    home.models = {"hung": "", "other": COLD}
    home.engine = "stuck_s = 2"
    home.faults("hung", "--fake-deaf-after 5 --fake-tokens 12", "--fake-tokens 12")
    async with serving(home):
        hung = home.asking("hung", tokens=12)
        await home.until_asked("hung")
        assert (await home.ask("other")).whole
        assert not hung.done(), "the other was loaded and answered while the call hung"
        async with asyncio.timeout(15):
            assert (await hung).whole
        assert len(home.starts("hung")) == 2
        assert len(home.starts("other")) == 1


async def test_20_a_long_slow_answer_is_no_hang(home: Home) -> None:
    """LocalAI#5221: a limit on how long an engine may be busy ended ten minutes of reasoning."""
    home.models = {"a": "idle_s = '200ms'"}
    home.engine = "stuck_s = 0.5"
    home.faults("a", "--fake-token-delay-s 0.2 --fake-tokens 12", "")
    async with serving(home):
        said = await home.ask("a", tokens=12)
        assert said.whole
        assert len(said.text.split()) == 12
        assert len(home.starts()) == 1
        await until_async(lambda: home.running() == [], 5)

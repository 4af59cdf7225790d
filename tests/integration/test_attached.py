"""Engines that somebody else runs: listed, used, watched, and never started or stopped."""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deadline import until_async
from running import REPO, runs_of, terazi, up
from serving import CARD, ENGINE_KEY, fake_engine
from serving import running as running_engine
from terazi.policy.progress import Patience
from terazi.service import attached
from terazi.service.attached import AttachedModel, AttachedServer, Listed, read_entry
from terazi.service.beacon import find
from terazi.service.client import ServiceClient

FAKE = {"TERAZI_LLAMA_SERVER": str(REPO / "tests" / "fakes" / "engine.py")}


def snapshot(home: Path) -> dict[str, Any]:
    async def asked() -> dict[str, Any]:
        async with ServiceClient(find(home / "services")) as client:
            return await client.snapshot()

    return asyncio.run(asked())


async def ask(url: str, model: str) -> tuple[int, str]:
    async with aiohttp.ClientSession(base_url=url) as session:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        async with session.post("/v1/chat/completions", json=body) as response:
            return response.status, await response.text()


def test_a_servers_models_are_served_beside_ours_and_it_is_left_alone(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    other = fake_engine()
    loop.run_until_complete(other.start())
    assert other.process is not None
    (tmp_path / "terazi.toml").write_text(
        f'[[models]]\nurl = "http://127.0.0.1:{other.port}/v1"\nname = "theirs"\napi_key_env = "THEIR_KEY"\n'
        '[[models]]\nsource = "demo"\nname = "ours"\nsettings = {context = 512}\n'
    )
    try:
        with up(tmp_path, **FAKE, THEIR_KEY=ENGINE_KEY) as running:
            url = running.url()
            shown = {model["id"]: model for model in snapshot(tmp_path)["models"]}
            assert shown[CARD.id]["aliases"] == ["theirs"]
            assert shown[CARD.id]["state"] == "ready"
            for name in ("theirs", CARD.id, "ours"):
                status, text = asyncio.run(ask(url, name))
                assert status == 200, text
            assert len(runs_of(tmp_path)) == 1, "nothing was started for theirs"
            assert terazi(tmp_path, "stop", "theirs").returncode == 1, "it isn't ours to stop"
            assert "attached" in terazi(tmp_path, "ps").stdout
            assert running.end() == 0
        assert ENGINE_KEY not in "\n".join(running.seen)
        assert other.process.returncode is None, "it is left running"
    finally:
        loop.run_until_complete(other.stop())
        loop.close()


def test_a_service_of_attached_models_only_starts_no_engine(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    other = fake_engine()
    loop.run_until_complete(other.start())
    try:
        with up(
            tmp_path, "--attach", f"http://127.0.0.1:{other.port}=theirs", TERAZI_LLAMA_SERVER="/nowhere"
        ) as it:
            it.wait_for(re.compile("does not answer as a model server: HTTP 401"))
            assert it.url()
            assert snapshot(tmp_path)["models"] == []
            assert it.end() == 0
    finally:
        loop.run_until_complete(other.stop())
        loop.close()


async def test_one_that_works_on_nothing_is_closed_until_it_gives_a_token_and_never_ended() -> None:
    told: list[bool] = []
    async with running_engine(fake_engine("--metrics")) as other:
        assert other.process is not None
        server = AttachedServer(
            f"http://127.0.0.1:{other.port}/v1",
            key=ENGINE_KEY,
            changed=lambda _new, _gone: None,
            answers=lambda model: told.append(model.answers),
        )
        patience = Patience(look_s=0.2, silent_s=0.7, idle_look_s=0.0)
        watching = asyncio.create_task(server.watch(60, patience))
        try:
            await until_async(lambda: server.models)
            (model,) = server.models.values()
            model.flight.entered("r")
            os.kill(other.process.pid, signal.SIGSTOP)
            await until_async(lambda: told == [False], 8)
            assert model.state == "failed"
            os.kill(other.process.pid, signal.SIGCONT)
            await until_async(lambda: told == [False, True], 8)
            assert other.process.returncode is None
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def test_answers_that_flow_outweigh_questions_that_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "_ANSWER_S", 0.3)
    async with running_engine(fake_engine("--fake-answer-delay-s", "6")) as other:
        server = AttachedServer(
            f"http://127.0.0.1:{other.port}/v1", key=ENGINE_KEY, changed=lambda *_: None, answers=lambda _: None
        )
        server.models["m"] = model = AttachedModel(server.url, ENGINE_KEY, Listed(id="m"))
        for _ in range(3):
            model.flight.saw(100)
            await server.look()
        assert model.answers


@pytest.mark.parametrize(
    ("entry", "context"),
    [
        ({"id": "m", "max_model_len": 8192}, 8192),  # vLLM
        ({"id": "m", "meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, 2048),  # llama-server
        ({"id": "m", "object": "model", "owned_by": "library"}, None),  # Ollama says nothing
        ({"id": "m", "max_model_len": "8192", "meta": None}, None),
    ],
)
def test_what_a_server_says_of_its_context(entry: dict[str, Any], context: int | None) -> None:
    assert read_entry(entry).context == context

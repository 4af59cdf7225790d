"""Many models under one budget, with engines that only pretend: swaps, pins, idle time, and a file that changes."""

import asyncio
import json
import random
import re
import sys
import time
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from deadline import until, until_async
from demo_files import smollm2
from live_service import home_in, serving
from offline_optimum import optimum
from running import REPO, Up, engines_of, ps, runs_of, terazi, up
from terazi.errors import ServiceError
from terazi.policy.scale import Terms
from terazi.service import scaling
from terazi.service.beacon import find
from terazi.service.client import ServiceClient

ENGINE = REPO / "tests" / "fakes" / "engine.py"
FAKE = {"TERAZI_LLAMA_SERVER": str(ENGINE)}
SETTINGS = "settings = {context = 512, users = 2}"


def configure(home: Path, *models: str, memory: str = "", rest: str = "") -> None:
    """A terazi.toml with *models*, each ``NAME`` or ``NAME: further lines``, over links to the demo model."""
    parts = [f"[memory]\n{memory}", rest]
    for model in models:
        name, _, more = model.partition(":")
        link = home / f"{name}.gguf"
        if not link.exists():
            link.symlink_to(smollm2())
        settings = "" if "settings" in more else SETTINGS
        parts.append(f'[[models]]\nname = "{name}"\nsource = "{link}"\n{settings}\n{more.strip()}')
    (home / "terazi.toml").write_text("\n".join(parts))


def states(home: Path) -> dict[str, str]:
    return {model["id"]: model["state"] for model in ps(home)["models"]}


async def ask(session: aiohttp.ClientSession, model: str, *, tokens: int = 8, **more: object) -> tuple[int, str]:
    """Status and text of one streamed answer, which must have ended as it should."""
    body = {"model": model, "messages": [{"role": "user", "content": f"to {model}"}], "stream": True}
    async with session.post("/v1/chat/completions", json={**body, "max_tokens": tokens, **more}) as response:
        text = await response.text()
        if response.status == 200:
            assert text.rstrip().endswith("data: [DONE]"), text[-300:]
        return response.status, text


def one_unit(home: Path) -> int:
    """Bytes of RAM that one of these models is planned with."""
    document = json.loads(
        terazi(home, "weigh", str(smollm2()), "--context", "512", "--users", "2", "--json").stdout
    )
    return max(int(device["peak_bytes"]) for device in document["plan"]["devices"])


def test_three_models_share_room_for_two_and_no_request_is_lost(tmp_path: Path) -> None:
    need = one_unit(tmp_path)
    memory = f"budget = {{RAM = {2 * need + need // 2}}}\nmin_stay_s = 1.5\nbatch_s = 4"
    configure(tmp_path, "a", "b", "c", memory=memory)
    names, chance = ["a", "b", "c"], random.Random(5)  # noqa: S311 - a test's
    flags = {"FAKE_ENGINE_FLAGS": "--fake-token-delay-s 0.01 --fake-load-s 0.2"}
    with up(tmp_path, **FAKE, **flags) as running:
        url = running.url()
        most = 0

        async def traffic() -> list[tuple[str, int]]:
            nonlocal most
            answers: list[asyncio.Task[tuple[int, str]]] = []
            order: list[str] = []
            async with aiohttp.ClientSession(base_url=url) as session:
                for _ in range(40):
                    order.append(chance.choice(names))
                    answers.append(asyncio.create_task(ask(session, order[-1], tokens=chance.randint(4, 30))))
                    most = max(most, len(runs_of(tmp_path)))
                    await asyncio.sleep(chance.expovariate(4))
                return [(name, (await answer)[0]) for name, answer in zip(order, answers, strict=True)]

        answered = asyncio.run(traffic())
        assert {status for _, status in answered} == {200}
        assert most <= 2, "the budget is for two"
        held = [m for m in ps(tmp_path)["models"] if m["replicas"] and m["state"] == "ready"]
        assert 1 <= len(held) <= 2
        running.end()
    text = "\n".join([*running.seen, *drained(running)])
    loads = len(re.findall(r"loading \(process \d+ runs\)", text))
    load_s = dict.fromkeys(names, 1.0)
    best = optimum(dict.fromkeys(names, 1), load_s, 2, [name for name, _ in answered])
    assert loads <= 1.5 * best, f"{loads} loads, and {best} would have done"
    assert "failed" not in text
    assert engines_of(tmp_path) == []


def drained(running: Up) -> list[str]:
    """What it had still to say."""
    found = []
    while (line := running.lines.get(timeout=10)) is not None:
        found.append(line)
    return found


def test_a_pinned_model_stays_and_an_idle_one_goes(tmp_path: Path) -> None:
    configure(tmp_path, "kept: pin = true\nidle_s = 0.1", "brief: idle_s = '300ms'")
    with up(tmp_path, **FAKE) as running:
        url = running.url()
        until(lambda: states(tmp_path) == {"kept": "ready", "brief": "cold"})

        async def again() -> tuple[int, str]:
            async with aiohttp.ClientSession(base_url=url) as session:
                return await ask(session, "brief")

        assert asyncio.run(again())[0] == 200
        until(lambda: states(tmp_path) == {"kept": "ready", "brief": "cold"})
        assert "would hold" in terazi(tmp_path, "ps").stdout
        assert running.end() == 0


async def test_a_clients_keep_alive_holds_until_the_model_is_unloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``ollama stop`` does it; else each later request would load the model, and lose it again."""
    home = home_in(tmp_path, monkeypatch)
    home.models = {"kept": "idle_s = '1h'"}
    async with serving(home):
        await home.until_states(kept="ready")
        async with home.session.post("/api/generate", json={"model": "kept", "keep_alive": 0}) as reply:
            assert (await reply.json())["done_reason"] == "unload"
        await home.until_states(kept="cold")
        assert (await home.ask("kept")).whole
        model = (await home.ps())["kept"]
        assert (model["state"], model["idle_s"]) == ("ready", 3600)
        assert len(home.starts()) == 2


def test_whoever_waits_for_a_load_is_told_that_the_model_is_served_no_more(tmp_path: Path) -> None:
    cold = "replicas = {min = 0}"
    configure(tmp_path, f"slow: {cold}", f"other: {cold}")
    with up(tmp_path, **FAKE, FAKE_ENGINE_FLAGS="--fake-load-s 30") as running:
        running.url()

        async def waits() -> None:
            async with ServiceClient(find(tmp_path / "services")) as client:
                loading = asyncio.create_task(client.load("slow"))
                await asyncio.sleep(0.5)
                configure(tmp_path, f"other: {cold}")
                assert "slow is served no more" in await client.reload()
                with pytest.raises(ServiceError, match="not served any more"):
                    await asyncio.wait_for(loading, 5)

        asyncio.run(waits())
        assert running.end() == 0


def test_a_model_that_cannot_be_loaded_says_when_it_is_tried_again(tmp_path: Path) -> None:
    configure(tmp_path, "good", "bad: replicas = {min = 0}")
    program = tmp_path / "llama-server"
    faults = "--fake-exit-at loading"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *bad*) set -- "$@" {faults};; esac\nexec "{sys.executable}" "{ENGINE}" "$@"\n'
    )
    program.chmod(0o755)
    with up(tmp_path, TERAZI_LLAMA_SERVER=str(program)) as running:
        url = running.url()

        async def both() -> tuple[int, str, str | None, int]:
            async with aiohttp.ClientSession(base_url=url) as session:
                body = {"model": "bad", "messages": [{"role": "user", "content": "hello"}]}
                async with session.post("/v1/chat/completions", json=body) as first:
                    said = await first.text()
                    retry = first.headers.get("Retry-After")
                return first.status, said, retry, (await ask(session, "good"))[0]

        status, said, retry, good = asyncio.run(both())
        assert (status, good) == (503, 200), said
        assert "bad can't be served now" in said
        assert retry is not None
        assert 1 <= int(retry) <= 10
        shown = terazi(tmp_path, "ps").stdout
        assert "takes no requests" in shown
        assert "tried again in" in shown
        assert running.end() == 0


def test_a_changed_file_restarts_only_what_has_changed_and_cuts_nobody(tmp_path: Path) -> None:
    configure(tmp_path, "a", "b")
    with up(tmp_path, **FAKE, FAKE_ENGINE_FLAGS="--fake-token-delay-s 0.03 --fake-tokens 60") as running:
        url = running.url()
        pids = {model["id"]: model["pid"] for model in ps(tmp_path)["models"]}

        async def edits_while_both_stream() -> list[tuple[int, str]]:
            async with aiohttp.ClientSession(base_url=url) as session:
                streams = [asyncio.create_task(ask(session, name, tokens=60)) for name in ("a", "b")]
                await asyncio.sleep(0.3)
                for context in (600, 700, 768):  # three writes within a second are one change
                    configure(tmp_path, "a", f"b: settings = {{context = {context}, users = 1}}", "c")
                    await asyncio.sleep(0.2)
                found = [await stream for stream in streams]
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    async with session.get("/v1/models") as response:
                        models = {m["id"]: m["meta"]["n_ctx"] for m in (await response.json())["data"]}
                    if models.get("b") == 768 and "c" in models:
                        break
                    await asyncio.sleep(0.1)
                return [*found, await ask(session, "b"), await ask(session, "c")]

        answers = asyncio.run(edits_while_both_stream())
        assert [status for status, _ in answers] == [200] * 4
        assert answers[1][1].count('"content"') >= 60, "the stream of the changed model ended before its time"
        now = {model["id"]: model for model in ps(tmp_path)["models"]}
        assert now["a"]["pid"] == pids["a"], "an engine that nobody changed was restarted"
        until(lambda: len(runs_of(tmp_path)) == 3)
        assert now["b"]["pid"] != pids["b"]
        assert running.end() == 0
    text = "\n".join([*running.seen, *drained(running)])
    assert text.count("b has other settings") == 1


def test_a_mistake_in_the_file_changes_nothing_and_says_where(tmp_path: Path) -> None:
    configure(tmp_path, "a")
    with up(tmp_path, **FAKE) as running:
        running.url()
        before = ps(tmp_path)["models"]
        configure(tmp_path, "b: idle_s = 'soon'")
        until(lambda: ps(tmp_path)["config_problem"] is not None)
        after = ps(tmp_path)
        assert "models[1].idle_s" in after["config_problem"]
        assert [(m["id"], m["pid"]) for m in after["models"]] == [(m["id"], m["pid"]) for m in before]
        assert "models[1].idle_s" in terazi(tmp_path, "ps").stdout
        done = terazi(tmp_path, "reload")
        assert done.returncode == 1
        assert "models[1].idle_s" in done.stderr
        configure(tmp_path, "a: aliases = ['other']")
        done = terazi(tmp_path, "reload")
        assert done.returncode == 0, done.stderr
        # by this command, or already by whoever watches the file
        assert "other" in ps(tmp_path)["models"][0]["aliases"]
        assert ps(tmp_path)["config_problem"] is None
        assert running.end() == 0


def test_keys_change_without_a_restart(tmp_path: Path) -> None:
    key = '[[keys]]\nname = "{0}"\nkey = "{0}-secret-key"\n'
    configure(tmp_path, "a", rest=key.format("alice"))
    with up(tmp_path, **FAKE) as running:
        url = running.url()
        pid = ps(tmp_path)["models"][0]["pid"]

        async def status(name: str) -> int:
            headers = {"Authorization": f"Bearer {name}-secret-key"}
            async with aiohttp.ClientSession(base_url=url, headers=headers) as session:
                return (await ask(session, "a"))[0]

        assert (asyncio.run(status("alice")), asyncio.run(status("bob"))) == (200, 401)
        configure(tmp_path, "a", rest=key.format("bob"))
        assert terazi(tmp_path, "reload").returncode == 0
        assert (asyncio.run(status("alice")), asyncio.run(status("bob"))) == (401, 200)
        configure(tmp_path, "a")
        assert terazi(tmp_path, "reload").returncode == 1, "the last key isn't taken away"
        assert asyncio.run(status("bob")) == 200
        assert ps(tmp_path)["models"][0]["pid"] == pid
        assert running.end() == 0
    text = "\n".join([*running.seen, *drained(running)])
    assert "secret-key" not in text


async def test_a_model_whose_requests_wait_gets_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "Terms", partial(Terms, up_after_s=0.4))
    home = home_in(tmp_path, monkeypatch)
    home.models = {"a": "settings = {context = 512, users = 1}\nreplicas = {min = 1, max = 2}"}
    home.faults("a", "--fake-token-delay-s 0.05")
    async with serving(home):
        said = await asyncio.gather(*(home.ask("a", tokens=30) for _ in "abcd"))
        assert all(one.whole for one in said)
        await until_async(lambda: len(home.starts()) == 2, 30)
        await home.until_states(a="ready")
        model = (await home.ps())["a"]
        assert [replica["state"] for replica in model["replicas"]] == ["ready", "ready"]

"""``/healthz`` of a whole service: it says whether requests are taken, whatever is loaded."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from live_service import Home, home_in, serving


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return home_in(tmp_path, monkeypatch)


async def health(home: Home) -> tuple[int, dict[str, Any]]:
    async with home.session.get("/healthz") as reply:
        return reply.status, await reply.json()


async def until_health(home: Home, status: str) -> None:
    async with asyncio.timeout(20):
        while (await health(home))[1]["status"] != status:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.02)


async def test_cold_models_take_requests_and_stopped_ones_do_not(home: Home) -> None:
    home.models = dict.fromkeys("ab", "replicas = {min = 0}\nsettings = {context = 512, users = 1}")
    async with serving(home):
        assert await health(home) == (200, {"status": "ok", "models": {"a": "cold", "b": "cold"}})
        assert (await home.ask("a")).status == 200, "and it was true"
        assert (await health(home))[1]["models"] == {"a": "ready", "b": "cold"}
        await home.control.stop("a")
        status, said = await health(home)
        assert (status, list(said["closed"])) == (200, ["a"])


async def test_a_model_that_cannot_be_loaded_is_no_service(home: Home) -> None:
    home.models = {"a": "replicas = {min = 0}\nsettings = {context = 512, users = 1}"}
    home.faults("a", "--fake-exit-at loading")
    async with serving(home):
        assert (await health(home))[0] == 200
        assert (await home.ask("a", stream=False)).status == 503
        status, said = await health(home)
        assert (status, said["status"]) == (503, "unavailable")
        assert "can't be served now" in said["closed"]["a"]
        async with home.session.get("/livez") as reply:
            assert reply.status == 200


async def test_a_pause_for_want_of_memory_is_one(home: Home) -> None:
    home.models = {"a": "replicas = {min = 0}\nsettings = {context = 512, users = 1}"}
    async with serving(home):
        path = home.folder / "terazi.toml"
        text = path.read_text()
        impossible = "enabled = true\nevery_s = 0.05\n[guard.pause]\nram_free = 0.9999\n"
        path.write_text(text.replace("enabled = false", impossible, 1))
        await home.control.reload()
        await until_health(home, "paused")
        assert (await home.ask("a")).status == 503
        path.write_text(text)
        await home.control.reload()
        await until_health(home, "ok")

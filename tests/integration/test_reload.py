"""``terazi reload``: what counts at once does so in the running service, and what can't is said with its reason."""

import asyncio
import json
import logging
import subprocess
from pathlib import Path

import pytest

from live_service import Home, home_in, serving
from terazi.errors import ServiceError
from terazi.gateway.request_log import NAME as REQUESTS
from terazi.service.beacon import find
from terazi.service.config import LogTable
from terazi.service.log_output import JsonLine, TextLine, apply, logging_as


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """One model whose answers are held until there is a file."""
    home = home_in(tmp_path, monkeypatch)
    home.models["a"] = "settings = {context = 512, users = 1}"
    return home


async def reload(home: Home, old: str, new: str) -> list[str]:
    """Change the file, and what the service says about it; whoever watches the file may have been first."""
    path = home.folder / "terazi.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return await home.control.reload()


async def until_waiting(home: Home, requests: int) -> None:
    """So many wait for the model."""
    async with asyncio.timeout(20):
        while (await home.ps())["a"]["waiting"] < requests:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.02)


async def test_bounds_of_queues_count_at_once(home: Home) -> None:
    go = home.folder / "go"
    home.faults("a", f"--fake-hold {go}")
    async with serving(home):
        said = await reload(home, "[service]\n", "[service]\nmax_queued_each = 1\nheartbeat_s = 0.3\n#")
        assert [line for line in said if "max_queued_each counts from now on" in line], said
        assert [line for line in said if "heartbeat_s needs a restart of the service: " in line], said
        held = [home.asking("a") for _ in range(2)]
        await until_waiting(home, 1)
        assert (await home.ask("a")).status == 429
        await reload(home, "max_queued_each = 1", "max_queued_each = 2")
        held.append(home.asking("a"))
        await until_waiting(home, 2)
        await reload(home, "max_queued_each = 2", "max_queued_each = 1")
        assert (await home.ask("a")).status == 429
        go.touch()
        assert [answer.status for answer in await asyncio.gather(*held)] == [200] * 3, (
            "one who waited was sent away"
        )


async def test_the_guard_can_be_turned_on_and_off_and_told_other_limits(home: Home) -> None:
    async with serving(home):
        assert (await home.ask("a")).status == 200
        impossible = "enabled = true\nevery_s = 0.05\n[guard.pause]\nram_free = 0.9999\n"
        said = await reload(home, "enabled = false", impossible)
        assert said == ["guard.enabled, guard.every_s, guard.pause.ram_free count from now on"]
        async with asyncio.timeout(10):
            while (await home.ask("a")).status == 200:
                pass
        await reload(home, "enabled = true", "enabled = false")
        assert (await home.ask("a")).status == 200, "a guard that is off must let requests in"


async def test_the_one_key_changes_and_the_commands_know_the_new_one(home: Home) -> None:
    home.rest = ""
    async with serving(home):
        await reload(home, "[service]\n", '[service]\napi_key = "first-of-them"\n')
        assert (await home.ask("a")).status == 401
        assert (await home.ask("a", key="first-of-them")).status == 200
        said = await reload(home, "first-of-them", "second-of-them")
        assert said == ["service.api_key counts from now on"]
        assert (await home.ask("a", key="first-of-them")).status == 401
        assert (await home.ask("a", key="second-of-them")).status == 200
        assert find(home.folder / "services").api_key == "second-of-them"


async def test_the_log_follows_its_table(home: Home) -> None:
    program, requests = logging.getLogger("terazi"), logging.getLogger(REQUESTS)
    lines = home.folder / "logs" / "requests.jsonl"
    before = (program.level, requests.level)
    async with serving(home):
        assert program.level == logging.INFO
        assert (await home.ask("a")).status == 200
        async with home.session.get("/metrics") as reply:  # works off what is over
            assert "terazi_requests_total" in await reply.text()
        said = await reload(home, "[log]\nrequests = false", '[log]\nrequests = true\nlevel = "error"')
        assert said == ["log.level, log.requests count from now on"]
        assert program.level == logging.ERROR
        assert (await home.ask("a")).status == 200
    assert len(lines.read_text().splitlines()) == 1, "one request was asked while there were to be lines"
    assert (program.level, requests.level) == before, "what else this program does has its own logs"


def test_lines_for_people_and_for_machines() -> None:
    program, handler = logging.getLogger("terazi"), logging.NullHandler()
    program.addHandler(handler)
    try:
        with logging_as(LogTable(level="debug")):
            assert program.level == logging.DEBUG
            assert isinstance(handler.formatter, TextLine)
            apply(LogTable(format="json"))
            assert isinstance(handler.formatter, JsonLine)
            record = program.makeRecord(
                "terazi.x", logging.WARNING, "f", 1, 'a "%s"', ("b\n",), None, "g", {"pid": 7}
            )
            line = handler.format(record)
    finally:
        program.removeHandler(handler)
    assert "\n" not in line
    said = json.loads(line)
    assert said.pop("at") == pytest.approx(record.created, abs=0.01)
    assert said == {"level": "warning", "log": "terazi.x", "message": 'a "b\n"', "pid": 7}


async def test_https_does_not_begin_while_it_runs(home: Home) -> None:
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    cert, key = home.folder / "cert.pem", home.folder / "key.pem"
    made = [*argv, "-subj", "/CN=box.example", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(made, check=True, capture_output=True)  # noqa: ASYNC221 - before anything else runs
    async with serving(home):
        said = await reload(home, "[service]\n", f'[service]\ntls_cert = "{cert}"\ntls_key = "{key}"\n')
        reason = "the service speaks HTTPS from its start to its end, or doesn't"
        assert said == [f"service.tls_cert, service.tls_key need a restart of the service: {reason}"]
        key.write_text("broken")
        with pytest.raises(ServiceError, match="can't be used"):
            await home.control.reload()
        assert (await home.ask("a")).status == 200


async def test_another_engine_binary_is_used_from_the_next_load_on(home: Home) -> None:
    async with serving(home):
        program, other = home.folder / "llama-server", home.folder / "llama-server-2"
        used = home.folder / "second-was-used"
        other.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\ntouch {used}-$$\n", 1))
        with pytest.raises(ServiceError, match="llama-server-2"):
            await reload(home, f'"{program}"', f'"{other}"')  # it can't be run
        other.chmod(0o755)
        (said,) = await home.control.reload()
        assert said.startswith("engines.llama_cpp.server counts with each engine's next load")
        (first,) = home.starts()
        assert (await home.ask("a")).status == 200
        assert home.running() == [first], "what runs goes on"
        path = home.folder / "terazi.toml"
        path.write_text(path.read_text() + '\n[[models]]\nname = "b"\nsource = "demo"\n')
        assert await home.control.reload() == ["b is served"]
        assert (await home.ask("b")).status == 200
        assert (home.folder / f"second-was-used-{home.starts()[1]}").exists()

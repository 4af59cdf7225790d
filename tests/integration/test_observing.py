"""The service's own readers: what is on disk after requests."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from terazi.gateway.account import Attempt, Bookkeeper, Outcome
from terazi.gateway.call import Call
from terazi.gateway.wire.errors import Api
from terazi.service.observing import LOG_NAME, observing
from terazi.service.usage import usage_of_days

CALL = Call(id="r1", api=Api.OPENAI, path="/v1/completions", body=b"", model="m", stream=False, arrived=0.0)
DONE = Outcome(status=200, ended=1.0, attempts=(Attempt(replica="a", began=0.0, ended=1.0),))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERAZI_HOME", str(tmp_path))
    return tmp_path


async def test_requests_are_logged_and_added_up(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    for _ in range(2):
        async with observing(home, told.append, {}) as readers:
            book = Bookkeeper(readers, wait_s=0)
            book.closed(CALL, DONE)
            book.closed(CALL, DONE)
    path = home / "logs" / LOG_NAME
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["r1"] * 4
    assert path.stat().st_mode & 0o077 == 0
    assert usage_of_days(1, by_day=False)[0].requests == 4
    assert told == []
    assert capfd.readouterr().err == ""


async def test_a_log_that_cannot_be_written_is_said_once(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    (home / "logs" / LOG_NAME).mkdir(parents=True)
    async with observing(home, told.append, {}) as readers:
        for _ in range(3):
            Bookkeeper(readers, wait_s=0).closed(CALL, DONE)
            await asyncio.sleep(0)  # lines of one turn are written together
    assert len(told) == 1
    assert "Is a directory" in told[0]
    assert capfd.readouterr().err == ""


async def test_a_damaged_store_is_said(home: Path) -> None:
    told: list[str] = []
    (home / "records.sqlite").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 16)
    async with observing(home, told.append, {}) as readers:
        Bookkeeper(readers, wait_s=0).closed(CALL, DONE)
    assert "damaged" in told[0]
    with sqlite3.connect(home / "records.sqlite") as db:
        assert db.execute("SELECT sum(requests) FROM usage").fetchone() == (1,)
    db.close()

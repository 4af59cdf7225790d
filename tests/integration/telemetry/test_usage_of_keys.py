"""What keys used: added up, written, read back by the command."""

import asyncio
import json
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serving import until
from terazi.cli.main import main
from terazi.gateway.account import Attempt, Bookkeeper, Outcome
from terazi.gateway.call import Call, Caller
from terazi.gateway.wire.errors import Api
from terazi.service import usage
from terazi.service.records import store_file
from terazi.service.usage import OTHERS, Tally, usage_of_days
from terazi.telemetry.store.sqlite import Store
from terazi.telemetry.store.usage import Used, add_usage, usage_since

CALL = Call(
    id="r", api=Api.OPENAI, path="/v1/completions", body=b"", model="m", stream=True,
    caller=Caller(name="anna"), arrived=0.0,
)  # fmt: skip
DONE = Outcome(
    status=200,
    ended=3.0,
    attempts=(Attempt(replica="a", began=1.0, ended=3.0),),
    tail=b'"usage":{"prompt_tokens":10,"completion_tokens":4}',
)
TODAY = datetime.now(UTC).date()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERAZI_HOME", str(tmp_path))
    return tmp_path


def note(tally: Tally, key: str = "anna", *, status: int = 200, n: int = 1) -> None:
    for _ in range(n):
        Bookkeeper([tally], wait_s=0).closed(replace(CALL, caller=Caller(name=key)), replace(DONE, status=status))


async def test_requests_add_up_over_writes_and_runs() -> None:
    for _ in range(2):
        tally = Tally(Store(store_file()))
        note(tally, n=3)
        await tally.write()
        note(tally, status=500)
        note(tally, "bert")
        await tally.write()
        await tally.write()
    anna, bert = usage_of_days(1, by_day=False)
    assert anna == Used("", "anna", "m", 8, 2, 80, 0, 32, 16.0)
    assert bert == Used("", "bert", "m", 2, 0, 20, 0, 8, 4.0)


def test_days_are_told_apart_and_old_ones_go() -> None:
    store = Store(store_file())
    days = [(TODAY - timedelta(days=back)).isoformat() for back in (0, 5, 40, 500)]
    add_usage(store, [Used(day, "anna", "m", requests=1) for day in days])
    assert [row.day for row in usage_since(store, "2000-01-01")] == sorted(days[:3])
    assert [row.requests for row in usage_of_days(30, by_day=False)] == [2]
    assert [row.day for row in usage_of_days(6, by_day=True)] == [days[1], days[0]]


async def test_a_store_that_cannot_be_written_loses_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = home / "other.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE x (y)")
    db.close()
    tally = Tally(Store(str(path)))
    note(tally)
    await tally.write()
    assert "usage isn't written now" in caplog.text
    path.unlink()
    note(tally)
    await tally.write()
    assert [row.requests for row in usage_since(Store(str(path)), "2000-01-01")] == [2]


async def test_clients_that_name_themselves_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_MOST_ROWS", 3)
    tally = Tally(Store(store_file()))
    for number in range(10):
        note(tally, f"local/{number}")
    await tally.write()
    rows = usage_of_days(1, by_day=False)
    assert len(rows) == 4
    assert next(row.requests for row in rows if row.key == OTHERS) == 7


async def test_it_is_written_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "WRITE_EVERY_S", 0.01)
    tally = Tally(Store(store_file()))
    running = asyncio.create_task(tally.run())
    for number in (1, 2):
        note(tally)
        await until(lambda number=number: any(row.requests == number for row in usage_of_days(1, by_day=False)))
    running.cancel()
    await asyncio.wait((running,))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage"]) == 0
    assert capsys.readouterr().out == "nothing was used\n"
    add_usage(
        Store(store_file()), [Used(TODAY.isoformat(), "anna", "big/m", 1200, 1, 5_000_000, 9, 70_000, 7200.0)]
    )
    assert main(["usage"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "model", "requests", "failed", "prompt", "cached", "output", "engine", "time"]
    assert row.split() == ["anna", "big/m", "1,200", "1", "5,000,000", "9", "70,000", "2.00", "h"]
    assert main(["usage", "--by-day", "--json", "--days", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["days"]) == ("terazi.usage/1", 2)
    assert said["rows"][0] == {
        "day": TODAY.isoformat(), "key": "anna", "model": "big/m", "requests": 1200, "failed": 1,
        "prompt_tokens": 5_000_000, "cached_tokens": 9, "output_tokens": 70_000, "seconds": 7200.0,
    }  # fmt: skip

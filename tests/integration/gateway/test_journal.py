"""The journal's memory and its file."""

import asyncio
import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from terazi.gateway.call import Call, Caller
from terazi.gateway.journal import LEFT, Entry, Journal, unfinished_in
from terazi.gateway.wire.errors import Api

HERE = Path(__file__).parent
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_journal import accepted, call_of
from terazi.gateway.journal import Journal

async def main():
    journal = Journal(Path(sys.argv[1]))
    journal.open()
    entries = [accepted(journal, call_of(f"req-{i}")) for i in range(5)]
    entries[1].close("200")
    await asyncio.sleep(0.6)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def call_of(id_: str) -> Call:
    """A chat request of a key's holder."""
    return Call(
        id=id_,
        api=Api.OPENAI,
        path="/v1/chat/completions",
        body=b'{"messages": "the secret prompt"}',
        model="m",
        stream=True,
        caller=Caller(name="anna"),
        arrived=0,
    )


def accepted(journal: Journal, call: Call) -> Entry:
    """What is kept of *call*, which the journal is told of."""
    journal.accept(call)
    return Entry(journal, call)


def files(folder: Path) -> list[Path]:
    """The journals in *folder*."""
    return list(folder.glob("*.jsonl"))


def event(text: str) -> bytes:
    """One event with *text*."""
    body = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def test_a_killed_run_is_told_by_the_next_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(HERE), str(HERE.parents[2] / "src")]
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == -9
    text = files(tmp_path)[0].read_text()
    assert "secret" not in text
    first = Journal(tmp_path)
    left = first.open()
    assert left.count == 4
    assert [said["id"] for said in left.requests] == ["req-0", "req-2", "req-3", "req-4"]
    assert (left.requests[0]["key"], left.requests[0]["model"]) == ("anna", "m")
    assert json.loads((tmp_path / LEFT).read_text())["count"] == 4
    entry = accepted(first, call_of("mine"))
    await asyncio.sleep(0.4)
    second = Journal(tmp_path)
    assert second.open().count == 0
    await second.close()
    entry.close("200")
    await first.close()
    assert not files(tmp_path)


async def test_the_file_is_begun_anew_with_what_is_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path, file_bytes=2000, prompts=True)
    journal.open()
    kept = accepted(journal, call_of("kept"))
    for turn in range(4):
        for i in range(20):
            accepted(journal, call_of(f"r{turn}-{i}")).close("200")
        await asyncio.sleep(0.35)
    (path,) = files(tmp_path)
    assert path.stat().st_size < 12_000
    assert [said["id"] for said in unfinished_in(path.read_bytes())] == ["kept"]
    assert "secret" in path.read_text()
    kept.close("200")
    await journal.close()


async def test_what_is_answered_at_once_is_never_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.open()
    for i in range(5):
        accepted(journal, call_of(f"r{i}")).close("200")
    await asyncio.sleep(0.4)
    (file,) = files(tmp_path)
    assert file.read_bytes() == b""
    await journal.close()


async def test_a_folder_that_cannot_be_written_to_costs_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file")
    assert journal.open().count == 0
    accepted(journal, call_of("a")).close("200")
    await journal.close()


async def test_a_full_disk_costs_what_is_written_then_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit of a file's size stands for the disk's; the system writes what fits, and refuses the rest."""
    journal = Journal(tmp_path)
    journal.open()
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, most))
        entries = [accepted(journal, call_of(f"req-{i}")) for i in range(3)]
        await asyncio.sleep(0.4)
        entries[0].close("200")
        await asyncio.sleep(2.2)
        assert [r.message for r in caplog.records if "can't be written" in r.message] == [
            "the journal can't be written now: [Errno 28] No space left on device"
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    accepted(journal, call_of("req-3"))
    await asyncio.sleep(0.4)
    (file,) = files(tmp_path)
    assert [said["id"] for said in unfinished_in(file.read_bytes())] == ["req-1", "req-2", "req-3"]
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, most))
        entries[1].close("200")
        await journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


async def test_names_that_need_escaping_come_back_as_they_were(tmp_path: Path) -> None:
    journal = Journal(tmp_path, prompts=True)
    journal.open()
    caller = Caller(name='a "b" \\ \n é \ud83d')
    accepted(journal, replace(call_of("odd"), caller=caller, model="m/é", body=b'{"p": "\xff \n"}'))
    over = accepted(journal, call_of("over"))
    await asyncio.sleep(0.35)
    over.close('fault "x"\n')
    await asyncio.sleep(2.2)
    (file,) = files(tmp_path)
    (said,) = unfinished_in(file.read_bytes())
    assert (said["id"], said["key"], said["model"], said["path"]) == (
        "odd",
        caller.name,
        "m/é",
        "/v1/chat/completions",
    )
    assert said["body"] == '{"p": "\ufffd \n"}'
    assert json.loads(file.read_bytes().splitlines()[-1])["state"] == 'fault "x"\n'
    await journal.close()


def test_a_long_answer_is_folded_and_can_still_be_read() -> None:
    journal = Journal()
    entry = accepted(journal, call_of("long"))
    n = 20_000
    for i in range(n):
        entry.sent(event(f" {i}"))
    assert journal.total_bytes < 1_400_000  # of 2.6 MB that were sent
    script = entry.script()
    assert script.content.split() == [str(i) for i in range(n)]
    assert not entry.lost_track
    assert journal.total_bytes < 150_000
    entry.close("200")
    assert journal.total_bytes == 0


def test_a_bound_over_all_costs_the_resumption_and_nothing_else() -> None:
    journal = Journal(limit_bytes=10_000)
    entries = [accepted(journal, call_of(str(i))) for i in range(3)]
    for i in range(60):
        for entry in entries:
            entry.sent(event(f" {i}"))
    assert any(entry.lost_track for entry in entries)
    assert journal.total_bytes <= 10_000 + 200
    assert b" 59" in entries[0].tail()
    for entry in entries:
        assert entry.lost_track or entry.script().content.split() == [str(i) for i in range(60)]
        entry.close("200")
    assert journal.total_bytes == 0


def test_torn_lines_are_passed_over() -> None:
    whole = b'{"id": "a", "at": 1.0}\n{"id": "b", "at": 2.0}\n{"id": "a", "state": "200", "at": 3.0}\n{"id": "c'
    assert [said["id"] for said in unfinished_in(whole)] == ["b"]

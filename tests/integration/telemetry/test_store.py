"""The store's file: what it keeps through crashes, damage, two writers, age and a newer program."""

import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from running import REPO
from terazi.service.paths import state_dir
from terazi.service.records import store_file
from terazi.telemetry.reconciliation import BufferRow, Reconciliation, Verdict
from terazi.telemetry.store import sqlite as store_module
from terazi.telemetry.store.lookup import held_lines
from terazi.telemetry.store.sqlite import Store, StoreError


def record(
    plan_id: str = "ab12", *, wall_s: float | None = None, n: int = 5, model: str = "demo"
) -> Reconciliation:
    held = BufferRow(
        device="Host", term="kv", parts=(("kv.full", n),), actual_bytes=n, precision_bytes=1, verdict=Verdict.HELD
    )
    wrong = BufferRow(
        device="CUDA0",
        term="compute",
        parts=(("compute.replay", 9),),
        actual_bytes=1,
        precision_bytes=1,
        verdict=Verdict.DIFFERS,
    )
    return Reconciliation(
        plan_id=plan_id,
        engine="llama.cpp",
        build="b11434",
        model=model,
        wall_s=time.time() if wall_s is None else wall_s,
        rows=(held, wrong),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "records.sqlite"


def test_the_last_record_of_a_plan_comes_back(path: Path) -> None:
    store = Store(str(path))
    assert store.latest("ab12") is None
    assert not path.exists(), "asking makes no file"
    first, second, other = record(n=5), record(n=6), record("cd34")
    for item in (first, second, other):
        store.add(item)
    assert store.latest("ab12") == second
    assert store.latest("cd34") == other
    assert store.latest("none") is None


def test_the_look_up_gives_the_lines_that_held(path: Path) -> None:
    item = record()
    Store(str(path)).add(item)
    found = held_lines(str(path), "ab12")
    assert found is not None
    assert (found.build, found.wall_s, found.lines) == ("b11434", item.wall_s, {("Host", "kv.full"): 5})
    assert held_lines(str(path), "none") is None


@pytest.mark.parametrize("name", ["odd #?%41 name", "plain"])
def test_the_look_up_finds_any_path_and_makes_none(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert held_lines(str(path), "ab12") is None
    assert list(tmp_path.iterdir()) == []
    Store(str(path)).add(record())
    assert held_lines(str(path), "ab12") is not None


def test_only_its_owner_may_read_it(path: Path) -> None:
    old = os.umask(0)
    try:
        store = Store(str(path))
        store.add(record())
        with sqlite3.connect(path) as reader:  # an open reader keeps the side files there
            reader.execute("SELECT count(*) FROM reconciliation").fetchone()
            store.add(record())
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        reader.close()
    finally:
        os.umask(old)
    assert len(modes) >= 4
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spoil", ["text", "tail", "middle"])
def test_a_damaged_file_is_moved_aside_with_a_notice(path: Path, spoil: str) -> None:
    notices: list[str] = []
    store = Store(str(path), notice=notices.append)
    for n in range(40):
        store.add(record(n=n, model="m" * 2000))
    raw = bytearray(path.read_bytes())
    if spoil == "text":
        raw = bytearray(b"this is no database, but long enough to be one" * 100)
    elif spoil == "tail":
        raw = raw[: len(raw) // 2]
    else:
        for start in range(4096, len(raw), 4096):
            raw[start : start + 64] = b"\xff" * 64
    path.write_bytes(raw)
    assert held_lines(str(path), "ab12") is None or spoil == "tail"
    store.add(record(n=99))
    if not notices:  # SQLite had no need to look at the lost part yet
        store.count()
        store.add(record(n=99))
    assert len(notices) == 1
    assert "damaged" in notices[0]
    aside = path.with_name(path.name + ".damaged-1")
    assert aside.read_bytes()[:64] == bytes(raw[:64])
    found = store.latest("ab12")
    assert found is None or found.rows[0].planned_bytes == 99


def test_a_newer_file_is_left_alone(path: Path) -> None:
    Store(str(path)).add(record())
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(store_module.MIGRATIONS) + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer"):
        Store(str(path)).add(record())
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    db.close()
    with pytest.raises(StoreError, match="another program"):
        Store(str(path)).add(record())
    assert held_lines(str(path), "ab12") is None


def test_an_older_file_is_brought_up_to_date_in_one_step(path: Path) -> None:
    Store(str(path)).add(record())
    later = (
        *store_module.MIGRATIONS,
        ("ALTER TABLE reconciliation ADD COLUMN note TEXT NOT NULL DEFAULT ''",),
    )
    broken = (*store_module.MIGRATIONS, ("ALTER TABLE reconciliation ADD COLUMN half TEXT", "NO SUCH STATEMENT"))
    with pytest.raises(StoreError):
        Store(str(path), migrations=broken).count()
    with sqlite3.connect(path) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(reconciliation)")]
    db.close()
    assert "half" not in columns, "a migration that fails leaves nothing behind"
    store = Store(str(path), migrations=later)
    assert store.count() == 1
    assert store.latest("ab12") is not None


def test_number_age_and_size_are_bounded(path: Path) -> None:
    store = Store(str(path), most_records=10)
    store.add(record("old", wall_s=time.time() - 500 * 24 * 3600))
    assert store.latest("old") is None
    for n in range(25):
        store.add(record(f"p{n}"))
    assert store.count() == 10
    assert store.latest("p24") is not None
    assert store.latest("p14") is None
    small = Store(str(path), most_bytes=200_000)
    for _ in range(30):
        small.add(record(model="m" * 40_000))
    assert path.stat().st_size <= 200_000 + 20 * 4096
    assert small.latest("ab12") is not None
    assert small.count() >= 2


def _write(path: str, name: str, count: int) -> None:
    store = Store(path)
    for n in range(count):
        store.add(record(f"{name}-{n}"))


def test_two_processes_write_at_once_from_the_first_moment(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(path), name, 25)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert Store(str(path)).count() == 50


def test_a_killed_writer_costs_at_most_its_last_record(path: Path) -> None:
    code = (
        "import sys, itertools\n"
        f"sys.path[:0] = [{str(REPO / 'src')!r}, {str(REPO / 'tests')!r}]\n"
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('t', {str(Path(__file__))!r})\n"
        "t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)\n"
        f"store = t.Store({str(path)!r})\n"
        "for n in itertools.count():\n"
        "    store.add(t.record(f'p{n}')); print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = -1
        for line in process.stdout:
            last = int(line)
            if last == 30:
                process.kill()
                break
        rest = process.stdout.read().split()
    done = int(rest[-1]) if rest else last
    store = Store(str(path))
    assert store.count() in {done + 1, done + 2}
    assert store.latest(f"p{done}") is not None


def test_a_place_that_takes_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="can't be kept"):
        Store(str(tmp_path / "file" / "records.sqlite")).add(record())


@pytest.mark.parametrize("variables", [{"TERAZI_HOME": "/x/y"}, {"XDG_STATE_HOME": "{tmp}/s"}, {}])
def test_the_light_path_is_the_state_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name in ("TERAZI_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{tmp}", str(tmp_path)).replace("/x/y", str(tmp_path / "home")))
    assert store_file() == str(state_dir() / "records.sqlite")

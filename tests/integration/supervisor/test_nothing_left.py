"""What an engine starts in a session of its own ends with it, whoever is killed, and however it is found."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deadline import alive, until, until_async
from supervised import FAKE, PARENT, REPO, told
from terazi.engines.base import LaunchSpec
from terazi.supervisor import group, identity
from terazi.supervisor.freed import freed
from terazi.supervisor.process import EngineProcess
from terazi.supervisor.sweep import read_records, sweep_orphans, write_record

#: Run first by a program that shall believe that it can make no control groups.
HIDE = """
import os
from terazi.supervisor import group
if os.environ.get("NO_GROUPS"):
    group.home = lambda: None
"""
WAYS = ["control group", "tags"]


def has_groups() -> bool:
    """Whether this system lets us make control groups."""
    made = group.make_group("probe")
    return made is not None and group.remove_group(made)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With a control group, and on a system that gives none."""
    if request.param == "control group" and not has_groups():
        pytest.skip("no control groups to be made here")
    if request.param == "tags":
        monkeypatch.setattr(group, "home", lambda: None)
        monkeypatch.setenv("NO_GROUPS", "1")
    name: str = request.param
    return name


def grandchild(folder: Path) -> int:
    """The pid that the fake wrote, once it is there."""
    until((folder / "grandchild").exists)
    return int((folder / "grandchild").read_text())


def sleeper(seconds: int) -> "subprocess.Popen[bytes]":
    """A process that ends by itself."""
    return subprocess.Popen(["/bin/sleep", str(seconds)])


def fake_spec(folder: Path, *flags: str) -> LaunchSpec:
    """The fake with a grandchild."""
    return LaunchSpec(
        plan_id="p",
        engine="llama.cpp",
        model_name="fake",
        argv=(
            sys.executable,
            "-S",
            str(FAKE),
            "--port",
            "0",
            "--fake-grandchild",
            str(folder / "grandchild"),
            *flags,
        ),
        base_url="http://127.0.0.1:1",
        api_key="",
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_end_of_an_engine_ends_its_grandchildren(way: str, number: signal.Signals, tmp_path: Path) -> None:
    process = await EngineProcess.spawn(fake_spec(tmp_path), run_id="r" * 32, on_output=lambda _: None)
    assert (process.group is None) == (way == "tags")
    await until_async((tmp_path / "grandchild").exists)
    left = grandchild(tmp_path)
    assert alive(left)
    assert os.getsid(left) != os.getsid(process.pid)
    os.kill(process.pid, number)
    await process.gone
    assert not alive(left), "gone means that all of it is gone"
    assert (await freed([process.pid, left], timeout_s=1)).free
    if process.group is not None:
        assert not group.populated(process.group)
        assert group.remove_group(process.group), "it is gone already"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_grandchild_outlives_its_terazi(way: str, number: signal.Signals, tmp_path: Path) -> None:
    del way
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HIDE + PARENT,
            str(FAKE),
            str(tmp_path),
            "--fake-grandchild",
            f"{tmp_path}/grandchild",
        ],
        env={**os.environ, "PYTHONPATH": str(REPO / "src")},
    )
    try:
        until(lambda: "ready" in told(tmp_path))
        engine, left = told(tmp_path)["ready"], grandchild(tmp_path)
        assert engine is not None
        assert alive(engine)
        assert alive(left)
        (_, record), *_ = read_records(str(tmp_path))
        assert record is not None
    finally:
        parent.send_signal(number)
        parent.wait()
    until(lambda: not alive(engine) and not alive(left), within_s=3)
    if record.group:
        until(lambda: not Path(record.group).exists(), within_s=3)


def test_boot_sweep_finds_grandchildren_of_an_engine_that_is_gone(tmp_path: Path) -> None:
    """Terazi and its warden were killed together (the whole of a session): the next start cleans up."""
    engine = subprocess.Popen(
        [*fake_spec(tmp_path).argv], env={**os.environ, identity.RUN_ID: "f" * 32}, stderr=subprocess.DEVNULL
    )
    left = grandchild(tmp_path)
    path = write_record(str(tmp_path), "f" * 32, engine.pid, "fake")
    assert path is not None
    owner = subprocess.Popen(["/bin/true"])
    owner.wait()
    path.write_text(path.read_text().replace(f'"owner_pid": {os.getpid()}', f'"owner_pid": {owner.pid}'))
    engine.kill()
    engine.wait()
    assert alive(left)
    (swept,) = sweep_orphans(str(tmp_path))
    assert swept.killed
    assert "of its children were left" in swept.reason
    assert not alive(left)


async def test_what_still_runs_is_not_measured_free() -> None:
    child = sleeper(60)
    try:
        found = await freed([child.pid], timeout_s=0.1)
        assert not found.free
        assert found.alive == (child.pid,)
        assert str(child.pid) in found.sentence()
    finally:
        child.kill()
        child.wait()


async def test_device_memory_that_lingers_is_waited_for() -> None:
    child = sleeper(0)
    child.wait()
    answers = iter([(("CUDA0", 5 << 30),), (("CUDA0", 5 << 30),), None])
    found = await freed([child.pid], timeout_s=5, device_memory=lambda _: next(answers))
    assert found.free
    assert found.waited_s > 0.02
    stays = await freed([child.pid], timeout_s=0.1, device_memory=lambda _: (("CUDA0", 7),))
    assert (stays.free, dict(stays.held)) == (False, {"CUDA0": 7})


async def test_bytes_that_should_be_free_are_measured_where_the_driver_knows_no_process() -> None:
    free = iter([{"CUDA0": 10}, {"CUDA0": 80}, {"CUDA0": 120}])
    found = await freed([], timeout_s=5, free_now=lambda: next(free), expected={"CUDA0": 100})
    assert found.free
    short = await freed([], timeout_s=0.05, free_now=lambda: {"CUDA0": 60}, expected={"CUDA0": 100})
    assert dict(short.missing) == {"CUDA0": 40}

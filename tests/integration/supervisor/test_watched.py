"""Engines that stop working without ending: found, killed, started again, and explained."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deadline import alive, until_async
from terazi.engines.base import LaunchSpec
from terazi.policy.lifecycle import Limits
from terazi.policy.lifecycle_messages import Phase
from terazi.policy.progress import Liveness, Patience
from terazi.supervisor import aftermath, process
from terazi.supervisor.crashes import KEPT, read_crashes, summary, write_crash
from terazi.supervisor.health import EngineClient
from terazi.supervisor.runner import EngineRunner
from terazi.supervisor.vitals import OomKills
from terazi.supervisor.watch import Watched, watch

FAKE = Path(__file__).parents[2] / "fakes" / "engine.py"
#: As the defaults, about a twentieth of the time.
QUICK = Patience(look_s=0.1, silent_s=0.8, idle_look_s=0.25, doubt_s=0.1, active_s=8.0, busy_s=40.0)
#: A test waits so long for what a quiet machine does in about a second.
SOON_S = 30.0


class Ours:
    """A runner over the fake, and requests to it."""

    def __init__(self, folder: Path, *flags: str, patience: Patience = QUICK, **limits: Any) -> None:
        self.folder = folder
        self.flags = flags
        self.open: list[str] = []
        self.bytes_seen = 0
        self.runner = EngineRunner(
            self._launch,
            run_dir=str(folder),
            log_path=str(folder / "log"),
            in_flight=lambda: len(self.open),
            requests=lambda: tuple(self.open),
            bytes_seen=lambda: self.bytes_seen,
            patience=patience,
            limits=Limits(**limits),
        )

    def _launch(self, port: int) -> LaunchSpec:
        return LaunchSpec(
            plan_id="p",
            engine="llama.cpp",
            model_name="fake",
            argv=(sys.executable, "-S", str(FAKE), "--port", str(port), "--metrics", *self.flags),
            base_url=f"http://127.0.0.1:{port}",
            api_key="",
            prefill_tok_s=20_000.0,
        )

    async def ready(self) -> int:
        """Wait for it; its pid."""
        await asyncio.wait_for(self.runner.wait_ready(), SOON_S)
        assert self.runner.pid is not None
        return self.runner.pid

    async def stream(self, name: str, n: int = 5000) -> str:
        """A request that is counted as in flight until it ends, however it ends; what came of it."""
        self.open.append(name)
        text = ""
        try:
            async with aiohttp.ClientSession() as session:
                body = {"prompt": name, "max_tokens": n, "stream": True}
                async with session.post(f"{self.runner.spec.base_url}/v1/completions", json=body) as answer:
                    async for line in answer.content:
                        self.bytes_seen += len(line)
                        text += line.decode()
        finally:
            self.open.remove(name)
        return text

    def crashes(self) -> tuple[dict[str, Any], ...]:
        """What was kept."""
        return read_crashes(self.folder / "crashes")


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Ours]]:
    """Makes them, started, and leaves nothing behind."""
    made: list[Ours] = []

    def build(*flags: str, **more: Any) -> Ours:
        ours = Ours(tmp_path, *flags, **more)
        ours.runner.start()
        made.append(ours)
        return ours

    yield build
    for ours in made:
        await asyncio.wait_for(ours.runner.stop(0), 10)


async def test_sigstop_with_streams_in_flight_is_found_killed_and_explained(
    make: Callable[..., Ours], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ours = make("--fake-tokens", "100000", "--fake-token-delay-s", "0.01")
    pid = await ours.ready()
    streams = [asyncio.create_task(ours.stream(f"r{n}")) for n in range(3)]
    await until_async(lambda: ours.bytes_seen > 1000, within_s=SOON_S)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    await until_async(lambda: ours.runner.restarts == 1, within_s=SOON_S)
    assert time.monotonic() - began < QUICK.silent_s + 5
    assert not alive(pid)
    for stream in streams:
        with suppress(aiohttp.ClientError):
            assert "[DONE]" not in await asyncio.wait_for(stream, SOON_S)
    second = await ours.ready()
    assert second != pid
    (crash,) = ours.crashes()
    assert (crash["by"], crash["signal"], crash["phase"]) == ("Terazi", "SIGKILL", "stuck")
    assert crash["requests"] == ["r0", "r1", "r2"]
    assert "stopped its process" in crash["reason"]
    assert ours.runner.ended_from_outside, "no request is to blame"
    assert crash["pid"] == pid
    assert any("model loaded" in line for line in crash["last_lines"])
    assert len(crash["memory"]) >= 2
    assert max(sample["anonymous_bytes"] for sample in crash["memory"]) > 1 << 20
    assert [r for r in caplog.messages if "3 requests in flight" in r and crash["file"] in r]
    told = await ours.runner.why_lost()
    assert told is not None
    assert "it is stuck" in told
    page = "\n".join(summary(crash))
    assert "3 requests in flight" in page
    assert crash["file"] in page


@pytest.mark.parametrize("fault", ["--fake-hang-after", "--fake-deaf-after"])
async def test_a_hang_is_found_whether_it_answers_questions_or_not(make: Callable[..., Ours], fault: str) -> None:
    ours = make(fault, "40", "--fake-tokens", "1000")
    pid = await ours.ready()
    stream = asyncio.create_task(ours.stream("r"))
    await until_async(lambda: ours.runner.restarts == 1, within_s=SOON_S)
    assert not alive(pid)
    assert not ours.runner.ended_from_outside, "the request may be to blame"
    with suppress(aiohttp.ClientError):
        await stream


async def test_other_patience_counts_for_the_engine_that_runs(make: Callable[..., Ours]) -> None:
    ours = make(
        "--fake-hang-after", "40", "--fake-tokens", "1000", patience=replace(QUICK, silent_s=600, busy_s=600)
    )
    await ours.ready()
    stream = asyncio.create_task(ours.stream("r"))
    await asyncio.sleep(2 * QUICK.silent_s)
    assert ours.runner.restarts == 0
    ours.runner.be_patient(QUICK, stall_s=60, stop_grace_s=10)
    await until_async(lambda: ours.runner.restarts == 1, within_s=SOON_S)
    with suppress(aiohttp.ClientError):
        await stream


async def test_a_load_that_stands_still_is_given_up_after_the_new_patience(make: Callable[..., Ours]) -> None:
    ours = make("--fake-stall-load", relaunch=False)
    ours.runner.be_patient(QUICK, stall_s=0.4, stop_grace_s=0.1)
    await until_async(lambda: ours.runner.state.ended, within_s=SOON_S)
    assert "no progress for 0.4 s" in ours.runner.state.reason


async def test_a_long_prefill_on_one_processor_is_no_hang(make: Callable[..., Ours]) -> None:
    """Twice the silence that is allowed, in which no counter moves and no byte comes."""
    ours = make("--fake-prompt-delay-s", "1.7", "--fake-busy-prompt", "--fake-tokens", "3")
    pid = await ours.ready()
    assert "[DONE]" in await asyncio.wait_for(ours.stream("long"), SOON_S)
    assert ours.runner.pid == pid
    assert ours.crashes() == ()


async def test_late_answers_to_questions_under_load_are_no_death(make: Callable[..., Ours]) -> None:
    ours = make(
        "--fake-answer-delay-s",
        "1",
        "--fake-tokens",
        "100",
        "--fake-token-delay-s",
        "0.01",
        "--fake-prompt-delay-s",
        "0.5",
        "--fake-busy-prompt",
    )
    pid = await ours.ready()
    assert "[DONE]" in await asyncio.wait_for(ours.stream("long"), SOON_S)
    assert ours.runner.pid == pid


async def test_an_idle_engine_that_was_stopped_is_found(make: Callable[..., Ours]) -> None:
    ours = make()
    pid = await ours.ready()
    os.kill(pid, signal.SIGSTOP)
    await until_async(lambda: ours.runner.restarts == 1, within_s=SOON_S)
    await ours.ready()
    assert not alive(pid)
    assert "one token" in ours.crashes()[0]["reason"]


async def test_kills_from_outside_cost_a_load_and_no_pause(make: Callable[..., Ours]) -> None:
    ours = make("--fake-tokens", "100000", "--fake-token-delay-s", "0.01")
    for n in range(5):
        pid = await ours.ready()
        stream = asyncio.create_task(ours.stream(f"r{n}"))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        await until_async(lambda: ours.runner.pid not in {None, pid}, within_s=SOON_S)  # noqa: B023 - waited for here
        await ours.ready()
        assert time.monotonic() - began < 10
        with suppress(aiohttp.ClientError):
            await stream
    assert [(c["by"], c["signal"]) for c in ours.crashes()] == [("somebody else", "SIGKILL")] * 5
    assert ours.runner.state.failures == 0


async def test_what_the_kernel_kills_for_want_of_memory_is_not_started_at_once(
    make: Callable[..., Ours], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of such kills rises as the engine dies; the same engine would only be killed again."""
    kills = [3]

    def counted(group: str | None = None) -> OomKills:
        return OomKills(engine=None if group is None else 0, service=kills[0], machine=None)

    monkeypatch.setattr(process, "oom_kills", counted)
    monkeypatch.setattr(aftermath, "oom_kills", counted)
    ours = make()
    pid = await ours.ready()
    kills[0] += 1
    os.kill(pid, signal.SIGKILL)
    await until_async(lambda: ours.runner.state.phase is Phase.BACKING_OFF, within_s=SOON_S)
    assert ours.runner.state.failures == 1
    (crash,) = ours.crashes()
    assert crash["by"] == "the kernel, for want of memory"
    assert "memory ran out in Terazi's" in ours.runner.state.reason
    await ours.ready()


async def test_what_always_exits_is_given_up_and_starts_no_storm(make: Callable[..., Ours], tmp_path: Path) -> None:
    ours = make("--fake-exit-at", "loading", max_load_failures=2)
    await until_async(lambda: ours.runner.state.ended, within_s=SOON_S)
    assert ours.runner.state.generation == 2
    assert ours.runner.state.phase is Phase.FAILED
    assert [(c["by"], c["code"]) for c in ours.crashes()] == [("itself", 1)] * 2


async def test_crashes_of_its_own_are_answered_more_and_more_slowly(make: Callable[..., Ours]) -> None:
    ours = make("--fake-exit-at", "request:2", "--fake-exit-signal", "SIGABRT")
    pauses = []
    for _ in range(2):
        await ours.ready()
        with suppress(aiohttp.ClientError):
            await ours.stream("r")
        await until_async(lambda: ours.runner.state.phase is Phase.BACKING_OFF, within_s=SOON_S)
        state = ours.runner.state
        assert state.again_at is not None
        pauses.append(state.again_at - state.since)
        if len(pauses) < 2:
            await until_async(lambda: ours.runner.state.phase is Phase.READY, within_s=SOON_S)
    assert pauses == pytest.approx([1, 10])


async def test_an_engine_that_others_run_is_only_marked_and_is_well_again(tmp_path: Path) -> None:
    engine = await asyncio.create_subprocess_exec(
        sys.executable, str(FAKE), "--port", "0", stderr=asyncio.subprocess.PIPE
    )
    assert engine.stderr is not None
    line = b""
    while b"listening on" not in line:
        line = await asyncio.wait_for(engine.stderr.readline(), 10)
    draining = asyncio.create_task(engine.stderr.read())
    client = EngineClient(line.decode().split("listening on ")[1].strip(), "")
    watched = Watched(
        probe_path="/v1/completions", probe_body='{"prompt": "1", "max_tokens": 1}', in_flight=lambda: 1
    )
    seen: list[Liveness] = []

    async def follow() -> None:
        async for verdict in watch(client, watched, lambda: QUICK):
            seen.append(verdict.liveness)  # noqa: PERF401 - it has no end, and is looked at meanwhile

    following = asyncio.create_task(follow())
    try:
        await until_async(lambda: seen == [Liveness.BUSY])
        os.kill(engine.pid, signal.SIGSTOP)
        await until_async(lambda: seen[-1] is Liveness.STUCK, within_s=SOON_S)
        assert engine.returncode is None
        os.kill(engine.pid, signal.SIGCONT)
        await until_async(lambda: seen[-1] in {Liveness.IDLE, Liveness.BUSY}, within_s=SOON_S)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await client.close()
        engine.kill()
        await engine.wait()
        await draining


async def test_the_folder_of_crashes_is_bounded(make: Callable[..., Ours], tmp_path: Path) -> None:
    ours = make("--fake-exit-at", "loading", max_load_failures=1)
    await until_async(lambda: ours.runner.state.ended, within_s=SOON_S)
    (death,) = ours.runner.deaths
    for n in range(KEPT + 10):
        assert write_crash(tmp_path / "crashes", replace(death, ended_wall_s=2e9 + n))
    kept = ours.crashes()
    assert len(kept) == KEPT
    assert kept[-1]["ended_wall_s"] == 2e9 + KEPT + 9
    assert {crash["schema"] for crash in kept} == {"terazi.crash/1"}

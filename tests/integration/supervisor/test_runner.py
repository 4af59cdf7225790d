"""The runner with a fake engine process that misbehaves on demand."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deadline import alive, proc, until_async
from terazi.engines.base import Expectation, LaunchSpec
from terazi.errors import EngineError
from terazi.policy.lifecycle import Limits, State
from terazi.policy.lifecycle_messages import Phase
from terazi.supervisor.died import EngineDiedError
from terazi.supervisor.log import read_log
from terazi.supervisor.process import free_port
from terazi.supervisor.runner import EngineRunner
from terazi.supervisor.sweep import read_records

FAKE = Path(__file__).parents[2] / "fakes" / "engine.py"
Make = Callable[..., EngineRunner]


def fake_spec(
    port: int,
    *flags: str,
    stall_s: float = 5,
    stop_grace_s: float = 1,
    expectations: tuple[Expectation, ...] = (),
    elsewhere: bool = False,
) -> LaunchSpec:
    """A launch of the fake engine."""
    return LaunchSpec(
        plan_id="p1",
        engine="llama.cpp",
        model_name="fake",
        argv=(sys.executable, "-S", str(FAKE), "--port", str(port), *flags),
        env=(("LLAMA_API_KEY", "secret"),),
        unset_env=("LLAMA_ARG_", "FAKE_ENGINE_"),
        base_url=f"http://127.0.0.1:{port}",
        api_key="secret",
        stall_s=stall_s,
        stop_grace_s=stop_grace_s,
        expectations=expectations,
        elsewhere=elsewhere,
    )


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes runners and leaves no process behind."""
    runners: list[EngineRunner] = []

    def build(
        *flags: str,
        relaunch: bool = True,
        in_flight: Callable[[], int] = lambda: 0,
        seen: list[str] | None = None,
        stall_s: float = 5,
        stop_grace_s: float = 1,
        ports: list[int] | None = None,
        limits: Limits | None = None,
        expectations: tuple[Expectation, ...] = (),
        elsewhere: bool = False,
        **more: object,
    ) -> EngineRunner:
        def launch(port: int) -> LaunchSpec:
            port = ports.pop(0) if ports else port
            return fake_spec(
                port,
                *flags,
                stall_s=stall_s,
                stop_grace_s=stop_grace_s,
                expectations=expectations,
                elsewhere=elsewhere,
            )

        def note(state: State) -> None:
            if seen is not None:
                seen.append(state.phase.value)

        runner = EngineRunner(
            launch,
            run_dir=str(tmp_path / "run"),
            log_path=str(tmp_path / "engine.log"),
            on_change=note,
            in_flight=in_flight,
            relaunch=relaunch,
            limits=limits,
            **more,  # type: ignore[arg-type]  # the runner's own words
        )
        runners.append(runner)
        return runner

    yield build
    for runner in runners:
        if runner.state.phase is not Phase.PLANNED:
            await asyncio.wait_for(runner.stop(0), 20)
    assert not read_records(str(tmp_path / "run"))


async def test_ready_then_stopped_leaves_nothing(make: Make, tmp_path: Path) -> None:
    seen: list[str] = []
    runner = make(seen=seen)
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    pid = runner.pid
    assert pid is not None
    assert alive(pid)
    assert os.getpgid(pid) == pid, "it has a process group of its own"
    assert os.getsid(pid) == pid
    records = read_records(str(tmp_path / "run"))
    assert [r.pid for _, r in records if r] == [pid]
    assert runner.started_at is not None
    assert runner.report is not None
    assert runner.report.sums()["weights", "Host"] == round(92.10 * 1024 * 1024)
    assert "secret" not in proc(pid, "cmdline").decode()
    await asyncio.wait_for(runner.stop(), 10)
    assert not alive(pid)
    assert seen == ["starting", "loading", "ready", "draining", "stopped"]
    assert b"model loaded" in read_log(str(tmp_path / "engine.log"))
    assert runner.pid is None
    assert runner.started_at is None
    assert runner.restarts == 0


async def test_slow_loading_with_progress_outlives_the_stall_limit(make: Make) -> None:
    runner = make("--fake-load-s", "2.5", stall_s=1)
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    assert runner.restarts == 0


async def test_silent_loading_that_fills_memory_is_progress(make: Make) -> None:
    """llama-server says nothing for minutes while it maps or uploads a large file."""
    runner = make("--fake-load-s", "3", "--fake-silent-load", stall_s=1.3)
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    assert runner.restarts == 0


async def test_stalled_loading_is_given_up(make: Make) -> None:
    runner = make("--fake-stall-load", stall_s=0.5, relaunch=False)
    runner.start()
    with pytest.raises(EngineError, match=r"no progress for 0\.5 s while loading"):
        await asyncio.wait_for(runner.wait_ready(), 10)
    assert runner.pid is None


async def test_healthy_engine_that_generates_nothing_is_not_ready(make: Make) -> None:
    runner = make("--fake-no-tokens", stall_s=0.7, relaunch=False)
    runner.start()
    with pytest.raises(EngineError, match="healthy but generates nothing"):
        await asyncio.wait_for(runner.wait_ready(), 10)


async def test_death_while_loading_is_explained(make: Make) -> None:
    runner = make("--fake-oom-log", relaunch=False)
    runner.start()
    with pytest.raises(EngineDiedError, match="memory ran out on CUDA0 for the weights") as caught:
        await asyncio.wait_for(runner.wait_ready(), 10)
    error = caught.value
    assert (error.exit_code, error.code, error.exit_signal) == (4, 1, None)
    assert error.failure is not None
    assert "unable to allocate CUDA0 buffer" in error.failure.line
    assert "--context" in error.hint
    assert any("exiting due to" in line for line in error.last_lines)


async def test_what_was_planned_for_a_card_and_loaded_into_ram_never_serves(make: Make) -> None:
    """The fake's log has all of its weights in RAM."""
    planned = (Expectation(term="weights", device="CUDA0", bytes=90 << 20),)
    runner = make(expectations=planned)
    runner.start()
    with pytest.raises(EngineDiedError, match="put only 0 of 90 MiB of weights on CUDA0"):
        await asyncio.wait_for(runner.wait_ready(), 10)
    assert runner.restarts == 0
    assert runner.pid is None
    allowed = make(expectations=planned, elsewhere=True)
    allowed.start()
    await asyncio.wait_for(allowed.wait_ready(), 10)


async def test_three_deaths_while_loading_are_final(make: Make) -> None:
    seen: list[str] = []
    runner = make("--fake-exit-at", "loading", seen=seen, limits=Limits(max_load_failures=2))
    runner.start()
    with pytest.raises(EngineError, match="exit code 1 while loading") as caught:
        await asyncio.wait_for(runner.wait_ready(), 10)
    assert seen.count("loading") == 2
    assert runner.restarts == 1
    assert "engine.log" in caught.value.hint


async def test_missing_binary_is_said_at_once(tmp_path: Path) -> None:
    spec = LaunchSpec(
        plan_id="p", engine="llama.cpp", model_name="m", argv=("/nowhere/llama-server",), base_url="http://127.0.0.1:1",
        api_key="k",
    )  # fmt: skip
    runner = EngineRunner(spec, run_dir=str(tmp_path), log_path=str(tmp_path / "log"))
    runner.start()
    with pytest.raises(EngineError, match="cannot run /nowhere/llama-server: No such file"):
        await asyncio.wait_for(runner.wait_ready(), 10)
    await runner.wait_stopped()


async def test_children_of_a_dead_engine_are_ended_and_do_not_delay_the_news(tmp_path: Path) -> None:
    told = tmp_path / "child"
    spec = LaunchSpec(
        plan_id="p", engine="llama.cpp", model_name="m", base_url="http://127.0.0.1:1", api_key="k",
        argv=("/bin/sh", "-c", f"sleep 60 & echo $! > {told}; exit 3"),
    )  # fmt: skip
    runner = EngineRunner(spec, run_dir=str(tmp_path), log_path=str(tmp_path / "log"), relaunch=False)
    runner.start()
    with pytest.raises(EngineDiedError, match="exit code 3 while loading"):
        await asyncio.wait_for(runner.wait_ready(), 5)
    child = int(told.read_text())
    await until_async(lambda: not alive(child), within_s=2)
    await runner.wait_stopped()


async def test_killed_by_a_stranger_is_told_apart_from_killed_by_us(make: Make) -> None:
    killed = make("--fake-exit-at", "loading", "--fake-exit-signal", "SIGKILL", relaunch=False)
    killed.start()
    with pytest.raises(EngineDiedError, match="signal 9 while loading") as caught:
        await asyncio.wait_for(killed.wait_ready(), 10)
    assert "kernel log" in caught.value.hint
    stubborn = make("--fake-stall-load", "--fake-ignore-sigterm", stall_s=2, stop_grace_s=0.3, relaunch=False)
    stubborn.start()
    with pytest.raises(EngineDiedError, match="no progress") as caught:
        await asyncio.wait_for(stubborn.wait_ready(), 10)
    assert caught.value.exit_signal == signal.SIGKILL
    assert "kernel log" not in caught.value.hint


async def test_listener_that_fails_does_not_stop_the_engine(tmp_path: Path) -> None:
    def broken(state: State) -> None:
        raise RuntimeError(state.phase.value)

    runner = EngineRunner(fake_spec, run_dir=str(tmp_path), log_path=str(tmp_path / "log"), on_change=broken)
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    await asyncio.wait_for(runner.stop(0), 10)


async def test_engine_that_ignores_sigterm_is_killed_after_its_grace(make: Make) -> None:
    runner = make("--fake-ignore-sigterm", stop_grace_s=0.5)
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    pid = runner.pid
    assert pid is not None
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(runner.stop(0), 10)
    took = asyncio.get_running_loop().time() - began
    assert 0.5 <= took < 3
    assert not alive(pid)
    assert runner.error().exit_signal == signal.SIGKILL


async def test_crash_while_ready_is_answered_with_a_new_process(make: Make) -> None:
    seen: list[str] = []
    runner = make(seen=seen)
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    first = runner.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until_async(lambda: runner.restarts == 1, within_s=3)
    assert "signal 9 while ready" in runner.state.reason
    await asyncio.wait_for(runner.wait_ready(), 10)
    assert runner.pid not in {None, first}
    assert runner.restarts == 1
    assert seen[3:] == ["failed", "backing_off", "starting", "loading", "ready"]


async def test_stop_during_back_off_starts_nothing(make: Make) -> None:
    runner = make()
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGABRT)  # its own fault: not at once
    await until_async(lambda: runner.state.phase is Phase.BACKING_OFF)
    await asyncio.wait_for(runner.stop(), 5)
    assert runner.state.phase is Phase.STOPPED
    assert runner.restarts == 0


async def test_taken_port_is_answered_with_another(make: Make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        runner = make(ports=[taken.getsockname()[1]])
        runner.start()
        await asyncio.wait_for(runner.wait_ready(), 10)
        assert runner.restarts == 1
        assert runner.spec.base_url != f"http://127.0.0.1:{taken.getsockname()[1]}"


async def test_stop_waits_for_requests_in_flight(make: Make) -> None:
    count = [1]
    runner = make(in_flight=lambda: count[0])
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    stopping = asyncio.create_task(runner.stop(30))
    await until_async(lambda: runner.state.phase is Phase.DRAINING)
    done, _ = await asyncio.wait({stopping}, timeout=0.3)
    assert not done, "a request is still in flight"
    assert runner.pid is not None
    count[0] = 0
    await asyncio.wait_for(stopping, 5)


@pytest.mark.parametrize("when", ["starting", "loading"])
async def test_stop_before_it_is_ready(make: Make, when: str) -> None:
    runner = make("--fake-load-s", "30")
    runner.start()
    if when == "loading":
        await until_async(lambda: runner.report is None and runner.state.phase is Phase.LOADING)
    waiting = asyncio.create_task(runner.wait_ready())
    await asyncio.wait_for(runner.stop(), 5)
    with pytest.raises(EngineError, match="stopped before it was ready"):
        await waiting


async def test_inherited_settings_do_not_reach_the_engine(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_GPU_LAYERS", "99")
    runner = make()
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)
    assert runner.pid is not None
    environ = proc(runner.pid, "environ")
    assert b"LLAMA_ARG_" not in environ
    assert b"LLAMA_API_KEY=secret" in environ
    assert b"TERAZI_RUN_ID=" in environ


async def test_half_closed_answers_do_not_hinder_readiness(make: Make, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    runner = make("--fake-close-after-response", "--fake-ledger", str(ledger))
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 10)

    def events() -> list[str]:
        return [json.loads(line)["event"] for line in ledger.read_text().splitlines()]

    await until_async(lambda: len(events()) >= 2)  # the ledger is written after the answer
    assert events() == ["accepted", "finished"], "one token was asked for, once"


def test_free_port_can_be_bound() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", free_port()))

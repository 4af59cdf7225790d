"""What people report of engines that end, or never begin, and of what they leave, tried on a whole service.

The numbers are those of the table in ``docs/reference/failures.md``.
"""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from deadline import alive, until, until_async
from live_service import FAKE, Home, Said, home_in, serving
from running import engines_of, up
from terazi.supervisor import group

COLD = "replicas = {min = 0}"
TOOLS = [{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Empty."""
    return home_in(tmp_path, monkeypatch)


async def test_08_an_abort_under_two_clients_is_not_felt(home: Home) -> None:
    """llama.cpp#27835, llama.cpp#27749: a CUDA abort took all requests with it."""
    home.models = {"a": ""}
    home.faults(
        "a", "--fake-exit-at after-tokens:31 --fake-exit-signal SIGABRT --fake-tokens 30", "--fake-tokens 30"
    )
    async with serving(home):
        both = await asyncio.gather(*(home.ask("a", tokens=30, say=say) for say in ("one", "two")))
        assert [said.whole for said in both] == [True, True]
        assert len(home.starts()) == 2
        again = [await home.ask("a", tokens=30, say=say) for say in ("one", "two")]
        assert [said.text for said in both] == [said.text for said in again], "a word more, or less, or another"
        assert any(": resumed after " in said.body for said in both)


async def test_11_a_model_that_failed_to_load_is_tried_again_without_anybodys_help(home: Home) -> None:
    """llama-swap#120, llama-swap#75: after a failed start the model stayed failed until somebody did something."""
    home.models = {"a": COLD}
    home.memory = "cool_s = 1\ncool_most_s = 2"
    home.faults("a", "--fake-exit-at loading", "--fake-exit-at loading", "")
    async with serving(home):
        first = await home.ask("a", stream=False)
        assert first.status == 503
        assert "a can't be served now" in first.body
        wait_s = int(first.headers["Retry-After"])
        assert 1 <= wait_s <= 2
        async with asyncio.timeout(wait_s + 5):
            while (await home.ps())["a"]["closed"] is not None:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
        assert (await home.ask("a")).whole
        assert len(home.starts()) == 3


async def test_13_a_long_load_is_waited_for_and_one_that_stands_still_is_not(home: Home) -> None:
    """llama-swap#289: a large model's load was cut off after a fixed time, however well it went."""
    home.models = {"long": COLD, "stalled": COLD}
    home.engine = "stall_s = 0.7"
    home.faults("long", "--fake-load-s 2.5")
    home.faults("stalled", "--fake-stall-load")
    async with serving(home):
        long, stalled = await asyncio.gather(home.ask("long"), home.ask("stalled"))
        assert long.whole
        assert len(home.starts("long")) == 1
        assert stalled.status == 200, "the head of a stream that waits has gone out with its first sign of life"
        assert "no progress" in stalled.body
        assert stalled.events[-1]["error"]


def _children(process: psutil.Process, name: str) -> list[psutil.Process]:
    return [child for child in process.children() if any(name in word for word in child.cmdline())]


def test_14_what_survives_the_death_of_all_that_watched_it_is_ended_by_the_next_start(tmp_path: Path) -> None:
    """llama-swap#159, hermes-agent#110561: the parent was ended, and an orphan kept 22 GB.

    That was Windows, which isn't supported: there is no job object here. On Linux its part is played by the parent
    death signal, a warden and, when that is killed too, the sweep at the next start.
    """
    left_at = tmp_path / "grandchild"
    flags = {"TERAZI_LLAMA_SERVER": str(FAKE), "FAKE_ENGINE_FLAGS": f"--fake-grandchild {left_at}"}
    with up(tmp_path, "--context", "512", **flags) as running:
        running.url()
        (engine,) = (p for p in running.engines() if any("--port" in word for word in p.cmdline()))
        left = int(left_at.read_text())
        terazi = psutil.Process(running.process.pid)
        for warden in _children(terazi, "warden.py"):
            warden.kill()
        terazi.kill()
        running.process.wait(10)
        until(lambda: not alive(engine.pid))
        in_group = not alive(left)
    left_at.unlink()
    with up(tmp_path, "--context", "512", **flags) as running:
        running.url()
        assert not alive(left)
        assert in_group or any("had left behind" in line for line in running.seen), running.seen
        assert running.end() == 0
    assert engines_of(tmp_path) == []


def test_15_kill_9_leaves_no_engine_and_nothing_that_an_engine_has_started(tmp_path: Path) -> None:
    """ollama#5642, ollama#7927: after kill -9 the runners held the memory of the card."""
    left_at = tmp_path / "grandchild"
    flags = {"TERAZI_LLAMA_SERVER": str(FAKE), "FAKE_ENGINE_FLAGS": f"--fake-grandchild {left_at}"}
    with up(tmp_path, "--context", "512", **flags) as running:
        running.url()
        pids = [process.pid for process in running.engines()]
        assert len(pids) >= 2, "the engine and what it started"
        running.process.kill()
        running.process.wait(10)
        until(lambda: not any(alive(pid) for pid in pids), within_s=5)


async def test_16_a_process_that_the_engine_left_ends_before_the_engine_is_started_again(home: Home) -> None:
    """vllm#55510, vllm#34643, vllm#43060: the server was killed, its core kept the card, a new one found no room.

    Engines of llama.cpp start no such process; the fake does, in a session of its own, as vLLM's core is.
    """
    home.models = {"a": ""}
    left_at = home.folder / "grandchild"
    home.faults("a", f"--fake-grandchild {left_at}", "")
    async with serving(home):
        left = int(left_at.read_text())
        assert alive(left)
        os.kill(home.starts()[0], signal.SIGKILL)
        await until_async(lambda: len(home.starts()) == 2)
        assert home.beside(1) == []
        assert not alive(left)
        assert (await home.ask("a")).whole


async def test_19_a_broken_model_that_is_asked_for_again_and_again_starts_no_storm(home: Home) -> None:
    """LocalAI#10719: each call started it anew, and the failed ones held 58 GB in the end."""
    home.models = {"a": COLD}
    home.faults("a", "--fake-exit-at loading --fake-exit-code 1")
    async with serving(home):
        answers = [await home.ask("a", stream=bool(n % 2)) for n in range(30)]
        assert {said.status for said in answers} == {503}
        assert all(int(said.headers["Retry-After"]) >= 1 for said in answers)
        for path in ("/v1/models", "/health", "/api/ps"):
            async with home.session.get(path) as answer:
                await answer.read()
        assert len(home.starts()) == 2
        assert home.running() == []


async def test_21_fewer_replicas_cut_no_answer(home: Home) -> None:
    """gpustack#6059: scaling down aborted the requests of the replica that went."""
    home.models = {"a": "replicas = {min = 2, max = 2}"}
    home.faults("a", "--fake-token-delay-s 0.02 --fake-tokens 60")
    async with serving(home):
        await until_async(lambda: len(home.starts()) == 2)
        streams = [home.asking("a", tokens=60, say=say) for say in ("one", "two")]
        await home.until_asked("a", 2)
        assert len({entry["pid"] for entry in home.events("a", "accepted") if entry["shape"] == "chat"}) == 2
        home.models = {"a": "replicas = {min = 1, max = 1}"}
        home.write()
        assert await home.control.reload()
        for stream in streams:
            said = await stream
            assert said.whole
            assert len(said.text.split()) == 60
        await until_async(lambda: len(home.running()) == 1)
        assert (await home.ask("a")).whole


@pytest.mark.parametrize("stream", [True, False])
async def test_21_a_request_without_output_goes_to_another_replica_when_its_engine_dies(
    home: Home, stream: bool
) -> None:
    """gpustack#6008: a crash aborted requests that nothing had been sent of."""
    home.models = {"a": "replicas = {min = 2, max = 2}"}
    home.faults("a", "--fake-exit-at request:2", "", "--fake-load-s 30")
    async with serving(home):
        await until_async(lambda: len(home.starts()) == 2)
        await home.until_states(a="ready")
        async with asyncio.timeout(15):
            answers = await asyncio.gather(*(home.ask("a", stream=stream, say=say) for say in ("one", "two")))
        assert [said.whole for said in answers] == [True, True]
        (other,) = (pid for pid in home.starts()[:2] if alive(pid))
        begun = {entry["id"]: entry for entry in home.events("a", "accepted") if entry["pid"] == other}
        chats = {name for name, entry in begun.items() if entry["shape"] == "chat"}

        def both_are_done() -> bool:  # it writes that down after its last byte
            return len([e for e in home.events("a", "finished") if e["pid"] == other and e["id"] in chats]) == 2

        await until_async(both_are_done, 5)


@pytest.mark.parametrize("way", ["memory.max", "as the kernel does it"])
async def test_25_an_engine_that_is_killed_for_want_of_memory_takes_nobody_along(home: Home, way: str) -> None:
    """ollama#11231: the kernel's killer of one runner failed the whole unit."""
    home.models = {"a": "", "b": ""}
    home.faults("a", "--fake-token-delay-s 0.02 --fake-tokens 60", "")
    async with serving(home):
        (victim,), (other,) = home.starts("a"), home.starts("b")
        limit = _memory_limit(victim) if way == "memory.max" else None
        if way == "memory.max" and limit is None:
            pytest.skip("no control group with a memory limit to be made here")
        streams = [home.asking("a", tokens=60), home.asking("b", tokens=16)]
        await home.until_asked("a")
        if limit is not None:
            limit.write_text("1M")
        else:
            os.kill(victim, signal.SIGKILL)
        for said in await asyncio.gather(*streams):
            assert said.whole
        assert home.starts("b") == [other]
        assert len(home.starts("a")) == 2
        assert not alive(victim)


def _memory_limit(pid: int) -> Path | None:
    """The limit of the control group that *pid*'s engine has of its own; None if it has none."""
    base = group.home()
    for folder in Path(base).glob(f"{group.PREFIX}*") if base else ():
        if str(pid) in (folder / "cgroup.procs").read_text().split() and (folder / "memory.max").exists():
            return folder / "memory.max"
    return None


def _calls(said: Said) -> dict[int, tuple[str, str]]:
    """The tool calls by index, put together as clients do: id, and name with arguments."""
    found: dict[int, tuple[str, str]] = {}
    for event in said.events:
        for choice in event["choices"]:
            for part in choice["delta"].get("tool_calls", ()):
                name, text = found.get(part["index"], ("", ""))
                function = part["function"]
                found[part["index"]] = (
                    name + part.get("id", ""),
                    text + function.get("name", "") + function["arguments"],
                )
    return found


async def test_27_tool_calls_at_once_are_told_apart(home: Home) -> None:
    """ollama#15457, vercel/ai#14277: all calls had the index 0, and clients made one of them."""
    home.models = {"a": ""}
    home.faults("a", "--fake-tool-calls 2")
    async with serving(home):
        said = await home.ask("a", tools=TOOLS)
        assert said.whole
        assert [call for _, call in _calls(said).values()] == ['weigh{"place":0}', 'weigh{"place":1}']
        assert list(_calls(said)) == [0, 1]
        assert len({name for name, _ in _calls(said).values()}) == 2
        assert said.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_27_calls_that_the_engine_gave_one_index_are_told_apart_where_they_are_translated(home: Home) -> None:
    """The same with an engine that has that fault: their ids tell them apart."""
    home.models = {"a": ""}
    home.faults("a", "--fake-tool-calls 2 --fake-same-index")
    async with serving(home):
        chat = {"model": "a", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
        async with home.session.post("/api/chat", json=chat) as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
        assert [call["function"]["arguments"] for call in calls] == [{"place": 0}, {"place": 1}]


async def test_28_an_engine_that_dies_within_a_tool_call_makes_no_prose_of_it(home: Home) -> None:
    """litellm#31067: what took over in the middle of a tool call went on in prose."""
    home.models = {"a": ""}
    home.faults("a", "--fake-tool-calls 2 --fake-exit-at after-tokens:4", "--fake-tool-calls 2")
    async with serving(home):
        said = await home.ask("a", tools=TOOLS)
        assert said.whole
        assert len(home.starts()) == 2
        assert [call for _, call in _calls(said).values()] == ['weigh{"place":0}', 'weigh{"place":1}']
        assert said.text == ""
        assert [e["choices"][0]["finish_reason"] for e in said.events if e["choices"][0]["finish_reason"]] == [
            "tool_calls"
        ]


async def test_28_an_engine_that_refuses_to_continue_ends_in_an_error_and_not_in_silence(home: Home) -> None:
    """litellm#27967: the continuation was refused with a 400, and that was all that the client was told."""
    home.models = {"a": ""}
    home.faults("a", "--fake-exit-at after-tokens:5 --fake-token-delay-s 0.01", "--fake-refuse-prefill")
    async with serving(home):
        said = await home.ask("a", tokens=12)
        assert not said.whole
        assert "[DONE]" not in said.body
        assert len(said.text.split()) == 4
        told = said.events[-1]["error"]
        assert told["code"] == "engine_cut", told
        assert (await home.ask("a", tokens=12)).whole

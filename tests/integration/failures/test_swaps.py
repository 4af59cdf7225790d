"""What people report of models that come and go, tried on a whole service over fake engines.

The numbers are those of the table in ``docs/reference/failures.md``.
"""

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import pytest

from deadline import until_async
from live_service import Home, home_in, need_of, room_for, serving

COLD = "replicas = {min = 0}"


async def test_01_a_model_that_is_generating_is_not_killed_for_another(home: Home) -> None:
    """llama.cpp#24849, llama.cpp#21678: a swap killed the model in the middle of an answer."""
    home.models = {"a": "", "b": COLD}
    home.memory = room_for(1.5)
    home.faults("a", "--fake-token-delay-s 0.02 --fake-tokens 60")
    async with serving(home):
        first = home.asking("a", tokens=60)
        await home.until_asked("a")
        second = await home.ask("b")
        assert first.done(), "the other model was loaded while this one was still generating"
        assert (await first).whole
        assert len((await first).text.split()) == 60
        assert second.whole
        assert home.order() == ["a", "b"]
        assert home.beside(1) == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Empty."""
    return home_in(tmp_path, monkeypatch)


async def test_02_a_model_that_was_loaded_for_a_request_is_not_unloaded_before_it_came_in(home: Home) -> None:
    """llama.cpp#28698: evicted between its load and the request that it was loaded for."""
    home.models = {"a": COLD, "b": COLD}
    home.memory = room_for(1.5)
    home.faults("a", "--fake-load-s 0.3")
    async with serving(home):
        first = home.asking("a")
        await until_async(lambda: home.order() == ["a"])
        second = home.asking("b")
        assert [said.whole for said in await asyncio.gather(first, second)] == [True, True]
        assert home.order() == ["a", "b"], "a load was wasted"
        assert (home.asked("a"), home.asked("b")) == (1, 1)


async def test_03_two_cold_models_asked_for_at_once_are_both_served(home: Home) -> None:
    """llama.cpp#28443: of two loads at once one stayed queued for ever."""
    home.models = {"a": "", "b": COLD, "c": COLD}
    home.memory = room_for(1.5)
    async with serving(home), asyncio.timeout(15):
        answers = await asyncio.gather(home.ask("b"), home.ask("c"))
        assert [said.whole for said in answers] == [True, True]
        assert sorted(home.order()) == ["a", "b", "c"]
        assert [home.beside(n) for n in range(3)] == [[], [], []]


async def test_04_room_is_made_by_bytes_and_not_by_the_number_of_models(home: Home) -> None:
    """llama.cpp#25326: as many models went as came, and the large one ran out of memory."""
    large = need_of(context=8192)
    assert large > 2 * need_of()
    home.models = {"s1": "", "s2": "", "large": f"{COLD}\nsettings = {{context = 8192, users = 2}}"}
    home.memory = f"budget = {{RAM = {large + need_of() // 2}}}"
    async with serving(home):
        await home.until_states(s1="ready", s2="ready")
        assert home.running() == home.starts(), "the two small ones fit together"
        assert (await home.ask("large")).whole
        assert home.order()[2:] == ["large"]
        assert home.beside(2) == [], "there was no room for it beside a small one"
        assert (await home.ask("s1")).whole
        assert home.beside(3) == []


async def test_05_a_model_that_is_loading_is_no_victim(home: Home) -> None:
    """llama.cpp#25528: the loading model was chosen to go, and killed."""
    home.models = {"a": COLD, "b": f"{COLD}\npriority = 5"}
    home.memory = room_for(1.5)
    home.faults("a", "--fake-load-s 1")
    async with serving(home):
        first = home.asking("a")
        await home.until_states(a="loading")
        second = await home.ask("b")
        assert first.done()
        assert ((await first).whole, second.whole) == (True, True)
        assert home.order() == ["a", "b"]


LONG = " ".join(f"word{n}" for n in range(200))


async def test_07_a_prompt_that_was_read_is_still_there_after_a_swap_and_an_answer_shows_it(home: Home) -> None:
    """llama.cpp#26676, llama-swap#1064: a slot was saved and restored, it was said, and ``cache_n`` was 0."""
    home.models = {"a": "", "b": COLD}
    home.memory = room_for(1.5)
    home.engine = "keep_prompts = true"
    async with serving(home):
        first = [await home.ask("a", say=f"{n} {LONG}", stream=False) for n in (1, 2)]
        assert [json.loads(said.body)["timings"]["cache_n"] for said in first] == [0, 0]
        assert (await home.ask("b")).whole
        kept = sorted((home.folder / "prompts").glob("*/*"))
        assert len(kept) == 2, "what b has read is no prompt to keep, and it is loaded"
        assert (home.folder / "prompts").stat().st_mode & 0o077 == 0
        again = [await home.ask("a", say=f"{n} {LONG}", stream=False) for n in (1, 2)]
        assert [said.text for said in again] == [said.text for said in first]
        assert all(json.loads(said.body)["timings"]["cache_n"] >= 200 for said in again)
        assert len(home.starts("a")) == 2
        assert not any(path.exists() for path in kept)
    assert not (home.folder / "prompts").exists(), "people's words don't outlive the service"


async def test_07_a_restore_that_brings_nothing_back_is_found_out(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """The same with an engine that has the fault: it is told, and not tried again and again."""
    home.models = {"a": "", "b": COLD}
    home.memory = room_for(1.5)
    home.engine = "keep_prompts = true"
    home.faults("a", "--fake-vain-restore")
    async with serving(home):
        assert (await home.ask("a", say=LONG)).whole
        assert (await home.ask("b")).whole
        assert (await home.ask("a", say=LONG)).whole
        assert [line for line in caplog.messages if "does not use prompts that were kept for it" in line]
        assert (await home.ask("b")).whole
        assert list((home.folder / "prompts").glob("*/*")) == []


async def test_09_a_request_that_comes_while_the_idle_model_is_stopped_is_answered(home: Home) -> None:
    """llama-swap#946: it fell between the model that was going and the one that would come, and waited for ever."""
    home.models = {"a": "idle_s = '200ms'"}
    home.faults("a", "--fake-ignore-sigterm", "")
    async with serving(home):
        await home.until_states(a="draining")
        assert len(home.running()) == 1, "it still takes its time to end"
        async with asyncio.timeout(10):
            assert (await home.ask("a")).whole
        assert len(home.starts("a")) == 2
        assert home.beside(1) == []


async def test_22_a_loaded_model_answers_while_a_large_one_loads(home: Home) -> None:
    """ollama#14578, ollama#5724: one queue for all models kept the loaded one's requests waiting for a load."""
    home.models = {"large": COLD, "small": ""}
    home.faults("large", "--fake-load-s 3")
    async with serving(home):
        first = home.asking("large")
        await home.until_states(large="loading")
        for _ in range(3):
            assert (await home.ask("small")).whole
        assert not first.done()
        assert (await home.states())["large"] == "loading"
        assert (await first).whole


async def test_12_three_edits_within_a_second_are_one_change_and_double_no_model(home: Home) -> None:
    """llama-swap#281: each of several quick edits started the models anew, beside those that were there."""
    home.models = {"a": "", "b": ""}
    async with serving(home):
        kept = home.starts("a")
        for context in (600, 700, 768):
            home.models["b"] = f"settings = {{context = {context}, users = 1}}"
            home.write()
            await asyncio.sleep(0.3)  # not to wait for anything: this is how fast they come
        async with asyncio.timeout(15):
            while (await home.ps())["b"]["context"] != 768:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
        await home.until_states(a="ready", b="ready")
        assert [said.whole for said in await asyncio.gather(home.ask("a"), home.ask("b"))] == [True, True]
        assert home.starts("a") == kept
        assert len(home.starts("b")) == 2
        assert sorted(home.running()) == sorted([kept[0], home.starts("b")[1]])


@pytest.mark.parametrize("api", ["chat", "generate"])
async def test_23_another_num_ctx_does_not_load_the_model_again(home: Home, api: str) -> None:
    """aider#3594, ollama#7773: each caller's own num_ctx made the server load the model anew, call by call."""
    home.models = {"a": ""}
    async with serving(home):
        for context in (300, 8192, 2048, 300):
            options = {"num_ctx": context, "num_predict": 4}
            talk = {"messages": [{"role": "user", "content": "hi"}]} if api == "chat" else {"prompt": "hi"}
            body = {"model": "a", "stream": False, "options": options, **talk}
            async with home.session.post(f"/api/{api}", json=body) as answer:
                assert answer.status == 200
                assert (await answer.json())["eval_count"] == 4
        assert len(home.starts()) == 1


async def test_24_a_client_that_gives_up_does_not_stop_the_load_and_hears_of_it(home: Home) -> None:
    """cline#12839, ollama#7408: nothing came until it was loaded; when the client gave up, so did the load."""
    home.models = {"a": COLD}
    home.faults("a", "--fake-load-s 2.5")
    async with serving(home):
        body = {"model": "a", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        heard = b""

        async def listen() -> None:
            nonlocal heard
            async with home.session.post("/v1/chat/completions", json=body) as answer:
                async for piece in answer.content.iter_any():
                    heard += piece

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(listen(), 0.8)
        assert heard.count(b": ") >= 2, "signs of life, from the beginning"
        assert b"data:" not in heard
        assert (await home.states())["a"] in {"starting", "loading"}
        await home.until_states(a="ready")
        assert (await home.ask("a")).whole
        assert home.order() == ["a"]


async def test_29_one_caller_does_not_keep_all_others_waiting(home: Home) -> None:
    """litellm#18128, llama-swap#811, llama-swap#834, llama.cpp#6607: who came first, with much, went first."""
    home.models = {"a": "settings = {context = 512, users = 1}"}
    home.faults("a", "--fake-token-delay-s 0.01")
    home.rest = "".join(f'[[keys]]\nname = "{name}"\nkey = "key-of-{name}"\n' for name in ("many", "one"))
    async with serving(home):
        many = [home.asking("a", say=f"many {n}", key="key-of-many") for n in range(10)]
        await home.until_asked("a", 2)
        assert (await home.ask("a", say="the one", key="key-of-one")).whole
        assert not all(asking.done() for asking in many)
        assert [said.whole for said in await asyncio.gather(*many)] == [True] * 10
        order = ["the one" in str(entry["prompt"]) for entry in home.events("a", "accepted")]
        before = order.index(True)
        assert before <= 5, "the probe, those that were with the engine when it came, and one or two for its turn"


async def test_30_looking_loads_nothing(home: Home) -> None:
    """opencode-local-provider#14: a client that looked at /props of each model had all of them loaded."""
    home.models = {"a": COLD, "b": COLD}
    looks = ["/", "/health", "/metrics", "/v1/models", "/v1/models/a", "/api/version", "/api/tags", "/api/ps"]
    looks += [f"/{page}?model={name}" for page in ("props", "slots", "v1/models") for name in "ab"]
    async with serving(home):
        for path in looks:
            async with home.session.get(path) as answer:
                assert answer.status < 500, path
                await answer.read()
            async with home.session.head(path):
                pass
        async with home.session.post("/api/show", json={"model": "a"}) as answer:
            assert answer.status == 200
        assert await home.states() == {"a": "cold", "b": "cold"}
        assert home.starts() == []


async def test_06_a_client_that_leaves_is_not_worked_for_any_more(home: Home) -> None:
    """llama.cpp#24496, llama.cpp#13262: the slot went on generating for a client that had gone."""
    home.models = {"a": "settings = {context = 512, users = 1}"}
    home.faults("a", "--fake-prompt-delay-s 2.5")
    async with serving(home):
        first = home.asking("a", say="in the prompt")
        await home.until_asked("a")
        second = home.asking("a", say="in the queue")
        async with asyncio.timeout(5):
            while (await home.ps())["a"]["in_flight"] != 1 or second.done():  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.02)
        second.cancel()
        first.cancel()
        left = time.monotonic()
        await until_async(lambda: len(home.events("a", "abandoned")) == 1, 1)
        assert time.monotonic() - left < 1
        await asyncio.gather(first, second, return_exceptions=True)
        assert home.asked("a") == 1, "who left the queue was never begun with"
        assert (await home.ps())["a"]["in_flight"] == 0
        timeout = aiohttp.ClientTimeout(total=1)
        async with home.session.get("/metrics", timeout=timeout) as answer:
            assert answer.status == 200

"""What Ollama's clients send and how they read the answers, after their sources; on the fake engine.

Open WebUI ``routers/ollama.py`` and ``utils/response.py``, Continue ``core/llm/llms/Ollama.ts``, Cline (tags), and
VS Code Copilot (version, show, then OpenAI's chat on the same port), each as of 2025 or later. And what all of them
gain: an answer that goes on when its engine dies, and lines while it waits.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime

import aiohttp
import anthropic
import ollama
import openai
import pytest

from canned import USAGE, canned, chunk
from serving import CARD, StubBackend, client_of, fake_engine, gateway_over, running
from terazi.gateway.account import Entry
from terazi.gateway.app import DESK
from terazi.gateway.call import Caller
from terazi.gateway.library import Preset
from terazi.gateway.wire.ollama_request import with_defaults

pytestmark = pytest.mark.timeout(60)
NAME = f"{CARD.id}:latest"
MESSAGES = [{"role": "user", "content": "weigh this"}]


@asynccontextmanager
async def served(*flags: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running(fake_engine(*flags)))
        gateway = await stack.enter_async_context(gateway_over(StubBackend(engine.port)))
        yield await stack.enter_async_context(client_of(gateway))


def lines_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_open_webui() -> None:
    user = {"X-OpenWebUI-User-Name": "Anna", "X-OpenWebUI-Chat-Id": "c1"}
    async with served("--embeddings") as client:
        async with client.get("/api/version", headers=user) as reply:
            assert (await reply.json())["version"]
        async with client.get("/api/tags", headers=user) as reply:
            models = {model["model"]: model for model in (await reply.json())["models"]}
        async with client.get("/api/ps", headers=user) as reply:
            for loaded in (await reply.json())["models"]:
                until = int(datetime.fromisoformat(loaded["expires_at"]).timestamp())
                assert until > datetime.now().timestamp()  # noqa: DTZ005 - as it does
                assert loaded["name"] in {model["name"] for model in models.values()}
        assert NAME in models
        chat = {
            "model": NAME,
            "messages": MESSAGES,
            "options": {"num_ctx": 16_384, "temperature": 0.8},
            "stream": True,
            "keep_alive": "5m",
            "params": {},
        }
        async with client.post("/api/chat", data=json.dumps(chat).encode(), headers=user) as reply:
            assert reply.headers["Content-Type"] == "application/x-ndjson"
            pieces = lines_of(await reply.text())
        for data in pieces:
            message = data.get("message") or {}
            assert isinstance(message, dict)
            assert isinstance(message["content"], str)
            if data["done"]:  # its arithmetic
                for count in ("eval_count", "prompt_eval_count"):
                    duration = count.replace("count", "duration")
                    assert int(data.get(count, 0)) >= 0  # type: ignore[call-overload]
                    if data.get(duration, 0) > 0:  # type: ignore[operator]
                        assert data[count] / (data[duration] / 10_000_000) * 100 >= 0  # type: ignore[operator]
                assert data.get("total_duration", 0) // 1_000_000_000 >= 0  # type: ignore[operator]
        async with client.post("/api/show", json={"model": NAME}, headers=user) as reply:
            assert (await reply.json())["details"]["family"] == "llama"
        async with client.post("/api/embed", json={"model": NAME, "input": ["a", "b"]}, headers=user) as reply:
            assert all(isinstance(vector, list) for vector in (await reply.json())["embeddings"])
        async with client.post("/api/chat", json={**chat, "model": "none:latest"}, headers=user) as reply:
            assert isinstance((await reply.json())["error"], str)
        # the same models as an OpenAI connection
        async with client.get("/v1/models") as reply:
            assert [model["id"] for model in (await reply.json())["data"]] == [CARD.id]
        asked = {"model": CARD.id, "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
        async with client.post("/v1/chat/completions", json=asked) as reply:
            assert '"usage"' in await reply.text()


async def test_continue() -> None:
    async with served("--embeddings") as client:
        async with client.post("/api/show", json={"name": CARD.id}) as reply:
            body = await reply.json()
        for line in body["parameters"].split("\n"):
            found = re.match(r'^(\S+)\s+((?:".*")|\S+)$', line)
            assert found is not None, "it takes lines apart without looking"
            if found[1] == "num_ctx":
                assert int(found[2]) == CARD.context_length
        options = {"num_predict": 5, "num_ctx": 32_768, "num_thread": 4, "use_mmap": True, "stop": ["\n\n\n"]}
        body = {"model": CARD.id, "options": options, "keep_alive": 1800}
        raw = {**body, "prompt": "weigh", "raw": True, "stream": True}
        async with client.post("/api/generate", json=raw) as reply:
            said = "".join(str(line["response"]) for line in lines_of(await reply.text()))
        assert said
        tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
        async with client.post(
            "/api/chat", json={**body, "messages": MESSAGES, "tools": tools, "stream": False}
        ) as reply:
            assert (await reply.json())["message"]["role"] == "assistant"
        async with client.post("/api/embed", json={"model": CARD.id, "input": ["a"] * 64}) as reply:
            assert len((await reply.json())["embeddings"]) == 64


async def test_vs_code_copilot_and_cline() -> None:
    async with served() as client:
        async with client.get("/api/version") as reply:
            version = (await reply.json())["version"]
        assert tuple(map(int, version.split("."))) >= (0, 6, 4)
        async with client.get("/api/tags") as reply:
            names = [model["name"] for model in (await reply.json())["models"]]
        async with client.post("/api/show", json={"model": names[0]}) as reply:
            shown = await reply.json()
        architecture = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{architecture}.context_length"] > 0
        assert "tools" in shown["capabilities"]
        asked = {"model": names[0], "messages": MESSAGES, "stream": True, "tools": [], "n": 1}
        async with client.post("/v1/chat/completions", json=asked) as reply:
            assert reply.status == 200
            assert (await reply.text()).endswith("data: [DONE]\n\n")
        for method, path in (("HEAD", "/"), ("GET", "/"), ("HEAD", "/api/tags"), ("HEAD", "/api/version")):
            async with client.request(method, path) as reply:
                assert reply.status == 200


async def test_no_get_loads_a_model() -> None:
    backend = StubBackend(1, state="cold")

    async def never() -> None:
        raise AssertionError("it was waited for")

    backend.ready = never  # type: ignore[method-assign]
    async with gateway_over(backend) as gateway, client_of(gateway) as client:
        for path in ("/", "/api/version", "/api/tags", "/api/ps", "/v1/models", f"/v1/models/{NAME}"):
            async with client.get(path) as reply:
                assert reply.status == 200
        async with client.post("/api/show", json={"model": NAME}) as reply:
            assert reply.status == 200
        async with client.get("/api/ps") as reply:
            assert (await reply.json())["models"] == []


async def test_who_waits_for_an_engine_gets_empty_lines() -> None:
    async with running(fake_engine()) as engine, AsyncExitStack() as stack:
        backend = StubBackend(engine.port, state="loading")
        gateway = await stack.enter_async_context(gateway_over(backend))
        client = await stack.enter_async_context(client_of(gateway))
        gateway._app[DESK].broker._heartbeat_s = 0.05
        async with client.post("/api/chat", json={"model": NAME, "messages": MESSAGES}) as reply:
            first = json.loads(await reply.content.readline())
            assert (first["message"]["content"], first["done"]) == ("", False)
            backend.set_state("ready")
            rest = lines_of((await reply.read()).decode())
        assert rest[-1]["done"] is True
        assert ollama.ChatResponse.model_validate(rest[-1]).load_duration
        assert "".join(str(line["message"]["content"]) for line in rest)  # type: ignore[index]
        backend.set_state("loading")
        broken = asyncio.create_task(client.post("/api/chat", json={"model": NAME, "messages": MESSAGES}))
        async with await broken as reply:
            await reply.content.readline()
            backend.set_state("failed")
            last = json.loads((await reply.read()).splitlines()[-1])
        assert "can't answer" in last["error"], "too late for a status, so it is a line"


async def test_an_answer_goes_on_when_its_engine_dies() -> None:
    """The same text as from an engine that lived, and the account says what happened."""
    seen: list[Entry] = []

    class Reader:
        def noted(self, entry: Entry) -> None:
            seen.append(entry)

    body = {"model": NAME, "messages": MESSAGES, "options": {"temperature": 0, "num_predict": 40}}
    async with running(fake_engine("--fake-tokens", "9999")) as engine:
        backend = StubBackend(engine.port)
        async with gateway_over(backend, readers=(Reader(),)) as gateway, client_of(gateway) as client:

            async def text(*, kill: bool) -> str:
                async with client.post("/api/chat", json=body) as reply:
                    got = json.loads(await reply.content.readline())["message"]["content"]
                    if kill:
                        backend.set_state("restarting")
                        assert engine.process is not None
                        engine.process.kill()
                        await engine.stop()
                        await engine.start()
                        backend.set_state("ready")
                    rest = lines_of((await reply.read()).decode())
                    assert rest[-1]["done"] is True, rest[-1]
                    return str(got) + "".join(str(line["message"]["content"]) for line in rest)  # type: ignore[index]

            engine.argv += ["--fake-token-delay-s", "0.02"]
            whole = await text(kill=False)
            await engine.stop()
            await engine.start()
            went_on = await text(kill=True)
            assert went_on == whole
    first, second = seen
    assert (first.outcome.status, first.outcome.resumed, first.usage.output_tokens) == (200, (), 40)
    assert second.outcome.status == 200
    assert second.outcome.resumed
    assert [attempt.lost is not None for attempt in second.outcome.attempts] == [True, False]
    assert second.call.caller.name == "local"
    assert second.ttft_s is not None
    assert second.ttft_s < second.total_s


class OnePreset:
    """A library with one created name."""

    made = Preset(
        name="mario", base=CARD.id, modified="2026-11-30T10:00:00+00:00", system="You are Mario.",
        parameters={"num_predict": 3, "stop": ["x"]},
    )  # fmt: skip
    kept: list[tuple[str, float | None]]

    def __init__(self) -> None:
        self.kept = []

    def presets(self) -> tuple[Preset, ...]:
        return (self.made,)

    def pulled(self) -> tuple[Preset, ...]:
        return (Preset(name="hf.co/acme/scale:Q4_1", base=CARD.id, modified="2026-11-29T10:00:00+00:00"),)

    def preset(self, name: str) -> Preset | None:
        return self.made if name.removesuffix(":latest") == "mario" else None

    async def keep(self, model: str, idle_s: float | None) -> None:
        self.kept.append((model, idle_s))

    def expires_s(self, model: str) -> float | None:
        return 300.0 if model == CARD.id else None


async def test_created_names_and_keep_alive() -> None:
    library = OnePreset()
    async with running(fake_engine()) as engine, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            gateway_over(StubBackend(engine.port), library=library)  # type: ignore[arg-type] # as much as is asked for
        )
        client = await stack.enter_async_context(ollama.AsyncClient(host=gateway.address))
        listed = (await client.list()).models
        assert [model.model for model in listed] == [NAME, "hf.co/acme/scale:Q4_1", "mario:latest"]
        shown = await client.show("mario")
        assert 'SYSTEM """You are Mario."""' in (shown.modelfile or "")
        assert (shown.parameters or "").splitlines() == ["num_ctx 2048", "num_predict 3", 'stop "x"']
        said = await client.chat("mario", MESSAGES)
        assert (said.model, said.eval_count, said.done_reason) == ("mario", 3, "length")
        await client.chat("mario", MESSAGES, keep_alive="10m")
        await client.generate(CARD.id, "weigh", keep_alive=-1)
        assert (await client.generate(CARD.id, keep_alive=0)).done_reason == "unload"
        assert library.kept == [(CARD.id, 600.0), (CARD.id, None), (CARD.id, 0.0)]
        expires = (await client.ps()).models[0].expires_at
        assert expires is not None
        assert 200 < (expires - datetime.now(expires.tzinfo)).total_seconds() < 301
        with pytest.raises(ollama.ResponseError, match="keep_alive"):
            await client.generate(CARD.id, "weigh", keep_alive="soon")


async def test_all_lists_show_the_same_names_once() -> None:
    """With the official clients: what is picked from a list is found again, under that name."""
    card = replace(CARD, aliases=("mario", "gpt-4o-mini", "hf.co/acme/scale:Q4_1"))
    async with AsyncExitStack() as stack:
        library = OnePreset()
        gateway = await stack.enter_async_context(
            gateway_over(StubBackend(1, card=card), library=library)  # type: ignore[arg-type] # as above
        )
        openai_client = openai.AsyncOpenAI(base_url=f"{gateway.address}/v1", api_key="-")
        models = (await openai_client.models.list()).data
        assert [model.id for model in models] == [CARD.id, "hf.co/acme/scale:Q4_1", "mario"]
        assert [getattr(model, "parent", None) for model in models] == [None, CARD.id, CARD.id]
        assert models[0].aliases == ["gpt-4o-mini"], "what has an entry is no alias beside it"  # type: ignore[attr-defined]
        assert models[2].created == datetime.fromisoformat(library.made.modified).timestamp()
        for asked in ("mario", "mario:latest", "hf.co/acme/scale:Q4_1"):
            one = await openai_client.models.retrieve(asked)
            assert one.id == asked.removesuffix(":latest")
        assert (await openai_client.models.retrieve("gpt-4o-mini")).id == CARD.id
        of_anthropic = anthropic.AsyncAnthropic(base_url=gateway.address, api_key="-")
        assert [model.id for model in (await of_anthropic.models.list()).data] == [model.id for model in models]
        assert (await of_anthropic.models.retrieve("mario")).id == "mario"
        of_ollama = await stack.enter_async_context(ollama.AsyncClient(host=gateway.address))
        tags = [str(model.model).removesuffix(":latest") for model in (await of_ollama.list()).models]
        assert tags == [model.id for model in models]
        await openai_client.close()
        await of_anthropic.close()


async def test_a_name_over_the_models_own_is_listed_instead_of_it() -> None:
    library = OnePreset()
    library.made = replace(OnePreset.made, name=CARD.id)
    library.pulled = tuple  # type: ignore[method-assign] # nothing
    async with gateway_over(StubBackend(1), library=library) as gateway, client_of(gateway) as client:  # type: ignore[arg-type] # as above
        for path, key, field in (("/v1/models", "data", "id"), ("/api/tags", "models", "name")):
            async with client.get(path) as reply:
                names = [str(model[field]).removesuffix(":latest") for model in (await reply.json())[key]]
            assert names == [CARD.id]


async def test_a_created_names_defaults_count_in_all_apis() -> None:
    """Each request as the engine got it: the system message and the limit are the name's, unless the client's."""
    chat = [{"role": "user", "content": "Who?"}]
    own = [{"role": "system", "content": "You are Luigi."}, *chat]
    asks: list[tuple[str, dict[str, object], tuple[list[str], int]]] = [
        ("/v1/chat/completions", {"messages": chat}, (["You are Mario.", "Who?"], 3)),
        ("/v1/chat/completions", {"messages": chat, "stream": True}, (["You are Mario.", "Who?"], 3)),
        ("/v1/chat/completions", {"messages": own, "max_tokens": None}, (["You are Luigi.", "Who?"], 3)),
        ("/v1/chat/completions", {"messages": chat, "max_tokens": 2}, (["You are Mario.", "Who?"], 2)),
        ("/v1/messages", {"messages": chat, "max_tokens": 9}, (["You are Mario.", "Who?"], 9)),
        ("/v1/messages", {"messages": chat, "max_tokens": 9, "system": "Luigi."}, (["Luigi.", "Who?"], 9)),
        ("/v1/responses", {"input": "Who?"}, (["You are Mario.", "Who?"], 3)),
        ("/api/chat", {"messages": chat}, (["You are Mario.", "Who?"], 3)),
    ]
    said = [chunk(role="assistant", content=None), chunk(content="Me."), chunk("stop"), USAGE]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(canned(*said))
        backend = StubBackend(engine.port, card=replace(CARD, aliases=("mario",)))
        gateway = await stack.enter_async_context(
            gateway_over(backend, library=OnePreset())  # type: ignore[arg-type] # as above
        )
        client = await stack.enter_async_context(client_of(gateway))
        for path, body, (texts, limit) in asks:
            async with client.post(path, json={"model": "mario", **body}) as reply:
                assert reply.status == 200, await reply.text()
            asked = engine.asked[-1]
            assert [message["content"] for message in asked["messages"]] == texts, path
            assert asked["max_tokens"] == limit, path
            assert "x" in asked["stop"], path
        # the model's own name has none
        async with client.post("/v1/chat/completions", json={"model": CARD.id, "messages": chat}) as reply:
            await reply.read()
        assert engine.asked[-1] == {"model": CARD.id, "messages": chat}


async def test_a_limit_by_its_newer_name_is_the_clients_own() -> None:
    asked = with_defaults({"messages": [], "max_completion_tokens": 7, "temperature": 0}, OnePreset.made)
    assert asked == {"messages": [], "max_completion_tokens": 7, "temperature": 0, "stop": ["x"]}


async def test_a_model_with_eyes_gets_the_picture() -> None:
    card = replace(CARD, capabilities=("completion", "vision"))
    async with running(fake_engine()) as engine, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(gateway_over(StubBackend(engine.port, card=card)))
        client = await stack.enter_async_context(ollama.AsyncClient(host=gateway.address))
        picture = [{"role": "user", "content": "what is this?", "images": ["aGVsbG8="]}]
        assert (await client.chat(CARD.id, picture)).message.content


async def test_a_key_for_certain_models_changes_none() -> None:
    keys = {"key-of-anna": Caller(name="anna", models=frozenset({CARD.id})), "key-of-bert": Caller(name="bert")}
    library = OnePreset()
    async with gateway_over(StubBackend(1), keys=keys, library=library) as gateway:  # type: ignore[arg-type] # as above
        for key, refused in (("key-of-anna", True), ("key-of-bert", False)):
            async with client_of(gateway, Authorization=f"Bearer {key}") as client:
                for method, path in (("POST", "pull"), ("DELETE", "delete"), ("POST", "copy"), ("POST", "create")):
                    body = {"model": "mario", "source": "a", "destination": "b", "from": "mario"}
                    async with client.request(method, f"/api/{path}", json=body) as reply:
                        assert (reply.status == 403) is refused, path

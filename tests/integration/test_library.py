"""The library against a hub on loopback: what is fetched, shared, resumed, checked, named and deleted."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ollama
import pytest
from huggingface_hub import constants

from fake_hub import FakeHub
from gguf_writer import TensorRow, Typed, write_gguf
from serving import CARD, StubBackend, gateway_over
from terazi.errors import RefusedError, ServiceError, SourceError, TeraziError, UsageError
from terazi.gateway.backend import Served, find_served
from terazi.gateway.library import ForeignModelError, NewModel, NoSuchModelError, Progress
from terazi.models.sources import download, load_model
from terazi.service.cards import model_id
from terazi.service.library import ModelLibrary, checked_name, hub_reference, local_path, name_of

pytestmark = pytest.mark.timeout(60)
KEYS: dict[str, object] = {
    ".block_count": 2, ".context_length": 64, ".embedding_length": 32, ".attention.head_count": 2,
}  # fmt: skip
NAME = "hf.co/org/repo:Q4_K_M"


def gguf(folder: Path, name: str, tokens: int) -> bytes:
    rows: list[TensorRow] = [
        ("token_embd.weight", (32, 8), "q8_0"),
        ("blk.0.a", (4,), "f32"),
        ("blk.1.a", (4,), "f32"),
    ]
    words = {"tokenizer.ggml.tokens": [f"token{i}" for i in range(tokens)]}
    types = {"tokenizer.ggml.token_type": Typed(9, [1] * tokens, 5)}
    return write_gguf(folder / name, "llama", {**KEYS, **words, **types}, rows).read_bytes()


class StubShelf:
    """Serves whatever it is given, by its header."""

    def __init__(self) -> None:
        self.held: dict[str, StubBackend] = {}
        self.sources: dict[str, str] = {}
        self.kept: list[tuple[str, float | None]] = []
        self.refuses: str | None = None
        self.full = False

    def find(self, name: str) -> Served | None:
        return find_served(self.held.values(), name)

    async def check_model(self, source: str) -> None:
        if source == self.refuses:
            raise RefusedError("it would never fit", hint="a smaller quant")

    async def add_model(self, source: str, *, names: Sequence[str]) -> str:
        if self.full:
            raise RefusedError("it doesn't fit now", hint="stop something")
        model = model_id(load_model(source))
        known = self.held.get(model)
        aliases = tuple(dict.fromkeys([*(known.card.aliases if known else ()), *names]))
        self.held[model] = StubBackend(1, card=replace(CARD, id=model, aliases=aliases))
        self.sources[model] = source
        return model

    async def remove_model(self, model: str) -> None:
        del self.held[model]

    async def rename_model(self, model: str, names: Sequence[str]) -> None:
        if model in self.held:
            self.held[model] = StubBackend(1, card=replace(CARD, id=model, aliases=tuple(names)))

    async def keep_model(self, model: str, idle_s: float | None) -> None:
        self.kept.append((model, idle_s))

    def idle_left_s(self, model: str) -> float | None:
        return next((seconds for kept, seconds in reversed(self.kept) if kept == model), None)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    made = tmp_path / "made"
    made.mkdir()
    small, large = gguf(made, "a.gguf", 10), gguf(made, "b.gguf", 60_000)
    repositories = {
        "org/repo": {"m-Q4_K_M.gguf": large, "m-Q8_0.gguf": small, "README.md": b"x"},
        "org/junk": {"junk-Q8_0.gguf": b"GGUF" + bytes(1000)},
    }
    with FakeHub(repositories) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(download, "_CHUNK_BYTES", 64 * 1024)
        monkeypatch.setattr(download, "_PAUSE_S", 0.05)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield server


@pytest.fixture
async def shelf() -> StubShelf:
    return StubShelf()


@pytest.fixture
async def library(tmp_path: Path, shelf: StubShelf) -> AsyncIterator[ModelLibrary]:
    made = ModelLibrary(tmp_path / "models", shelf)
    yield made
    await made.close()


def bytes_of(path: str) -> bytes:
    return Path(path).read_bytes()


async def steps_of(library: ModelLibrary, name: str, *, local: bool = True) -> list[Progress]:
    return [step async for step in library.pull(name, local=local)]


async def test_a_pull_tells_how_far_it_is_and_serves_the_model(
    hub: FakeHub, library: ModelLibrary, shelf: StubShelf, tmp_path: Path
) -> None:
    hub.behaviour.pause_s = 0.02
    steps = await steps_of(library, NAME)
    data = hub.repositories["org/repo"]["m-Q4_K_M.gguf"]
    assert isinstance(data, bytes)
    digest = hashlib.sha256(data).hexdigest()
    statuses = list(dict.fromkeys(step.status for step in steps))
    assert statuses == [
        "pulling manifest",
        f"pulling {digest[:12]}",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    pulling = [step for step in steps if step.total is not None]
    assert {(step.digest, step.total) for step in pulling} == {(f"sha256:{digest}", len(data))}
    seen = [step.completed for step in pulling if step.completed is not None]
    assert len(set(seen)) > 2
    assert seen == sorted(seen)
    assert shelf.find(NAME) is shelf.find("m-Q4_K_M")
    assert bytes_of(shelf.sources["m-Q4_K_M"]) == data
    sent = hub.sent_bytes
    assert (await steps_of(library, "hf:org/repo:Q4_K_M"))[-1].status == "success"
    assert hub.sent_bytes == sent, "a second pull found it there"
    # a new run serves what the last one had
    again = StubShelf()
    assert await ModelLibrary(tmp_path / "models", again).open() == []
    assert again.find(NAME) is not None


@pytest.mark.parametrize("token", [None, "hf_secret"])
async def test_a_token_goes_to_the_hub_if_there_is_one(
    hub: FakeHub, library: ModelLibrary, token: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    assert (await steps_of(library, "hf.co/org/repo:Q8_0"))[-1].status == "success"
    assert {seen.authorization for seen in hub.seen} == {None if token is None else f"Bearer {token}"}


async def test_two_pulls_share_one_download_which_ends_with_the_last(hub: FakeHub, library: ModelLibrary) -> None:
    hub.behaviour.pause_s = 0.05
    first, second = library.pull(NAME, local=True), library.pull(NAME, local=True)
    async with aclosing(first), aclosing(second):
        async for step in first:
            if step.completed:
                break
        assert (await anext(second)).status == "pulling manifest"
        await first.aclose()
        rest = [step async for step in second]
    assert rest[-1].status == "success"
    assert len([seen for seen in hub.files_asked() if seen.range is None]) == 1


async def test_a_download_that_nobody_wants_stops_and_goes_on_later(hub: FakeHub, library: ModelLibrary) -> None:
    hub.behaviour.pause_s = 0.05
    pull = library.pull(NAME, local=True)
    async with aclosing(pull):
        async for step in pull:
            if step.completed:
                break
    size = len(hub.repositories["org/repo"]["m-Q4_K_M.gguf"])
    async with asyncio.timeout(5):
        sent = -1
        while sent != hub.sent_bytes:
            sent = hub.sent_bytes
            await asyncio.sleep(0.3)
    assert sent < size
    hub.behaviour.pause_s = 0
    assert (await steps_of(library, NAME))[-1].status == "success"
    ranges = [seen.range for seen in hub.files_asked() if seen.range is not None]
    assert ranges, "the second one asked for what was missing"
    assert hub.sent_bytes < 2 * size


async def test_a_connection_that_breaks_is_taken_up_again(hub: FakeHub, library: ModelLibrary) -> None:
    hub.behaviour.cut_after = 300_000
    assert (await steps_of(library, NAME))[-1].status == "success"
    assert len(hub.files_asked()) > 2
    hub.behaviour.cut_after = 0
    with pytest.raises(SourceError, match="can't be fetched"):
        await steps_of(library, "hf.co/org/repo:Q8_0")


async def test_a_damaged_file_is_not_served(hub: FakeHub, library: ModelLibrary, shelf: StubShelf) -> None:
    hub.behaviour.headers = {"X-Linked-Etag": '"' + "1" * 64 + '"'}
    with pytest.raises(SourceError, match="damaged"):
        await steps_of(library, NAME)
    assert not shelf.held
    hub.behaviour.headers = {}
    assert (await steps_of(library, NAME))[-1].status == "success"


async def test_what_cannot_be_pulled_is_said(
    hub: FakeHub, library: ModelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[tuple[str, type[TeraziError], str]] = [
        ("llama3.2", UsageError, "hub"),
        ("hf.co/org/repo:Q2_K", UsageError, "Q8_0"),
        ("hf.co/org", UsageError, "names no repository"),
        ("hf.co/org/none", SourceError, "private, or isn't there"),
        ("hf.co/org/junk", TeraziError, ""),
    ]
    for name, kind, told in wrong:
        with pytest.raises(kind) as caught:
            await steps_of(library, name)
        assert told in caught.value.message + caught.value.hint
    assert not list((tmp_path / "models").rglob("junk*.gguf")), "what is no model doesn't stay"
    usage = SimpleNamespace(total=10**9, used=0, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    sent = hub.sent_bytes
    with pytest.raises(ServiceError, match="no room"):
        await steps_of(library, NAME)
    assert hub.sent_bytes == sent, "nothing travelled"


async def test_what_would_never_fit_is_not_fetched(
    hub: FakeHub, library: ModelLibrary, shelf: StubShelf, tmp_path: Path
) -> None:
    shelf.refuses = "hf:org/repo:Q4_K_M"
    with pytest.raises(RefusedError):
        await steps_of(library, NAME)
    assert not list((tmp_path / "models").rglob("*.gguf")), "it was looked at first"
    shelf.refuses, shelf.full = None, True
    with pytest.raises(RefusedError, match="now"):
        await steps_of(library, NAME)
    assert list((tmp_path / "models").rglob("*.gguf"))
    await library.delete(NAME)
    assert not list((tmp_path / "models").rglob("*.gguf")), "it wasn't served, and can be deleted all the same"


async def test_a_file_of_this_machine_stays_where_it_is(
    library: ModelLibrary, shelf: StubShelf, tmp_path: Path
) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(gguf(tmp_path, "x.gguf", 5))
    for name in (str(path), f"file://{path}", f"{path}:latest"):
        assert (await steps_of(library, name))[-1].status == "success"
    assert shelf.find("mine") is not None
    with pytest.raises(ForeignModelError):
        await steps_of(library, str(path), local=False)
    await library.delete(str(path))
    assert path.exists()
    assert shelf.find("mine") is None
    with pytest.raises(TeraziError):
        await steps_of(library, str(tmp_path / "none.gguf"))


async def test_deleting_takes_the_file_and_its_names(
    hub: FakeHub, library: ModelLibrary, shelf: StubShelf, tmp_path: Path
) -> None:
    await steps_of(library, NAME)
    await steps_of(library, "hf.co/org/repo:Q8_0")
    assert [preset.name for preset in library.pulled()] == [NAME, "hf.co/org/repo:Q8_0"]
    await library.copy(NAME, "mine")
    assert shelf.find("mine:latest") is not None
    await library.delete("mine")
    assert shelf.find("mine") is None
    assert shelf.find(NAME) is not None, "a copy is a name, and only that goes"
    await library.copy(NAME, "mine")
    await library.delete(NAME)
    assert library.presets() == ()
    assert [preset.name for preset in library.pulled()] == ["hf.co/org/repo:Q8_0"]
    assert [path.name for path in (tmp_path / "models").rglob("*.gguf")] == ["m-Q8_0.gguf"]
    await library.delete("m-Q8_0")
    assert not list((tmp_path / "models").rglob("*.gguf"))
    assert not (tmp_path / "models" / "hub" / "org").exists()
    with pytest.raises(NoSuchModelError):
        await library.delete(NAME)
    shelf.held["configured"] = StubBackend(1, card=replace(CARD, id="configured", aliases=()))
    with pytest.raises(ForeignModelError):
        await library.delete("configured")


async def test_created_models_carry_defaults(hub: FakeHub, library: ModelLibrary, tmp_path: Path) -> None:
    await steps_of(library, NAME)
    wanted = NewModel(name="mario", base=NAME, system="You are Mario.", parameters={"temperature": 0.1})
    await library.create(wanted)
    await library.create(NewModel(name="mario2:latest", base="mario", parameters={"top_k": 5}))
    made = library.preset("mario2")
    assert made is not None
    assert (made.base, made.system) == ("m-Q4_K_M", "You are Mario.")
    assert made.parameters == {"temperature": 0.1, "top_k": 5}
    shelf = StubShelf()
    reopened = ModelLibrary(tmp_path / "models", shelf)
    assert await reopened.open() == []
    assert shelf.find("mario:latest") is not None
    with pytest.raises(NoSuchModelError):
        await library.create(NewModel(name="x", base="none"))
    with pytest.raises(UsageError, match="can't be a model's name"):
        await library.copy(NAME, "a b")
    await steps_of(library, "hf.co/org/repo:Q8_0")
    with pytest.raises(UsageError, match="another model"):
        await library.copy(NAME, "m-Q8_0")


async def test_a_damaged_catalogue_is_moved_aside(tmp_path: Path, shelf: StubShelf) -> None:
    home = tmp_path / "models"
    home.mkdir()
    for text in ('{"schema": "other/9"}', "{", "[]", json.dumps({"schema": "terazi.library/1", "files": [{}]})):
        (home / "catalogue.json").write_text(text)
        assert ModelLibrary(home, shelf).presets() == ()
        assert (home / "catalogue.damaged").read_text() == text


async def test_the_real_client(hub: FakeHub, library: ModelLibrary, shelf: StubShelf, tmp_path: Path) -> None:
    hub.behaviour.pause_s = 0.01
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(gateway_over(StubBackend(1), library=library))
        client = await stack.enter_async_context(ollama.AsyncClient(host=gateway.address))
        steps = [step async for step in await client.pull(NAME, stream=True)]
        assert steps[-1].status == "success"
        assert any(step.completed and step.total for step in steps)
        assert (await client.pull(NAME)).status == "success"
        with pytest.raises(ollama.ResponseError, match=r"hf\.co/org/repo:QUANT"):
            await client.pull("llama3.2")
        path = tmp_path / "up.gguf"
        path.write_bytes(gguf(tmp_path, "y.gguf", 6))
        digest = await client.create_blob(path)
        assert (await client.create("uploaded", files={"up.gguf": digest})).status == "success"
        assert shelf.find("uploaded") is not None
        made = await client.create("mario", from_="uploaded", system="You are Mario.", stream=True)
        assert [step.status async for step in made][-1] == "success"
        assert (await client.copy("mario", "luigi")).status == "success"
        with pytest.raises(ollama.ResponseError, match="not found"):
            await client.copy("none", "x")
        with pytest.raises(ollama.ResponseError, match="quantised"):
            await client.create("q", from_="mario", quantize="q4_K_M")
        assert (await client.delete("luigi")).status == "success"
        with pytest.raises(ollama.ResponseError) as caught:
            await client.delete("luigi")
        assert caught.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="published"):
            await client.push("mario")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("hf.co/a/b:Q4_0", "hf.co/a/b:Q4_0"),
        ("HF.co/a/b", "hf.co/a/b"),
        ("huggingface.co/a/b:latest", "hf.co/a/b"),
        ("https://huggingface.co/a/b", "hf.co/a/b"),
        ("hf:a/b:c.gguf", "hf.co/a/b:c.gguf"),
    ],
)
def test_names_of_the_hub(given: str, name: str) -> None:
    reference = hub_reference(given)
    assert reference is not None
    assert name_of(reference) == name


def test_names() -> None:
    assert hub_reference("llama3.2") is None
    assert local_path("llama3.2") is None
    assert local_path("file:///a/b.gguf") == "/a/b.gguf"
    assert local_path("/a/../b.gguf:latest") == "/b.gguf"
    assert checked_name("a/b:8b") == "a/b:8b"

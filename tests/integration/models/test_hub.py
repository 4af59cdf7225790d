"""Models of a hub on loopback, through the real ``huggingface_hub``: what is asked for, and what can go wrong."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from deadline import until
from fake_hub import COMMIT, FakeHub, Sparse
from gguf_writer import TensorRow, Typed, write_gguf
from projector_twins import write_twin
from safetensors_writer import TINY_CONFIG, entries, head, tiny_rows
from terazi.errors import ModelFileError, SourceError, TeraziError, UsageError
from terazi.models.sources import demo_path, headers, listing, load_model, remote
from terazi.models.sources.hub import projector_of
from terazi.models.spec import ModelSpec

SRC = Path(__file__).parents[3] / "src"
TOKEN = "hf_secret_that_nobody_may_see"  # noqa: S105 - of nobody
KEYS: dict[str, object] = {
    ".block_count": 2, ".context_length": 64, ".embedding_length": 32, ".attention.head_count": 2,
}  # fmt: skip
BIG = 40 * 10**9


def gguf(folder: Path, tokens: int = 10, **keys: object) -> Sparse:
    """A header as a converter writes it, with a vocabulary of *tokens*, in front of a file of 40 GB."""
    rows: list[TensorRow] = [
        ("token_embd.weight", (32, 8), "q8_0"),
        ("blk.0.a", (4,), "f32"),
        ("blk.1.a", (4,), "f32"),
    ]
    words = [f"token{i}" for i in range(tokens)]
    vocabulary = {
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": [f"{word} {word}" for word in words],
        "tokenizer.ggml.token_type": Typed(9, [1] * tokens, 5),
    }
    path = write_gguf(folder / "m.gguf", "llama", {**KEYS, **vocabulary, **keys}, rows)
    data = path.read_bytes()
    # without trailing data the sizes must be right: the rest is a hole
    return Sparse(data, len(data))


def safetensors(rows: dict[str, tuple[str, tuple[int, ...]]], *, grow: bool = False) -> Sparse:
    if grow:
        rows = {**rows, "big.weight": ("BF16", (100_000, 100_000))}
    made, size = entries(rows)
    start = head(made)
    return Sparse(start, len(start) + size)


def shards(count: int) -> dict[str, bytes | Sparse]:
    rows = tiny_rows()
    weight_map: dict[str, str] = {}
    files: dict[str, bytes | Sparse] = {"config.json": json.dumps(TINY_CONFIG).encode()}
    for i in range(count):
        name = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
        part = {key: rows[key] for key in list(rows)[i::count]}
        if i == 0:
            part = {**part, "model.extra.weight": ("BF16", (100_000, 100_000))}
        files[name] = safetensors(part)
        weight_map |= dict.fromkeys(part, name)
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    files["tokenizer_config.json"] = b'{"chat_template": "x"}'
    return files


def point_to(server: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make *server* the hub of this process; the library reads its environment only once."""
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    small, large = gguf(tmp_path), gguf(tmp_path, tokens=60_000)
    names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "imatrix.gguf"]
    repositories: dict[str, dict[str, bytes | Sparse]] = {
        "org/gguf": {**dict.fromkeys(names, small), "README.md": b"x"},
        "org/large": {"large-Q4_K_M.gguf": large},
        "org/st": shards(3),
        "org/many": shards(12),
        "org/nothing": {"README.md": b"x", "config.json": json.dumps(TINY_CONFIG).encode()},
        "org/flat": {
            "config.json": json.dumps(TINY_CONFIG).encode(),
            "model.safetensors": safetensors(tiny_rows(), grow=True),
            "original/consolidated.safetensors": safetensors(tiny_rows()),
        },
    }
    with FakeHub(repositories) as server:
        point_to(server, tmp_path, monkeypatch)
        yield server


def refusal(argument: str, kind: type[TeraziError] = SourceError) -> TeraziError:
    with pytest.raises(TeraziError) as caught:
        load_model(argument)
    assert type(caught.value) is kind, caught.value
    assert caught.value.hint
    assert TOKEN not in caught.value.message + caught.value.hint
    return caught.value


def is_gguf(spec: ModelSpec) -> None:
    assert (spec.format, spec.architecture, len(spec.tensors)) == ("gguf", "llama", 3)


def test_the_usual_quantisation(hub: FakeHub) -> None:
    spec = load_model("hf:org/gguf")
    is_gguf(spec)
    assert spec.files[0].path == f"hf:org/gguf@{COMMIT}:m-Q4_K_M.gguf"
    # the library itself asks for /api/agent-harnesses once a day
    asked = [seen.path for seen in hub.seen if seen.path != "/api/agent-harnesses"]
    assert asked == ["/api/models/org/gguf", f"/org/gguf/resolve/{COMMIT}/m-Q4_K_M.gguf"]
    assert load_model(spec.files[0].path).tensors == spec.tensors


def test_a_quantisation_and_a_file(hub: FakeHub) -> None:
    assert load_model("hf:org/gguf:q8_0").files[0].path.endswith("m-Q8_0.gguf")
    hub.seen.clear()
    is_gguf(load_model("hf:org/gguf@v1:m-Q8_0.gguf"))
    assert [seen.path for seen in hub.seen] == ["/org/gguf/resolve/v1/m-Q8_0.gguf"], "a named file needs no listing"
    assert "Q4_K_M, Q8_0" in refusal("hf:org/gguf:Q5_K_S", UsageError).hint


def test_credentials_go_to_the_hub(hub: FakeHub) -> None:
    load_model("hf:org/gguf")
    models = [seen for seen in hub.seen if "org/gguf" in seen.path]
    assert {seen.authorization for seen in models} == {f"Bearer {TOKEN}"}


def test_a_long_header_costs_two_requests(hub: FakeHub) -> None:
    spec = load_model("hf:org/large:large-Q4_K_M.gguf")
    assert spec.vocab_size == 60_000
    asked = hub.files_asked()
    assert len(asked) == 2
    assert asked[0].range == f"bytes=0-{remote.FIRST_BYTES - 1}"
    assert asked[1].range is not None
    assert asked[1].range.startswith(f"bytes={remote.FIRST_BYTES}-")


def test_shards_cost_two_requests_each_at_most(hub: FakeHub) -> None:
    spec = load_model("hf:org/st")
    assert spec.format == "safetensors"
    assert spec.name == "org/st"
    assert spec.chat_template
    assert len(spec.files) == 3
    assert spec.weights_bytes > 2 * 10**10
    by_file: dict[str, int] = {}
    for seen in hub.files_asked():
        by_file[seen.path] = by_file.get(seen.path, 0) + 1
    assert set(by_file.values()) == {1}
    assert hub.sent_bytes < 2**20 * 3, "headers travel, 20 GB of weights don't"


def test_many_shards_keep_their_order(hub: FakeHub) -> None:
    spec = load_model("hf:org/many")
    assert [f.path.rpartition(":")[2] for f in spec.files] == sorted(f.path.rpartition(":")[2] for f in spec.files)
    assert {t.name for t in spec.tensors} >= set(tiny_rows())


def test_one_file_and_a_config_alone(hub: FakeHub) -> None:
    assert load_model("hf:org/flat").weights_bytes > 2 * 10**10
    spec = load_model("hf:org/flat:config.json")
    assert spec.format == "config"
    assert {t.name for t in spec.tensors} == set(tiny_rows())
    assert load_model("hf:org/flat:model.safetensors").format == "safetensors"
    assert "config.json" in refusal("hf:org/nothing", UsageError).hint


def test_the_projector_that_comes_with_a_model(hub: FakeHub) -> None:
    assert projector_of("hf:org/gguf") == f"hf:org/gguf@{COMMIT}:mmproj-Q8_0.gguf"
    assert projector_of("hf:org/large") is None


def test_a_file_in_the_cache_costs_no_request(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cache" / "models--org--gguf"
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    (snapshot / "m-Q4_K_M.gguf").write_bytes((tmp_path / "m.gguf").read_bytes())
    spec = load_model("hf:org/gguf:m-Q4_K_M.gguf")
    assert hub.seen == []
    assert spec.files[0].path == str(snapshot / "m-Q4_K_M.gguf")
    monkeypatch.setattr(constants, "is_offline_mode", lambda: True)
    assert load_model("hf:org/gguf").files[0].path == spec.files[0].path
    assert "HF_HUB_OFFLINE" in refusal("hf:org/large", UsageError).message
    assert "HF_HUB_OFFLINE" in refusal("hf:org/large:x.gguf", UsageError).message
    assert hub.seen == []


def test_an_address(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{hub.url}/org/gguf/resolve/main/m-Q8_0.gguf"
    assert load_model(url + "?download=true").files[0].path == "hf:org/gguf@main:m-Q8_0.gguf"
    monkeypatch.setattr(constants, "ENDPOINT", "https://elsewhere.invalid")
    hub.seen.clear()
    spec = load_model(url)
    is_gguf(spec)
    assert spec.files[0].path == url
    assert {seen.authorization for seen in hub.seen} == {None}, "a stranger gets no token"
    assert ".gguf" in refusal(f"{hub.url}/page.html", UsageError).message


def test_a_redirect_to_another_host_takes_no_credentials(hub: FakeHub) -> None:
    with FakeHub(hub.repositories) as store:
        hub.behaviour.redirect_to = store.url
        assert load_model("hf:org/large:large-Q4_K_M.gguf").vocab_size == 60_000
        assert [seen.authorization for seen in store.seen] == [None, None]
        # what follows is asked for where the beginning came from
        assert len(hub.seen) == 1


def test_redirects_in_a_circle(hub: FakeHub) -> None:
    hub.behaviour.redirect_to = hub.url
    assert "circle" in refusal("hf:org/gguf:m-Q4_K_M.gguf").message


def test_a_server_without_ranges_is_read_no_further_than_the_header(hub: FakeHub) -> None:
    hub.behaviour.no_ranges = True
    assert load_model("hf:org/flat:model.safetensors").weights_bytes > 2 * 10**10
    assert load_model("hf:org/large:large-Q4_K_M.gguf").vocab_size == 60_000
    assert hub.sent_bytes < 64 * 2**20, "of 20 GB, only what fits the sockets' buffers"
    assert sum("large" in seen.path for seen in hub.seen) == 1


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (401, {}, "private, or isn't there"),
        (403, {"X-Error-Code": "GatedRepo"}, "gated"),
        (404, {}, "isn't there"),
        (429, {"Retry-After": "30"}, "too many requests"),
        (500, {}, "status 500"),
        (503, {}, "status 503"),
        (204, {}, "status 204"),
    ],
)
def test_refusals_by_status(hub: FakeHub, status: int, headers: dict[str, str], says: str) -> None:
    hub.behaviour.status, hub.behaviour.headers = status, headers
    assert says in refusal("hf:org/gguf:m-Q4_K_M.gguf").message
    assert says in refusal("hf:org/gguf").message
    if status == 429:
        assert "30 s" in refusal("hf:org/gguf").hint


def test_what_is_not_there(hub: FakeHub) -> None:
    assert "isn't there" in refusal("hf:org/absent").message
    assert "isn't there" in refusal("hf:org/gguf:absent.gguf").message
    assert "no file" in refusal("hf:org/gguf:absent.safetensors", UsageError).message


@pytest.mark.parametrize(
    "lie",
    ["bytes 5-9/100", "bytes */100", "items 0-9/100", "bytes 0-9/*", "bytes 0-9/" + "9" * 30, "x", "bytes 0-9/-5"],
)
def test_lying_ranges(hub: FakeHub, lie: str) -> None:
    hub.behaviour.content_range = lie
    refusal("hf:org/gguf:m-Q4_K_M.gguf")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"null", "not a JSON object"),
        (b"<html>", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"{}", "neither GGUF nor safetensors"),
        (b'{"siblings": 5, "sha": []}', "neither GGUF nor safetensors"),
        (b'{"siblings": [{"rfilename": 5}, 5, null, {}, {"rfilename": "../m.gguf"}]}', "neither GGUF"),
    ],
)
def test_lying_lists(hub: FakeHub, body: bytes, says: str) -> None:
    hub.behaviour.status, hub.behaviour.body = 200, body
    with pytest.raises(TeraziError, match=says) as caught:
        load_model("hf:org/gguf")
    assert caught.value.hint


def test_a_list_without_end_is_read_no_further_than_its_limit(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LISTING_LIMIT_BYTES", 200_000)
    hub.behaviour.status, hub.behaviour.body = 200, b'{"rfilename": "a.gguf"}, ' * 400_000
    assert "more than 16 MiB" in refusal("hf:org/gguf").message
    assert hub.sent_bytes < 10_000_000


def test_an_endpoint_that_is_no_address() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "terazi", "weigh", "hf:org/gguf"],
        env={**os.environ, "PYTHONPATH": str(SRC), "HF_ENDPOINT": "http://127.0.0.1:99999"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "HF_ENDPOINT" in done.stderr, "hint:" in done.stderr) == (2, True, True)


def test_answers_that_break_off(hub: FakeHub) -> None:
    hub.behaviour.cut_after = 100
    assert "broke" in refusal("hf:org/gguf:m-Q4_K_M.gguf").message


def test_packed_answers_are_not_unpacked(hub: FakeHub) -> None:
    hub.behaviour.headers = {"Content-Encoding": "gzip"}
    assert "packs" in refusal("hf:org/gguf:m-Q4_K_M.gguf").message


def test_a_silent_server(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "READ_S", 0.1)
    hub.behaviour.silent_s = 5
    assert "does not answer" in refusal("hf:org/gguf:m-Q4_K_M.gguf").message


def test_a_server_that_trickles(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DEADLINE_S", 0.2)
    hub.behaviour.drip_s = 0.01
    assert "too slow" in refusal("hf:org/gguf:m-Q4_K_M.gguf").message


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with FakeHub({}) as gone:
        point_to(gone, tmp_path, monkeypatch)
    assert "can't be reached" in refusal("hf:org/gguf:m.gguf").message
    assert "can't be asked" in refusal("hf:org/gguf").message


def test_headers_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HEAD_LIMIT_BYTES", 4 * 2**20)
    endless = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    endless += (1).to_bytes(8, "little") + b"a" + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    endless += (10**8).to_bytes(8, "little")
    with FakeHub({"org/x": {"x.gguf": Sparse(endless, BIG)}}) as server:
        point_to(server, tmp_path, monkeypatch)
        assert "header of more than" in refusal("hf:org/x:x.gguf", ModelFileError).message


def weigh(hub: FakeHub, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The whole program, its endpoint from the environment; the token appears nowhere."""
    environment = {
        **os.environ, "PYTHONPATH": str(SRC), "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "hf"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "terazi", "weigh", "--on", "RTX 3090 + 64GiB", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert TOKEN not in done.stdout + done.stderr
    return done


def test_the_command_line(hub: FakeHub, tmp_path: Path) -> None:
    done = weigh(hub, tmp_path, "hf:org/gguf:Q9")
    assert done.returncode == 2
    assert "Q4_K_M" in done.stderr


def test_an_interrupt_ends_it_at_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.behaviour.silent_s, hub.behaviour.silent_about = 60, "-of-"
    process = subprocess.Popen(
        [sys.executable, "-m", "terazi", "weigh", "hf:org/many"],
        env={**os.environ, "PYTHONPATH": str(SRC), "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # several headers at once, so that the wait is not in the main thread
    until(lambda: sum("-of-" in seen.path for seen in hub.seen) >= 4, within_s=30)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode != 0
    assert "Traceback" not in said


def test_a_twin_of_a_model_that_is_not_here(hub: FakeHub, tmp_path: Path) -> None:
    """The header travels once more, and no weights."""
    for name in ("hf:org/gguf", "hf:org/large", f"{hub.url}/org/gguf/resolve/main/m-Q8_0.gguf"):
        spec = load_model(name)
        hub.seen.clear()
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        twin = load_model(headers.write_twin(spec, str(folder)))
        assert twin.tensors == spec.tensors
        assert twin.file_bytes == spec.file_bytes
        assert 1 <= len(hub.files_asked()) <= 2


def test_an_engine_command_with_a_model_on_the_hub(tmp_path: Path) -> None:
    demo = Path(demo_path())
    with demo.open("rb") as file:
        smol = Sparse(file.read(4 * 2**20), demo.stat().st_size)
    projector = write_twin(tmp_path, "idefics3")
    names = ["smol-Q4_1.gguf", "mmproj-F16.gguf"]
    with FakeHub({"org/smol": {names[0]: smol, names[1]: projector.read_bytes()}}) as hub:
        done = weigh(hub, tmp_path, "--json", "--", "llama-server", "-hf", "org/smol:Q4_1", "-c", "4096")
        assert done.returncode == 0, done.stderr
        assert "mmproj-F16.gguf" in done.stderr
        remote_bill = json.loads(done.stdout)["bill"]
        assert [seen.path.rpartition("/")[2] for seen in hub.files_asked()].count("smol-Q4_1.gguf") == 2
        assert hub.sent_bytes < 8 * 2**20 + projector.stat().st_size
        quiet = weigh(hub, tmp_path, "--", "llama-server", "-hf", "org/smol", "-hff", names[0], "--no-mmproj")
        assert (quiet.returncode, "mmproj" in quiet.stderr) == (0, False)
        text = weigh(hub, tmp_path, "hf:org/smol")
        assert text.stdout.startswith("smol-Q4_1.gguf: llama")
        chosen = json.loads(weigh(hub, tmp_path, "--json", "hf:org/smol").stdout)
        assert " ".join(chosen["plan"]["argv"]).startswith("llama-server -hf org/smol -hff smol-Q4_1.gguf ")
        local = ("-m", str(demo), "-c", "4096", "--mmproj", str(projector))
        here = weigh(hub, tmp_path, "--json", "--", "llama-server", *local)
    assert json.loads(here.stdout)["bill"] == remote_bill

"""Models out of a store that the test makes."""

import os
from pathlib import Path

import pytest

from gguf_writer import write_gguf
from ollama_store import add_model
from terazi.errors import ModelFileError, TeraziError, UsageError
from terazi.models.sources import load_model
from terazi.models.sources.ollama import load_ollama, stores

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "store"
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    return folder


@pytest.fixture
def header(tmp_path: Path) -> bytes:
    keys: dict[str, object] = {
        ".block_count": 2, ".context_length": 64, ".embedding_length": 32, ".attention.head_count": 2,
    }  # fmt: skip
    rows = [("token_embd.weight", (32, 8), "q8_0"), ("blk.0.a", (4,), "f32"), ("blk.1.a", (4,), "f32")]
    return write_gguf(tmp_path / "m.gguf", "llama", keys, rows).read_bytes()


def refusal(argument: str, kind: type[TeraziError]) -> TeraziError:
    with pytest.raises(TeraziError) as caught:
        load_model(argument)
    assert type(caught.value) is kind
    return caught.value


def test_a_model_with_its_companions(store: Path, header: bytes) -> None:
    more = [("projector", b"p"), ("adapter", b"a"), ("draft", b"d"), ("template", b"t"), ("system", b"s")]
    add_model(store, f"{LIBRARY}/tiny/8b", header, parameters={"num_ctx": 8192}, more=more)
    spec = load_model("ollama:tiny:8b")
    assert (spec.format, spec.architecture, spec.origin) == ("gguf", "llama", "ollama:tiny:8b")
    model = load_ollama("Tiny:8B", origin="")
    assert model.spec.tensors == spec.tensors, "capitals don't matter"
    assert model.parameters == {"num_ctx": 8192}
    assert [Path(p).read_bytes() for p in (*model.projectors, *model.adapters, model.draft or "")] == [
        b"p",
        b"a",
        b"d",
    ]


def test_a_name_without_a_tag_is_the_latest(store: Path, header: bytes) -> None:
    add_model(store, f"{LIBRARY}/tiny/latest", header)
    assert load_model("ollama:tiny").block_count == 2


def test_a_missing_model_says_what_is_there(store: Path, header: bytes) -> None:
    assert str(store) in refusal("ollama:absent", UsageError).hint
    add_model(store, f"{LIBRARY}/tiny/8b", header)
    add_model(store, "hf.co/org/other/Q4_0", header)
    found = refusal("ollama:absent", UsageError)
    assert "absent:latest" in found.message
    assert "tiny:8b" in found.hint
    assert "hf.co/org/other:Q4_0" in found.hint


def test_an_incomplete_model(store: Path, header: bytes) -> None:
    add_model(store, f"{LIBRARY}/tiny/latest", header)
    for blob in (store / "blobs").iterdir():
        blob.unlink()
    assert "incomplete" in refusal("ollama:tiny", ModelFileError).message
    add_model(store, f"{LIBRARY}/tiny/latest", b"no model")
    assert "not a GGUF file" in refusal("ollama:tiny", ModelFileError).message


def test_models_that_llama_cpp_does_not_run(store: Path) -> None:
    add_model(store, f"{LIBRARY}/mlx/latest", None, more=[("tensor", b"x")])
    assert "MLX" in refusal("ollama:mlx", ModelFileError).message
    add_model(store, f"{LIBRARY}/cloud/latest", None)
    assert "another machine" in refusal("ollama:cloud", ModelFileError).message


def test_a_manifest_that_is_a_pipe(store: Path) -> None:
    home = store / "manifests" / LIBRARY / "odd"
    home.mkdir(parents=True)
    os.mkfifo(home / "latest")
    assert "regular" in refusal("ollama:odd", ModelFileError).message


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", f'"{tmp_path}"')
    assert stores() == (str(tmp_path),)
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stores()[0] == str(tmp_path / ".ollama" / "models")

"""Ollama's names and manifests; expectations are those of Ollama's own name_test.go and of its documents."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.errors import ModelFileError, UsageError
from terazi.models.ollama_store import OllamaName, parse_manifest, parse_name, parse_parameters

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "path", "short"),
    [
        ("ollama:llama3.2", "registry.ollama.ai/library/llama3.2/latest", "llama3.2:latest"),
        ("ollama:qwen3:8b-q4_K_M", "registry.ollama.ai/library/qwen3/8b-q4_K_M", "qwen3:8b-q4_K_M"),
        ("user/model", "registry.ollama.ai/user/model/latest", "user/model:latest"),
        ("hf.co/org/Repo-GGUF:Q4_K_M", "hf.co/org/Repo-GGUF/Q4_K_M", "hf.co/org/Repo-GGUF:Q4_K_M"),
        ("localhost:5000/ns/m:t", "localhost:5000/ns/m/t", "localhost:5000/ns/m:t"),
        ("https://registry.ollama.ai/library/m", "registry.ollama.ai/library/m/latest", "m:latest"),
    ],
)
def test_names(text: str, path: str, short: str) -> None:
    name = parse_name(text)
    assert name.path == path
    assert str(name) == short
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["", "ollama:", "a:", ":a", "a/", "/a", "../a", "a/../b", "ollama:..", "a b", "a\0b", "a/b/c/d/../e:x", "-a",
     "n.s/m", "a" * 100, "host/.hidden/m", "m:../../etc", "m:a/b", "ä"],
)  # fmt: skip
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_name(text)
    assert "ollama:" in caught.value.hint


@given(st.text(max_size=60))
def test_no_name_leads_out_of_the_store(text: str) -> None:
    try:
        parts = parse_name(text).path.split("/")
    except UsageError:
        return
    assert len(parts) == 4
    assert all(part and not part.startswith(".") and "\0" not in part for part in parts)


def manifest(*layers: object, **more: object) -> bytes:
    return json.dumps({"layers": layers, **more}).encode()


def layer(use: str, digest: object = DIGEST) -> dict[str, object]:
    return {"mediaType": f"application/vnd.ollama.image.{use}", "digest": digest}


def test_layers_by_their_use() -> None:
    b, c = "sha256:" + "b" * 64, "sha256-" + "C" * 64
    read = parse_manifest(
        manifest(
            layer("model"), layer("projector", b), layer("adapter", b), layer("adapter", c), layer("params", c)
        ),
        "m",
    )
    assert read.model == "sha256-" + "a" * 64
    assert read.projectors == ("sha256-" + "b" * 64,)
    assert read.adapters == ("sha256-" + "b" * 64, "sha256-" + "C" * 64)
    assert (read.parameters, read.draft, read.separate_tensors) == ("sha256-" + "C" * 64, None, False)
    assert parse_manifest(manifest(layer("tensor")), "m").separate_tensors


@pytest.mark.parametrize(
    "digest",
    ["sha256:../../../etc/passwd", "sha256:" + "a" * 63, "sha256:" + "g" * 64, "md5:" + "a" * 64, "", None, 5,
     "sha256:" + "a" * 64 + "/..", "sha256:" + "a" * 64 + "\n"],
)  # fmt: skip
def test_what_is_no_digest_becomes_no_path(digest: object) -> None:
    with pytest.raises(ModelFileError, match="no digest"):
        parse_manifest(manifest(layer("model", digest)), "m")
    with pytest.raises(ModelFileError, match="no digest"):
        parse_manifest(manifest(config={"digest": digest or "x"}), "m")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"layers": 5}',
        b'{"layers": [5]}',
        b" " * 2_000_000,
        b'{"layers": [' + b"{}," * 10**5 + b"{}]}",
    ],
)
def test_manifests_that_are_none(data: bytes) -> None:
    with pytest.raises(ModelFileError) as caught:
        parse_manifest(data, "m:latest")
    assert caught.value.hint


def test_parameters() -> None:
    assert parse_parameters(b'{"num_ctx": 8192, "stop": ["a"]}', "m") == {"num_ctx": 8192, "stop": ["a"]}
    with pytest.raises(ModelFileError):
        parse_parameters(b"[]", "m")


def test_the_noun_is_plain() -> None:
    assert OllamaName(model="m").path == "registry.ollama.ai/library/m/latest"

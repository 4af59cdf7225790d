"""Ollama's catalogue, read by the real client's own models."""

from dataclasses import replace
from datetime import datetime

import ollama as client
import pytest

from serving import CARD, StubBackend
from terazi.gateway.wire import ollama


def test_the_version_is_new_enough_for_vs_code() -> None:
    assert tuple(int(part) for part in ollama.API_VERSION.split(".")) >= (0, 6, 4)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (134_515_008, "134.52M"),
        (8_000_000_000, "8B"),
        (70_553_706_496, "70.6B"),
        (None, ""),
        (999, "999"),
        (2000, "2K"),
    ],
)
def test_human_count(count: int | None, text: str) -> None:
    assert ollama.human_count(count) == text


@pytest.mark.parametrize(
    ("name", "tagged"),
    [("a", "a:latest"), ("a:8b", "a:8b"), ("o/a", "o/a:latest"), ("h:5000/a", "h:5000/a:latest")],
)
def test_tagged(name: str, tagged: str) -> None:
    assert ollama.tagged(name) == tagged


def test_the_client_reads_tags_ps_and_show() -> None:
    tags = client.ListResponse.model_validate(ollama.tags([CARD], [])).models[0]
    assert tags.model == "acme/scale-135m:latest"
    assert tags.size == CARD.size_bytes
    assert tags.details is not None
    assert tags.details.parameter_size == "134.52M"
    loaded = client.ProcessResponse.model_validate(ollama.ps([(StubBackend(1), None)])).models[0]
    assert loaded.context_length == 2048
    assert loaded.expires_at is not None
    assert loaded.expires_at.year > 2100
    assert datetime.fromisoformat(ollama.NEVER).tzinfo is not None
    shown = client.ShowResponse.model_validate(ollama.show(CARD))
    assert shown.modelinfo == {
        "general.architecture": "llama",
        "general.parameter_count": 134_515_008,
        "llama.context_length": 8192,
        "llama.embedding_length": 576,
        "llama.block_count": 30,
    }
    assert shown.capabilities == ["completion", "tools"]


def test_what_is_unknown_is_left_out() -> None:
    shown = ollama.show(replace(CARD, parameter_count=None, embedding_length=None, template=None))
    assert None not in shown["model_info"].values()  # type: ignore[attr-defined]
    assert shown["template"] == ""

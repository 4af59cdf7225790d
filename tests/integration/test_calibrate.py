"""``terazi calibrate`` with an engine whose speed is known: what it finds, keeps, refuses and leaves behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import timed_engine as truth
from deadline import until
from running import REPO, engines_of, environment, terazi

FAKE = REPO / "tests" / "timed_engine.py"


def timed(home: Path) -> dict[str, str]:
    """A llama-server and a llama-bench beside it."""
    (home / "bin").mkdir()
    for name in ("llama-server", "llama-bench"):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" {name} "$@"\n')
        program.chmod(0o755)
    (home / "tmp").mkdir()
    return {"TERAZI_LLAMA_SERVER": str(home / "bin" / "llama-server"), "TMPDIR": str(home / "tmp")}


def left_over(home: Path) -> list[str]:
    """Models and processes."""
    return [*(file.name for file in (home / "tmp").iterdir()), *map(str, engines_of(home))]


def test_what_is_found_is_what_the_engine_takes(tmp_path: Path) -> None:
    before = json.loads(terazi(tmp_path, "weigh", "demo", "--json").stdout)["forecast"]
    done = terazi(tmp_path, "calibrate", "--force", "--json", TIMED_FLAKY="5", **timed(tmp_path))
    assert done.returncode == 0, done.stderr
    assert left_over(tmp_path) == []
    document = json.loads(done.stdout)
    device = document["calibration"]["devices"][0]
    assert device["device"] == "Host"
    for kernel in device["kernels"]:
        per_byte, width = truth.PER_BYTE.get(kernel["dtype"], truth.OTHER)
        for tokens, found in kernel["batches"]:
            assert found == pytest.approx(per_byte * max(1.0, tokens / width), rel=0.03), (kernel["dtype"], tokens)
        for tokens, found in kernel["rows"]:
            assert found == pytest.approx(truth.ROW_S * tokens, rel=0.1), (kernel["dtype"], tokens)
    assert [s for _, s in device["layer_batches"]] == pytest.approx([truth.LAYER_S] * 5, rel=0.1)
    assert device["attention_flops_per_s"] == pytest.approx(truth.ATTENTION, rel=0.02)
    assert device["vocab_s"] == pytest.approx(truth.VOCAB_S, rel=0.1)
    assert device["token_s"] == pytest.approx(truth.TOKEN_S, rel=0.2)
    assert device["step_s"] == pytest.approx(truth.STEP_S, rel=0.3)
    assert 0.1 < document["disturbed"] < 0.4, "every third run was slowed down"

    after = json.loads(terazi(tmp_path, "weigh", "demo", "--json").stdout)["forecast"]
    assert any("this machine, calibrated on" in words for words in after["basis"])
    for figure in ("decode_tok_s", "prefill_tok_s"):
        wide, narrow = ((said[figure]["high"] / said[figure]["low"]) for said in (before, after))
        assert narrow < wide

    shown = json.loads(terazi(tmp_path, "calibrate", "--show", "--json").stdout)
    assert [c["calibration"] for c in shown["calibrations"]] == [document["calibration"]]
    assert "q4_K" in terazi(tmp_path, "calibrate", "--show").stdout
    assert terazi(tmp_path, "calibrate", "--forget").stdout.startswith("1 calibration ")
    assert "no calibration" in terazi(tmp_path, "calibrate", "--show").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_calibration_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "terazi", "calibrate", "--force"],
        cwd=tmp_path,
        env=environment(tmp_path, TIMED_HANG="1", **timed(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: engines_of(tmp_path), 60)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    until(lambda: not left_over(tmp_path))
    assert "no calibration" in terazi(tmp_path, "calibrate", "--show").stdout


def test_a_failing_bench_is_one_sentence(tmp_path: Path) -> None:
    done = terazi(tmp_path, "calibrate", "--force", TIMED_FAIL="1", **timed(tmp_path))
    assert done.returncode == 4
    assert "failed to load model" in done.stderr
    assert left_over(tmp_path) == []


def test_without_a_bench_it_says_so(tmp_path: Path) -> None:
    env = timed(tmp_path)
    (tmp_path / "bin" / "llama-bench").unlink()
    done = terazi(tmp_path, "calibrate", "--force", **env)
    assert done.returncode == 4
    assert "llama-bench" in done.stderr


def test_a_busy_machine_is_refused(tmp_path: Path) -> None:
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(max(1, os.cpu_count() or 1))
    ]
    try:
        done = terazi(tmp_path, "calibrate", **timed(tmp_path))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert done.returncode == 4
    assert "busy" in done.stderr
    assert "--force" in done.stderr


def test_a_model_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    done = terazi(tmp_path, "calibrate", "--force", "--model", "nowhere.gguf", **timed(tmp_path))
    assert done.returncode == 2
    assert "nowhere.gguf" in done.stderr

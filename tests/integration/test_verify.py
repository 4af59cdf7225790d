"""``terazi weigh --verify`` with a fake engine: what is said when it disagrees, fails, hangs or is interrupted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deadline import until
from demo_files import smollm2
from model_zoo import llama8b
from running import REPO, engines_of, environment, terazi, up

ENGINE = REPO / "tests" / "fakes" / "engine.py"
#: What the fake's log says is true of this command and of no other.
AS_LOGGED = ("--", "llama-server", "-m", "demo.gguf", "-c", "4096", "-np", "2", "--no-kv-unified")


def fake(home: Path, *flags: str) -> dict[str, str]:
    """Only the server: no estimator and no stand-ins lie beside it."""
    (home / "demo.gguf").symlink_to(smollm2())
    program = home / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}" "$@" {" ".join(flags)}\n')
    program.chmod(0o755)
    (home / "tmp").mkdir()
    return {"TERAZI_LLAMA_SERVER": str(program), "TMPDIR": str(home / "tmp")}


def left_over(home: Path) -> list[str]:
    """Twins and processes."""
    return [*(file.name for file in (home / "tmp").iterdir()), *map(str, engines_of(home))]


def test_a_log_that_agrees_makes_its_lines_measured(tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "--verify", "--json", *AS_LOGGED, **fake(tmp_path))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    verification = document["verification"]
    assert verification["schema"] == "terazi.verification/1"
    assert verification["agreed"] is True
    assert verification["build"] == "b11434"
    assert [asked["tool"] for asked in verification["asked"]] == ["llama-server"]
    assert any("llama-fit-params" in text for text in verification["unasked"])
    assert {line["basis"] for line in document["bill"]["lines"]} == {"measured by the engine"}
    assert verification["confirmed_lines"] == verification["lines"] == 4
    assert document["bill"]["total_bytes"] == sum(line["bytes"] for line in document["bill"]["lines"])
    assert "loading the twin" in done.stderr
    assert left_over(tmp_path) == []


def test_a_log_that_disagrees_is_shown_and_exits_with_4(tmp_path: Path) -> None:
    command = [word.replace("4096", "8192") for word in AS_LOGGED]
    variables = fake(tmp_path)
    done = terazi(tmp_path, "weigh", "--verify", *command, **variables)
    assert done.returncode == 4
    assert "does NOT agree" in done.stdout
    kv = next(line for line in done.stdout.splitlines() if "DIFFERS" in line and " kv " in line)
    assert "180.00 MiB" in kv
    assert "-90.00 MiB" in kv
    document = json.loads(terazi(tmp_path, "weigh", "--verify", "--json", *command, **variables).stdout)
    bases = {line["formula"]: line["basis"] for line in document["bill"]["lines"]}
    assert bases["weights.plain"] == "measured by the engine"
    assert bases["kv.full"] == "exact"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--fake-oom-log",), "memory"),
        (("--fake-exit-at", "loading", "--fake-exit-code", "7"), "it ended with 7"),
        (("--fake-bind-fail",), "port"),
    ],
)
def test_an_engine_that_fails_is_no_agreement(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    done = terazi(tmp_path, "weigh", "--verify", "--json", *AS_LOGGED, **fake(tmp_path, *flags))
    assert done.returncode == 4
    asked = json.loads(done.stdout)["verification"]["asked"][0]
    assert said in asked["failure"]
    assert left_over(tmp_path) == []


def test_cards_without_stand_ins_are_not_verified_and_said_so(tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "--verify", "--on", "2x RTX 3090 + 64GiB", *AS_LOGGED, **fake(tmp_path))
    assert done.returncode == 4
    assert "no ggml-rpc-server beside" in done.stdout
    assert "could not be asked" in done.stdout


def test_what_this_host_cannot_hold_is_not_loaded(tmp_path: Path) -> None:
    variables = fake(tmp_path)
    llama8b(tmp_path / "8b.gguf")
    command = ("--", "llama-server", "-m", "8b.gguf", "-c", "131072", "-np", "64", "--no-kv-unified", "-fa", "on")
    done = terazi(tmp_path, "weigh", "--verify", "--on", "4096GiB", *command, **variables)
    assert "not asked: a real load: it takes" in done.stdout
    assert done.returncode == 4


def test_a_file_of_commands_and_a_missing_engine_are_refused(tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "--verify", "--commands", "x")
    assert (done.returncode, "--verify takes one thing" in done.stderr) == (2, True)
    done = terazi(tmp_path, "weigh", "--verify", "demo", TERAZI_LLAMA_SERVER=str(tmp_path / "none"))
    assert (done.returncode, "doesn't exist" in done.stderr) == (4, True)


@contextmanager
def hanging(home: Path) -> Iterator["subprocess.Popen[str]"]:
    variables = fake(home, "--fake-stall-load")
    process = subprocess.Popen(
        [sys.executable, "-m", "terazi", "weigh", "--verify", *AS_LOGGED],
        env=environment(home, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home,
        start_new_session=True,
    )
    try:
        until(lambda: engines_of(home), 30)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interruption_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with hanging(tmp_path) as process:
        until(lambda: list((tmp_path / "tmp").iterdir()))
        process.send_signal(number)
        assert process.wait(15) == code
        assert left_over(tmp_path) == []


def test_a_killed_terazi_leaves_no_engine(tmp_path: Path) -> None:
    with hanging(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        until(lambda: engines_of(tmp_path) == [])


def test_a_launch_that_differs_is_said_shown_and_kept(tmp_path: Path) -> None:
    """The fake's log is of another context than the plan's: its cache and graph differ, its weights hold."""
    with up(tmp_path, "demo", "--context", "512", TERAZI_LLAMA_SERVER=str(ENGINE)) as running:
        running.url()
        page = "\n".join(running.seen)
        assert "bill DIFFERS in 3 of 4 buffers" in page
        assert "Host kv +78.75 MiB" in page
        found = json.loads(terazi(tmp_path, "ps", "--json").stdout)["models"][0]["reconciliation"]
        assert found["schema"] == "terazi.reconciliation/1"
        assert found["agreed"] is False
        assert {row["term"]: row["verdict"] for row in found["rows"]}["weights"] == "held"
        assert found["process"]["anonymous_bytes"] > 0
        assert "bill held: 1 of 4 buffers" in terazi(tmp_path, "ps").stdout
    again = json.loads(terazi(tmp_path, "weigh", "demo", "--context", "512", "--json").stdout)
    assert again["plan"]["id"] == found["plan_id"]
    bases = {line["formula"]: line["basis"] for line in again["bill"]["lines"]}
    assert bases["weights.plain"] == "measured by the engine"
    assert bases["kv.full"] == "exact"
    other = json.loads(terazi(tmp_path, "weigh", "demo", "--context", "1024", "--json").stdout)
    assert {line["basis"] for line in other["bill"]["lines"]} == {"exact"}


def test_a_store_that_cannot_be_used_costs_the_record_only(tmp_path: Path) -> None:
    (tmp_path / "records.sqlite").mkdir()
    with up(tmp_path, "demo", "--context", "512", TERAZI_LLAMA_SERVER=str(ENGINE)) as running:
        running.url()
        assert "this launch isn't recorded" in "\n".join(running.seen)
    assert terazi(tmp_path, "weigh", "demo").returncode == 0

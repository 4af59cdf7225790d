"""Terminals, streams and disks as they really are: narrow, closed, full, and file names that are no text."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from demo_files import smollm2
from running import REPO, SERVING, engines_of, environment, terazi, up

FAKE = {"TERAZI_LLAMA_SERVER": str(REPO / "tests" / "fakes" / "engine.py")}
HOSTILE = "esc\x1b[31m\x1b]0;title\x07 and\nverdict: fits.gguf"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_a_narrow_encoding_gets_plain_letters(tmp_path: Path, encoding: str) -> None:
    odd = os.fsdecode(b"\xff.gguf")
    (tmp_path / odd).symlink_to(smollm2())
    for arguments in (["weigh", "demo"], ["weigh", odd], ["weigh", "--help"], ["weigh", "no…thing"]):
        done = terazi(tmp_path, *arguments, PYTHONIOENCODING=encoding)
        assert done.returncode == (2 if arguments[1] == "no…thing" else 0), done.stderr
        assert "Traceback" not in done.stderr
    page = terazi(tmp_path, "weigh", "demo", PYTHONIOENCODING="ascii").stdout
    assert "K KV cache" in page, "the legend names the letter that the bar uses"


def test_a_name_can_not_steer_the_terminal_or_add_a_line(tmp_path: Path) -> None:
    (tmp_path / HOSTILE).symlink_to(smollm2())
    done = terazi(tmp_path, "weigh", HOSTILE)
    assert done.returncode == 0, done.stderr
    assert not {c for c in done.stdout if ord(c) < 32} - {"\n"}
    assert sum(line.startswith("verdict:") for line in done.stdout.splitlines()) == 1
    assert "\x1b" not in terazi(tmp_path, "weigh", HOSTILE + "!").stderr


def test_the_name_that_is_listed_is_the_name_in_the_answers(tmp_path: Path) -> None:
    (tmp_path / "my, own model.gguf").symlink_to(smollm2())
    with up(tmp_path, "my, own model.gguf", "--context", "512", **FAKE) as service:
        url = service.url()
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            (listed,) = (entry["id"] for entry in json.load(answer)["data"])
        for name in (listed, "my, own model"):
            body = json.dumps({"model": name, "messages": [{"role": "user", "content": "x"}]}).encode()
            with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=10) as answer:
                assert json.load(answer)["model"] == listed == "my-own-model"
        assert service.end() == 0


def test_json_is_strict_even_about_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    odd = os.fsdecode(b"bad\xff \\ud800.gguf")
    (tmp_path / odd).symlink_to(smollm2())
    done = terazi(tmp_path, "weigh", odd, "--json")
    document = json.loads(done.stdout)
    document["model"]["origin"].encode()  # a lone surrogate can't be
    assert document["model"]["origin"] == "bad\ufffd \\ud800.gguf"


def test_each_odd_line_of_a_command_file_costs_only_itself(tmp_path: Path) -> None:
    good = f"llama-server -m '{smollm2()}' -c 512 -np 1\n".encode()
    (tmp_path / "commands").write_bytes(
        good + b"\xff\xfe\x00 garbage\n" + b"x" * 200_000 + b"\n" + b"llama-server -m \xff.gguf\n" + good
    )
    done = terazi(tmp_path, "weigh", "--commands", "commands")
    schemas = [json.loads(line)["schema"] for line in done.stdout.splitlines()]
    assert schemas == ["terazi.weighing/1", *["terazi.error/1"] * 3, "terazi.weighing/1"]
    assert done.returncode == 1


def _shell(home: Path, script: str, **extra: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", script.replace("terazi", f"'{sys.executable}' -m terazi", 1)],
        env=environment(home, **extra),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=home,
    )


def test_closed_and_full_streams(tmp_path: Path) -> None:
    done = _shell(tmp_path, "terazi weigh nowhere.gguf 2>&-")
    assert (done.returncode, done.stdout) == (2, ""), "what was for stderr must not go to stdout"
    assert _shell(tmp_path, "terazi weigh demo >&-").returncode == 0
    if Path("/dev/full").exists():
        done = _shell(tmp_path, "terazi weigh demo >/dev/full")
        assert done.returncode == 1
        assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


@pytest.mark.parametrize("command", ["ps", "up"])
def test_a_state_folder_that_can_not_be_is_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / ("x" * 300)):
        done = terazi(tmp_path, command, TERAZI_HOME=str(home), **FAKE)
        assert done.returncode == 1
        assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
        assert "TERAZI_HOME" in done.stderr


def test_a_second_model_of_one_name_is_found_before_the_first_is_loaded(tmp_path: Path) -> None:
    done = terazi(tmp_path, "up", "demo", str(smollm2()), **FAKE)
    assert done.returncode == 2
    assert done.stdout == ""
    assert not (tmp_path / "logs").exists(), "no engine was started"


def test_it_serves_when_its_address_can_not_be_kept(tmp_path: Path) -> None:
    (tmp_path / "services").touch()  # as a full disk: the beacon can't be written
    with up(tmp_path, "--context", "512", **FAKE) as service:
        service.url()
        assert any("note:" in line and "terazi" in line for line in service.seen)
        assert service.end() == 0
    assert engines_of(tmp_path) == []


def test_a_terminal_that_went_away_does_not_keep_it_from_stopping_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "terazi", "up", "--port", "0", "--context", "512"],
        env=environment(tmp_path, **FAKE),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stderr.close()
        assert any(SERVING.search(line) for line in process.stdout)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
    assert engines_of(tmp_path) == []
    assert not list((tmp_path / "services").iterdir())
    assert not list((tmp_path / "engines").iterdir())

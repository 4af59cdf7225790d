"""The command line as a process: pages, documents, exit codes, and one clear sentence for every bad input."""

import json
import os
import struct
from pathlib import Path

import pytest

from demo_files import smollm2
from gguf_writer import INT32, UINT16, Typed, write_gguf
from model_zoo import gemma3_27b, llama8b, llama70b
from running import terazi

MAGIC = b"GGUF"


def test_weigh_prints_bill_map_forecast_and_verdict(tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "demo", "--context", "4096")
    assert done.returncode == 0, done.stderr
    for part in ("device map", "bill (llama.cpp b11434)", "forecast", "verdict: fits", "90.00 MiB"):
        assert part in done.stdout
    assert "Traceback" not in done.stderr


def test_weigh_json_adds_up(tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "demo", "--context", "4096", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "terazi.weighing/1"
    assert document["verdict"] == "fits"
    assert document["refusal"] is None
    lines = document["bill"]["lines"]
    assert document["bill"]["total_bytes"] == sum(line["bytes"] for line in lines)
    devices = document["plan"]["devices"]
    assert sum(device["total_bytes"] for device in devices) == document["bill"]["total_bytes"]
    for device in devices:
        assert device["headroom_bytes"] == device["capacity_bytes"] - device["total_bytes"]
    for name in ("decode_tok_s", "throughput_tok_s", "prefill_tok_s", "ttft_s", "itl_s"):
        interval = document["forecast"][name]
        assert 0 < interval["low"] <= interval["mid"] <= interval["high"]


def test_the_plan_and_its_own_command_line_weigh_the_same(tmp_path: Path) -> None:
    machine = "RTX 3090 + RTX 3060 12GB + 64GiB"
    llama8b(tmp_path / "8b.gguf")
    first = json.loads(
        terazi(tmp_path, "weigh", "8b.gguf", "--context", "32768", "--users", "4", "--on", machine, "--json").stdout
    )
    command = first["plan"]["argv"]
    second = json.loads(terazi(tmp_path, "weigh", "--json", "--on", machine, "--", *command).stdout)
    for a, b in zip(first["plan"]["devices"], second["plan"]["devices"], strict=True):
        assert a == b
    assert first["plan"]["id"] == second["plan"]["id"]


def test_a_preset_splits_70b_over_two_cards(tmp_path: Path) -> None:
    llama70b(tmp_path / "70b.gguf")
    done = terazi(
        tmp_path, "weigh", "70b.gguf", "--on", "2x RTX 3090 nvlink + 64GiB ddr4", "--context", "8192", "--json"
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    cards = [d for d in document["plan"]["devices"] if d["id"].startswith("CUDA")]
    assert [c["id"] for c in cards] == ["CUDA0", "CUDA1"]
    covered = [i for c in cards for i in range(c["layers"][0], c["layers"][1] + 1)]
    assert covered == list(range(81))
    assert all(c["headroom_bytes"] >= 0 for c in cards)


def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path) -> None:
    llama70b(tmp_path / "70b.gguf")
    done = terazi(tmp_path, "weigh", "70b.gguf", "--on", "RTX 3060 12GB + 16GiB", "--context", "8192")
    assert done.returncode == 3
    assert "REFUSED" in done.stdout
    assert "missing" in done.stdout
    gemma3_27b(tmp_path / "27b.gguf")
    done = terazi(
        tmp_path,
        "weigh",
        "27b.gguf",
        "--on",
        "RTX 3090 + 32GiB",
        "--context",
        "131072",
        "--gpu-layers",
        "63",
        "--json",
    )
    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert document["verdict"] == "refused"
    assert document["refusal"]["shortfall"][0]["missing_bytes"] > 0
    assert len(document["refusal"]["alternatives"]) >= 1
    assert document["plan"]["devices"]


def test_a_command_file_gives_one_document_a_line_in_order(tmp_path: Path) -> None:
    model = smollm2()
    commands = tmp_path / "commands.txt"
    commands.write_text(
        f"llama-server -m '{model}' -c 2048 -np 1\n"
        f"# a comment\n"
        f"llama-server -m '{model}' -c abc\n"
        f"llama-server -m '{model}' -c 4096 -np 1\n"
    )
    done = terazi(tmp_path, "weigh", "--commands", str(commands))
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [d["schema"] for d in documents] == ["terazi.weighing/1", "terazi.error/1", "terazi.weighing/1"]
    first, last = (sum(d["kv_bytes"] for d in documents[i]["plan"]["devices"]) for i in (0, 2))
    assert last == 2 * first


def _truncated(path: Path) -> None:
    path.write_bytes(smollm2().read_bytes()[:5000])


def _cut_data(path: Path) -> None:
    data = smollm2().read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _foreign(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(1000))


def _empty(path: Path) -> None:
    path.touch()


def _absurd(path: Path) -> None:
    path.write_bytes(MAGIC + struct.pack("<IQQ", 3, 2**60, 2**61) + bytes(64))


def _endless_string(path: Path) -> None:
    path.write_bytes(MAGIC + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 2**63 - 1) + bytes(64))


def _missing_part(path: Path) -> None:
    write_gguf(
        path,
        "llama",
        {"split.no": Typed(UINT16, 0), "split.count": Typed(UINT16, 2), "split.tensors.count": Typed(INT32, 1)},
        [("token_embd.weight", (64, 32), "f32")],
    )


BAD = {
    "truncated": (_truncated, "model.gguf", 1),
    "cut-data": (_cut_data, "model.gguf", 1),
    "foreign": (_foreign, "model.gguf", 1),
    "empty": (_empty, "model.gguf", 1),
    "absurd": (_absurd, "model.gguf", 1),
    "endless-string": (_endless_string, "model.gguf", 1),
    "missing-part": (_missing_part, "model-00001-of-00002.gguf", 1),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("command", ["weigh", "up"])
def test_a_bad_model_file_is_one_sentence(tmp_path: Path, case: str, command: str) -> None:
    make, name, code = BAD[case]
    make(tmp_path / name)
    done = terazi(tmp_path, command, name)
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["weigh", "nowhere.gguf"], 2, "nowhere.gguf"),
        (["weigh"], 2, "one thing to weigh"),
        (["weigh", "demo", "--on", "3x RTX 9999"], 2, "9999"),
        (["weigh", "demo", "--context", "many"], 2, "--context"),
        (["weigh", "demo", "--context", "9" * 30], 2, "2147483647"),
        (["weigh", "demo", "--context", "4096", "--prompt", "20000"], 2, "20000"),
        (["weigh", "demo", "--tensor-split", "nan,1"], 2, "nan,1"),
        (["up", "--port", "99999"], 2, "65535"),
        (["up", "--", "nowhere.gguf"], 2, "nowhere.gguf"),
        (["logs", "-n", "-1"], 2, "--lines"),
        (["chat", "--", "--hello"], 1, "no Terazi service"),
        (["weigh", "demo", "--kv-type", "q99"], 2, "q99"),
        (["weigh", "demo", "--tensor-split", "a,b"], 2, "--tensor-split"),
        (["weigh", "demo", "--contxt", "1"], 2, "--contxt"),
        (["weigh", "--", "llama-server", "-c", "4096"], 2, "model"),
        (["weigh", "--", "nginx", "-c", "4096"], 2, "nginx"),
        (["weigh", "--", "llama-server", "-m", "x.gguf", "--no-such-flag"], 2, "--no-such-flag"),
        (["weigh", "--commands", "nowhere.txt"], 2, "nowhere.txt"),
        (["nothing"], 2, "nothing"),
        (["weigh", "demo", "--price-per-kwh", "cheap"], 2, "must be a price"),
        (["weigh", "demo", "--context", "32K"], 2, "write 32768"),
        (["weigh", "demo", "--on", "nowhere.json"], 2, "nowhere.json"),
        (["weigh", "demo", "--on", "RTX 4090, RTX 3060"], 2, "put a + between"),
        (["weigh", "demo", "--on", "RTX 4090 + 64"], 2, "write 64GiB"),
        (["weigh", "demo", "--tensor-parallel", "2"], 2, "--engine vllm"),
        (["weigh", "demo", "--on", "pipe.json"], 2, "not a regular file"),
        (["weigh", "demo", "--on", "half.json"], 2, "surrogates"),
        (["weigh", "--", "vllm", "serve", "x", "--max-model-len", "9e99"], 2, "no number"),
        (["chat", "--max-tokens", "-5", "hello"], 2, "--max-tokens"),
        (["up", "--config", "nowhere.toml"], 2, "nowhere.toml"),
        (["ps"], 1, "no Terazi service"),
        (["chat", "hello"], 1, "no Terazi service"),
        (["stop"], 1, "no Terazi service"),
        (["logs"], 1, "no Terazi service"),
    ],
)
def test_bad_input_is_one_sentence_a_hint_and_a_code(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "half.json").write_text('{"schema": "terazi.machine/1", "name": "\\ud800"}')
    done = terazi(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert [line.split(":")[0] for line in done.stderr.strip().splitlines()] == ["error", "hint"]


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    import subprocess
    import sys

    from running import environment

    shell = f'mkdir gone && cd gone && rmdir ../gone && "{sys.executable}" -m terazi weigh x.gguf'
    done = subprocess.run(
        ["bash", "-c", shell],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "error: There is no file x.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_quotes_no_more_of_an_argument_than_a_person_reads(tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "demo", "--tensor-split", "1," * 20_000)
    assert done.returncode == 2
    assert "--tensor-split" in done.stderr
    assert "hint:" in done.stderr
    assert len(done.stderr) < 2000


@pytest.mark.parametrize(("path", "said"), [("a\0b", "null byte"), ("/dev/zero", "doesn't end")])
def test_command_files_that_are_none(monkeypatch: pytest.MonkeyPatch, path: str, said: str) -> None:
    from terazi.cli import weigh
    from terazi.errors import UsageError

    monkeypatch.setattr(weigh, "_SKIPPED_LIMIT", 2**20)
    with pytest.raises(UsageError, match=said):
        next(weigh._lines(path))


def test_an_architecture_that_the_engine_does_not_know_is_refused(tmp_path: Path) -> None:
    source = smollm2().read_bytes()
    (tmp_path / "new.gguf").write_bytes(
        source.replace(b"llama.", b"lluma.").replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lluma")
    )
    for command in ("weigh", "up"):
        done = terazi(tmp_path, command, "new.gguf")
        assert done.returncode == 3, done.stderr
        assert "lluma" in done.stderr
        assert "hint:" in done.stderr


def test_no_engine_is_one_sentence(tmp_path: Path) -> None:
    done = terazi(tmp_path, "up", "--port", "0", "--context", "512", TERAZI_LLAMA_SERVER=str(tmp_path / "none"))
    assert done.returncode == 4
    assert "hint:" in done.stderr
    old = tmp_path / "llama-server"
    old.write_text("#!/bin/sh\necho 'version: 1000 (abcdef)'\n")
    old.chmod(0o755)
    done = terazi(tmp_path, "up", "--port", "0", "--context", "512", TERAZI_LLAMA_SERVER=str(old))
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    import subprocess
    import sys

    from running import environment

    shell = f'"{sys.executable}" -m terazi weigh demo --json | head -c 10'
    done = subprocess.run(
        ["bash", "-c", shell], env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


@pytest.mark.parametrize("given", [None, "", "0", "57", "-3", "wide"])
def test_help_is_as_wide_as_the_standard_library_thinks(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    import shutil

    from terazi.cli.main import terminal_columns

    if given is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", given)
    assert terminal_columns() == shutil.get_terminal_size().columns


def test_weighing_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    import subprocess
    import sys

    from running import environment

    code = "import sys; from terazi.cli.main import main; main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "weigh", "demo", "--context", "512", "--json"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(done.stderr.split())
    assert "terazi.placement.solve" in loaded
    slow = {"asyncio", "shutil", "pathlib", "logging", "importlib.metadata", "importlib.resources", "pydantic"}
    others = {"placement.follow", "placement.refuse", "engines.llama_cpp.launch", "engines.llama_cpp.commands"}
    assert not loaded & (slow | {f"terazi.{name}" for name in others})


def test_a_command_with_a_draft_names_both_files_and_what_each_holds(tmp_path: Path) -> None:
    command = (
        "llama-server",
        "-m",
        str(smollm2()),
        "-md",
        str(smollm2()),
        "--spec-type",
        "draft-simple",
        "-c",
        "4096",
    )
    done = terazi(tmp_path, "weigh", "--json", "--", *command)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (draft,) = document["companions"]
    assert (draft["part"], draft["name"]) == ("draft", document["model"]["name"])
    by_part: dict[str, int] = {}
    for line in document["bill"]["lines"]:
        by_part[line["part"]] = by_part.get(line["part"], 0) + line["bytes"]
    assert set(by_part) == {"", "draft"}
    (host,) = document["plan"]["devices"]
    assert host["beside_bytes"] == by_part["draft"]
    assert any("guessing ahead" in text for text in document["forecast"]["basis"])
    again = json.loads(terazi(tmp_path, "weigh", "--json", "--", *document["plan"]["argv"]).stdout)
    assert again["bill"]["lines"] == document["bill"]["lines"]
    page = terazi(tmp_path, "weigh", "--", *command).stdout
    assert "[draft]" in page
    assert "= beside the model" in page


def test_a_draft_that_comes_to_nothing_is_said(tmp_path: Path) -> None:
    done = terazi(
        tmp_path, "weigh", "--", "llama-server", "-m", str(smollm2()), "-md", str(smollm2()), "-c", "4096"
    )
    assert done.returncode == 0, done.stderr
    assert "--spec-type draft-simple" in done.stderr


def test_variables_of_the_shell_count_below_those_of_the_command(tmp_path: Path) -> None:
    def context(*words: str, **extra: str) -> int:
        ran = terazi(tmp_path, "weigh", "--json", "--", *words, "-m", str(smollm2()), "-np", "1", **extra)
        assert ("LLAMA_ARG_CTX_SIZE" in ran.stderr) == bool(extra)
        return int(json.loads(ran.stdout)["plan"]["settings"]["n_ctx"])

    assert context("llama-server") == 0
    assert context("llama-server", LLAMA_ARG_CTX_SIZE="1024") == 1024
    assert context("env", "LLAMA_ARG_CTX_SIZE=2048", "llama-server", LLAMA_ARG_CTX_SIZE="1024") == 2048

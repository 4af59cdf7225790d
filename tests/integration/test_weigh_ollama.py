"""``terazi weigh`` under Ollama's rules: a store, a Modelfile, ``--engine ollama``; held against the same command
of llama-server."""

import json
from pathlib import Path
from typing import Any

import pytest

from demo_files import smollm2
from model_zoo import llama8b
from ollama_store import add_model
from running import terazi

LIBRARY = "registry.ollama.ai/library"
CARDS = "2x RTX 3090 + 64GiB"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ollama")
    model = smollm2().read_bytes()
    add_model(
        folder, f"{LIBRARY}/smollm2/135m", model, parameters={"num_ctx": 2048, "temperature": 0.1, "numctx": 1}
    )
    return folder


def weigh(home: Path, *words: str, code: int = 0, **variables: str) -> dict[str, Any]:
    done = terazi(home, "weigh", "--json", *words, **variables)
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    document["notes"] = done.stderr
    return document  # type: ignore[no-any-return]  # whatever JSON holds


def by_term(document: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    return {(x["device"], x["term"], x["formula"]): x["bytes"] for x in document["bill"]["lines"]}


def test_ollama_run_is_the_llama_server_that_it_starts(tmp_path: Path, store: Path) -> None:
    ollama = weigh(
        tmp_path, "--on", CARDS, "--", "OLLAMA_NUM_PARALLEL=2", "OLLAMA_KV_CACHE_TYPE=q8_0", "OLLAMA_NUMPARALLEL=3",
        "ollama", "run", "smollm2:135m", OLLAMA_MODELS=str(store),
    )  # fmt: skip
    assert (ollama["plan"]["engine"], ollama["bill"]["engine"]) == ("ollama", "ollama")
    assert "numctx" in ollama["notes"]
    assert "OLLAMA_NUMPARALLEL" in ollama["notes"]
    assert ollama["workload"]["context"] == 2048
    assert ollama["workload"]["users"] == 2
    reasons = " ".join(ollama["plan"]["reasons"])
    assert "b10488" in reasons
    assert "one card is enough" in reasons
    same = weigh(
        tmp_path, "--on", "RTX 3090 + 64GiB", "--", "llama-server", "-m", str(smollm2()), "-c", "4096", "-np", "2",
        "-ctk", "q8_0", "-ctv", "q8_0", "-b", "512", "-ub", "512", "-sm", "none", "--fit", "off",
    )  # fmt: skip
    assert by_term(ollama) == by_term(same)


def test_what_ollama_believes_stands_beside_what_it_will_hold(tmp_path: Path, store: Path) -> None:
    document = weigh(tmp_path, "ollama:smollm2:135m", "--engine", "ollama", "--on", CARDS, OLLAMA_MODELS=str(store))
    believes = next(r for r in document["plan"]["reasons"] if "believes" in r)
    # PredictServerVRAM: the file, and 30 layers of 3 heads of 64 for 2048 tokens, f16
    size = smollm2().stat().st_size + 2 * 30 * 3 * 64 * 2048 * 2
    assert f"{size / 2**20:.2f} MiB" in believes
    held = sum(d["total_bytes"] for d in document["plan"]["devices"] if d["id"] != "Host")
    assert any(f"{held / 2**20:.2f} MiB" in r for r in document["plan"]["reasons"])


def test_a_modelfile(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_text('FROM smollm2:135m\nPARAMETER num_ctx 1024\nPARAMETER num_gpu 10\nSYSTEM """a\nb"""\n')
    document = weigh(tmp_path, str(path), "--on", CARDS, OLLAMA_MODELS=str(store))
    assert document["workload"]["context"] == 1024, "the Modelfile overrides the model"
    assert document["plan"]["settings"]["n_gpu_layers"] == 10
    made = weigh(
        tmp_path, "--on", CARDS, "--", "ollama", "create", "mine", "-f", str(path), OLLAMA_MODELS=str(store)
    )
    assert by_term(made) == by_term(document)


def test_a_modelfile_beside_its_model(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").symlink_to(smollm2())
    path = tmp_path / "x.modelfile"
    path.write_text("FROM ./weights.gguf\n")
    document = weigh(tmp_path, str(path), "--context", "512", "--kv-type", "q4_0", "--on", CARDS)
    assert document["model"]["files"][0]["path"] == str(tmp_path / "weights.gguf")
    assert document["plan"]["settings"]["type_k"] == "q4_0"
    path.write_text("FROM ./weights.gguf\nADAPTER ./none.gguf\n")
    assert "no file" in terazi(tmp_path, "weigh", str(path), "--on", CARDS).stderr
    path.write_text("FROM ./weights.gguf\nNONSENSE\n")
    refused = terazi(tmp_path, "weigh", str(path), "--on", CARDS)
    assert refused.returncode == 2
    assert "line 2" in refused.stderr


def test_what_does_not_fit_goes_where_fit_puts_it(tmp_path: Path) -> None:
    path = llama8b(tmp_path / "llama8b.gguf")
    document = weigh(tmp_path, str(path), "--engine", "ollama", "--context", "32768", "--on", "RTX 3070 + 64GiB")
    assert document["verdict"] == "fits-offloaded"
    layers = document["plan"]["settings"]["n_gpu_layers"]
    assert 0 < layers < 33
    card = document["plan"]["devices"][0]
    assert any("--fit keeps 1.00 GiB" in reason for reason in document["plan"]["reasons"])
    more = ("-ngl", str(layers + 1))
    one_more = weigh(
        tmp_path, "--on", "RTX 3070 + 64GiB", "--", "llama-server", "-m", str(path), "-c", "32768", "-np", "1",
        "-b", "512", "-ub", "512", *more,
    )  # fmt: skip
    free = next(d["memory_free_bytes"] for d in document["machine"]["devices"])
    context = next(x["bytes"] for x in document["bill"]["lines"] if x["formula"] == "driver-context")
    assert card["total_bytes"] - context <= free - 2**30
    assert one_more["plan"]["devices"][0]["total_bytes"] - context > free - 2**30
    plain = terazi(
        tmp_path, "weigh", "--on", "RTX 3070 + 64GiB", "--", "llama-server", "-m", str(path), "-c", "32768",
        "-np", "1", "-b", "512", "-ub", "512",
    )  # fmt: skip
    assert plain.returncode == 3, "as it stands it does not fit"
    assert f"-ngl {layers} " in next(line for line in plain.stderr.splitlines() if "--fit would go on" in line)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--", "ollama", "serve"), "ollama run NAME"),
        (("--", "ollama", "run", "absent"), "smollm2:135m"),
        (("--", "ollama", "run", "--nonsense", "smollm2:135m"), "--nonsense"),
        (("--", "OLLAMA_KV_CACHE_TYPE=q9", "ollama", "run", "smollm2:135m"), "q8_0"),
        (("demo", "--engine", "ollama", "--tensor-split", "1,2"), "tensor_split"),
    ],
)
def test_what_is_refused(tmp_path: Path, store: Path, words: tuple[str, ...], says: str) -> None:
    done = terazi(tmp_path, "weigh", "--on", CARDS, *words, OLLAMA_MODELS=str(store))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr

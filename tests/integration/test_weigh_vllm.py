"""``terazi weigh`` for vLLM: MODELs and command lines, from a folder on disk to exit codes and documents."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from running import terazi
from safetensors_writer import write

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 16_384,
    "vocab_size": 49_152,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    rows: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": ("BF16", (49_152, 256))}
    for layer in range(8):
        prefix = f"model.layers.{layer}."
        rows |= {
            f"{prefix}self_attn.q_proj.weight": ("BF16", (512, 256)),
            f"{prefix}self_attn.k_proj.weight": ("BF16", (256, 256)),
            f"{prefix}self_attn.v_proj.weight": ("BF16", (256, 256)),
            f"{prefix}self_attn.o_proj.weight": ("BF16", (256, 512)),
            f"{prefix}mlp.gate_proj.weight": ("BF16", (512, 256)),
            f"{prefix}mlp.up_proj.weight": ("BF16", (512, 256)),
            f"{prefix}mlp.down_proj.weight": ("BF16", (256, 512)),
            f"{prefix}input_layernorm.weight": ("BF16", (256,)),
            f"{prefix}post_attention_layernorm.weight": ("BF16", (256,)),
        }
    rows |= {"model.norm.weight": ("BF16", (256,)), "lm_head.weight": ("BF16", (49_152, 256))}
    write(folder / "model.safetensors", rows)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def document(home: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = terazi(home, "weigh", "--json", "--on", "16GiB ddr4", *words)
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_safetensors_model_is_weighed_for_vllm(model: Path, tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "--on", "2x RTX 3090 + 64GiB", str(model), "--context", "4096")
    assert done.returncode == 0, done.stderr
    assert "bill (vllm 0.32.0)" in done.stdout
    assert "verdict: fits (CUDA0" in done.stdout
    assert "forecast (80 %" in done.stdout
    assert "between tokens" in done.stdout


def test_a_command_line_holds_what_a_real_engine_reported(model: Path, tmp_path: Path) -> None:
    """-tp 2 and 1 GiB each: "CPU KV cache size: 262,144 tokens"."""
    command = f"env VLLM_CPU_KVCACHE_SPACE=1 vllm serve {model} -tp 2 --enforce-eager"
    found = document(tmp_path, "--", *shlex.split(command))
    assert found["bill"]["engine"] == "vllm"
    assert found["verdict"] == "fits"
    speed = found["forecast"]["decode_tok_s"]
    assert speed["low"] < speed["mid"] < speed["high"]
    assert "262144 tokens" in " ".join(found["plan"]["reasons"])
    assert found["plan"]["argv"][:3] == ["vllm", "serve", str(model)]
    assert sum(line["bytes"] for line in found["bill"]["lines"]) == found["bill"]["total_bytes"]


def test_what_was_typed_out_again_gives_the_same_plan(model: Path, tmp_path: Path) -> None:
    first = document(tmp_path, str(model), "--context", "2048", "--users", "3")
    second = document(tmp_path, "--", *first["plan"]["argv"])
    assert second["bill"]["lines"] == first["bill"]["lines"]
    assert second["plan"]["id"] == first["plan"]["id"]


def test_a_refusal_has_exit_code_3_and_what_fits(model: Path, tmp_path: Path) -> None:
    words = ["vllm", "serve", str(model), "--kv-cache-memory-bytes", "50M", "--enforce-eager"]
    found = document(tmp_path, "--", *words, code=3)
    assert found["verdict"] == "refused"
    changes = [a["change"] for a in found["refusal"]["alternatives"]]
    length = next(change for change in changes if change.startswith("--max-model-len"))
    again = document(tmp_path, "--", *words, *length.split())
    assert again["verdict"] == "fits"


def test_a_flag_that_vllm_lacks_is_named(model: Path, tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "--", "vllm", "serve", str(model), "--swap-space", "4")
    assert done.returncode == 2
    assert "--swap-space" in done.stderr
    assert "--kv-offloading-size" in done.stderr


def test_a_gguf_model_can_be_asked_about_for_vllm_and_is_refused(tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", "demo", "--engine", "vllm")
    assert done.returncode == 3
    assert "GGUF" in done.stdout


def test_settings_of_the_other_engine_are_named(model: Path, tmp_path: Path) -> None:
    done = terazi(tmp_path, "weigh", str(model), "--gpu-layers", "3")
    assert done.returncode == 2
    assert "n_gpu_layers" in done.stderr


def test_vllm_and_llama_cpp_stand_in_one_file_of_commands(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "commands"
    file.write_text(f"vllm serve {model} --kv-cache-memory-bytes 100M\nvllm serve {model} --no-such-flag\n")
    done = terazi(tmp_path, "weigh", "--on", "16GiB ddr4", "--commands", str(file))
    assert done.returncode == 1
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["schema"], second["schema"]) == ("terazi.weighing/1", "terazi.error/1")


def test_a_short_model_is_weighed_at_its_own_length(model: Path, tmp_path: Path) -> None:
    """The usual prompt and answer are longer than what it was trained for, and nobody asked for them."""
    (model / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 512}))
    short = document(tmp_path, str(model))
    assert short["verdict"] == "fits"
    assert (short["workload"]["context"], short["workload"]["prompt"], short["workload"]["output"]) == (
        512,
        384,
        128,
    )

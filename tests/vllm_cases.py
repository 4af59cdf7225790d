"""Models and devices for tests of vLLM's rules."""

import json
from pathlib import Path
from typing import Any

from terazi.hardware.machine import Basis, Device, Figure, Host
from terazi.memory.vllm.model import read_model
from terazi.memory.vllm.resolve import Resolved, resolve
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.vllm.target import Platform, Target
from terazi.models.from_safetensors import spec_of
from terazi.models.hf_config import parse_config
from terazi.models.spec import ModelSpec, Tensor
from terazi.units import GIB, MIB

#: config.json files of published models, cut to a few layers.
CONFIGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "golden/vllm/configs.json").read_text())
CPU = Target(platform=Platform.CPU, isa=frozenset({"avx512_bf16"}))
CARD = Target(platform=Platform.CUDA, capability=90, memory_bytes=80 * GIB, name="NVIDIA H100 80GB")


def spec(config: dict[str, Any], tensors: tuple[Tensor, ...] = ()) -> ModelSpec:
    parsed = parse_config(json.dumps(config).encode(), "m")
    form = "safetensors" if tensors else "config"
    return spec_of(parsed, tensors, form=form, name="m", origin="m")


def resolved(config: dict[str, Any], target: Target = CPU, **settings: Any) -> Resolved:
    return resolve(read_model(spec(config)), VllmSettings(**settings), target)


def llama(config: dict[str, Any]) -> ModelSpec:
    """*config* with the tensors that a Llama of these sizes has."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim", hidden // heads)
    rows: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        rows |= {
            f"{prefix}self_attn.q_proj.weight": (heads * size, hidden),
            f"{prefix}self_attn.k_proj.weight": (kv_heads * size, hidden),
            f"{prefix}self_attn.v_proj.weight": (kv_heads * size, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, heads * size),
            f"{prefix}mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}mlp.up_proj.weight": (inner, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, inner),
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
        }
    rows["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        rows["lm_head.weight"] = (config["vocab_size"], hidden)
    return spec(config, tuple(_tensor(name, shape) for name, shape in rows.items()))


def _tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    elements = 1
    for extent in shape:
        elements *= extent
    parts = name.split(".")
    block = int(parts[2]) if "layers" in parts else None
    return Tensor(name, shape, "BF16", 2 * elements, 0, 0, block)


HOST_MACHINE = Host(
    cpu_name="CPU", isa=frozenset(), cores=8, sockets=1, ram_total_bytes=64 * GIB, ram_available_bytes=60 * GIB
)


def card(number: int, memory: int = 24 * GIB, name: str = "NVIDIA GeForce RTX 3090") -> Device:
    figure = Figure(value=1e12, basis=Basis.CATALOGUE)
    return Device(
        id=f"CUDA{number}",
        name=name,
        vendor="nvidia",
        backend="cuda",
        memory_total_bytes=memory,
        memory_free_bytes=memory - 400 * MIB,
        memory_bandwidth=figure,
        flops_fp16=figure,
        tdp_w=figure,
        context_bytes=Figure(value=246 * MIB, basis=Basis.ASSUMED),
    )

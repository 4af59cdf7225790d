"""Writes safetensors headers for tests, right ones and wrong ones, without data behind them."""

import json
from collections.abc import Mapping
from pathlib import Path

Rows = Mapping[str, tuple[str, tuple[int, ...]]]
_BITS = {"F4": 4, "F8_E4M3": 8, "U8": 8, "I8": 8, "F16": 16, "BF16": 16, "I32": 32, "F32": 32, "I64": 64}


def entries(rows: Rows) -> tuple[dict[str, object], int]:
    """The header's entries, data laid out in the order of *rows*, and how long the data is."""
    made: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in rows.items():
        bits = _BITS[dtype]
        for extent in shape:
            bits *= extent
        made[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + bits // 8]}
        end += bits // 8
    return made, end


def head(header: object, *, pad: int = 0) -> bytes:
    """A header's bytes: its length, then *header* as JSON with *pad* blanks behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return len(text).to_bytes(8, "little") + text


def write(path: Path, rows: Rows, *, metadata: Mapping[str, str] | None = None, pad: int = 0) -> Path:
    """A sparse file: its header, and a hole in place of the data."""
    made, data_bytes = entries(rows)
    data = head({"__metadata__": dict(metadata), **made} if metadata else made, pad=pad)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + data_bytes)
    return path


#: A two-layer Llama of 64 wide, as ``LlamaForCausalLM.save_pretrained`` names and shapes it.
TINY_CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_scaling": None,
}


def tiny_rows(dtype: str = "BF16") -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of ``TINY_CONFIG``."""
    rows: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": (dtype, (100, 64))}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        rows |= {
            f"{prefix}self_attn.q_proj.weight": (dtype, (64, 64)),
            f"{prefix}self_attn.k_proj.weight": (dtype, (32, 64)),
            f"{prefix}self_attn.v_proj.weight": (dtype, (32, 64)),
            f"{prefix}self_attn.o_proj.weight": (dtype, (64, 64)),
            f"{prefix}mlp.gate_proj.weight": (dtype, (128, 64)),
            f"{prefix}mlp.up_proj.weight": (dtype, (128, 64)),
            f"{prefix}mlp.down_proj.weight": (dtype, (64, 128)),
            f"{prefix}input_layernorm.weight": (dtype, (64,)),
            f"{prefix}post_attention_layernorm.weight": (dtype, (64,)),
        }
    return {**rows, "model.norm.weight": (dtype, (64,)), "lm_head.weight": (dtype, (100, 64))}

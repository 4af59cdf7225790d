"""Sparse twins of well-known models: true hyperparameters and shapes, a hole where the weights would be.

Hyperparameters are those of the published model configurations. Every matrix has the one type *quant* (the
embedding or output matrix that makes logits is q6_K, as llama-quantize does), norms and the router are f32, so
sizes are near the published Q4_K_M files, not equal to them.
"""

from collections.abc import Mapping
from pathlib import Path

from gguf_writer import TensorRow, write_gguf
from terazi.models.ggml_types import TYPE_BY_NAME

#: ``general.file_type`` of a quantisation whose matrices mostly have this type.
_FILE_TYPE = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "BF16": 32}
_NAMES = {name.upper(): name for name in TYPE_BY_NAME}


def _twin(
    path: Path,
    arch: str,
    *,
    name: str,
    quant: str,
    keys: Mapping[str, object],
    head: Mapping[str, tuple[int, ...]],
    block: Mapping[str, tuple[int, ...]],
    vocab_size: int,
    tokenizer: str,
    merges: int = 0,
) -> Path:
    matrix = _NAMES[quant.upper()]
    logits = "output.weight" if "output.weight" in head else "token_embd.weight"

    def row(tensor: str, shape: tuple[int, ...]) -> TensorRow:
        if len(shape) == 1 or "ffn_gate_inp" in tensor:
            return tensor, shape, "f32"
        return tensor, shape, "q6_K" if tensor == logits and matrix not in {"f16", "bf16", "f32"} else matrix

    count = keys[".block_count"]
    assert isinstance(count, int)
    tensors = [row(k, v) for k, v in head.items()]
    tensors += [row(f"blk.{i}.{k}", v) for i in range(count) for k, v in block.items()]
    metadata = {"general.name": name, "general.file_type": _FILE_TYPE[quant.upper()], **keys}
    return write_gguf(path, arch, metadata, tensors, vocab_size=vocab_size, tokenizer=tokenizer, merges=merges)


def _llama(
    path: Path, name: str, quant: str, *, layers: int, width: int, ff: int, heads: int, context: int, merges: int
) -> Path:
    vocab, kv = 128256, 1024
    return _twin(
        path,
        "llama",
        name=name,
        quant=quant,
        keys={
            ".context_length": context,
            ".embedding_length": width,
            ".block_count": layers,
            ".feed_forward_length": ff,
            ".attention.head_count": heads,
            ".attention.head_count_kv": 8,
            ".attention.layer_norm_rms_epsilon": 1e-5,
            ".rope.freq_base": 500000.0,
            ".rope.dimension_count": 128,
            ".vocab_size": vocab,
        },
        head={
            "token_embd.weight": (width, vocab),
            "output_norm.weight": (width,),
            "output.weight": (width, vocab),
            "rope_freqs.weight": (64,),
        },
        block={
            "attn_norm.weight": (width,),
            "attn_q.weight": (width, width),
            "attn_k.weight": (width, kv),
            "attn_v.weight": (width, kv),
            "attn_output.weight": (width, width),
            "ffn_norm.weight": (width,),
            "ffn_gate.weight": (width, ff),
            "ffn_down.weight": (ff, width),
            "ffn_up.weight": (width, ff),
        },
        vocab_size=vocab,
        tokenizer="gpt2",
        merges=merges,
    )


def llama70b(path: Path, quant: str = "Q4_K", *, merges: int = 0) -> Path:
    """Llama 3.3 70B: 80 layers, 64 heads over 8 KV heads, 723 tensors plus the rope factors."""
    return _llama(
        path,
        "Llama-3.3-70B-Instruct",
        quant,
        layers=80,
        width=8192,
        ff=28672,
        heads=64,
        context=131072,
        merges=merges,
    )


def llama8b(path: Path, quant: str = "Q4_K", *, merges: int = 0) -> Path:
    """Llama 3.1 8B: 32 layers, 32 heads over 8 KV heads."""
    return _llama(
        path,
        "Llama-3.1-8B-Instruct",
        quant,
        layers=32,
        width=4096,
        ff=14336,
        heads=32,
        context=131072,
        merges=merges,
    )


def gemma3_27b(path: Path, quant: str = "Q4_K") -> Path:
    """Gemma 3 27B: 62 layers, window of 1024 on five of six, tied embeddings, head size apart from the width."""
    width, ff, vocab = 5376, 21504, 262208
    return _twin(
        path,
        "gemma3",
        name="Gemma-3-27B-it",
        quant=quant,
        keys={
            ".context_length": 131072,
            ".embedding_length": width,
            ".block_count": 62,
            ".feed_forward_length": ff,
            ".attention.head_count": 32,
            ".attention.head_count_kv": 16,
            ".attention.layer_norm_rms_epsilon": 1e-6,
            ".attention.key_length": 128,
            ".attention.value_length": 128,
            ".attention.sliding_window": 1024,
            ".rope.freq_base": 1000000.0,
            ".rope.scaling.type": "linear",
            ".rope.scaling.factor": 8.0,
        },
        head={"token_embd.weight": (width, vocab), "output_norm.weight": (width,)},
        block={
            "attn_norm.weight": (width,),
            "attn_q.weight": (width, 4096),
            "attn_k.weight": (width, 2048),
            "attn_v.weight": (width, 2048),
            "attn_output.weight": (4096, width),
            "attn_q_norm.weight": (128,),
            "attn_k_norm.weight": (128,),
            "post_attention_norm.weight": (width,),
            "ffn_norm.weight": (width,),
            "ffn_gate.weight": (width, ff),
            "ffn_down.weight": (ff, width),
            "ffn_up.weight": (width, ff),
            "post_ffw_norm.weight": (width,),
        },
        vocab_size=vocab,
        tokenizer="llama",
    )


def mixtral_8x7b(path: Path, quant: str = "Q4_K") -> Path:
    """Mixtral 8x7B: the llama architecture with eight experts, two of them used for a token."""
    width, ff, vocab, experts = 4096, 14336, 32000, 8
    return _twin(
        path,
        "llama",
        name="Mixtral-8x7B-Instruct",
        quant=quant,
        keys={
            ".context_length": 32768,
            ".embedding_length": width,
            ".block_count": 32,
            ".feed_forward_length": ff,
            ".attention.head_count": 32,
            ".attention.head_count_kv": 8,
            ".attention.layer_norm_rms_epsilon": 1e-5,
            ".rope.freq_base": 1000000.0,
            ".rope.dimension_count": 128,
            ".vocab_size": vocab,
            ".expert_count": experts,
            ".expert_used_count": 2,
        },
        head={
            "token_embd.weight": (width, vocab),
            "output_norm.weight": (width,),
            "output.weight": (width, vocab),
        },
        block={
            "attn_norm.weight": (width,),
            "attn_q.weight": (width, width),
            "attn_k.weight": (width, 1024),
            "attn_v.weight": (width, 1024),
            "attn_output.weight": (width, width),
            "ffn_norm.weight": (width,),
            "ffn_gate_inp.weight": (width, experts),
            "ffn_gate_exps.weight": (width, ff, experts),
            "ffn_down_exps.weight": (ff, width, experts),
            "ffn_up_exps.weight": (width, ff, experts),
        },
        vocab_size=vocab,
        tokenizer="llama",
    )

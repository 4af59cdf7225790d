"""Sparse twins of well-known models: true hyperparameters and shapes, a hole where the weights would be.

Hyperparameters are those of the published model configurations. Every matrix has the one type *quant* (the
embedding or output matrix that makes logits is q6_K, as llama-quantize does), norms and the router are f32, so
sizes are near the published Q4_K_M files, not equal to them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gguf_writer import INT32, UINT16, TensorRow, Typed, header, vocabulary, write_gguf
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


def kimi_k2(path: Path, *, parts: int = 1) -> Path:
    """Kimi K2: a trillion parameters, 61 layers of 384 experts behind a dense one, latent attention (deepseek2).

    With *parts* it is split as llama-gguf-split does; *path* is then a prefix, and the first part is returned.
    """
    width, heads, experts, rank, vocab = 7168, 64, 384, 512, 163840
    metadata: dict[str, object] = {
        "general.architecture": "deepseek2",
        "general.name": "Kimi-K2-Instruct",
        "general.file_type": _FILE_TYPE["Q4_K"],
    }
    keys = {
        "context_length": 131072,
        "embedding_length": width,
        "block_count": 61,
        "feed_forward_length": 18432,
        "attention.head_count": heads,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.q_lora_rank": 1536,
        "attention.kv_lora_rank": rank,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "rope.dimension_count": 64,
        "rope.freq_base": 50000.0,
        "leading_dense_block_count": 1,
        "expert_count": experts,
        "expert_used_count": 8,
        "expert_shared_count": 1,
        "expert_feed_forward_length": 2048,
        "expert_weights_scale": 2.827,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "vocab_size": vocab,
    }
    metadata |= {f"deepseek2.{key}": value for key, value in keys.items()}
    metadata |= vocabulary(vocab, "gpt2", merges=163_328)
    attention = {
        "attn_norm.weight": (width,),
        "attn_q_a_norm.weight": (1536,),
        "attn_q_a.weight": (width, 1536),
        "attn_q_b.weight": (1536, heads * 192),
        "attn_kv_a_norm.weight": (rank,),
        "attn_kv_a_mqa.weight": (width, 576),
        "attn_k_b.weight": (128, rank, heads),
        "attn_v_b.weight": (rank, 128, heads),
        "attn_output.weight": (heads * 128, width),
        "ffn_norm.weight": (width,),
    }
    dense = {"ffn_gate.weight": (width, 18432), "ffn_down.weight": (18432, width), "ffn_up.weight": (width, 18432)}
    mixed = {
        "ffn_gate_inp.weight": (width, experts),
        "exp_probs_b.bias": (experts,),
        "ffn_gate_exps.weight": (width, 2048, experts),
        "ffn_down_exps.weight": (2048, width, experts),
        "ffn_up_exps.weight": (width, 2048, experts),
        "ffn_gate_shexp.weight": (width, 2048),
        "ffn_down_shexp.weight": (2048, width),
        "ffn_up_shexp.weight": (width, 2048),
    }
    shapes = {"token_embd.weight": (width, vocab), "output_norm.weight": (width,), "output.weight": (width, vocab)}
    for index in range(61):
        block = attention | (mixed if index else dense)
        shapes |= {f"blk.{index}.{name}": shape for name, shape in block.items()}
    rows = [_quantised(name, shape) for name, shape in shapes.items()]
    return _write_parts(path, metadata, rows, parts)


def _quantised(name: str, shape: tuple[int, ...]) -> TensorRow:
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return name, shape, "f32"
    return name, shape, "q4_K" if shape[0] % 256 == 0 else "q5_0"


def _write_parts(path: Path, metadata: Mapping[str, object], rows: Sequence[TensorRow], parts: int) -> Path:
    """A sparse model in so many files."""
    if parts == 1:
        names, shares = [path], [rows]
    else:
        names = [path.with_name(f"{path.name}-{n + 1:05d}-of-{parts:05d}.gguf") for n in range(parts)]
        # the first part holds no tensors, as llama-gguf-split --no-tensor-first-split makes it
        each = -(-len(rows) // (parts - 1))
        shares = [[], *(rows[n * each : (n + 1) * each] for n in range(parts - 1))]
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        own: dict[str, object] = dict(metadata) if number == 0 else {}
        if parts > 1:
            own["split.no"] = Typed(UINT16, number)
            own["split.count"] = Typed(UINT16, parts)
            own["split.tensors.count"] = Typed(INT32, len(rows))
        raw, data = header(own, share)
        with name.open("wb") as file:
            file.write(raw)
            file.truncate(len(raw) + data)
    return names[0]

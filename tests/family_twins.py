"""Small sparse files of families that the measured cases don't have, for the engine to weigh."""

from pathlib import Path

from gguf_writer import TensorRow, write_gguf

WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCAB, BLOCKS = 512, 8, 2, 64, 1536, 8192, 10

#: Architecture → (extra keys, extra tensors of a block, has its own output matrix).
TWINS: dict[str, tuple[dict[str, object], dict[str, tuple[int, ...]], bool]] = {
    "qwen3": ({}, {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}, True),
    "gemma": ({}, {}, False),
    "gemma2": (
        {".attention.sliding_window": 1024, ".final_logit_softcapping": 30.0, ".attn_logit_softcapping": 50.0},
        {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)},
        False,
    ),
    "internlm2": ({}, {}, True),
    "smollm3": ({}, {}, False),
    "mistral3": ({".attention.temperature_scale": 0.1, ".rope.scaling.original_context_length": 4096}, {}, True),
}


def write_twin(folder: Path, architecture: str) -> Path:
    """Write the twin of *architecture* and return its path."""
    keys, extra, has_output = TWINS[architecture]
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (WIDTH, HEADS * HEAD),
        "attn_k.weight": (WIDTH, KV_HEADS * HEAD),
        "attn_v.weight": (WIDTH, KV_HEADS * HEAD),
        "attn_output.weight": (HEADS * HEAD, WIDTH),
        "ffn_norm.weight": (WIDTH,),
        "ffn_gate.weight": (WIDTH, INNER),
        "ffn_down.weight": (INNER, WIDTH),
        "ffn_up.weight": (WIDTH, INNER),
        **extra,
    }
    rows: list[TensorRow] = [("token_embd.weight", (WIDTH, VOCAB), "q6_K"), ("output_norm.weight", (WIDTH,), "f32")]
    if has_output:
        rows.append(("output.weight", (WIDTH, VOCAB), "q6_K"))
    for index in range(BLOCKS):
        rows += [
            (f"blk.{index}.{name}", shape, "f32" if len(shape) == 1 else "q4_K") for name, shape in block.items()
        ]
    metadata = {
        ".context_length": 32768,
        ".embedding_length": WIDTH,
        ".block_count": BLOCKS,
        ".feed_forward_length": INNER,
        ".attention.head_count": HEADS,
        ".attention.head_count_kv": KV_HEADS,
        ".attention.key_length": HEAD,
        ".attention.value_length": HEAD,
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".rope.dimension_count": HEAD,
        **keys,
    }
    return write_gguf(
        folder / f"{architecture}.gguf", architecture, metadata, rows, vocab_size=VOCAB, tokenizer="llama"
    )

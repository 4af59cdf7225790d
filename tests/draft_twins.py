"""Small sparse files of models with a draft head (NextN, MTP), for the engine to load."""

from collections.abc import Callable
from pathlib import Path

import family_twins as f
import recurrent_twins as r
from gguf_writer import TensorRow, write_gguf

#: The draft head's own table of embeddings, its own norm and its own output matrix.
OWN_TABLES: f.Shapes = {
    "nextn.embed_tokens.weight": (f.WIDTH, f.VOCAB),
    "nextn.shared_head_head.weight": (f.WIDTH, f.VOCAB),
    "nextn.shared_head_norm.weight": (f.WIDTH,),
}
NO_INDEXER: f.Shapes = {
    "indexer.k_norm.weight": (),
    "indexer.k_norm.bias": (),
    "indexer.proj.weight": (),
    "indexer.attn_k.weight": (),
    "indexer.attn_q_b.weight": (),
}


def _with_tables(of_block: Callable[[int], f.Shapes]) -> Callable[[int], f.Shapes]:
    return lambda block: of_block(block) | (OWN_TABLES if block == 10 else {})


def _latent_block(block: int) -> f.Shapes:
    return f.sparse_block(block) | NO_INDEXER


def _mimo2_block(block: int) -> f.Shapes:
    """The draft head wants its queries, keys and values in one matrix, and no experts."""
    shapes = f.mimo2_block(block)
    if block != 10:
        return shapes
    experts = dict.fromkeys((name for name in shapes if "exp" in name or "ffn" in name), ())
    dense: f.Shapes = {
        "ffn_gate.weight": (f.WIDTH, f.INNER),
        "ffn_up.weight": (f.WIDTH, f.INNER),
        "ffn_down.weight": (f.INNER, f.WIDTH),
    }
    joined: f.Shapes = {
        "attn_q.weight": (),
        "attn_k.weight": (),
        "attn_v.weight": (),
        "attn_qkv.weight": (f.WIDTH, f.HEADS * f.HEAD + 2 * f.KV_HEADS * (f.HEAD + f.HEAD // 2)),
        "layer_output_norm.weight": (f.WIDTH,),
    }
    return shapes | experts | dense | joined


#: The draft block behind ten others, the first of which has no experts.
def _mixed(shapes: f.Shapes, *, bias: bool = True) -> Callable[[int], f.Shapes]:
    def of_block(block: int) -> f.Shapes:
        mixed = f.experts(shared=f.EXPERT, bias=bias) if block else {}
        return {**shapes, **mixed, **(f.DRAFT if block == 10 else {})}

    return of_block


_MIXED_KEYS: dict[str, object] = {
    **f.EXPERT_KEYS,
    ".expert_shared_feed_forward_length": f.EXPERT,
    ".leading_dense_block_count": 1,
    ".nextn_predict_layers": 1,
    ".expert_weights_norm": True,
    ".expert_weights_scale": 2.5,
}
_WINDOWS: dict[str, object] = {
    ".attention.sliding_window": 512,
    ".attention.sliding_window_pattern": [block % 4 > 0 for block in range(11)],
}
_GLM4MOE, _SPARSE, _MIMO2 = f.TWINS["glm4moe"], f.TWINS["deepseek32"], f.TWINS["mimo2"]
FAMILIES: dict[str, f.Twin] = {
    "glm4moe": _GLM4MOE,
    "glm4moe-tables": _GLM4MOE._replace(of_block=_with_tables(_GLM4MOE.of_block), architecture="glm4moe"),
    "deepseek2": _SPARSE._replace(
        keys={key: value for key, value in _SPARSE.keys.items() if "indexer" not in key}, of_block=_latent_block
    ),
    "deepseek32": _SPARSE,
    "glm-dsa": _SPARSE,
    "hy_v3": f.Twin(_MIXED_KEYS, _mixed(f.HEAD_NORMS, bias=False), blocks=11),
    "step35": f.Twin(
        {**_MIXED_KEYS, **_WINDOWS},
        _mixed({**f.HEAD_NORMS, "attn_gate.weight": (f.WIDTH, f.HEADS)}),
        blocks=11,
    ),
    "cohere2moe": f.Twin(
        {**_MIXED_KEYS, **_WINDOWS, ".logit_scale": 0.25}, _mixed({"ffn_norm.weight": ()}, bias=False), blocks=11
    ),
    "mimo2": _MIMO2._replace(of_block=_mimo2_block),
}

_SECTIONS: dict[str, object] = {".rope.dimension_sections": [11, 11, 10, 0]}
_NEMOTRON = r.TWINS["nemotron_h_moe"]
#: The head of a Nemotron has both halves, its keys and values in the last place of the list.
_NEMOTRON_KEYS: dict[str, object] = {
    ".nextn_predict_layers": 1,
    ".attention.head_count_kv": [r.KV_HEADS if b in (*r.ATTENDING, r.BLOCKS - 1) else 0 for b in range(r.BLOCKS)],
}
RECURRENT: dict[str, r.RecurrentTwin] = {
    "qwen35": r.TWINS["qwen35-draft"],
    "qwen3next": r.TWINS["qwen3next-draft"],
    "qwen35moe": (
        "qwen35moe",
        {**r.DELTA_KEYS, **r.EXPERT_KEYS, **_SECTIONS, ".nextn_predict_layers": 1},
        r.drafting(r.TWINS["qwen35moe"][2], {**r.GATED, **r.NORM, **r.POST_NORM, **r.GATED_SHARED}),
    ),
    "nemotron_h_moe": (
        "nemotron_h_moe",
        {**_NEMOTRON[1], **_NEMOTRON_KEYS},
        r.drafting(
            _NEMOTRON[2],
            {
                **r.NORM,
                **r.ATTENTION,
                **r.POST_NORM,
                **{name: shape for name, shape in _NEMOTRON[2](r.FEEDING[0]).items() if name != "attn_norm.weight"},
            },
        ),
    ),
}
TWINS = (*FAMILIES, *RECURRENT)
_GLM4 = f.TWINS["glm4"]
#: Its draft head can't run in this build.
FAMILIES["glm4"] = _GLM4._replace(
    keys={".nextn_predict_layers": 1},
    of_block=lambda block: _GLM4.of_block(block) | (f.DRAFT if block == f.BLOCKS else {}),
    blocks=f.BLOCKS + 1,
)


def write_head_alone(folder: Path, name: str) -> Path:
    """A file with nothing but the tables and the draft block of a twin, as converters make them on demand."""
    twin = FAMILIES[name]
    missing: f.Shapes = dict.fromkeys((*f.BLOCK, *twin.of_block(0), *twin.of_block(1)), ())
    alone = twin._replace(of_block=lambda block: twin.of_block(block) if block == f.BLOCKS else missing)
    return f.write_twin(folder, f"{name}-head", alone._replace(architecture=twin.architecture or name))


def write_draft_twin(folder: Path, name: str) -> Path:
    """Write the twin *name* and return its path."""
    if name in FAMILIES:
        return f.write_twin(folder, name, FAMILIES[name])
    return r.write_recurrent_twin(folder, name, RECURRENT[name])


def write_eagle3(folder: Path, name: str, *, layers: tuple[int, int, int] = (2, 5, 9)) -> Path:
    """An EAGLE3 draft for a twin of ``family_twins``: with tables of its own, or with the model's; ``mapped`` has a
    smaller vocabulary of its own.
    """
    width, heads = f.WIDTH, f.HEADS * f.HEAD
    rows: list[TensorRow] = [
        ("fc.weight", (3 * f.WIDTH, width), "q4_K"),
        ("output_norm.weight", (width,), "f32"),
        ("blk.0.attn_norm.weight", (width,), "f32"),
        ("blk.0.attn_norm_2.weight", (width,), "f32"),
        ("blk.0.attn_q.weight", (2 * width, heads), "q4_K"),
        ("blk.0.attn_k.weight", (2 * width, f.KV_HEADS * f.HEAD), "q4_K"),
        ("blk.0.attn_v.weight", (2 * width, f.KV_HEADS * f.HEAD), "q4_K"),
        ("blk.0.attn_output.weight", (heads, width), "q4_K"),
        ("blk.0.ffn_norm.weight", (width,), "f32"),
        ("blk.0.ffn_gate.weight", (width, f.INNER), "q4_K"),
        ("blk.0.ffn_down.weight", (f.INNER, width), "q4_K"),
        ("blk.0.ffn_up.weight", (width, f.INNER), "q4_K"),
    ]
    if name == "own":
        rows += [("token_embd.weight", (width, f.VOCAB), "q6_K"), ("output.weight", (width, f.VOCAB), "q6_K")]
    if name == "mapped":
        rows += [("d2t", (f.VOCAB // 4,), "i64"), ("output.weight", (width, f.VOCAB // 4), "q6_K")]
    keys: dict[str, object] = {
        ".context_length": 32768,
        ".embedding_length": width,
        ".block_count": 1,
        ".feed_forward_length": f.INNER,
        ".attention.head_count": f.HEADS,
        ".attention.head_count_kv": f.KV_HEADS,
        ".attention.key_length": f.HEAD,
        ".attention.value_length": f.HEAD,
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".rope.dimension_count": f.HEAD,
        ".target_layers": list(layers),
        ".target_hidden_size": f.WIDTH,
        ".norm_before_residual": name == "mapped",
    }
    return write_gguf(folder / f"eagle3-{name}.gguf", "eagle3", keys, rows, vocab_size=f.VOCAB, tokenizer="llama")


def write_assistant(folder: Path) -> Path:
    """An assistant of the ``gemma4`` twin: narrower, without keys and values, three windows and a full layer."""
    width, heads, blocks = f.WIDTH // 2, f.HEADS // 2, 4
    rows: list[TensorRow] = [
        ("token_embd.weight", (width, f.VOCAB), "q6_K"),
        ("output_norm.weight", (width,), "f32"),
        ("rope_freqs.weight", (f.HEAD,), "f32"),
        ("nextn.pre_projection.weight", (2 * f.WIDTH, width), "q4_K"),
        ("nextn.post_projection.weight", (width, f.WIDTH), "q4_K"),
    ]
    for block in range(blocks):
        head = 2 * f.HEAD if block == blocks - 1 else f.HEAD
        shapes: f.Shapes = {
            "attn_norm.weight": (width,),
            "attn_q.weight": (width, heads * head),
            "attn_output.weight": (heads * head, width),
            "attn_q_norm.weight": (head,),
            "post_attention_norm.weight": (width,),
            "layer_output_scale.weight": (1,),
            "ffn_norm.weight": (width,),
            "ffn_gate.weight": (width, f.INNER),
            "ffn_up.weight": (width, f.INNER),
            "ffn_down.weight": (f.INNER, width),
            "post_ffw_norm.weight": (width,),
        }
        rows += [
            (f"blk.{block}.{name}", shape, "f32" if len(shape) == 1 else "q4_K") for name, shape in shapes.items()
        ]
    keys: dict[str, object] = {
        ".context_length": 32768,
        ".embedding_length": width,
        ".embedding_length_out": f.WIDTH,
        ".block_count": blocks,
        ".nextn_predict_layers": blocks,
        ".feed_forward_length": f.INNER,
        ".attention.head_count": heads,
        ".attention.head_count_kv": f.KV_HEADS,
        ".attention.key_length": 2 * f.HEAD,
        ".attention.value_length": 2 * f.HEAD,
        ".attention.key_length_swa": f.HEAD,
        ".attention.value_length_swa": f.HEAD,
        ".attention.sliding_window": 1024,
        ".attention.sliding_window_pattern": [block < blocks - 1 for block in range(blocks)],
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".rope.dimension_count": 2 * f.HEAD,
        ".rope.dimension_count_swa": f.HEAD,
    }
    path = folder / "assistant.gguf"
    return write_gguf(path, "gemma4-assistant", keys, rows, vocab_size=f.VOCAB, tokenizer="llama")

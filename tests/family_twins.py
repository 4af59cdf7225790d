"""Small sparse files of families that the measured cases don't have, for the engine to weigh."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from gguf_writer import TensorRow, write_gguf

WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCAB, BLOCKS = 512, 8, 2, 64, 1536, 8192, 10
EXPERTS, USED, EXPERT = 16, 4, 256
PER_LAYER, STREAMS = 256, 4
#: Compressed row, turned part, plain part and value of a head (multi-head latent attention).
RANK, TURNED, PLAIN, VALUE = 256, 32, 64, 64
INDEX_HEADS, INDEX_HEAD = 16, 128

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def no_extras(_: int) -> Shapes:
    return {}


class Twin(NamedTuple):
    """How one family differs from a plain decoder.

    Args:
        keys: extra metadata.
        of_block: extra tensors of block *n*; an empty shape takes one away.
        head: extra tensors outside of blocks.
        has_output: it has its own output matrix.
        architecture: where it isn't the twin's name.
        blocks: how many.
    """

    keys: Mapping[str, object] = MappingProxyType({})
    of_block: Callable[[int], Shapes] = no_extras
    head: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    has_output: bool = True
    architecture: str | None = None
    blocks: int = BLOCKS


HEAD_NORMS: Shapes = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
POST_NORMS: Shapes = {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
WINDOWED = [block % 5 < 4 for block in range(30)]


def gemma4_block(block: int) -> Shapes:
    """Windowed layers have narrower heads; the last third has no keys and values; every second no values."""
    width = HEAD if WINDOWED[block] else 2 * HEAD
    shapes: Shapes = {
        "attn_q.weight": (WIDTH, HEADS * width),
        "attn_k.weight": (WIDTH, KV_HEADS * width),
        "attn_v.weight": () if block % 2 else (WIDTH, KV_HEADS * width),
        "attn_output.weight": (HEADS * width, WIDTH),
        "attn_q_norm.weight": (width,),
        "attn_k_norm.weight": (width,),
        "layer_output_scale.weight": (1,),
        "inp_gate.weight": (WIDTH, PER_LAYER),
        "proj.weight": (PER_LAYER, WIDTH),
        "post_norm.weight": (WIDTH,),
        **POST_NORMS,
    }
    if block >= 20:
        shapes |= {f"attn_{part}.weight": () for part in ("k", "v", "k_norm")}
    return shapes


def per_layer_head(blocks: int) -> Shapes:
    return {
        "per_layer_token_embd.weight": (PER_LAYER * blocks, VOCAB),
        "per_layer_model_proj.weight": (WIDTH, PER_LAYER * blocks),
        "per_layer_proj_norm.weight": (PER_LAYER,),
    }


def gemma3n_block(_: int) -> Shapes:
    return {
        **HEAD_NORMS,
        **POST_NORMS,
        "inp_gate.weight": (WIDTH, PER_LAYER),
        "proj.weight": (PER_LAYER, WIDTH),
        "post_norm.weight": (WIDTH,),
        "altup_correct_coef.weight": (STREAMS, STREAMS),
        "altup_correct_scale.weight": (WIDTH,),
        "altup_predict_coef.weight": (STREAMS, STREAMS * STREAMS),
        "altup_router.weight": (WIDTH, STREAMS),
        "altup_router_norm.weight": (WIDTH,),
        "laurel_l.weight": (WIDTH, 64),
        "laurel_r.weight": (64, WIDTH),
        "laurel_post_norm.weight": (WIDTH,),
    }


def experts(*, shared: int = 0, bias: bool = False, inner: int = EXPERT) -> Shapes:
    shapes: Shapes = {
        "ffn_gate_inp.weight": (WIDTH, EXPERTS),
        "ffn_gate_exps.weight": (WIDTH, inner, EXPERTS),
        "ffn_up_exps.weight": (WIDTH, inner, EXPERTS),
        "ffn_down_exps.weight": (inner, WIDTH, EXPERTS),
        "ffn_gate.weight": (),
        "ffn_up.weight": (),
        "ffn_down.weight": (),
    }
    if shared:
        shapes |= {
            "ffn_gate_shexp.weight": (WIDTH, shared),
            "ffn_up_shexp.weight": (WIDTH, shared),
            "ffn_down_shexp.weight": (shared, WIDTH),
        }
    return shapes | ({"exp_probs_b.bias": (EXPERTS,)} if bias else {})


EXPERT_KEYS: dict[str, object] = {
    ".expert_count": EXPERTS,
    ".expert_used_count": USED,
    ".expert_feed_forward_length": EXPERT,
    ".expert_shared_count": 1,
}


#: What a block has that guesses ahead.
DRAFT: Shapes = {
    "nextn.eh_proj.weight": (2 * WIDTH, WIDTH),
    "nextn.enorm.weight": (WIDTH,),
    "nextn.hnorm.weight": (WIDTH,),
}


def old_latent_block(block: int) -> Shapes:
    """Keys and values in one matrix, as files from before ``key_length_mla`` have them."""
    return {
        "attn_q.weight": (WIDTH, HEADS * (PLAIN + TURNED)),
        "attn_k.weight": (),
        "attn_v.weight": (),
        "attn_kv_a_mqa.weight": (WIDTH, RANK + TURNED),
        "attn_kv_a_norm.weight": (RANK,),
        "attn_kv_b.weight": (RANK, HEADS * (PLAIN + VALUE)),
        "attn_output.weight": (HEADS * VALUE, WIDTH),
        **(experts(shared=EXPERT) if block else {}),
    }


SPARSE_KEYS: dict[str, object] = {
    **EXPERT_KEYS,
    ".attention.head_count_kv": 1,
    ".attention.key_length": RANK + TURNED,
    ".attention.value_length": RANK,
    ".attention.key_length_mla": PLAIN + TURNED,
    ".attention.value_length_mla": VALUE,
    ".attention.q_lora_rank": RANK,
    ".attention.kv_lora_rank": RANK,
    ".attention.indexer.head_count": INDEX_HEADS,
    ".attention.indexer.key_length": INDEX_HEAD,
    ".attention.indexer.top_k": 1024,
    ".rope.dimension_count": TURNED,
    ".leading_dense_block_count": 1,
    ".expert_gating_func": 2,
    ".expert_weights_norm": True,
    ".expert_weights_scale": 2.5,
}


def mimo2_block(block: int) -> Shapes:
    """Values are narrower than keys; full layers have more heads for them; windowed ones have sinks."""
    kv_heads = KV_HEADS if block % 5 else 2 * KV_HEADS
    shapes: Shapes = {
        "attn_k.weight": (WIDTH, kv_heads * HEAD),
        "attn_v.weight": (WIDTH, kv_heads * HEAD // 2),
        "attn_output.weight": (HEADS * HEAD // 2, WIDTH),
    }
    if block:
        shapes |= experts(bias=True)
    if block % 5:
        shapes |= {"attn_sinks.weight": (HEADS,)}
    return shapes | (DRAFT if block == 10 else {})


def sparse_block(block: int) -> Shapes:
    """Latent attention with an indexer; the eleventh block guesses one token ahead."""
    shapes: Shapes = {
        "attn_q.weight": (),
        "attn_k.weight": (),
        "attn_v.weight": (),
        "attn_q_a.weight": (WIDTH, RANK),
        "attn_q_a_norm.weight": (RANK,),
        "attn_q_b.weight": (RANK, HEADS * (PLAIN + TURNED)),
        "attn_kv_a_mqa.weight": (WIDTH, RANK + TURNED),
        "attn_kv_a_norm.weight": (RANK,),
        "attn_k_b.weight": (PLAIN, RANK, HEADS),
        "attn_v_b.weight": (RANK, VALUE, HEADS),
        "attn_output.weight": (HEADS * VALUE, WIDTH),
        "indexer.k_norm.weight": (INDEX_HEAD,),
        "indexer.k_norm.bias": (INDEX_HEAD,),
        "indexer.proj.weight": (WIDTH, INDEX_HEADS),
        "indexer.attn_k.weight": (WIDTH, INDEX_HEAD),
        "indexer.attn_q_b.weight": (RANK, INDEX_HEADS * INDEX_HEAD),
    }
    if block:
        shapes |= experts(shared=EXPERT, bias=True)
    return shapes | (DRAFT if block == 10 else {})


def experts_behind_first(block: int) -> Shapes:
    return experts(shared=EXPERT) if block else {}


def glm4moe_block(block: int) -> Shapes:
    """The last block guesses one token ahead."""
    shapes: Shapes = {**HEAD_NORMS, "post_attention_norm.weight": (WIDTH,), **NO_FFN_NORM}
    if block:
        shapes |= experts(shared=EXPERT, bias=True)
    if block == 10:
        shapes |= DRAFT
    return shapes


#: Queries, keys and values in one matrix; gate and up in one matrix; no gate at all.
JOINED: Shapes = {
    "attn_qkv.weight": (WIDTH, (HEADS + 2 * KV_HEADS) * HEAD),
    "attn_q.weight": (),
    "attn_k.weight": (),
    "attn_v.weight": (),
}
FUSED: Shapes = {"ffn_gate.weight": (), "ffn_up.weight": (WIDTH, 2 * INNER)}
FULL_KV: Shapes = {"attn_k.weight": (WIDTH, WIDTH), "attn_v.weight": (WIDTH, WIDTH)}
UNGATED: Shapes = {"ffn_gate.weight": ()}
NO_FFN_NORM: Shapes = {"ffn_norm.weight": ()}
NORM_BIASES: Shapes = {"attn_norm.bias": (WIDTH,), "ffn_norm.bias": (WIDTH,)}
UNGATED_BIASES: Shapes = {"ffn_up.bias": (INNER,), "ffn_down.bias": (WIDTH,)}
OUTPUT_BIAS: Shapes = {"output_norm.bias": (WIDTH,)}
EPSILON: dict[str, object] = {".attention.layer_norm_epsilon": 1e-5}
#: Full attention, joined, with every bias.
GPT2: Shapes = {
    **JOINED,
    **UNGATED_BIASES,
    "attn_qkv.weight": (WIDTH, 3 * WIDTH),
    "attn_qkv.bias": (3 * WIDTH,),
    "attn_output.bias": (WIDTH,),
}

#: Encoders: norms behind both halves, a norm on the embeddings, no norm on the output.
ENCODER: Shapes = {
    "attn_norm.weight": (),
    "ffn_norm.weight": (),
    "attn_k.weight": (WIDTH, WIDTH),
    "attn_v.weight": (WIDTH, WIDTH),
    "attn_output_norm.weight": (WIDTH,),
    "attn_output_norm.bias": (WIDTH,),
    "layer_output_norm.weight": (WIDTH,),
    "layer_output_norm.bias": (WIDTH,),
}
GATED_JOINED: Shapes = {**JOINED, "attn_qkv.weight": (WIDTH, 3 * WIDTH)}
ENCODER_HEAD: Shapes = {
    "token_types.weight": (WIDTH, 1),
    "token_embd_norm.weight": (WIDTH,),
    "token_embd_norm.bias": (WIDTH,),
    "output_norm.weight": (),
}


def nomic_moe_block(block: int) -> Shapes:
    shapes: Shapes = {**ENCODER, **GATED_JOINED, **UNGATED}
    if block % 2:
        shapes |= {
            "ffn_up.weight": (),
            "ffn_down.weight": (),
            "ffn_gate_inp.weight": (WIDTH, 8),
            "ffn_up_exps.weight": (WIDTH, INNER, 8),
            "ffn_down_exps.weight": (INNER, WIDTH, 8),
        }
    return shapes


ENCODER_KEYS: dict[str, object] = {
    **EPSILON,
    ".attention.head_count_kv": HEADS,
    ".attention.causal": False,
    "tokenizer.ggml.token_type_count": 1,
}

TWINS: dict[str, Twin] = {
    "qwen3": Twin(of_block=lambda _: HEAD_NORMS),
    "gemma": Twin(has_output=False),
    "gemma2": Twin(
        {".attention.sliding_window": 1024, ".final_logit_softcapping": 30.0, ".attn_logit_softcapping": 50.0},
        lambda _: POST_NORMS,
        has_output=False,
    ),
    "internlm2": Twin(),
    "smollm3": Twin(has_output=False),
    "mistral3": Twin({".attention.temperature_scale": 0.1, ".rope.scaling.original_context_length": 4096}),
    "gemma4": Twin(
        {
            ".attention.key_length": 2 * HEAD,
            ".attention.value_length": 2 * HEAD,
            ".attention.key_length_swa": HEAD,
            ".attention.value_length_swa": HEAD,
            ".attention.sliding_window": 1024,
            ".attention.sliding_window_pattern": WINDOWED,
            ".attention.shared_kv_layers": 10,
            ".embedding_length_per_layer_input": PER_LAYER,
            ".final_logit_softcapping": 30.0,
        },
        gemma4_block,
        {"rope_freqs.weight": (HEAD,), **per_layer_head(30)},
        has_output=False,
        blocks=30,
    ),
    "gemma3n": Twin(
        {".attention.sliding_window": 1024, ".final_logit_softcapping": 30.0},
        gemma3n_block,
        {
            "altup_proj.weight": (WIDTH, WIDTH, STREAMS - 1),
            "altup_unembd_proj.weight": (WIDTH, WIDTH, STREAMS - 1),
            **per_layer_head(30),
        },
        has_output=False,
        blocks=30,
    ),
    "deepseek2-old": Twin(
        {
            **EXPERT_KEYS,
            ".attention.head_count_kv": HEADS,
            ".attention.key_length": PLAIN + TURNED,
            ".attention.value_length": VALUE,
            ".attention.kv_lora_rank": RANK,
            ".rope.dimension_count": TURNED,
            ".leading_dense_block_count": 1,
        },
        old_latent_block,
        architecture="deepseek2",
        blocks=27,
    ),
    "deepseek32": Twin({**SPARSE_KEYS, ".nextn_predict_layers": 1}, sparse_block, blocks=11),
    "glm-dsa": Twin({**SPARSE_KEYS, ".attention.indexer.types": [1, 1, 1, 0, 0, 1, 0, 0, 0, 1]}, sparse_block),
    "deepseek": Twin({**EXPERT_KEYS, ".leading_dense_block_count": 1}, experts_behind_first),
    "glm4": Twin(of_block=lambda _: {**POST_NORMS, **JOINED, **FUSED}),
    "glm4moe": Twin(
        {
            **EXPERT_KEYS,
            ".leading_dense_block_count": 1,
            ".nextn_predict_layers": 1,
            ".expert_weights_norm": True,
            ".expert_weights_scale": 2.5,
        },
        glm4moe_block,
        blocks=11,
    ),
    "qwen2vl": Twin({".rope.dimension_sections": [16, 16, 0, 0]}),
    "qwen3vl": Twin(
        {".rope.dimension_sections": [16, 16, 0, 0], ".n_deepstack_layers": 3},
        lambda _: HEAD_NORMS,
        has_output=False,
    ),
    "qwen3vlmoe": Twin(
        {**EXPERT_KEYS, ".rope.dimension_sections": [16, 16, 0, 0], ".n_deepstack_layers": 3},
        lambda _: {**HEAD_NORMS, **experts()},
    ),
    "qwen2moe": Twin(
        {**EXPERT_KEYS, ".expert_shared_feed_forward_length": INNER},
        lambda _: {**experts(shared=INNER), "ffn_gate_inp_shexp.weight": (WIDTH,)},
    ),
    "phimoe": Twin(
        {**EXPERT_KEYS, **EPSILON},
        lambda _: {**NORM_BIASES, **experts(inner=INNER), "attn_output.bias": (WIDTH,)},
        {**OUTPUT_BIAS, "output.bias": (VOCAB,)},
    ),
    "mimo2": Twin(
        {
            **EXPERT_KEYS,
            ".attention.sliding_window": 512,
            ".attention.sliding_window_pattern": [block % 5 > 0 for block in range(11)],
            ".attention.head_count_kv": [KV_HEADS if block % 5 else 2 * KV_HEADS for block in range(11)],
            ".attention.value_length": HEAD // 2,
            ".attention.value_scale": 0.5,
            ".nextn_predict_layers": 1,
        },
        mimo2_block,
        blocks=11,
    ),
    "minicpm": Twin({".residual_scale": 0.25, ".embedding_scale": 12.0, ".logit_scale": 0.5}, has_output=False),
    "mistral4": Twin(
        {
            **{key: value for key, value in SPARSE_KEYS.items() if ".indexer." not in key},
            ".attention.temperature_scale": 0.1,
            ".attention.temperature_length": 8192,
        },
        lambda block: {name: shape for name, shape in sparse_block(block).items() if "indexer" not in name},
    ),
    "qwen": Twin(
        {".attention.head_count_kv": HEADS, ".feed_forward_length": 2 * INNER},
        lambda _: {**JOINED, "attn_qkv.weight": (WIDTH, 3 * WIDTH), "attn_qkv.bias": (3 * WIDTH,)},
    ),
    "starcoder": Twin(
        EPSILON,
        lambda _: {
            **NORM_BIASES,
            **UNGATED,
            **UNGATED_BIASES,
            **JOINED,
            "attn_qkv.bias": (WIDTH + 2 * KV_HEADS * HEAD,),
            "attn_output.bias": (WIDTH,),
        },
        {**OUTPUT_BIAS, "position_embd.weight": (WIDTH, 32768)},
    ),
    "hunyuan_vl": Twin({".rope.dimension_sections": [16, 16, 16, 16]}, lambda _: HEAD_NORMS),
    "xverse": Twin(),
    "apertus": Twin(
        {f"xielu.{name}": [0.5] * BLOCKS for name in ("alpha_p", "alpha_n", "beta", "eps")},
        lambda _: {**HEAD_NORMS, **UNGATED},
    ),
    "chatglm": Twin(of_block=lambda _: {**JOINED, **FUSED}),
    "command-r": Twin({".logit_scale": 0.0625, **EPSILON}, lambda _: NO_FFN_NORM, has_output=False),
    "cohere2": Twin(
        {".logit_scale": 0.0625, ".attention.sliding_window": 1024, **EPSILON},
        lambda _: NO_FFN_NORM,
        has_output=False,
    ),
    "hunyuan-dense": Twin(of_block=lambda _: HEAD_NORMS, has_output=False),
    "hunyuan-moe": Twin(EXPERT_KEYS, lambda _: {**HEAD_NORMS, **experts(shared=INNER, inner=INNER)}),
    "nemotron": Twin(EPSILON, lambda _: {**NORM_BIASES, **UNGATED}, OUTPUT_BIAS),
    "stablelm": Twin(EPSILON, lambda _: NORM_BIASES, OUTPUT_BIAS),
    "stablelm-parallel": Twin(
        EPSILON,
        lambda _: {
            "attn_norm.bias": (WIDTH,),
            "attn_q_norm.weight": (HEAD, HEADS),
            "attn_k_norm.weight": (HEAD, KV_HEADS),
            **NO_FFN_NORM,
        },
        OUTPUT_BIAS,
        architecture="stablelm",
    ),
    "gpt2": Twin(
        {**EPSILON, ".attention.head_count_kv": HEADS},
        lambda _: {**NORM_BIASES, **UNGATED, **GPT2},
        {**OUTPUT_BIAS, "position_embd.weight": (WIDTH, 32768)},
        has_output=False,
    ),
    "gptneox": Twin(
        {**EPSILON, ".attention.head_count_kv": HEADS, ".use_parallel_residual": True},
        lambda _: {**NORM_BIASES, **UNGATED, **GPT2},
        OUTPUT_BIAS,
    ),
    "phi2": Twin(
        EPSILON,
        lambda _: {
            "attn_norm.bias": (WIDTH,),
            **UNGATED,
            **UNGATED_BIASES,
            **NO_FFN_NORM,
            "attn_output.bias": (WIDTH,),
        },
        {**OUTPUT_BIAS, "output.bias": (VOCAB,)},
    ),
    "falcon": Twin(
        EPSILON, lambda _: {"attn_norm.bias": (WIDTH,), **UNGATED, **NO_FFN_NORM, **JOINED}, OUTPUT_BIAS
    ),
    "plamo": Twin(of_block=lambda _: NO_FFN_NORM),
    "orion": Twin(EPSILON, lambda _: NORM_BIASES, OUTPUT_BIAS),
    "olmo": Twin(
        EPSILON, lambda _: {"attn_norm.weight": (), **NO_FFN_NORM}, {"output_norm.weight": ()}, has_output=False
    ),
    "olmoe": Twin(
        {**EXPERT_KEYS, ".attention.head_count_kv": HEADS},
        lambda _: {
            **FULL_KV,
            "attn_q_norm.weight": (WIDTH,),
            "attn_k_norm.weight": (WIDTH,),
            **experts(inner=INNER),
        },
    ),
    "olmo2-joined": Twin(
        {".attention.head_count_kv": HEADS},
        lambda _: {
            "attn_norm.weight": (),
            "ffn_norm.weight": (),
            **JOINED,
            "attn_qkv.weight": (WIDTH, 3 * WIDTH),
            "attn_q_norm.weight": (WIDTH,),
            "attn_k_norm.weight": (WIDTH,),
            **POST_NORMS,
        },
        architecture="olmo2",
    ),
    "arcee": Twin(of_block=lambda _: UNGATED),
    "exaone": Twin(),
    "ernie4_5": Twin(has_output=False),
    "bailingmoe": Twin({**EXPERT_KEYS, ".expert_weights_norm": True}, lambda _: experts(shared=EXPERT)),
    "bailingmoe2": Twin(
        {**EXPERT_KEYS, ".expert_gating_func": 2, ".expert_group_count": 4, ".expert_group_used_count": 2},
        lambda _: {**HEAD_NORMS, **experts(shared=EXPERT, bias=True), **JOINED},
    ),
    "dots1": Twin(
        {
            **EXPERT_KEYS,
            ".attention.head_count_kv": HEADS,
            ".leading_dense_block_count": 1,
            ".expert_gating_func": 2,
        },
        lambda block: {**HEAD_NORMS, **FULL_KV, **experts_behind_first(block)},
    ),
    "bert": Twin(
        {**ENCODER_KEYS, ".pooling_type": 4},
        lambda _: {**ENCODER, **UNGATED, **UNGATED_BIASES},
        {
            **ENCODER_HEAD,
            "position_embd.weight": (WIDTH, 32768),
            "cls.weight": (WIDTH, WIDTH),
            "cls.bias": (WIDTH,),
            "cls.output.weight": (WIDTH, 1),
            "cls.output.bias": (1,),
        },
        has_output=False,
    ),
    "jina-bert-v2": Twin(
        {**ENCODER_KEYS, ".pooling_type": 1},
        lambda block: (
            {**ENCODER, "ffn_down.bias": (WIDTH,), "attn_output.bias": (WIDTH,)}
            | ({"attn_norm_2.weight": (WIDTH,), "attn_norm_2.bias": (WIDTH,)} if block % 2 else FUSED)
        ),
        ENCODER_HEAD,
        has_output=False,
    ),
    "jina-bert-v3": Twin(
        {**ENCODER_KEYS, ".pooling_type": 1},
        lambda _: {**ENCODER, **UNGATED, **UNGATED_BIASES, **GATED_JOINED, "attn_qkv.bias": (3 * WIDTH,)},
        ENCODER_HEAD,
        has_output=False,
    ),
    "modern-bert": Twin(
        {**ENCODER_KEYS, ".pooling_type": 4, ".attention.sliding_window": 128},
        lambda block: {
            "attn_norm.weight": (WIDTH,) if block else (),
            "attn_k.weight": (),
            "attn_v.weight": (),
            **GATED_JOINED,
            **FUSED,
        },
        {
            "token_embd_norm.weight": (WIDTH,),
            "cls.weight": (WIDTH, WIDTH),
            "cls.norm.weight": (WIDTH,),
            "cls.output.weight": (WIDTH, 1),
            "cls.output.bias": (1,),
        },
        has_output=False,
    ),
    "eurobert": Twin({**ENCODER_KEYS, ".pooling_type": 3}, lambda _: FULL_KV, has_output=False),
    "neo-bert": Twin(
        {**ENCODER_KEYS, ".pooling_type": 2},
        lambda _: {**GATED_JOINED, **FUSED},
        {"output_norm.weight": (), "enc.output_norm.weight": (WIDTH,)},
        has_output=False,
    ),
    "gemma-embedding": Twin(
        {
            ".attention.sliding_window": 256,
            ".pooling_type": 1,
            ".dense_2_feat_in": WIDTH,
            ".dense_2_feat_out": INNER,
            ".dense_3_feat_in": INNER,
            ".dense_3_feat_out": WIDTH,
        },
        lambda _: {**HEAD_NORMS, **POST_NORMS},
        {"dense_2.weight": (WIDTH, INNER), "dense_3.weight": (INNER, WIDTH)},
        has_output=False,
    ),
    "nomic-bert": Twin(
        {**ENCODER_KEYS, ".pooling_type": 1}, lambda _: ENCODER | GATED_JOINED, ENCODER_HEAD, has_output=False
    ),
    "nomic-bert-moe": Twin(
        {**ENCODER_KEYS, ".pooling_type": 1, ".moe_every_n_layers": 2, ".expert_count": 8, ".expert_used_count": 2},
        nomic_moe_block,
        ENCODER_HEAD,
        has_output=False,
    ),
    "exaone-moe": Twin(
        {
            **EXPERT_KEYS,
            ".leading_dense_block_count": 1,
            ".expert_gating_func": 2,
            ".attention.sliding_window": 512,
        },
        lambda block: {**HEAD_NORMS, **experts_behind_first(block)},
    ),
}


#: What a block has if its twin says nothing else.
BLOCK: Shapes = {
    "attn_norm.weight": (WIDTH,),
    "attn_q.weight": (WIDTH, HEADS * HEAD),
    "attn_k.weight": (WIDTH, KV_HEADS * HEAD),
    "attn_v.weight": (WIDTH, KV_HEADS * HEAD),
    "attn_output.weight": (HEADS * HEAD, WIDTH),
    "ffn_norm.weight": (WIDTH,),
    "ffn_gate.weight": (WIDTH, INNER),
    "ffn_down.weight": (INNER, WIDTH),
    "ffn_up.weight": (WIDTH, INNER),
}


def write_twin(folder: Path, name: str, twin: Twin | None = None) -> Path:
    """Write the twin *name*, or another under that name, and return its path."""
    twin = twin or TWINS[name]
    head: Shapes = {"token_embd.weight": (WIDTH, VOCAB), "output_norm.weight": (WIDTH,)}
    if twin.has_output:
        head["output.weight"] = (WIDTH, VOCAB)
    rows = [_row(tensor, shape, "q6_K") for tensor, shape in (head | dict(twin.head)).items() if shape]
    for index in range(twin.blocks):
        shapes = BLOCK | twin.of_block(index)
        rows += [_row(f"blk.{index}.{tensor}", shape, "q4_K") for tensor, shape in shapes.items() if shape]
    metadata = {
        ".context_length": 32768,
        ".embedding_length": WIDTH,
        ".block_count": twin.blocks,
        ".feed_forward_length": INNER,
        ".attention.head_count": HEADS,
        ".attention.head_count_kv": KV_HEADS,
        ".attention.key_length": HEAD,
        ".attention.value_length": HEAD,
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".rope.dimension_count": HEAD,
        **twin.keys,
    }
    architecture = twin.architecture or name
    return write_gguf(folder / f"{name}.gguf", architecture, metadata, rows, vocab_size=VOCAB, tokenizer="llama")


def _row(name: str, shape: tuple[int, ...], matrix: str) -> TensorRow:
    """Vectors and routers aren't quantised; rows that aren't whole blocks are half precision."""
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return (name, shape, "f32")
    return (name, shape, matrix if shape[0] % 256 == 0 else "f16")

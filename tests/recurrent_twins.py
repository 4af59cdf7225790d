"""Small sparse files of recurrent and hybrid families, for the engine to weigh."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from gguf_writer import TensorRow, write_gguf

WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCAB, BLOCKS = 512, 8, 2, 64, 1024, 8192, 9
EXPERTS, USED, EXPERT_INNER = 16, 3, 256
#: Of the scan: width, state, heads, groups, kernel.
SCAN, STATE, SCAN_HEADS, GROUPS, KERNEL = 2 * WIDTH, 64, 16, 2, 4

Tensors: TypeAlias = dict[str, tuple[int, ...]]

ATTENTION: Tensors = {
    "attn_q.weight": (WIDTH, HEADS * HEAD),
    "attn_k.weight": (WIDTH, KV_HEADS * HEAD),
    "attn_v.weight": (WIDTH, KV_HEADS * HEAD),
    "attn_output.weight": (HEADS * HEAD, WIDTH),
}
HEAD_NORMS: Tensors = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
DENSE: Tensors = {
    "ffn_gate.weight": (WIDTH, INNER),
    "ffn_down.weight": (INNER, WIDTH),
    "ffn_up.weight": (WIDTH, INNER),
}
MIXED: Tensors = {
    "ffn_gate_inp.weight": (WIDTH, EXPERTS),
    "ffn_gate_exps.weight": (WIDTH, EXPERT_INNER, EXPERTS),
    "ffn_down_exps.weight": (EXPERT_INNER, WIDTH, EXPERTS),
    "ffn_up_exps.weight": (WIDTH, EXPERT_INNER, EXPERTS),
}
SHARED: Tensors = {
    "ffn_gate_shexp.weight": (WIDTH, INNER),
    "ffn_down_shexp.weight": (INNER, WIDTH),
    "ffn_up_shexp.weight": (WIDTH, INNER),
}
NORM: Tensors = {"attn_norm.weight": (WIDTH,)}
FFN_NORM: Tensors = {"ffn_norm.weight": (WIDTH,)}
POST_NORM: Tensors = {"post_attention_norm.weight": (WIDTH,)}
MAMBA: Tensors = {
    "ssm_in.weight": (WIDTH, 2 * SCAN),
    "ssm_conv1d.weight": (KERNEL, SCAN),
    "ssm_conv1d.bias": (SCAN,),
    "ssm_x.weight": (SCAN, 32 + 2 * STATE),
    "ssm_dt.weight": (32, SCAN),
    "ssm_dt.bias": (SCAN,),
    "ssm_a": (STATE, SCAN),
    "ssm_d": (SCAN,),
    "ssm_out.weight": (SCAN, WIDTH),
}
MAMBA_NORMS: Tensors = {
    "ssm_dt_norm.weight": (32,),
    "ssm_b_norm.weight": (STATE,),
    "ssm_c_norm.weight": (STATE,),
}
CHANNELS = SCAN + 2 * GROUPS * STATE
MAMBA2: Tensors = {
    "ssm_in.weight": (WIDTH, SCAN + CHANNELS + SCAN_HEADS),
    "ssm_conv1d.weight": (KERNEL, CHANNELS),
    "ssm_conv1d.bias": (CHANNELS,),
    "ssm_dt.bias": (SCAN_HEADS,),
    "ssm_a": (1, SCAN_HEADS),
    "ssm_d": (1, SCAN_HEADS),
    "ssm_norm.weight": (SCAN // GROUPS, GROUPS),
    "ssm_out.weight": (SCAN, WIDTH),
}
SHORT: Tensors = {
    "shortconv.conv.weight": (3, WIDTH),
    "shortconv.in_proj.weight": (WIDTH, 3 * WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}
GATED: Tensors = {**ATTENTION, **HEAD_NORMS, "attn_q.weight": (WIDTH, 2 * HEADS * HEAD)}
DELTA: Tensors = {
    "ssm_conv1d.weight": (KERNEL, CHANNELS),
    "ssm_dt.bias": (SCAN_HEADS,),
    "ssm_a": (SCAN_HEADS,),
    "ssm_norm.weight": (STATE,),
    "ssm_out.weight": (SCAN, WIDTH),
}
SPLIT: Tensors = {"attn_qkv.weight": (WIDTH, CHANNELS), "attn_gate.weight": (WIDTH, SCAN)}
BETA_ALPHA: Tensors = {"ssm_beta.weight": (WIDTH, SCAN_HEADS), "ssm_alpha.weight": (WIDTH, SCAN_HEADS)}
GATED_SHARED: Tensors = {**MIXED, **SHARED, "ffn_gate_inp_shexp.weight": (WIDTH,)}

SCAN_KEYS: dict[str, object] = {
    ".ssm.conv_kernel": KERNEL,
    ".ssm.inner_size": SCAN,
    ".ssm.state_size": STATE,
    ".ssm.time_step_rank": SCAN_HEADS,
    ".ssm.group_count": GROUPS,
}
FIRST_SCAN_KEYS: dict[str, object] = {**SCAN_KEYS, ".ssm.time_step_rank": 32, ".ssm.group_count": 0}
EXPERT_KEYS: dict[str, object] = {
    ".expert_count": EXPERTS,
    ".expert_used_count": USED,
    ".expert_feed_forward_length": EXPERT_INNER,
    ".expert_shared_feed_forward_length": INNER,
}
GRANITE_KEYS: dict[str, object] = {
    ".embedding_scale": 12.0,
    ".residual_scale": 0.22,
    ".logit_scale": 6.0,
    ".attention.scale": 0.0078125,
}
#: Which blocks attend where a file says so by heads, and which are feed-forward alone.
ATTENDING, FEEDING = (2, 5), (1, 4, 6)
BY_HEADS: dict[str, object] = {
    ".attention.head_count_kv": [KV_HEADS if block in ATTENDING else 0 for block in range(BLOCKS)]
}
NEMOTRON_KEYS: dict[str, object] = {
    **SCAN_KEYS,
    **BY_HEADS,
    ".feed_forward_length": [INNER if block in FEEDING else 0 for block in range(BLOCKS)],
}
DELTA_KEYS: dict[str, object] = {**SCAN_KEYS, ".full_attention_interval": 3}


def _by_heads(attention: Tensors, recurrent: Tensors, rest: Tensors) -> Callable[[int], Tensors]:
    return lambda block: {**(attention if block in ATTENDING else recurrent), **rest}


def _spaced(recurrent: Tensors, rest: Tensors) -> Callable[[int], Tensors]:
    return lambda block: {**(GATED if block % 3 == 2 else recurrent), **rest}


def _nemotron(feeding: Tensors) -> Callable[[int], Tensors]:
    def tensors(block: int) -> Tensors:
        mixer = ATTENTION if block in ATTENDING else feeding if block in FEEDING else MAMBA2
        return {**NORM, **mixer}

    return tensors


_SQUARED: Tensors = {"ffn_up.weight": (WIDTH, INNER), "ffn_down.weight": (INNER, WIDTH)}
_LATENT: Tensors = {
    "ffn_gate_inp.weight": (WIDTH, EXPERTS),
    "exp_probs_b.bias": (EXPERTS,),
    "ffn_latent_down.weight": (WIDTH, 256),
    "ffn_latent_up.weight": (256, WIDTH),
    "ffn_down_exps.weight": (EXPERT_INNER, 256, EXPERTS),
    "ffn_up_exps.weight": (256, EXPERT_INNER, EXPERTS),
    "ffn_down_shexp.weight": (INNER, WIDTH),
    "ffn_up_shexp.weight": (WIDTH, INNER),
}

_WIDE_EXPERTS: Tensors = {
    "ffn_gate_exps.weight": (WIDTH, INNER, EXPERTS),
    "ffn_down_exps.weight": (INNER, WIDTH, EXPERTS),
    "ffn_up_exps.weight": (WIDTH, INNER, EXPERTS),
}
_JOINED_EXPERTS: Tensors = {
    **{name: shape for name, shape in GATED_SHARED.items() if name not in MIXED},
    "ffn_gate_inp.weight": (WIDTH, EXPERTS),
    "ffn_gate_up_exps.weight": (WIDTH, 2 * EXPERT_INNER, EXPERTS),
    "ffn_down_exps.weight": (EXPERT_INNER, WIDTH, EXPERTS),
}

KIMI_HEAD, LATENT, TURNED = 32, 128, 32
_KIMI_WIDE = HEADS * KIMI_HEAD
KIMI: Tensors = {
    **{f"ssm_conv1d_{part}.weight": (KERNEL, 1, _KIMI_WIDE) for part in "qkv"},
    **{f"attn_{part}.weight": (WIDTH, _KIMI_WIDE) for part in "qkv"},
    "ssm_f_a.weight": (WIDTH, KIMI_HEAD),
    "ssm_f_b.weight": (KIMI_HEAD, _KIMI_WIDE),
    "ssm_beta.weight": (WIDTH, HEADS),
    "ssm_a": (1, HEADS),
    "ssm_dt.bias": (_KIMI_WIDE,),
    "ssm_g_a.weight": (WIDTH, KIMI_HEAD),
    "ssm_g_b.weight": (KIMI_HEAD, _KIMI_WIDE),
    "ssm_norm.weight": (KIMI_HEAD,),
    "attn_output.weight": (_KIMI_WIDE, WIDTH),
}
COMPRESSED: Tensors = {
    "attn_q.weight": (WIDTH, HEADS * (HEAD + TURNED)),
    "attn_kv_a_norm.weight": (LATENT,),
    "attn_kv_a_mqa.weight": (WIDTH, LATENT + TURNED),
    "attn_k_b.weight": (HEAD, LATENT, HEADS),
    "attn_v_b.weight": (LATENT, HEAD, HEADS),
    "attn_output.weight": (HEADS * HEAD, WIDTH),
}
KIMI_KEYS: dict[str, object] = {
    **EXPERT_KEYS,
    ".attention.head_count_kv": [1 if block in ATTENDING else 0 for block in range(BLOCKS)],
    ".attention.key_length": LATENT + TURNED,
    ".attention.value_length": LATENT,
    ".attention.key_length_mla": HEAD + TURNED,
    ".attention.value_length_mla": HEAD,
    ".attention.kv_lora_rank": LATENT,
    ".rope.dimension_count": TURNED,
    ".ssm.conv_kernel": KERNEL,
    ".kda.head_dim": KIMI_HEAD,
    ".expert_shared_count": 1,
    ".leading_dense_block_count": 1,
    ".expert_gating_func": 2,
    ".expert_weights_scale": 2.446,
}
_KIMI_EXPERTS: Tensors = {
    **MIXED,
    "exp_probs_b.bias": (EXPERTS,),
    "ffn_gate_shexp.weight": (WIDTH, EXPERT_INNER),
    "ffn_down_shexp.weight": (EXPERT_INNER, WIDTH),
    "ffn_up_shexp.weight": (WIDTH, EXPERT_INNER),
}

RWKV_HEAD = 64
_LN: Tensors = {
    "attn_norm.weight": (WIDTH,),
    "attn_norm.bias": (WIDTH,),
    "attn_norm_2.weight": (WIDTH,),
    "attn_norm_2.bias": (WIDTH,),
    "time_mix_ln.weight": (WIDTH,),
    "time_mix_ln.bias": (WIDTH,),
    **{f"time_mix_{part}.weight": (WIDTH, WIDTH) for part in ("key", "value", "receptance", "output")},
    "channel_mix_lerp_k.weight": (WIDTH,),
    "channel_mix_key.weight": (WIDTH, INNER),
    "channel_mix_value.weight": (INNER, WIDTH),
}
RWKV6: Tensors = {
    **_LN,
    "time_mix_w1.weight": (WIDTH, 5 * 32),
    "time_mix_w2.weight": (32, WIDTH, 5),
    "time_mix_lerp_x.weight": (WIDTH, 1, 1),
    "time_mix_first.weight": (RWKV_HEAD, WIDTH // RWKV_HEAD),
    "time_mix_decay.weight": (WIDTH,),
    "time_mix_decay_w1.weight": (WIDTH, 64),
    "time_mix_decay_w2.weight": (64, WIDTH),
    "time_mix_gate.weight": (WIDTH, WIDTH),
    "channel_mix_lerp_r.weight": (WIDTH,),
    "channel_mix_receptance.weight": (WIDTH, WIDTH),
}
RWKV6_FUSED: Tensors = {**RWKV6, "time_mix_lerp_fused.weight": (WIDTH, 1, 1, 5)}
RWKV6_PARTS: Tensors = {**RWKV6, **{f"time_mix_lerp_{part}.weight": (WIDTH,) for part in "wkvrg"}}
RWKV7: Tensors = {
    **_LN,
    **{f"time_mix_{part}0.weight": (WIDTH,) for part in "wav"},
    **{f"time_mix_{part}1.weight": (WIDTH, 32) for part in "wavg"},
    **{f"time_mix_{part}2.weight": (32, WIDTH) for part in "wavg"},
    "time_mix_lerp_fused.weight": (WIDTH, 1, 1, 6),
    **{f"time_mix_{part}.weight": (WIDTH,) for part in ("k_k", "k_a", "r_k")},
}
RWKV_KEYS: dict[str, object] = {
    ".wkv.head_size": RWKV_HEAD,
    ".time_mix_extra_dim": 32,
    ".time_decay_extra_dim": 64,
    ".rescale_every_n_layers": 4,
    **{f".attention.{part}_lora_rank": 32 for part in ("decay", "iclr", "value_residual_mix", "gate")},
}

#: A draft head (NextN): one more block, which only speculation loads.
DRAFT: Tensors = {
    "nextn.eh_proj.weight": (2 * WIDTH, WIDTH),
    "nextn.enorm.weight": (WIDTH,),
    "nextn.hnorm.weight": (WIDTH,),
    "nextn.shared_head_norm.weight": (WIDTH,),
}


def drafting(trunk: Callable[[int], Tensors], head: Tensors) -> Callable[[int], Tensors]:
    return lambda block: {**head, **DRAFT} if block == BLOCKS - 1 else trunk(block)


#: Architecture, extra keys, the tensors of each block.
RecurrentTwin: TypeAlias = tuple[str, Mapping[str, object], Callable[[int], Tensors]]
TWINS: dict[str, RecurrentTwin] = {
    "mamba": ("mamba", FIRST_SCAN_KEYS, lambda _: {**NORM, **MAMBA}),
    "falcon-mamba": ("mamba", {**FIRST_SCAN_KEYS, ".ssm.dt_b_c_rms": True}, lambda _: {**NORM, **MAMBA}),
    "mamba2": ("mamba2", SCAN_KEYS, lambda _: {**NORM, **MAMBA2}),
    "kimi-linear": (
        "kimi-linear",
        KIMI_KEYS,
        lambda block: {
            **NORM,
            **FFN_NORM,
            **(COMPRESSED if block in ATTENDING else KIMI),
            **(_KIMI_EXPERTS if block else DENSE),
        },
    ),
    "rwkv6": ("rwkv6", RWKV_KEYS, lambda _: RWKV6_FUSED),
    "rwkv6-parts": ("rwkv6", RWKV_KEYS, lambda _: RWKV6_PARTS),
    "rwkv7": ("rwkv7", RWKV_KEYS, lambda _: RWKV7),
    "jamba": (
        "jamba",
        {**FIRST_SCAN_KEYS, **BY_HEADS, ".expert_count": EXPERTS, ".expert_used_count": USED},
        lambda block: {
            **NORM,
            **FFN_NORM,
            **(ATTENTION if block in ATTENDING else {**MAMBA, **MAMBA_NORMS}),
            **({**MIXED, **_WIDE_EXPERTS} if block % 2 else DENSE),
        },
    ),
    "lfm2": (
        "lfm2",
        {".shortconv.l_cache": 3, **BY_HEADS},
        _by_heads({**ATTENTION, **HEAD_NORMS}, SHORT, {**NORM, **FFN_NORM, **DENSE}),
    ),
    "lfm2-window": (
        "lfm2",
        {".shortconv.l_cache": 3, **BY_HEADS, ".attention.sliding_window": 700},
        _by_heads({**ATTENTION, **HEAD_NORMS}, SHORT, {**NORM, **FFN_NORM, **DENSE}),
    ),
    "lfm2moe": (
        "lfm2moe",
        {
            ".shortconv.l_cache": 3,
            **BY_HEADS,
            **EXPERT_KEYS,
            ".leading_dense_block_count": 2,
            ".expert_gating_func": 2,
        },
        lambda block: {
            **NORM,
            **FFN_NORM,
            **({**ATTENTION, **HEAD_NORMS} if block in ATTENDING else SHORT),
            **(DENSE if block < 2 else {**MIXED, "exp_probs_b.bias": (EXPERTS,)}),
        },
    ),
    "granite": ("granite", GRANITE_KEYS, lambda _: {**NORM, **FFN_NORM, **ATTENTION, **DENSE}),
    "granitemoe": (
        "granitemoe",
        {**GRANITE_KEYS, **EXPERT_KEYS, ".feed_forward_length": EXPERT_INNER},
        lambda _: {**NORM, **FFN_NORM, **ATTENTION, **MIXED, **SHARED},
    ),
    "granitehybrid": (
        "granitehybrid",
        {**GRANITE_KEYS, **SCAN_KEYS, **BY_HEADS, ".rope.scaling.finetuned": False},
        _by_heads(ATTENTION, MAMBA2, {**NORM, **FFN_NORM, **DENSE}),
    ),
    "granitehybrid-moe": (
        "granitehybrid",
        {**GRANITE_KEYS, **SCAN_KEYS, **BY_HEADS, **EXPERT_KEYS, ".feed_forward_length": EXPERT_INNER},
        _by_heads(ATTENTION, MAMBA2, {**NORM, **FFN_NORM, **MIXED, **SHARED}),
    ),
    "falcon-h1": (
        "falcon-h1",
        SCAN_KEYS,
        lambda _: {**NORM, **ATTENTION, **MAMBA2, **DENSE, "ffn_norm": (WIDTH,)},
    ),
    "nemotron_h": ("nemotron_h", NEMOTRON_KEYS, _nemotron(_SQUARED)),
    "nemotron_h_moe": (
        "nemotron_h_moe",
        {**NEMOTRON_KEYS, **EXPERT_KEYS, ".moe_latent_size": 256, ".expert_weights_norm": True},
        _nemotron(_LATENT),
    ),
    "qwen3next": (
        "qwen3next",
        {**DELTA_KEYS, **EXPERT_KEYS},
        _spaced(
            {**DELTA, **SPLIT, "ssm_ba.weight": (WIDTH, 2 * SCAN_HEADS)}, {**NORM, **POST_NORM, **GATED_SHARED}
        ),
    ),
    "qwen3next-first": (
        "qwen3next",
        {**DELTA_KEYS, **EXPERT_KEYS},
        _spaced(
            {**DELTA, "ssm_in.weight": (WIDTH, CHANNELS + SCAN), "ssm_ba.weight": (WIDTH, 2 * SCAN_HEADS)},
            {**NORM, **POST_NORM, **GATED_SHARED},
        ),
    ),
    "qwen35": (
        "qwen35",
        {**DELTA_KEYS, ".rope.dimension_sections": [11, 11, 10, 0]},
        _spaced({**DELTA, **SPLIT, **BETA_ALPHA}, {**NORM, **POST_NORM, **DENSE}),
    ),
    "qwen35moe": (
        "qwen35moe",
        {**DELTA_KEYS, **EXPERT_KEYS, ".rope.dimension_sections": [11, 11, 10, 0]},
        _spaced({**DELTA, **SPLIT, **BETA_ALPHA}, {**NORM, **POST_NORM, **GATED_SHARED}),
    ),
    "qwen35moe-joined": (
        "qwen35moe",
        {**DELTA_KEYS, **EXPERT_KEYS, ".rope.dimension_sections": [11, 11, 10, 0]},
        _spaced({**DELTA, **SPLIT, **BETA_ALPHA}, {**NORM, **POST_NORM, **_JOINED_EXPERTS}),
    ),
    "qwen35-draft": (
        "qwen35",
        {**DELTA_KEYS, ".rope.dimension_sections": [11, 11, 10, 0], ".nextn_predict_layers": 1},
        drafting(
            _spaced({**DELTA, **SPLIT, **BETA_ALPHA}, {**NORM, **POST_NORM, **DENSE}),
            {**GATED, **NORM, **POST_NORM, **DENSE},
        ),
    ),
    "qwen3next-draft": (
        "qwen3next",
        {**DELTA_KEYS, **EXPERT_KEYS, ".nextn_predict_layers": 1},
        drafting(
            _spaced(
                {**DELTA, **SPLIT, "ssm_ba.weight": (WIDTH, 2 * SCAN_HEADS)},
                {**NORM, **POST_NORM, **GATED_SHARED},
            ),
            {**GATED, **NORM, **POST_NORM, **GATED_SHARED},
        ),
    ),
}


def write_recurrent_twin(folder: Path, name: str, twin: RecurrentTwin | None = None) -> Path:
    """Write the twin *name*, or another under that name, and return its path."""
    architecture, keys, tensors = twin or TWINS[name]
    last_norm = "token_embd_norm.weight" if architecture.startswith("lfm2") else "output_norm.weight"
    rows: list[TensorRow] = [("token_embd.weight", (WIDTH, VOCAB), "q6_K"), (last_norm, (WIDTH,), "f32")]
    if architecture.startswith("rwkv"):
        norms = ("token_embd_norm.weight", "token_embd_norm.bias", "output_norm.bias")
        rows += [(norm, (WIDTH,), "f32") for norm in norms]
    if architecture.startswith(("rwkv", "kimi")):
        rows.append(("output.weight", (WIDTH, VOCAB), "q6_K"))
    for block in range(BLOCKS):
        rows += [(f"blk.{block}.{tensor}", shape, _kind(tensor, shape)) for tensor, shape in tensors(block).items()]
    metadata: dict[str, object] = {
        ".context_length": 32768,
        ".embedding_length": WIDTH,
        ".block_count": BLOCKS,
        ".feed_forward_length": INNER,
        ".attention.head_count": HEADS,
        ".attention.head_count_kv": KV_HEADS,
        ".attention.key_length": HEAD,
        ".attention.value_length": HEAD,
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".attention.layer_norm_epsilon": 1e-6,
        ".rope.dimension_count": HEAD,
        **keys,
    }
    if architecture.startswith(("mamba", "rwkv")):
        metadata |= {".attention.head_count": 0}
        if architecture.startswith("mamba"):
            metadata[".feed_forward_length"] = 0
        for key in ("head_count_kv", "key_length", "value_length"):
            del metadata[f".attention.{key}"]
    return write_gguf(folder / f"{name}.gguf", architecture, metadata, rows, vocab_size=VOCAB, tokenizer="llama")


def _kind(tensor: str, shape: tuple[int, ...]) -> str:
    if len(shape) == 1 or tensor in {"ssm_a", "ssm_d", "ssm_norm.weight", "ffn_gate_inp.weight"}:
        return "f32"
    if ("conv" in tensor and "proj" not in tensor) or "lerp" in tensor or "first" in tensor:
        return "f32"
    return "q4_K" if shape[0] % 256 == 0 else "q8_0"

"""The tensors that each family makes of a config: which blueprint, and what is its own.

In: ``HfConfig``. Out: ``Part`` by ``Part``, or None for a family that isn't known here. Sources: the modelling
classes of ``transformers`` 5.19, held against it in ``tests/golden/hf_tensors.json``; names are those of published
files.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from terazi.models.hf_blueprint import (
    Blueprint,
    Part,
    attention,
    delta_net,
    experts,
    feed_forward,
    mamba,
    mamba2,
    norm,
    short_convolution,
)
from terazi.models.hf_config import HfConfig, HfShape

Draw: TypeAlias = Callable[[HfConfig, HfShape], Iterator[Part]]

_GEMMA2_NORMS: Final = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
_GLM4_NORMS: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "post_self_attn_layernorm",
    "post_mlp_layernorm",
)
_OLMO2_NORMS: Final = ("post_attention_layernorm", "post_feedforward_layernorm")

#: Families of the usual kind: embedding, layers of attention and feed-forward, norm, output.
BLUEPRINTS: Final[dict[str, Blueprint]] = {
    "llama": Blueprint(),
    "mistral": Blueprint(qkv_bias=False, o_bias=False),
    "ministral3": Blueprint(qkv_bias=False, o_bias=False),
    "mixtral": Blueprint(qkv_bias=False, o_bias=False, experts="mixtral"),
    "qwen2": Blueprint(qkv_bias=True, o_bias=False),
    "qwen2_5_vl_text": Blueprint(qkv_bias=True, o_bias=False),
    "qwen2_moe": Blueprint(qkv_bias=True, o_bias=False, experts="mlp"),
    "qwen3": Blueprint(qk_norm="head"),
    "qwen3_vl_text": Blueprint(qk_norm="head"),
    "qwen3_moe": Blueprint(qk_norm="head", experts="mlp"),
    "qwen3_next": Blueprint(attention="gated", qk_norm="head", experts="mlp", other="delta"),
    "gemma": Blueprint(tied=True),
    "gemma2": Blueprint(norms=_GEMMA2_NORMS, tied=True),
    "gemma3_text": Blueprint(norms=_GEMMA2_NORMS, qk_norm="head", tied=True),
    "phi3": Blueprint(attention="fused", mlp="fused", qkv_bias=False, o_bias=False),
    "deepseek_v2": Blueprint(attention="latent", experts="mlp"),
    "deepseek_v3": Blueprint(attention="latent", experts="mlp", router_bias=True),
    "deepseek_v32": Blueprint(attention="latent", experts="mlp", router_bias=True),
    "kimi_k2": Blueprint(attention="latent", experts="mlp", router_bias=True),
    "glm": Blueprint(mlp="fused", o_bias=False),
    "glm4": Blueprint(mlp="fused", o_bias=False, norms=_GLM4_NORMS),
    "glm4_moe": Blueprint(o_bias=False, qk_norm="config", experts="mlp", router_bias=True),
    "granite": Blueprint(),
    "granitemoe": Blueprint(experts="stacked"),
    "granitemoehybrid": Blueprint(experts="stacked", other="mamba2"),
    "cohere": Blueprint(norms=("input_layernorm",), qk_norm="heads", tied=True),
    "cohere2": Blueprint(norms=("input_layernorm",), tied=True),
    "olmo2": Blueprint(norms=_OLMO2_NORMS, qk_norm="row"),
    "olmo3": Blueprint(norms=_OLMO2_NORMS, qk_norm="row"),
    "olmoe": Blueprint(qk_norm="row", experts="mlp"),
    "starcoder2": Blueprint(mlp="plain", norm_bias=True),
    "smollm3": Blueprint(),
    "seed_oss": Blueprint(o_bias=False),
    "minimax_m2": Blueprint(qkv_bias=False, o_bias=False, qk_norm="row", experts="mixtral", router_bias=True),
    "lfm2": Blueprint(other="conv"),
}  # fmt: skip


def draw(config: HfConfig) -> Draw | None:
    """How to draw the tensors of *config*'s language model; None if its family isn't known here."""
    family = config.text_type
    if family in BLUEPRINTS:
        return _own().get(family, _usual)
    return _own().get(family)


def families() -> tuple[str, ...]:
    """Every family that is known here, sorted."""
    return tuple(sorted({*BLUEPRINTS, *_own()}))


def _own() -> dict[str, Draw]:
    return {"gpt_oss": _gpt_oss, "mamba": _mamba, "falcon_mamba": _mamba, "mamba2": _mamba2, "lfm2": _lfm2}


def _usual(c: HfConfig, s: HfShape) -> Iterator[Part]:
    b = BLUEPRINTS[c.text_type]
    width = s.embedding_length
    yield Part("model.embed_tokens.weight", (s.vocab_size, width))
    kinds = c.layer_kinds(s.block_count)
    for layer, kind in enumerate(kinds):
        yield from _layer(c, s, b, f"model.layers.{layer}.", layer=layer, kind=kind)
    yield from norm("model.norm", width, bias=b.norm_bias)
    if not (c.flag("tie_word_embeddings") if b.tied is None else c.flag("tie_word_embeddings", default=b.tied)):
        yield Part("lm_head.weight", (s.vocab_size, width))
    if c.text_type in {"deepseek_v3", "deepseek_v32", "glm4_moe"}:
        for i in range(c.number("num_nextn_predict_layers", 0)):
            yield from _next_token_layer(c, s, b, f"model.layers.{s.block_count + i}.")


def _layer(c: HfConfig, s: HfShape, b: Blueprint, at: str, *, layer: int, kind: str) -> Iterator[Part]:
    for name in b.norms:
        yield from norm(f"{at}{name}", s.embedding_length, bias=b.norm_bias)
    if kind == "linear_attention" and b.other == "delta":
        yield from delta_net(c, s, f"{at}linear_attn.")
    elif kind in {"mamba", "linear_attention"} and b.other == "mamba2":
        inner = c.number("mamba_expand", 2) * s.embedding_length
        yield from mamba2(c, s, inner, f"{at}mamba.")
    else:
        yield from attention(c, s, b, layer, f"{at}self_attn.")
    if _routed(c, s, b, layer):
        yield from experts(c, s, b, at)
    elif b.experts != "stacked" or b.other != "mamba2":
        yield from feed_forward(c, s, b, s.feed_forward_length[layer], f"{at}mlp.")
    if b.other == "mamba2":  # Granite's hybrids have a dense part beside the experts
        inner = c.number("shared_intermediate_size", 0)
        yield Part(f"{at}shared_mlp.input_linear.weight", (2 * inner, s.embedding_length), linear=True)
        yield Part(f"{at}shared_mlp.output_linear.weight", (s.embedding_length, inner), linear=True)


def _routed(c: HfConfig, s: HfShape, b: Blueprint, layer: int) -> bool:
    """Whether this layer's feed-forward part is made of experts."""
    if not b.experts or not s.expert_count:
        return False
    dense = c.value("mlp_only_layers")
    step = c.number("decoder_sparse_step", 1) or 1
    if isinstance(dense, tuple) and layer in dense:
        return False
    frequency = c.number("moe_layer_freq", 1) or 1
    leading = c.number("first_k_dense_replace", 0)
    return layer >= leading and (layer + 1) % step == 0 and layer % frequency == 0


def _next_token_layer(c: HfConfig, s: HfShape, b: Blueprint, at: str) -> Iterator[Part]:
    """A layer that predicts further tokens (DeepSeek-V3, GLM-4.5): one more layer between its own ends."""
    width, last = s.embedding_length, s.block_count - 1
    yield Part(f"{at}embed_tokens.weight", (s.vocab_size, width))
    yield from norm(f"{at}enorm", width, bias=False)
    yield from norm(f"{at}hnorm", width, bias=False)
    yield Part(f"{at}eh_proj.weight", (width, 2 * width))
    yield from norm(f"{at}shared_head.norm", width, bias=False)
    yield Part(f"{at}shared_head.head.weight", (s.vocab_size, width))
    yield from _layer(c, s, b, at, layer=last, kind="full_attention")


def _gpt_oss(c: HfConfig, s: HfShape) -> Iterator[Part]:
    """gpt-oss: biases everywhere, a sink a head, experts in one tensor each (published as MXFP4 blocks)."""
    width, inner, count = s.embedding_length, s.feed_forward_length[0], s.expert_count
    packed = c.value("quantization_config.quant_method") == "mxfp4"
    yield Part("model.embed_tokens.weight", (s.vocab_size, width))
    for layer in range(s.block_count):
        at = f"model.layers.{layer}."
        yield from norm(f"{at}input_layernorm", width, bias=False)
        yield from norm(f"{at}post_attention_layernorm", width, bias=False)
        yield from attention(c, s, Blueprint(qkv_bias=True, o_bias=True), layer, f"{at}self_attn.")
        yield Part(f"{at}self_attn.sinks", (s.head_count[layer],))
        yield Part(f"{at}mlp.router.weight", (count, width))
        yield Part(f"{at}mlp.router.bias", (count,))
        for name, rows, columns in (("gate_up_proj", 2 * inner, width), ("down_proj", width, inner)):
            home = f"{at}mlp.experts.{name}"
            if packed:  # 32 four-bit values are 16 bytes, and one byte of scale
                yield Part(f"{home}_blocks", (count, rows, columns // 32, 16))
                yield Part(f"{home}_scales", (count, rows, columns // 32))
            else:
                yield Part(home, (count, columns, rows))
            yield Part(f"{home}_bias", (count, rows))
    yield from norm("model.norm", width, bias=False)
    yield Part("lm_head.weight", (s.vocab_size, width))


def _mamba(c: HfConfig, s: HfShape) -> Iterator[Part]:
    yield from _backbone(c, s, lambda at: mamba(c, s, at))


def _mamba2(c: HfConfig, s: HfShape) -> Iterator[Part]:
    inner = c.number("expand", 2) * s.embedding_length
    yield from _backbone(c, s, lambda at: mamba2(c, s, inner, at))


def _backbone(c: HfConfig, s: HfShape, mixer: Callable[[str], Iterator[Part]]) -> Iterator[Part]:
    yield Part("backbone.embeddings.weight", (s.vocab_size, s.embedding_length))
    for layer in range(s.block_count):
        yield from norm(f"backbone.layers.{layer}.norm", s.embedding_length, bias=False)
        yield from mixer(f"backbone.layers.{layer}.mixer.")
    yield from norm("backbone.norm_f", s.embedding_length, bias=False)
    if not c.flag("tie_word_embeddings", default=True):
        yield Part("lm_head.weight", (s.vocab_size, s.embedding_length))


def _lfm2(c: HfConfig, s: HfShape) -> Iterator[Part]:
    width = s.embedding_length
    inner = s.feed_forward_length[0]
    if c.flag("block_auto_adjust_ff_dim", default=True):  # Lfm2MLP
        inner = int(c.number("block_ff_dim_multiplier", 1) * (2 * inner // 3))
        step = c.number("block_multiple_of", 256)
        inner = -(-inner // step) * step
    yield Part("model.embed_tokens.weight", (s.vocab_size, width))
    for layer, kind in enumerate(c.layer_kinds(s.block_count)):
        at = f"model.layers.{layer}."
        yield from norm(f"{at}operator_norm", width, bias=False)
        yield from norm(f"{at}ffn_norm", width, bias=False)
        if kind == "conv":
            yield from short_convolution(c, s, f"{at}conv.")
        else:
            for part in attention(
                c, s, Blueprint(qkv_bias=False, o_bias=False, qk_norm="head"), layer, f"{at}self_attn."
            ):
                yield part._replace(name=part.name.replace("_norm.", "_layernorm.").replace("o_proj", "out_proj"))
        for name, rows, columns in (("w1", inner, width), ("w2", width, inner), ("w3", inner, width)):
            yield Part(f"{at}feed_forward.{name}.weight", (rows, columns), linear=True)
    yield from norm("model.embedding_norm", width, bias=False)
    if not c.flag("tie_word_embeddings", default=True):
        yield Part("lm_head.weight", (s.vocab_size, width))

"""Draws the tensors of one layer, and of what stands around the layers, as a family's files name and shape them.

In: ``HfConfig``, ``HfShape`` and a family's ``Blueprint``. Out: ``Part`` by ``Part``. Shapes are those of the
modelling classes of ``transformers`` 5.19; experts are named one by one, as published files do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from terazi.models.hf_config import HfConfig, HfShape

HIDDEN: Final = "input_layernorm"
_AFTER: Final = "post_attention_layernorm"


class Part(NamedTuple):
    """One tensor before its type is known. A ``linear`` one may be quantised; a ``full`` one is always float32."""

    name: str
    shape: tuple[int, ...]
    linear: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What a family's layers look like.

    Args:
        attention: ``split`` (q, k, v), ``fused`` (one qkv), ``latent`` (DeepSeek's), ``gated`` (Qwen3-Next: the
            query brings its gate).
        qkv_bias, o_bias: whether the projections have biases; None: as ``attention_bias`` says.
        qk_norm: ``head`` (one weight a channel of a head), ``heads`` (one a channel of each head, as a matrix),
            ``row`` (one a channel of the whole row); ``config`` is ``head`` if ``use_qk_norm`` says so.
        mlp: ``gated``, ``fused`` (gate and up in one), ``plain`` (two matrices, names in ``mlp_names``).
        mlp_names: names of the plain ones.
        norms: of a layer.
        norm_bias: norms have biases.
        experts: ``mlp`` (``mlp.experts.0.gate_proj``), ``mixtral`` (``block_sparse_moe.experts.0.w1``), ``stacked``
            (Granite's, all in one tensor).
        router_bias: ``e_score_correction_bias`` beside the router.
        other: ``delta`` (Qwen3-Next's linear attention), ``conv`` (LFM2), ``mamba2`` (Granite hybrid): what layers
            without attention are.
        tied: whether the output is the embedding; None: as ``tie_word_embeddings`` says (false).
    """

    attention: str = "split"
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: str = ""
    mlp: str = "gated"
    mlp_names: tuple[str, str] = ("c_fc", "c_proj")
    norms: tuple[str, ...] = (HIDDEN, _AFTER)
    norm_bias: bool = False
    experts: str = ""
    router_bias: bool = False
    other: str = ""
    tied: bool | None = None


def attention(c: HfConfig, s: HfShape, b: Blueprint, layer: int, at: str) -> Iterator[Part]:
    """The projections of an attention layer whose tensors start with *at*."""
    heads, kv_heads = s.head_count[layer], s.head_count_kv[layer]
    q, kv = heads * s.key_length, kv_heads * s.key_length
    width, v = s.embedding_length, kv_heads * s.value_length
    said = c.flag("attention_bias") or c.flag("use_bias")
    qkv_bias = said if b.qkv_bias is None else b.qkv_bias
    o_bias = said if b.o_bias is None else b.o_bias
    if b.attention == "latent":
        yield from _latent(c, s, heads, at)
        return
    if b.attention == "fused":
        yield from _linear(f"{at}qkv_proj", q + kv + v, width, bias=qkv_bias)
    else:
        gate = 2 if b.attention == "gated" else 1
        yield from _linear(f"{at}q_proj", gate * q, width, bias=qkv_bias)
        yield from _linear(f"{at}k_proj", kv, width, bias=qkv_bias)
        yield from _linear(f"{at}v_proj", v, width, bias=qkv_bias)
    yield from _linear(f"{at}o_proj", width, heads * s.value_length, bias=o_bias)
    norm = b.qk_norm
    if norm == "config":
        norm = "head" if c.flag("use_qk_norm") else ""
    elif norm == "heads":
        norm = "heads" if c.flag("use_qk_norm") else ""
    per_head = s.key_length
    shapes = {
        "head": ((per_head,), (per_head,)),
        "row": ((q,), (kv,)),
        "heads": ((heads, per_head), (kv_heads, per_head)),
    }
    if norm:
        yield Part(f"{at}q_norm.weight", shapes[norm][0])
        yield Part(f"{at}k_norm.weight", shapes[norm][1])


def _latent(c: HfConfig, s: HfShape, heads: int, at: str) -> Iterator[Part]:
    """DeepSeek's attention, with the indexer of its sparse variant."""
    width, low_q, low_kv = s.embedding_length, c.number("q_lora_rank", 0), c.number("kv_lora_rank")
    rope, nope = c.number("qk_rope_head_dim"), c.number("qk_nope_head_dim")
    bias = c.flag("attention_bias")
    if low_q:
        yield from _linear(f"{at}q_a_proj", low_q, width, bias=bias)
        yield Part(f"{at}q_a_layernorm.weight", (low_q,))
        yield from _linear(f"{at}q_b_proj", heads * s.key_length, low_q)
    else:
        yield from _linear(f"{at}q_proj", heads * s.key_length, width)
    yield from _linear(f"{at}kv_a_proj_with_mqa", low_kv + rope, width, bias=bias)
    yield Part(f"{at}kv_a_layernorm.weight", (low_kv,))
    yield from _linear(f"{at}kv_b_proj", heads * (nope + s.value_length), low_kv)
    yield from _linear(f"{at}o_proj", width, heads * s.value_length, bias=bias)
    index_heads = c.number("index_n_heads", 0)
    if index_heads:
        per_head = c.number("index_head_dim")
        yield from _linear(f"{at}indexer.wq_b", index_heads * per_head, low_q)
        yield from _linear(f"{at}indexer.wk", per_head, width)
        yield Part(f"{at}indexer.k_norm.weight", (per_head,))
        yield Part(f"{at}indexer.k_norm.bias", (per_head,))
        yield Part(f"{at}indexer.weights_proj.weight", (index_heads, width))


def feed_forward(c: HfConfig, s: HfShape, b: Blueprint, inner: int, at: str) -> Iterator[Part]:
    """A dense feed-forward part of *inner* channels."""
    width = s.embedding_length
    bias = c.flag("mlp_bias") or c.flag("use_bias")
    if b.mlp == "plain":
        first, second = b.mlp_names
        yield from _linear(f"{at}{first}", inner, width, bias=bias)
        yield from _linear(f"{at}{second}", width, inner, bias=bias)
        return
    if b.mlp == "fused":
        yield from _linear(f"{at}gate_up_proj", 2 * inner, width, bias=bias)
    else:
        yield from _linear(f"{at}gate_proj", inner, width, bias=bias)
        yield from _linear(f"{at}up_proj", inner, width, bias=bias)
    yield from _linear(f"{at}down_proj", width, inner, bias=bias)


def experts(c: HfConfig, s: HfShape, b: Blueprint, at: str) -> Iterator[Part]:
    """The routed and shared experts of one layer; *at* ends where ``mlp.`` or its like begins."""
    width, count = s.embedding_length, s.expert_count
    inner = c.number("expert_intermediate_size", s.feed_forward_length[0])
    if b.experts == "stacked":
        yield Part(f"{at}block_sparse_moe.router.layer.weight", (count, width))
        yield Part(f"{at}block_sparse_moe.input_linear.weight", (count, 2 * inner, width), linear=True)
        yield Part(f"{at}block_sparse_moe.output_linear.weight", (count, width, inner), linear=True)
        return
    if b.experts == "mixtral":
        home, (gate, down, up) = f"{at}block_sparse_moe.", ("w1", "w2", "w3")
    else:
        home, (gate, down, up) = f"{at}mlp.", ("gate_proj", "down_proj", "up_proj")
    yield Part(f"{home}gate.weight", (count, width))
    if b.router_bias:
        where = home if b.experts == "mixtral" else f"{home}gate."
        yield Part(f"{where}e_score_correction_bias", (count,), full=True)
    for i in range(count):
        yield Part(f"{home}experts.{i}.{gate}.weight", (inner, width), linear=True)
        yield Part(f"{home}experts.{i}.{down}.weight", (width, inner), linear=True)
        yield Part(f"{home}experts.{i}.{up}.weight", (inner, width), linear=True)
    shared = c.number("shared_expert_intermediate_size", 0)
    if shared:
        yield from feed_forward(c, s, Blueprint(), shared, f"{home}shared_expert.")
        yield Part(f"{home}shared_expert_gate.weight", (1, width))
    always = c.number("n_shared_experts", 0)
    if always:
        yield from feed_forward(c, s, Blueprint(), always * inner, f"{home}shared_experts.")


def delta_net(c: HfConfig, s: HfShape, at: str) -> Iterator[Part]:
    """Qwen3-Next's gated delta net (``Qwen3NextGatedDeltaNet``)."""
    width = s.embedding_length
    k_heads, v_heads = c.number("linear_num_key_heads"), c.number("linear_num_value_heads")
    k, v_dim = k_heads * c.number("linear_key_head_dim"), c.number("linear_value_head_dim")
    v = v_heads * v_dim
    yield Part(f"{at}A_log", (v_heads,))
    yield Part(f"{at}dt_bias", (v_heads,))
    yield Part(f"{at}conv1d.weight", (2 * k + v, 1, c.number("linear_conv_kernel_dim")))
    yield from _linear(f"{at}in_proj_ba", 2 * v_heads, width)
    yield from _linear(f"{at}in_proj_qkvz", 2 * k + 2 * v, width)
    yield Part(f"{at}norm.weight", (v_dim,))
    yield from _linear(f"{at}out_proj", width, v)


def mamba2(c: HfConfig, s: HfShape, inner: int, at: str) -> Iterator[Part]:
    """The mixer of Mamba 2, alone or in Granite's hybrids; *inner* channels."""
    width = s.embedding_length
    heads = _first(c, "mamba_n_heads", "num_heads")
    channels = inner + 2 * _first(c, "mamba_n_groups", "n_groups") * _first(c, "mamba_d_state", "state_size")
    yield Part(f"{at}A_log", (heads,))
    yield Part(f"{at}D", (heads,))
    yield Part(f"{at}dt_bias", (heads,))
    yield Part(f"{at}conv1d.weight", (channels, 1, _first(c, "mamba_d_conv", "conv_kernel")))
    if c.flag("mamba_conv_bias", default=c.flag("use_conv_bias", default=True)):
        yield Part(f"{at}conv1d.bias", (channels,))
    bias = c.flag("mamba_proj_bias", default=c.flag("use_bias"))
    yield from _linear(f"{at}in_proj", inner + channels + heads, width, bias=bias)
    yield Part(f"{at}norm.weight", (inner,))
    yield from _linear(f"{at}out_proj", width, inner, bias=bias)


def mamba(c: HfConfig, s: HfShape, at: str) -> Iterator[Part]:
    """The mixer of Mamba 1."""
    width, state = s.embedding_length, c.number("state_size")
    inner = c.number("intermediate_size", c.number("expand", 2) * width)
    rank = c.value("time_step_rank")
    low = rank if isinstance(rank, int) else -(-width // 16)
    bias = c.flag("use_bias")
    yield Part(f"{at}A_log", (inner, state))
    yield Part(f"{at}D", (inner,))
    yield Part(f"{at}conv1d.weight", (inner, 1, c.number("conv_kernel", 4)))
    if c.flag("use_conv_bias", default=True):
        yield Part(f"{at}conv1d.bias", (inner,))
    yield from _linear(f"{at}in_proj", 2 * inner, width, bias=bias)
    yield from _linear(f"{at}x_proj", low + 2 * state, inner)
    yield from _linear(f"{at}dt_proj", inner, low, bias=True)
    yield from _linear(f"{at}out_proj", width, inner, bias=bias)


def short_convolution(c: HfConfig, s: HfShape, at: str) -> Iterator[Part]:
    """LFM2's gated convolution."""
    width = s.embedding_length
    bias = c.flag("conv_bias")
    yield Part(f"{at}conv.weight", (width, 1, c.number("conv_L_cache")))
    yield from _linear(f"{at}in_proj", 3 * width, width, bias=bias)
    yield from _linear(f"{at}out_proj", width, width, bias=bias)


def norm(name: str, width: int, *, bias: bool) -> Iterator[Part]:
    """A norm's weight, and its bias if it has one."""
    yield Part(f"{name}.weight", (width,))
    if bias:
        yield Part(f"{name}.bias", (width,))


def _linear(name: str, rows: int, columns: int, *, bias: bool = False) -> Iterator[Part]:
    yield Part(f"{name}.weight", (rows, columns), linear=True)
    if bias:
        yield Part(f"{name}.bias", (rows,))


def _first(c: HfConfig, *names: str) -> int:
    return next((c.number(name) for name in names if c.value(name) is not None), 0) or c.number(names[0])

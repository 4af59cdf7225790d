"""Model families whose memory rules are known here, as data.

A family says how its layers attend and what its layer graph looks like; everything else (weights, placement,
cache arithmetic) is the same for all. An architecture without an entry gets an upper bound.
"""

from typing import NamedTuple

from terazi.memory.llama_cpp.blocks import Recurrent
from terazi.models.spec import ModelSpec


class SlidingWindow(NamedTuple):
    """Which layers see only a window: ``llama_hparams::set_swa_pattern``.

    ``period`` is the default of ``load_swa_pattern``; the file's ``attention.sliding_window_pattern`` (a number, or
    one flag a layer) overrides it. One layer of each period is dense: the last, or the first with ``dense_first``.
    ``length`` is used where the file names no window.
    """

    period: int
    dense_first: bool = False
    length: int = 0


class Experts(NamedTuple):
    """How a mixture of experts chooses and weighs (``build_moe_ffn``).

    Args:
        gating: ``soft_max`` over all experts, ``sigmoid``, or ``chosen``: softmax over those chosen.
        normalised: the weights of the chosen are divided by their sum.
        by_file: the file may say otherwise about these two (``expert_gating_func``, ``expert_weights_norm``).
        weigh_input: weights multiply what goes in rather than what comes out.
        select_by_logits: the choice is made before the gating function.
        divided_gate: the gate of the shared expert is divided by what goes into it (a detour to a sigmoid).
    """

    gating: str = "soft_max"
    normalised: bool = True
    by_file: bool = False
    weigh_input: bool = False
    select_by_logits: bool = False
    divided_gate: bool = False


class Family(NamedTuple):
    """One family.

    Args:
        name: for people.
        architectures: ``general.architecture`` values that it covers.
        window: sliding-window layers, if any.
        experts: how experts are chosen, where the model has any.
        norm: ``rms_norm`` or ``norm``.
        pre_norms: attention and feed-forward inputs are normalised.
        post_norms: attention and feed-forward outputs are normalised too; with ``pinned`` the second norm may be
            pinned to the device of its layer like the others.
        parallel: feed-forward works beside attention, not after it: the order in which feed-forward (f),
            attention (a) and residual (r) are summed.
        ffn_norm: name of the weight of the norm before the feed-forward half.
        qk_norm: queries and keys are normalised per ``head``, ``flat`` over all heads, per head once they are
            ``turned``, or not at all; not in files without the weights.
        rope: ``all`` layers turn queries and keys, or only ``windowed`` ones if there is a window, or all
            ``but_fourth`` (every fourth goes without), or ``none``; ``finetuned``: all unless the file says no.
        rope_factors: the file may carry frequency factors for RoPE.
        scaled_embeddings: token embeddings are scaled by ``rows``, ``whole`` (``early``: before anything else
            is drawn), or not at all.
        scaled_queries: queries are scaled before attention.
        residual_first: the last sum of a block names the residual first.
        select_last: outputs are picked after the last block instead of inside it.
        tempered: queries are scaled by their position: in ``unturned`` layers (those without RoPE), or in all where
            the file gives the metadata key named here.
        scaled_residuals: what is added to the residual is scaled, and so are the logits if the file says how.
        recurrent: blocks with a recurrent state, if any.
        sectioned: the file may cut rotary embeddings into sections for images (or does ``always``); then a token
            has four places.
        deep_inputs: embeddings of images may have parts for several layers.
        latent: K and V are stored compressed (multi-head latent attention), see ``latent_attention``.
        sparse: an indexer picks what latent attention looks at, see ``sparse_attention``.
        own_kv: blocks from this one on read the cache of an earlier block; a metadata key counts them from the end.
        drawing: which function draws the graph, see ``drawings``.
    """

    name: str
    architectures: frozenset[str]
    window: SlidingWindow | None = None
    experts: Experts = Experts()
    norm: str = "rms_norm"
    pre_norms: bool = True
    post_norms: bool | str = False
    parallel: str | None = None
    ffn_norm: str = "ffn_norm"
    qk_norm: str | None = None
    rope: str = "all"
    rope_factors: bool = False
    scaled_embeddings: str | None = None
    scaled_queries: bool = False
    residual_first: bool = False
    select_last: bool = False
    tempered: str | None = None
    scaled_residuals: bool = False
    recurrent: Recurrent | None = None
    sectioned: bool | str = False
    deep_inputs: bool = False
    latent: bool = False
    sparse: bool = False
    own_kv: int | str | None = None
    drawing: str = "decoder"


#: Each is drawn after its file in ``src/models/`` and is held against the engine by a test.
FAMILIES = (
    # no sliding window even if the file names one (Mistral)
    Family(name="llama", architectures=frozenset({"llama"}), rope_factors=True),
    Family(
        name="gemma3",
        architectures=frozenset({"gemma3"}),
        window=SlidingWindow(period=6),
        qk_norm="head",
        scaled_embeddings="rows",
        scaled_queries=True,
        post_norms=True,
    ),
    Family(name="gemma", architectures=frozenset({"gemma"}), scaled_embeddings="whole", scaled_queries=True),
    Family(
        name="gemma2",
        architectures=frozenset({"gemma2"}),
        window=SlidingWindow(period=2, length=4096),
        scaled_embeddings="whole",
        scaled_queries=True,
        post_norms=True,
    ),
    Family(
        name="llama4",
        architectures=frozenset({"llama4"}),
        window=SlidingWindow(period=4, length=8192),
        experts=Experts(gating="sigmoid", normalised=False, weigh_input=True, select_by_logits=True),
        rope="but_fourth",
        rope_factors=True,
        tempered="unturned",
    ),
    Family(
        name="mistral3",
        architectures=frozenset({"mistral3"}),
        rope_factors=True,
        tempered="attention.temperature_scale",
    ),
    Family(name="internlm2", architectures=frozenset({"internlm2"})),
    Family(name="smollm3", architectures=frozenset({"smollm3"}), rope="but_fourth"),
    Family(name="qwen2", architectures=frozenset({"qwen2"})),
    Family(name="qwen3", architectures=frozenset({"qwen3", "qwen3moe"}), qk_norm="head"),
    Family(
        name="olmo2",
        architectures=frozenset({"olmo2"}),
        window=SlidingWindow(period=4),
        qk_norm="flat",
        pre_norms=False,
        post_norms=True,
    ),
    # phi3.cpp switches the window off that its files name
    Family(
        name="phi3",
        architectures=frozenset({"phi3", "phimoe"}),
        rope_factors=True,
        scaled_queries=True,
        residual_first=True,
    ),
    Family(name="starcoder2", architectures=frozenset({"starcoder2"}), norm="norm"),
    Family(name="seed-oss", architectures=frozenset({"seed_oss"}), ffn_norm="post_attention_norm"),
    Family(
        name="exaone4",
        architectures=frozenset({"exaone4"}),
        window=SlidingWindow(period=4),
        qk_norm="head",
        rope="windowed",
        rope_factors=True,
        pre_norms=False,
        post_norms=True,
    ),
    Family(
        name="gpt-oss",
        architectures=frozenset({"gpt-oss"}),
        window=SlidingWindow(period=2),
        experts=Experts(gating="chosen", normalised=False),
        ffn_norm="post_attention_norm",
        select_last=True,
    ),
    Family(name="ernie4.5-moe", architectures=frozenset({"ernie4_5-moe"})),
    Family(
        name="minimax-m2",
        architectures=frozenset({"minimax-m2"}),
        qk_norm="flat",
        experts=Experts(gating="sigmoid"),
    ),
    Family(
        name="granite",
        architectures=frozenset({"granite", "granitemoe"}),
        rope="finetuned",
        rope_factors=True,
        scaled_embeddings="early",
        scaled_residuals=True,
    ),
    Family(
        name="minicpm",
        architectures=frozenset({"minicpm"}),
        rope_factors=True,
        scaled_embeddings="early",
        scaled_residuals=True,
    ),
    Family(
        name="mamba", architectures=frozenset({"mamba"}), recurrent=Recurrent("mamba", layers="all", ffn_norm=None)
    ),
    Family(
        name="mamba2",
        architectures=frozenset({"mamba2"}),
        recurrent=Recurrent("mamba2", layers="all", ffn_norm=None),
    ),
    Family(
        name="rwkv",
        architectures=frozenset({"rwkv6", "rwkv7"}),
        norm="norm",
        recurrent=Recurrent("rwkv", layers="all"),
        drawing="rwkv",
    ),
    Family(
        name="kimi-linear",
        architectures=frozenset({"kimi-linear"}),
        latent=True,
        experts=Experts(gating="sigmoid", by_file=True),
        rope="none",
        recurrent=Recurrent("kimi_delta"),
    ),
    Family(
        name="jamba",
        architectures=frozenset({"jamba"}),
        experts=Experts(normalised=False),
        rope="none",
        residual_first=True,
        recurrent=Recurrent("mamba"),
    ),
    Family(
        name="lfm2",
        architectures=frozenset({"lfm2", "lfm2moe"}),
        experts=Experts(gating="sigmoid", by_file=True),
        # all that attend, if the file names a window
        window=SlidingWindow(period=0),
        qk_norm="head",
        residual_first=True,
        recurrent=Recurrent("short_convolution", output_norm="token_embd_norm"),
    ),
    Family(
        name="granite-hybrid",
        architectures=frozenset({"granitehybrid"}),
        rope="finetuned",
        rope_factors=True,
        scaled_embeddings="early",
        scaled_residuals=True,
        recurrent=Recurrent("mamba2"),
    ),
    Family(
        name="falcon-h1", architectures=frozenset({"falcon-h1"}), recurrent=Recurrent("mamba2", layers="beside")
    ),
    Family(
        name="nemotron-h",
        architectures=frozenset({"nemotron_h", "nemotron_h_moe"}),
        experts=Experts(gating="sigmoid", normalised=False, by_file=True),
        rope="none",
        recurrent=Recurrent("mamba2", layers="without_kv_and_ff", ffn_norm=None, select_after_norm=True),
    ),
    Family(
        name="qwen3-next",
        architectures=frozenset({"qwen3next"}),
        recurrent=Recurrent(
            "delta_net",
            layers="spaced",
            ffn_norm="post_attention_norm",
            select_after_norm=True,
            repeats_heads=True,
        ),
    ),
    Family(
        name="qwen3.5",
        architectures=frozenset({"qwen35", "qwen35moe"}),
        recurrent=Recurrent(
            "delta_net", layers="spaced", ffn_norm="post_attention_norm", select_after_norm=True, positions=4
        ),
    ),
    Family(
        name="deepseek2",
        architectures=frozenset({"deepseek2", "mistral4"}),
        latent=True,
        experts=Experts(normalised=False, by_file=True),
        tempered="attention.temperature_scale",
    ),
    Family(
        name="deepseek3.2",
        architectures=frozenset({"deepseek32", "glm-dsa"}),
        latent=True,
        sparse=True,
        experts=Experts(gating="sigmoid", normalised=False, by_file=True),
    ),
    Family(
        name="deepseek", architectures=frozenset({"deepseek"}), experts=Experts(normalised=False), rope_factors=True
    ),
    Family(name="glm4", architectures=frozenset({"glm4"}), post_norms="pinned", sectioned=True),
    Family(
        name="glm4-moe",
        architectures=frozenset({"glm4moe"}),
        experts=Experts(gating="sigmoid", normalised=False, by_file=True),
        qk_norm="head",
        ffn_norm="post_attention_norm",
        sectioned=True,
    ),
    Family(name="qwen2vl", architectures=frozenset({"qwen2vl"}), sectioned="always"),
    Family(
        name="qwen3vl",
        architectures=frozenset({"qwen3vl", "qwen3vlmoe"}),
        qk_norm="head",
        sectioned="always",
        deep_inputs=True,
    ),
    Family(
        name="qwen2moe",
        architectures=frozenset({"qwen2moe"}),
        experts=Experts(normalised=False, divided_gate=True),
    ),
    Family(
        name="mimo2",
        architectures=frozenset({"mimo2"}),
        window=SlidingWindow(period=6),
        experts=Experts(gating="sigmoid"),
    ),
    Family(name="xverse", architectures=frozenset({"xverse"})),
    Family(name="apertus", architectures=frozenset({"apertus"}), qk_norm="head", rope_factors=True),
    Family(name="chatglm", architectures=frozenset({"chatglm"})),
    Family(name="command-r", architectures=frozenset({"command-r"}), norm="norm", qk_norm="head", parallel="fra"),
    Family(
        name="cohere2",
        architectures=frozenset({"cohere2"}),
        window=SlidingWindow(period=4),
        norm="norm",
        rope="windowed",
        rope_factors=True,
        parallel="fra",
    ),
    Family(
        name="hunyuan",
        architectures=frozenset({"hunyuan-dense", "hunyuan-moe", "hunyuan_vl"}),
        qk_norm="turned",
        rope_factors=True,
        sectioned=True,
    ),
    Family(name="nemotron", architectures=frozenset({"nemotron"}), norm="norm"),
    Family(name="stablelm", architectures=frozenset({"stablelm"}), norm="norm", qk_norm="head", parallel="far"),
    Family(name="gpt2", architectures=frozenset({"gpt2", "starcoder"}), norm="norm", rope="none"),
    Family(name="gptneox", architectures=frozenset({"gptneox"}), norm="norm", parallel="fra"),
    Family(name="phi2", architectures=frozenset({"phi2"}), norm="norm", scaled_queries=True, parallel="afr"),
    Family(name="falcon", architectures=frozenset({"falcon"}), norm="norm", parallel="far"),
    Family(name="plamo", architectures=frozenset({"plamo"}), parallel="far"),
    Family(name="orion", architectures=frozenset({"orion"}), norm="norm"),
    Family(name="olmo", architectures=frozenset({"olmo"}), norm="norm"),
    Family(name="olmoe", architectures=frozenset({"olmoe"}), qk_norm="flat", experts=Experts(normalised=False)),
    Family(name="qwen", architectures=frozenset({"qwen"})),
    Family(name="arcee", architectures=frozenset({"arcee", "exaone"}), rope_factors=True),
    Family(name="ernie4.5", architectures=frozenset({"ernie4_5"})),
    Family(
        name="bailingmoe",
        architectures=frozenset({"bailingmoe"}),
        experts=Experts(normalised=False, by_file=True),
        rope_factors=True,
    ),
    Family(
        name="bailingmoe2",
        architectures=frozenset({"bailingmoe2", "dots1"}),
        experts=Experts(normalised=False, by_file=True),
        qk_norm="head",
    ),
    Family(
        name="exaone-moe",
        architectures=frozenset({"exaone-moe"}),
        window=SlidingWindow(period=4, length=128),
        experts=Experts(normalised=False, by_file=True),
        qk_norm="head",
        rope="windowed",
        rope_factors=True,
    ),
    Family(
        name="gemma4",
        architectures=frozenset({"gemma4"}),
        window=SlidingWindow(period=6),
        own_kv="attention.shared_kv_layers",
        scaled_embeddings="rows",
        drawing="gemma4",
    ),
    Family(
        name="gemma3n",
        architectures=frozenset({"gemma3n"}),
        window=SlidingWindow(period=5),
        own_kv=20,
        scaled_embeddings="rows",
        drawing="gemma3n",
    ),
    Family(
        name="bert", architectures=frozenset({"bert", "jina-bert-v2"}), norm="norm", rope="none", drawing="encoder"
    ),
    Family(
        name="nomic-bert",
        architectures=frozenset({"nomic-bert", "nomic-bert-moe", "jina-bert-v3"}),
        norm="norm",
        experts=Experts(normalised=False),
        drawing="encoder",
    ),
    Family(
        name="modern-bert",
        architectures=frozenset({"modern-bert"}),
        window=SlidingWindow(period=3, dense_first=True),
        norm="norm",
        drawing="encoder",
    ),
    Family(name="eurobert", architectures=frozenset({"eurobert", "neo-bert"}), drawing="encoder"),
    Family(
        name="gemma-embedding",
        architectures=frozenset({"gemma-embedding"}),
        window=SlidingWindow(period=6),
        qk_norm="head",
        scaled_embeddings="rows",
        scaled_queries=True,
        post_norms=True,
        drawing="encoder",
    ),
)

#: Encoders and diffusion models, which keep nothing of earlier tokens (``llama_model::create_memory``).
WITHOUT_CACHE = frozenset(
    {
        "bert",
        "clef",
        "dream",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llada",
        "llada-moe",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "rnd1",
        "wavtokenizer-dec",
    }
)
#: They have no causal mask, whatever the file says.
_NEVER_CAUSAL = frozenset({"dream", "gemma-embedding", "llada", "llada-moe", "rnd1"})

#: ``is_pre_5_2`` of ``glm-dsa.cpp``.
_GLM_5_2_CONTEXT = 1 << 20

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def family_of(spec: ModelSpec) -> Family | None:
    """The family that *spec* follows, or None if its rules aren't known here (as with blocks without attention)."""
    family = _BY_ARCHITECTURE.get(spec.architecture)
    if family and family.recurrent is None and 0 in spec.head_count_kv:
        return None
    return family


def is_causal(spec: ModelSpec) -> bool:
    """Whether tokens see only those before them (``llama_hparams::causal_attn``)."""
    causal = spec.metadata.get(f"{spec.architecture}.attention.causal", True)
    return bool(causal) and spec.architecture not in _NEVER_CAUSAL


def stores_latent(spec: ModelSpec, family: Family) -> bool:
    """Whether only the compressed K is kept (``llama_hparams::is_mla``). Old files lack the keys: they keep all."""
    keys = ("key_length_mla", "value_length_mla")
    return family.latent and all(spec.metadata.get(f"{spec.architecture}.attention.{key}") for key in keys)


def index_width(spec: ModelSpec, family: Family, block: int) -> int:
    """Elements of a key of *block*'s indexer; 0 if it has none (``llama_hparams::is_indexer_full``)."""
    width = spec.metadata.get(f"{spec.architecture}.attention.indexer.key_length", 0)
    if not family.sparse or not isinstance(width, int):
        return 0
    types = spec.metadata.get(f"{spec.architecture}.attention.indexer.types")
    if spec.architecture != "glm-dsa":
        has_one = True
    elif isinstance(types, tuple):
        has_one = block < len(types) and bool(types[block])
    else:
        # before GLM 5.2 all had one; since then every fourth has, from the third on
        has_one = spec.context_length < _GLM_5_2_CONTEXT or block < 2 or block % 4 == 2
    return width if has_one else 0


def blocks_with_kv(spec: ModelSpec, family: Family) -> int:
    """How many blocks, from the first, keep K and V of their own (``llama_hparams::has_kv``)."""
    if isinstance(family.own_kv, str):
        shared = spec.metadata.get(f"{spec.architecture}.{family.own_kv}", 0)
        # at least one of each kind, or the engine aborts
        return max(2, spec.block_count - shared) if isinstance(shared, int) else spec.block_count
    return spec.block_count if family.own_kv is None else min(family.own_kv, spec.block_count)


def head_widths(spec: ModelSpec, *, window: bool) -> tuple[int, int]:
    """Elements of one head's K and V (``llama_hparams::n_embd_head_k``, ``_v``): window layers may differ."""
    if not window:
        return spec.key_length, spec.value_length
    keys = (("key_length_swa", spec.key_length), ("value_length_swa", spec.value_length))
    k_head, v_head = (spec.metadata.get(f"{spec.architecture}.attention.{key}", width) for key, width in keys)
    return int(k_head) if isinstance(k_head, int) else 0, int(v_head) if isinstance(v_head, int) else 0


def window_layers(spec: ModelSpec, family: Family) -> tuple[bool, ...]:
    """For each block: does it keep only a window of the context?"""
    if family.window is None or not window_length(spec, family):
        return (False,) * spec.block_count
    pattern = spec.metadata.get(f"{spec.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        flags = [bool(flag) for flag in pattern[: spec.block_count]]
        return tuple(flags + [False] * (spec.block_count - len(flags)))
    period = int(pattern) if isinstance(pattern, int | float) else family.window.period
    if period == 0:
        return (True,) * spec.block_count
    if family.window.dense_first:
        return tuple(block % period != 0 for block in range(spec.block_count))
    return tuple(block % period < period - 1 for block in range(spec.block_count))


def window_length(spec: ModelSpec, family: Family) -> int:
    """Tokens of the window; 0 if the model has none, or its file switches it off."""
    if family.window is None or spec.metadata.get(f"{spec.architecture}.attention.sliding_window") == 0:
        return 0
    return spec.sliding_window or family.window.length

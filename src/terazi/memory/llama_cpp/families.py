"""Model families whose memory rules are known here, as data.

A family says how its layers attend and what its layer graph looks like; everything else (weights, placement,
cache arithmetic) is the same for all. An architecture without an entry gets an upper bound.
"""

from typing import NamedTuple

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
        weigh_input: weights multiply what goes in rather than what comes out.
        select_by_logits: the choice is made before the gating function.
    """

    gating: str = "soft_max"
    normalised: bool = True
    weigh_input: bool = False
    select_by_logits: bool = False


class Family(NamedTuple):
    """One family.

    Args:
        name: for people.
        architectures: ``general.architecture`` values that it covers.
        window: sliding-window layers, if any.
        experts: how experts are chosen, where the model has any.
        norm: ``rms_norm`` or ``norm``.
        pre_norms: attention and feed-forward inputs are normalised.
        post_norms: attention and feed-forward outputs are normalised too.
        ffn_norm: name of the weight of the norm before the feed-forward half.
        qk_norm: queries and keys are normalised per ``head``, ``flat`` over all heads, or not at all.
        rope: ``all`` layers turn queries and keys, or only ``windowed`` ones if there is a window, or all
            ``but_fourth`` (every fourth goes without).
        rope_factors: the file may carry frequency factors for RoPE.
        scaled_embeddings: token embeddings are scaled by ``rows``, ``whole``, or not at all.
        scaled_queries: queries are scaled before attention.
        residual_first: the last sum of a block names the residual first.
        select_last: outputs are picked after the last block instead of inside it.
        tempered: queries are scaled by their position: in ``unturned`` layers (those without RoPE), or in all where
            the file gives the metadata key named here.
    """

    name: str
    architectures: frozenset[str]
    window: SlidingWindow | None = None
    experts: Experts = Experts()
    norm: str = "rms_norm"
    pre_norms: bool = True
    post_norms: bool = False
    ffn_norm: str = "ffn_norm"
    qk_norm: str | None = None
    rope: str = "all"
    rope_factors: bool = False
    scaled_embeddings: str | None = None
    scaled_queries: bool = False
    residual_first: bool = False
    select_last: bool = False
    tempered: str | None = None


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
        name="phi3", architectures=frozenset({"phi3"}), rope_factors=True, scaled_queries=True, residual_first=True
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
)

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def family_of(spec: ModelSpec) -> Family | None:
    """The family that *spec* follows, or None if its rules aren't known here (as with blocks without attention)."""
    if 0 in spec.head_count_kv:
        return None
    return _BY_ARCHITECTURE.get(spec.architecture)


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

"""What a model family is: how its layers attend and what its layer graph looks like, as data.

Everything else (weights, placement, cache arithmetic) is the same for all families.
"""

from typing import NamedTuple

from terazi.memory.llama_cpp.blocks import Recurrent


class SlidingWindow(NamedTuple):
    """Which layers see only a window: ``llama_hparams::set_swa_pattern``.

    ``period`` is the default of ``load_swa_pattern``; the file's ``attention.sliding_window_pattern`` (a number, or
    one flag a layer) overrides it. One layer of each period is dense: the last, or the first with ``dense_first``.
    ``length`` is used where the file names no window, or in place of what it names if it is
    ``fixed``.
    """

    period: int
    dense_first: bool = False
    length: int = 0
    fixed: bool = False


class Experts(NamedTuple):
    """How a mixture of experts chooses and weighs (``build_moe_ffn``).

    Args:
        gating: ``soft_max`` over all experts, ``sigmoid``, ``sqrt_softplus``, or ``chosen``: softmax over those
            chosen.
        normalised: the weights of the chosen are divided by their sum.
        by_file: the file may say otherwise about these two (``expert_gating_func``, ``expert_weights_norm``).
        weigh_input: weights multiply what goes in rather than what comes out.
        select_by_logits: the choice is made before the gating function.
        divided_gate: the gate of the shared expert is divided by what goes into it (a detour to a sigmoid).
        halved: the sum with the shared expert is scaled.
        early: the router looks at what goes into the block instead of the feed-forward half.
        beside_dense: a dense half works on the same input, and the sum of both is scaled.
        chunked: smaller experts work on what comes out, one for each group of those chosen.
        from_residual: experts work on the norm of what goes into the block, beside a dense half on what it adds to.
    """

    gating: str = "soft_max"
    normalised: bool = True
    by_file: bool = False
    weigh_input: bool = False
    select_by_logits: bool = False
    divided_gate: bool = False
    halved: bool = False
    early: bool = False
    beside_dense: bool = False
    from_residual: bool = False
    chunked: bool = False


class Family(NamedTuple):
    """One family.

    Args:
        name: for people.
        architectures: ``general.architecture`` values that it covers.
        window: sliding-window layers, if any.
        experts: how experts are chosen, where the model has any.
        norm: ``rms_norm`` or ``norm``, or ``by_file``: the second if the file has no epsilon for the first.
        pre_norms: attention and feed-forward inputs are normalised.
        post_norms: attention and feed-forward outputs are normalised too; with ``pinned`` the second norm may be
            pinned to the device of its layer like the others, with ``free`` neither may.
        post_norm_names: of the weights of these two.
        rows_after_norm: outputs are picked after the norm behind attention instead of before.
        parallel: feed-forward works beside attention, not after it: the order in which feed-forward (f),
            attention (a) and residual (r) are summed.
        ffn_norm: name of the weight of the norm before the feed-forward half.
        qk_norm: queries and keys are normalised per ``head``, ``flat`` over all heads, per head once they are
            ``turned``, or not at all; not in files without the weights.
        joined_heads: queries, keys and values are cut from one tensor of heads.
        gated: a gate made of its input multiplies what attention puts out, in files with the weight for it.
        rope: ``all`` layers turn queries and keys, or only ``windowed`` ones if there is a window, or these and the
            dense ones that lead (``windowed_and_dense``), or all ``but_fourth`` (every fourth goes without), or
            ``but_first`` of each four, or ``none``; ``finetuned``: all unless the file says no; ``small``: only the
            model of 32 blocks; ``by_pattern``: as the file says for each.
        rope_factors: the file may carry frequency factors for RoPE, of all layers or of the ``full`` ones.
        scaled_embeddings: token embeddings are scaled by ``rows``, ``whole`` (``early``: before anything else
            is drawn), ``normed``, or not at all.
        scaled_logits: logits are scaled where the file says how, or ``always``, or their source is (``hidden``).
        scaled_queries: queries are scaled before attention.
        residual_first: the last sum of a block names the residual first; with ``attention`` the first sum does.
        select_last: outputs are picked after the last block instead of inside it, or even ``after_norm``.
        tempered: queries are scaled by their position: in ``unturned`` layers (those without RoPE), or in all where
            the file gives the metadata key named here.
        scaled_residuals: what is added to the residual is scaled, and so are the logits if the file says how.
        recurrent: blocks with a recurrent state, if any.
        sectioned: the file may cut rotary embeddings into sections for images (or does ``always``); then a token
            has four places.
        deep_inputs: embeddings of images may have parts for several layers.
        latent: K and V are stored compressed (multi-head latent attention), see ``latent_attention``.
        sparse: an indexer picks what latent attention looks at, see ``sparse_attention``; or ``blocks`` of what
            plain attention does, see ``block_sparse``.
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
    post_norm_names: tuple[str, str] = ("post_attention_norm", "post_ffw_norm")
    rows_after_norm: bool = False
    parallel: str | None = None
    ffn_norm: str = "ffn_norm"
    qk_norm: str | None = None
    joined_heads: bool = False
    gated: bool = False
    rope: str = "all"
    rope_factors: bool | str = False
    scaled_embeddings: str | None = None
    scaled_logits: bool | str = False
    scaled_queries: bool = False
    residual_first: bool | str = False
    select_last: bool | str = False
    tempered: str | None = None
    scaled_residuals: bool = False
    recurrent: Recurrent | None = None
    sectioned: bool | str = False
    deep_inputs: bool = False
    latent: bool = False
    sparse: bool | str = False
    own_kv: int | str | None = None
    drawing: str = "decoder"

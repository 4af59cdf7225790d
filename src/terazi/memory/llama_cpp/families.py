"""Model families whose memory rules are known here, as data.

A family says how its layers attend and what its layer graph looks like; everything else (weights, placement,
cache arithmetic) is the same for all. An architecture without an entry gets an upper bound.
"""

from dataclasses import dataclass

from terazi.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Which layers see only a window: ``llama_hparams::set_swa_pattern``.

    ``period`` is the default of ``load_swa_pattern``; the file's ``attention.sliding_window_pattern`` (a number, or
    one flag a layer) overrides it. One layer of each period is dense: the last, or the first with ``dense_first``.
    """

    period: int
    dense_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family.

    Args:
        name: for people.
        architectures: ``general.architecture`` values that it covers.
        window: sliding-window layers, if any.
        norm: ``rms_norm`` or ``norm``.
        qk_norm: queries and keys are normalised per ``head``, ``flat`` over all heads, or not at all.
        rope_factors: the file may carry frequency factors for RoPE.
        scaled_embeddings: token embeddings are scaled row by row.
        scaled_queries: queries are scaled before attention.
        post_norms: attention and feed-forward outputs are normalised too.
    """

    name: str
    architectures: frozenset[str]
    window: SlidingWindow | None = None
    norm: str = "rms_norm"
    qk_norm: str | None = None
    rope_factors: bool = False
    scaled_embeddings: bool = False
    scaled_queries: bool = False
    post_norms: bool = False


FAMILIES = (
    # src/models/llama.cpp: no sliding window even if the file names one (Mistral)
    Family(name="llama", architectures=frozenset({"llama"}), rope_factors=True),
    # src/models/gemma3.cpp
    Family(
        name="gemma3",
        architectures=frozenset({"gemma3"}),
        window=SlidingWindow(period=6),
        qk_norm="head",
        scaled_embeddings=True,
        scaled_queries=True,
        post_norms=True,
    ),
)

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def family_of(spec: ModelSpec) -> Family | None:
    """The family that *spec* follows, or None if its rules aren't known here."""
    return _BY_ARCHITECTURE.get(spec.architecture)


def window_layers(spec: ModelSpec, family: Family) -> tuple[bool, ...]:
    """For each block: does it keep only a window of the context?"""
    if family.window is None or not spec.sliding_window:
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

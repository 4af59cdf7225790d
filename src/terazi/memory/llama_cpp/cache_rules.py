"""What each block keeps of earlier tokens, by family and file: windows, head widths, shared caches, or nothing.

Sources, b11434: ``src/llama-hparams.cpp``, ``src/llama-model.cpp:create_memory``, ``load_arch_hparams`` of each
family in ``src/models/``.
"""

from terazi.memory.llama_cpp.family import Family
from terazi.models.spec import ModelSpec

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
    if family.sparse == "pools":
        # a key, its gate and the pooled key; blocks that recur keep none
        full = spec.metadata.get(f"{spec.architecture}.attention.indexer.types")
        has_one = not isinstance(full, tuple) or block >= len(full) or bool(full[block])
        return 3 * width if has_one else 0
    if family.sparse == "blocks":
        dense = spec.metadata.get(f"{spec.architecture}.leading_dense_block_count", 0)
        return width if isinstance(dense, int) and block >= dense else 0
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
    if family.window.fixed:
        return family.window.length if spec.sliding_window else 0
    return spec.sliding_window or family.window.length

"""How large a graph may be before llama.cpp aborts.

Sources, b11434: ``src/llama-context.cpp:graph_max_nodes`` gives the scheduler room by the number of tensors of the
model; ``ggml/src/ggml.c:ggml_hash_size`` rounds that up. Every node and leaf takes a place; with none left the
engine ends itself (``ggml-impl.h:330: fatal error``). Models with few tensors and many operations come close: a
quantised cache in several streams is too much for Phi-4.
"""

from bisect import bisect_left

from terazi.errors import ModelFileError, UsageError
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.models.spec import ModelSpec

#: ``ggml_hash_size``: the next primes after powers of two, as far as a graph may need them.
_PLACES = (1031, 2053, 4099, 8209, 16411, 32771, 65537, 131101, 262147, 524309, 1048583)
#: Architecture → (places a token, places a tensor) where it isn't 8 a tensor and at least 1024.
_ROOMIER = {
    **dict.fromkeys(("kimi-k3", "glm5-next"), (160, 64)),
    "hrm_text": (80, 64),
    **dict.fromkeys(
        (
            "qwen3next",
            "kimi-linear",
            "bailingmoe3",
            "qwen35",
            "qwen35moe",
            "clef",
            "qwen4exp",
            "deepseek4",
            "nanbeige",
            "minimax-01",
            "minimax-m3",
            "hy_v4",
        ),
        (40, 32),
    ),
}


#: What the arithmetic of a graph raises where a shape or a count is none that its architecture could have. The
#: engine checks every tensor against its hyperparameters (``create_tensor``) and refuses such a file. Assertions of
#: a drawing say the same: attention without a cache, a recurrent block without a state.
MISFITS = (ArithmeticError, AssertionError, LookupError)


def misfit(spec: ModelSpec) -> ModelFileError:
    """The refusal of a file that met with one of ``MISFITS``."""
    return ModelFileError(
        f"The tensors of this model aren't what its architecture {spec.architecture!r} needs.",
        hint="The file is damaged or mislabelled; get it again.",
    )


def check_keys(spec: ModelSpec, caches: tuple[CacheLayer, ...]) -> None:
    """Refuse a file whose keys have another width than its head counts say (``create_tensor_qkv``).

    *caches* are those of the model's own blocks, whose architecture makes keys in every one.

    Raises:
        ModelFileError: the engine would not load it either.
    """
    widths = {cache.block: cache.k_width for cache in caches if not cache.shared}
    for tensor in spec.tensors:
        if tensor.block is None or tensor.block >= trunk_length(spec):
            continue
        if tensor.name != f"blk.{tensor.block}.attn_k.weight":
            continue
        said = widths.get(tensor.block, 0 if not spec.head_count_kv[tensor.block] else None)
        if said is not None and tensor.shape[-1] != said:
            raise ModelFileError(
                f"The header's head counts make keys of {said} elements in block {tensor.block}, and its tensor"
                f" {tensor.name} has {tensor.shape[-1]}, so the engine would not load it.",
                hint="The file is damaged, or made by a faulty converter: get it again.",
            )


def check_graph_size(size: int, architecture: str, *, tokens: int, tensors: int, adapted: int = 0) -> None:
    """Refuse what the engine would abort on.

    Args:
        size: nodes and leaves of the graph as drawn for *tokens* tokens.
        architecture: of the model.
        tokens: of the largest micro-batch.
        tensors: that the engine creates, duplicates included.
        adapted: weights that LoRA adapters modify; each gets room of its own.

    Raises:
        UsageError: if the graph has more nodes and leaves than the scheduler has places.
    """
    a_token, a_tensor = _ROOMIER.get(architecture, (0, 8))
    room = max(1024, a_token * tokens, a_tensor * tensors) + (0 if a_token else 6 * adapted)
    places = _PLACES[bisect_left(_PLACES, room)] if room <= _PLACES[-1] else room
    if size > places:
        raise UsageError(
            f"llama.cpp would abort: the graph has {size} parts, and for a model of {tensors} tensors there are "
            f"{places} places.",
            hint="Use -ctk f16 -ctv f16, or --kv-unified instead of one cache a slot.",
        )


def check_single_sequence(tokens: int, streams: int) -> None:
    """Refuse a micro-batch of one sequence that the engine can't spread over separate caches: it would abort.

    Raises:
        UsageError: if *tokens* aren't a multiple of *streams*.
    """
    if tokens % streams:
        raise UsageError(
            f"llama.cpp would abort: it reserves {tokens} tokens of this model over {streams} separate caches.",
            hint=f"Use a -ub that is a multiple of {streams}, or --kv-unified.",
        )

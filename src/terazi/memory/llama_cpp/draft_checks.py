"""What the engine makes of a draft: heads that it can't run, and drafts that it loads and lets go again.

Sources, b11434: ``src/llama-context.cpp:llama_init_from_model`` and the assertions of ``graph_mtp`` in
``src/models/``; ``common/speculative.cpp`` (``common_speculative_init``, ``common_speculative_are_compatible``, the
constructors of each kind); ``tools/server/server-context.cpp:load_model``, which frees the draft where no
speculation comes of it.
"""

from terazi.errors import UsageError
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.cache_rules import WITHOUT_CACHE
from terazi.memory.llama_cpp.settings import BUILD
from terazi.memory.llama_cpp.speculation import Speculation
from terazi.models.spec import ModelSpec

#: Architectures whose draft heads this build can run (a ``graph_mtp``); of the first lot only one block.
_ONE_BLOCK = frozenset(
    {
        "deepseek2",
        "deepseek32",
        "glm-dsa",
        "glm4moe",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
    }
)
_WITH_HEADS = _ONE_BLOCK | {
    "bailingmoe3",
    "cohere2moe",
    "deepseek4",
    "gemma4-assistant",
    "glm5-next",
    "hy_v3",
    "mimo2",
    "qwen4exp",
    "step35",
}
#: Kind → the architecture that it needs.
_OWN_KINDS = {"draft-eagle3": "eagle3", "draft-dflash": "dflash", "draft-dspark": "dflash"}
#: These draft with multi-head latent attention only.
_LATENT = frozenset({"deepseek2", "deepseek32", "glm-dsa"})
#: ``SPEC_VOCAB_MAX_SIZE_DIFFERENCE``, in tokens.
_VOCAB_SLACK = 128
#: ``tokenizer.ggml.model`` of vocabularies that are one kind to the engine (``llama_vocab::impl::load``).
_SAME_KIND = {"hybriddna": "gpt2", "whitespace": "gpt2", "gemma4": "gpt2"}


def check_head(spec: ModelSpec) -> None:
    """``llama_init_from_model`` and the assertions of ``graph_mtp``."""
    trunk = trunk_length(spec)
    heads = spec.block_count - trunk
    present = any(tensor.block is not None and tensor.block >= trunk for tensor in spec.tensors)
    if heads <= 0 or not present:
        raise UsageError(
            f"{spec.name} has no draft head (NextN, MTP blocks), so llama.cpp can't make a context for it.",
            hint="Drop --spec-type draft-mtp, or take a file with the blocks: converters leave them out at will.",
        )
    if spec.architecture not in _WITH_HEADS:
        raise UsageError(
            f"llama.cpp {BUILD} can't run the draft head of {spec.architecture} models.",
            hint="Drop --spec-type draft-mtp.",
        )
    if heads > 1 and spec.architecture in _ONE_BLOCK:
        raise UsageError(
            f"llama.cpp {BUILD} would abort: it runs one draft block of {spec.architecture}, the file has {heads}.",
            hint="Drop --spec-type draft-mtp.",
        )

    if spec.architecture in _LATENT and not spec.metadata.get(f"{spec.architecture}.attention.key_length_mla"):
        raise UsageError(
            f"llama.cpp would abort: the draft head of {spec.name} needs compressed keys, and the file has none.",
            hint="Drop --spec-type draft-mtp, or convert the model anew.",
        )


def hidden_width(spec: ModelSpec) -> int:
    """Elements of the hidden state that a model gives out (``llama_hparams::n_embd_out``)."""
    width = spec.metadata.get(f"{spec.architecture}.embedding_length_out", 0)
    return width if isinstance(width, int) and width > 0 else spec.embedding_length


def why_dropped(spec: ModelSpec, draft: ModelSpec | None, speculation: Speculation) -> str | None:
    """Why no speculation comes of it, although the engine starts."""
    if spec.architecture in WITHOUT_CACHE:
        return "the model keeps no cache to go back in"
    if not speculation.kinds:
        return "no --spec-type says how to draft; say --spec-type draft-simple"
    if draft is None:
        return None
    for kind, architecture in _OWN_KINDS.items():
        if not speculation.uses(kind) or draft.architecture == architecture:
            continue
        if architecture == "dflash":
            raise UsageError(
                f"llama.cpp would abort: {kind} needs a {architecture} draft, this is {draft.architecture}.",
                hint="Say --spec-type draft-simple for a small model of the same vocabulary.",
            )
        return f"--spec-type {kind} needs an {architecture} draft, this is {draft.architecture}"
    if speculation.uses("draft-simple"):
        return vocabulary_mismatch(spec, draft)
    if speculation.uses("draft-mtp") and hidden_width(draft) != hidden_width(spec):
        raise UsageError(
            f"llama.cpp would abort: hidden states of the draft head are {hidden_width(draft)} wide, the model's "
            f"{hidden_width(spec)}.",
            hint="Give the draft head of this very model.",
        )
    return None


def vocabulary_mismatch(spec: ModelSpec, draft: ModelSpec) -> str | None:
    """Why tokens of *draft* aren't those of *spec*, as far as headers tell (``common_speculative_are_compatible``).

    The engine also compares the text of each token, which isn't kept here.
    """
    kinds = [_vocabulary(model) for model in (spec, draft)]
    if kinds[0] != kinds[1]:
        return f"the draft's vocabulary ({kinds[1]}) is of another kind than the model's ({kinds[0]})"
    for key, text in (("bos", "beginning-of-text"), ("eos", "end-of-text")):
        added = [model.metadata.get(f"tokenizer.ggml.add_{key}_token") for model in (spec, draft)]
        ids = [model.metadata.get(f"tokenizer.ggml.{key}_token_id") for model in (spec, draft)]
        if None not in added and added[0] != added[1]:
            return f"the one adds an {text} token, the other doesn't"
        if added[0] and added[1] and None not in ids and ids[0] != ids[1]:
            return f"the {text} tokens differ ({ids[1]} against {ids[0]})"
    difference = abs(spec.vocab_size - draft.vocab_size)
    if difference > _VOCAB_SLACK:
        return f"the draft has {draft.vocab_size} tokens, the model {spec.vocab_size}: over {_VOCAB_SLACK} apart"
    return None


def _vocabulary(spec: ModelSpec) -> str:
    name = str(spec.metadata.get("tokenizer.ggml.model", "none"))
    return _SAME_KIND.get(name, name)

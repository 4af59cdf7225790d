"""Which second context speculation makes beside the model's, with which settings, and what the engine refuses.

Sources, b11434: ``common/speculative.cpp`` (``common_base_params_to_speculative``, ``common_speculative_init``,
``common_speculative_types_from_gguf``, ``common_speculative_are_compatible``), ``tools/server/server-context.cpp``
(``load_model``: the server drops the draft again where no speculation comes of it), ``src/llama-context.cpp``
(``llama_init_from_model``), ``src/models/*.cpp`` (``graph_mtp``).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.buffers import backend_of
from terazi.memory.llama_cpp.cache_rules import WITHOUT_CACHE
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.resolve import SERVERS, Resolved, resolve
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.llama_cpp.speculation import NGRAM_KINDS, Speculation
from terazi.models.spec import ModelSpec

#: The part that the bill's lines of a draft name.
DRAFT = "draft"
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
    "glm5-next",
    "hy_v3",
    "mimo2",
    "qwen4exp",
    "step35",
}
#: Drafts that go without an embedding or an output matrix of their own.
_BORROWERS = frozenset({"eagle3", "dflash"})
#: Kind → the architecture that it needs.
_OWN_KINDS = {"draft-eagle3": "eagle3", "draft-dflash": "dflash", "draft-dspark": "dflash"}
#: These draft with multi-head latent attention only.
_LATENT = frozenset({"deepseek2", "deepseek32", "glm-dsa"})
#: ``SPEC_VOCAB_MAX_SIZE_DIFFERENCE``, in tokens.
_VOCAB_SLACK = 128
#: ``tokenizer.ggml.model`` of vocabularies that are one kind to the engine (``llama_vocab::impl::load``).
_SAME_KIND = {"hybriddna": "gpt2", "whitespace": "gpt2", "gemma4": "gpt2"}


class Context(NamedTuple):
    """One context to weigh. With *borrows* its graph may use the model's embedding and output matrix."""

    spec: ModelSpec
    settings: LlamaCppSettings
    resolved: Resolved
    family: Family | None
    borrows: bool = False


class DraftContext(NamedTuple):
    """The second context.

    Args:
        spec: what it runs: the draft model, or the model itself with its own draft head.
        settings: as the engine derives them from those of the command.
        resolved: the same, settled.
        own_weights: it has weights of its own.
        dropped: why the engine lets it go right after loading; None if it stays.
        reads_hidden: it starts from hidden states of the model, and picks its tokens in the graph if it may.
    """

    spec: ModelSpec
    settings: LlamaCppSettings
    resolved: Resolved
    own_weights: bool
    dropped: str | None
    reads_hidden: bool = False

    @property
    def context(self) -> Context:
        """The same, to weigh."""
        borrows = self.own_weights and self.spec.architecture in _BORROWERS
        return Context(self.spec, self.settings, self.resolved, family_of(self.spec), borrows)


def draft_model(companions: tuple[Companion, ...]) -> ModelSpec | None:
    """The draft model among *companions*."""
    return next((companion.spec for companion in companions if companion.part == DRAFT), None)


def settle(settings: LlamaCppSettings, companions: tuple[Companion, ...]) -> LlamaCppSettings:
    """*settings* with the kind of speculation that the draft's file asks for, where the command asks for none."""
    draft = draft_model(companions)
    if draft is None or settings.speculation.kinds is not None:
        return settings
    kind = _kind_of_file(draft)
    if kind is None:
        return settings
    return replace(settings, speculation=replace(settings.speculation, kinds=(kind,)))


def _kind_of_file(draft: ModelSpec) -> str | None:
    """``common_speculative_types_from_gguf``; of a split file it reads the first part alone."""
    names = {tensor.name for tensor in draft.tensors if tensor.file_index == 0}
    if draft.architecture == "dflash":
        return "draft-dspark" if "markov_w1.weight" in names else "draft-dflash"
    return "draft-mtp" if f"blk.{draft.block_count - 1}.nextn.eh_proj.weight" in names else None


def draft_context(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    devices: tuple[Device, ...],
    companions: tuple[Companion, ...],
    *,
    held: Mapping[str, int],
) -> DraftContext | None:
    """The context that a server makes for its draft, or None if it makes none.

    Args:
        spec, settings, resolved: the model, settled.
        devices: all that the machine has.
        companions: what is loaded beside the model.
        held: bytes by device id that the model takes, which the draft's layers are then shared out around.

    Raises:
        UsageError: where the engine would refuse to start, or abort.
    """
    draft, speculation = draft_model(companions), settings.speculation
    if settings.tool not in SERVERS or (draft is None and not speculation.uses("draft-mtp")):
        return None
    if speculation.uses("draft-mtp"):
        _check_head(draft or spec)
    derived = _settings(settings, resolved, draft)
    if draft is not None and draft.architecture in WITHOUT_CACHE:
        raise UsageError(
            f"{draft.architecture} models keep no cache, so llama.cpp can't draft with one.",
            hint="Give a small decoder of the same vocabulary with -md.",
        )
    left = tuple(replace(device, memory_free_bytes=_left(device, held)) for device in devices)
    try:
        second = resolve(draft or spec, derived, left if draft else devices)
    except UsageError as error:
        raise UsageError(f"For the draft: {error.message}", hint=error.hint) from error
    dropped = _dropped(spec, draft, speculation)
    reads_hidden = speculation.uses("draft-mtp") or speculation.uses("draft-eagle3")
    rows = resolved.n_seq_max * (1 + speculation.n_max) if _drafts_blocks(speculation) else resolved.n_seq_max
    return DraftContext(
        spec=draft or spec,
        settings=derived,
        resolved=second._replace(
            n_outputs=min(second.n_tokens, rows),
            kept_states=1,
            draft_head=speculation.uses("draft-mtp"),
            samples=reads_hidden and dropped is None and speculation.backend_sampling,
        ),
        own_weights=draft is not None,
        dropped=dropped,
        reads_hidden=reads_hidden,
    )


def _drafts_blocks(speculation: Speculation) -> bool:
    """These decode a whole block of tokens in one pass."""
    return speculation.uses("draft-dflash") or speculation.uses("draft-dspark")


def _left(device: Device, held: Mapping[str, int]) -> int:
    """Free memory once the model is loaded. A server on a CPU reports all its memory as free, whatever it holds."""
    if backend_of(device) == "rpc":
        return device.memory_free_bytes
    return max(0, device.memory_free_bytes - held.get(device.id, 0))


def _settings(settings: LlamaCppSettings, resolved: Resolved, draft: ModelSpec | None) -> LlamaCppSettings:
    """``common_base_params_to_speculative``, and the context of the model itself."""
    own = settings.speculation
    derived = replace(
        settings,
        n_ctx=resolved.n_ctx,
        n_parallel=resolved.n_seq_max,
        kv_unified=resolved.unified,
        embedding=False,
        type_k=own.type_k,
        type_v=own.type_v,
        # what is drafted is loaded and run, but nothing is drafted for it
        speculation=Speculation(kinds=("draft-mtp",)) if own.uses("draft-mtp") else Speculation(),
    )
    if settings.embedding:
        derived = replace(derived, n_batch=min(settings.n_batch, settings.n_ubatch or settings.n_batch))
    if draft is None:
        return derived
    one_device = len(own.devices) == 1 and own.devices != ("none",)
    return replace(
        derived,
        devices=own.devices or settings.devices,
        split_mode="layer" if one_device else settings.split_mode,
        n_gpu_layers=own.n_gpu_layers,
        override_tensor=own.override_tensor,
        cpu_moe=own.cpu_moe,
        n_cpu_moe=own.n_cpu_moe,
    )


def _check_head(spec: ModelSpec) -> None:
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


def _dropped(spec: ModelSpec, draft: ModelSpec | None, speculation: Speculation) -> str | None:
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
    if speculation.uses("draft-mtp") and draft.embedding_length != spec.embedding_length:
        raise UsageError(
            f"llama.cpp would abort: the draft head is {draft.embedding_length} wide, the model "
            f"{spec.embedding_length}.",
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


def speculation_notes(
    spec: ModelSpec, settings: LlamaCppSettings, companions: tuple[Companion, ...]
) -> tuple[str, ...]:
    """What a reader of the command should know: a draft that comes to nothing, a kind that lacks its draft."""
    settings = settle(settings, companions)
    draft, speculation = draft_model(companions), settings.speculation
    notes = []
    if draft is not None and (why := _dropped(spec, draft, speculation)):
        notes.append(f"llama.cpp loads the draft model and lets it go at once: {why}.")
    elif draft is not None and set(speculation.kinds or ()) <= NGRAM_KINDS:
        notes.append("The draft model stays loaded, but n-grams alone are asked for; add --spec-type draft-simple.")
    if draft is None:
        lacking = [kind for kind in speculation.kinds or () if kind not in NGRAM_KINDS | {"draft-mtp"}]
        notes += [f"--spec-type {kind} does nothing without a draft model (-md)." for kind in lacking]
    return tuple(notes)

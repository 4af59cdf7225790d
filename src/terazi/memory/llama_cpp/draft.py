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
from terazi.memory.companion import DRAFT, Companion
from terazi.memory.llama_cpp.buffers import backend_of
from terazi.memory.llama_cpp.cache_rules import WITHOUT_CACHE
from terazi.memory.llama_cpp.context import CACHELESS, Context
from terazi.memory.llama_cpp.draft_checks import check_head, why_dropped
from terazi.memory.llama_cpp.draft_head import HEADS
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.resolve import SERVERS, Resolved, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import NGRAM_KINDS, Speculation
from terazi.models.spec import ModelSpec

#: Drafts that go without an embedding, an output matrix or a cache of their own.
BORROWERS = frozenset({"dflash", "eagle3", "gemma4-assistant"})
#: Drafts that read features in a pass of their own, and give out logits for all of a batch (``has_encoder``).
_ENCODERS = frozenset({"dflash", "eagle3"})


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
        borrows = self.own_weights and self.spec.architecture in BORROWERS
        return Context(self.spec, self.settings, self.resolved, family_of(self.spec), borrows)


def draws_head(spec: ModelSpec) -> bool:
    """Whether the graph of *spec*'s draft head is known here."""
    return spec.architecture in HEADS or spec.architecture in CACHELESS


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
        check_head(draft or spec)
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
    dropped = why_dropped(spec, draft, speculation)
    reads_hidden = speculation.uses("draft-mtp") or speculation.uses("draft-eagle3")
    rows = resolved.n_seq_max * (1 + speculation.n_max) if _drafts_blocks(speculation) else resolved.n_seq_max
    return DraftContext(
        spec=draft or spec,
        settings=derived,
        resolved=second._replace(
            n_outputs=min(second.n_tokens, second.n_batch if (draft or spec).architecture in _ENCODERS else rows),
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
    if draft.architecture in CACHELESS:
        derived = replace(derived, type_k=settings.type_k, type_v=settings.type_v)
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


def speculation_notes(
    spec: ModelSpec, settings: LlamaCppSettings, companions: tuple[Companion, ...]
) -> tuple[str, ...]:
    """What a reader of the command should know: a draft that comes to nothing, a kind that lacks its draft."""
    settings = settle(settings, companions)
    draft, speculation = draft_model(companions), settings.speculation
    notes = []
    if draft is not None and (why := why_dropped(spec, draft, speculation)):
        notes.append(f"llama.cpp loads the draft model and lets it go at once: {why}.")
    elif draft is not None and set(speculation.kinds or ()) <= NGRAM_KINDS:
        notes.append("The draft model stays loaded, but n-grams alone are asked for; add --spec-type draft-simple.")
    if draft is None:
        lacking = [kind for kind in speculation.kinds or () if kind not in NGRAM_KINDS | {"draft-mtp"}]
        notes += [f"--spec-type {kind} does nothing without a draft model (-md)." for kind in lacking]
    return tuple(notes)

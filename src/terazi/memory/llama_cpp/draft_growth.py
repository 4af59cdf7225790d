"""What speculation takes later, with the first drafts and the first long prompts.

Sources, b11434: ``src/llama-context.cpp`` (``output_reserve``, ``encode``, ``set_embeddings_layer_inp``),
``common/speculative.cpp`` (buffers of each kind), ``common/ngram-map.h``, ``common/ngram-cache.h``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.companion import DRAFT
from terazi.memory.llama_cpp.context import Context
from terazi.memory.llama_cpp.draft import DraftContext
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import ngram_growth_bytes

WeighContext: TypeAlias = Callable[[Context], Bill]
#: The part that lines of n-gram tables name.
NGRAM = "ngram"
#: Layers of the model that an EAGLE3 draft reads.
_EAGLE3_LAYERS = 3
#: Where these pick the wanted rows while a draft head asks for the hidden state of every token (``select_last``).
#: The graph that is reserved at first picks them earlier; the larger one comes with the first large batch.
_HIDDEN: Mapping[str, bool | str] = {
    **dict.fromkeys(("deepseek2", "deepseek32", "glm-dsa", "glm4moe"), "after_norm"),
    "mimo2": True,
}


def host_line(size: int, formula: str, basis: LineBasis, note: str, *, part: str = "") -> BillLine:
    """A line of host memory beside the buffers of a model."""
    return BillLine(
        term=Term.OVERHEAD,
        device=HOST,
        bytes=size,
        formula=formula,
        basis=basis,
        memory=Memory.ANONYMOUS,
        note=note,
        part=part,
    )


def draft_growth(
    bill: Bill, model: Context, draft: DraftContext | None, weigh_context: WeighContext
) -> Iterator[BillLine]:
    """What checking drafts, and giving hidden states to the draft, takes besides *bill* of the model alone."""
    if draft is not None and draft.dropped:
        return
    layers = 0
    if draft is not None and draft.reads_hidden:
        layers = 1 if draft.resolved.draft_head else _EAGLE3_LAYERS
    yield from _outputs(model, layers)
    if draft is None or not layers:
        return
    if draft.resolved.draft_head:
        yield from _whole_graph(bill, model, weigh_context)
    else:
        yield from _layer_inputs(model, draft)
        yield from _features(model, draft)


def _outputs(model: Context, layers: int) -> Iterator[BillLine]:
    """The model's output buffer: a row of logits for each drafted token, and *layers* hidden states of a batch."""
    resolved = model.resolved
    checked = resolved.n_seq_max * (1 + model.settings.speculation.drafted)
    rows = max(0, min(resolved.n_batch, checked) - resolved.n_seq_max)
    size = 4 * model.spec.vocab_size * rows + 4 * layers * model.spec.embedding_length * resolved.n_batch
    if size:
        also = ", and hidden states of each token of a batch" if layers else ""
        note = f"logits of {rows} drafted tokens{also}, from the first draft on"
        yield host_line(size, "output-buffer.drafts", LineBasis.UPPER_BOUND, note)


def _whole_graph(bill: Bill, model: Context, weigh_context: WeighContext) -> Iterator[BillLine]:
    """What the model's compute buffers grow by once the graph gives out every token's last hidden state."""
    if model.family is None or model.spec.architecture not in _HIDDEN:
        return
    family = model.family._replace(select_last=_HIDDEN[model.spec.architecture])
    before = {line.device: line.bytes for line in bill.lines if line.term is Term.COMPUTE}
    note = "the graph gives out every token's hidden state for the draft head, from the first large batch on"
    for line in weigh_context(model._replace(family=family)).lines:
        more = line.bytes - before.get(line.device, 0)
        if line.term is Term.COMPUTE and more > 0:
            yield replace(line, bytes=more, formula="compute.hidden-states", basis=LineBasis.MODELLED, note=note)


def _layer_inputs(model: Context, draft: DraftContext) -> Iterator[BillLine]:
    """The same for three layers in the middle: at most, each keeps what goes into it until the graph is done."""
    ids = draft.spec.metadata.get(f"{draft.spec.architecture}.target_layers")
    devices = model.resolved.layer_devices
    held: dict[str, int] = {}
    for layer in ids if isinstance(ids, tuple) else ():
        device = devices[min(max(int(layer) - 1, 0), len(devices) - 1)]
        held[device] = held.get(device, 0) + 4 * model.spec.embedding_length * model.resolved.n_tokens
    for device, size in held.items():
        yield BillLine(
            term=Term.COMPUTE,
            device=device,
            bytes=size,
            formula="compute.hidden-states",
            basis=LineBasis.UPPER_BOUND,
            memory=Memory.ANONYMOUS if device == HOST else Memory.DEVICE,
            note="what goes into the layers that the draft reads, from the first request on",
        )


def _features(model: Context, draft: DraftContext) -> Iterator[BillLine]:
    """The draft's output buffer while prompts are read, and what is copied to and from between the two.

    The encoder asks for a row of logits (and candidates) for each token of a micro-batch, and uses none.
    """
    spec, resolved = draft.spec, draft.resolved
    columns = spec.vocab_size * (4 if resolved.samples else 1) + spec.embedding_length + resolved.samples
    rows = max(0, resolved.n_ubatch - resolved.n_seq_max)
    note = f"rows of logits for {resolved.n_ubatch} tokens that the encoder reads at once, from the first prompt on"
    yield host_line(4 * columns * rows, "output-buffer.features", LineBasis.MODELLED, note, part=DRAFT)
    copied = 4 * resolved.n_batch * (_EAGLE3_LAYERS * model.spec.embedding_length + spec.embedding_length)
    note = "hidden states of a batch on their way from the model to the draft"
    yield host_line(copied, "draft.features", LineBasis.MODELLED, note, part=DRAFT)


def ngram_growth(settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    """Entries of the maps; slots of one cache share its cells, separate caches have as many each."""
    note = "one entry for each n-gram of what was said, a full context at most"
    for kind, size in ngram_growth_bytes(settings.speculation, resolved.n_ctx).items():
        yield host_line(size, f"{kind}.entries", LineBasis.UPPER_BOUND, note, part=NGRAM)

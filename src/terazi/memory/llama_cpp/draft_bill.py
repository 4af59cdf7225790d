"""What speculation adds to a model's bill: the lines of a second context, of n-gram tables, and what grows later.

Sources, b11434: ``common/speculative.cpp``, ``src/llama-context.cpp:output_reserve``.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.draft import DRAFT, DraftContext
from terazi.memory.llama_cpp.resolve import SERVERS, Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import ngram_bytes, ngram_growth_bytes
from terazi.models.spec import ModelSpec

#: The part that lines of n-gram tables name.
NGRAM = "ngram"

WeighContext: TypeAlias = Callable[[ModelSpec, LlamaCppSettings, Resolved], Bill]


def with_draft(
    bill: Bill,
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    *,
    draft: DraftContext | None,
    weigh_context: WeighContext,
) -> Bill:
    """*bill* of the model alone, with all that speculation adds.

    Args:
        bill, spec, settings, resolved: the model, settled.
        draft: the second context, if there is one.
        weigh_context: weighs a context.
    """
    if settings.tool not in SERVERS:
        return bill
    known = set(bill.devices())
    lines, growth = list(bill.lines), [*bill.growth, *_output_growth(spec, settings, resolved, draft)]
    loading, page_cache, reasons = list(bill.loading), list(bill.page_cache), list(bill.reasons)
    if draft is not None:
        second = weigh_context(draft.spec, draft.settings, draft.resolved)
        own = tuple(_lines(second, draft, known))
        if draft.dropped:
            loading += own
        else:
            lines += own
            page_cache += [_part(line) for line in second.page_cache if draft.own_weights]
            growth += [_part(line) for line in second.growth if line.formula == "context-checkpoints"]
        reasons += [f"Of the draft: {reason}" for reason in second.reasons if reason not in bill.reasons]
    lines += _ngram_lines(settings, resolved)
    growth += _ngram_growth(settings, resolved)
    return replace(
        bill,
        lines=tuple(lines),
        loading=tuple(loading),
        page_cache=tuple(page_cache),
        growth=tuple(growth),
        reasons=tuple(reasons),
    )


def _lines(second: Bill, draft: DraftContext, known: set[str]) -> Iterator[BillLine]:
    """The lines of the second context. A driver keeps one context a device, whatever runs there."""
    for line in second.lines:
        shared = line.term is Term.WEIGHTS and not draft.own_weights
        if not shared and not (line.formula == "driver-context" and line.device in known):
            yield _part(line, draft.dropped)
    if draft.resolved.draft_head:
        yield _head_outputs(draft)


def _head_outputs(draft: DraftContext) -> BillLine:
    """The output buffer grows once before the server is ready, in a first trial (``common_context_can_seq_rm``).

    Beside the logits there is then the hidden state of each row, and where tokens are picked in the graph the
    logits, probabilities, token and candidates that they are picked from.
    """
    picked = 3 * draft.spec.vocab_size + 1 if draft.resolved.samples else 0
    return BillLine(
        term=Term.OVERHEAD,
        device=HOST,
        bytes=4 * draft.resolved.n_seq_max * (draft.spec.embedding_length + picked),
        formula="output-buffer.head",
        basis=LineBasis.EXACT,
        memory=Memory.ANONYMOUS,
        note="hidden states of the draft head" + (", and candidates picked on its device" if picked else ""),
        part=DRAFT,
    )


def _part(line: BillLine, dropped: str | None = None) -> BillLine:
    note = f"{line.note}; let go once loaded: {dropped}" if dropped else line.note
    return replace(line, part=DRAFT, note=note)


def _ngram_lines(settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    for kind, size in ngram_bytes(settings.speculation, resolved.n_seq_max).items():
        yield BillLine(
            term=Term.OVERHEAD,
            device=HOST,
            bytes=size,
            formula=f"{kind}.table",
            basis=LineBasis.EXACT,
            memory=Memory.ANONYMOUS,
            note="where each n-gram was seen last" if kind != "ngram-mod" else "what follows each n-gram",
            part=NGRAM,
        )


def _ngram_growth(settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    # slots of one cache share its cells; separate caches have as many each
    for kind, size in ngram_growth_bytes(settings.speculation, resolved.n_ctx).items():
        yield BillLine(
            term=Term.OVERHEAD,
            device=HOST,
            bytes=size,
            formula=f"{kind}.entries",
            basis=LineBasis.UPPER_BOUND,
            memory=Memory.ANONYMOUS,
            note="one entry for each n-gram of what was said, a full context at most",
            part=NGRAM,
        )


def _output_growth(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, draft: DraftContext | None
) -> Iterator[BillLine]:
    """The host's output buffer once drafts are checked: a row of logits for each token of them."""
    if draft is not None and draft.dropped:
        return
    rows = min(resolved.n_batch, resolved.n_seq_max * (1 + settings.speculation.drafted)) - resolved.n_seq_max
    size = 4 * spec.vocab_size * max(0, rows)
    hidden = 4 * spec.embedding_length * resolved.n_batch if draft and draft.resolved.draft_head else 0
    if size + hidden:
        also = ", and the hidden state of each token of a batch" if hidden else ""
        yield BillLine(
            term=Term.OVERHEAD,
            device=HOST,
            bytes=size + hidden,
            formula="output-buffer.drafts",
            basis=LineBasis.UPPER_BOUND,
            memory=Memory.ANONYMOUS,
            note=f"logits of {rows} drafted tokens{also}, from the first draft on",
        )

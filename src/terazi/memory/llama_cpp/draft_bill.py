"""What speculation adds to a model's bill: the lines of a second context and of n-gram tables.

Sources, b11434: ``common/speculative.cpp``, ``src/llama-context.cpp:output_reserve``.
"""

from collections.abc import Iterator
from dataclasses import replace

from terazi.memory.bill import Bill, BillLine, LineBasis, Term
from terazi.memory.companion import DRAFT
from terazi.memory.llama_cpp.context import Context
from terazi.memory.llama_cpp.draft import DraftContext
from terazi.memory.llama_cpp.draft_checks import hidden_width
from terazi.memory.llama_cpp.draft_growth import NGRAM, WeighContext, draft_growth, host_line, ngram_growth
from terazi.memory.llama_cpp.process import second_context_line
from terazi.memory.llama_cpp.resolve import SERVERS, Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import ngram_bytes


def with_draft(bill: Bill, model: Context, draft: DraftContext | None, weigh_context: WeighContext) -> Bill:
    """*bill* of the *model* alone, with all that speculation adds.

    Args:
        bill, model: the model, settled.
        draft: the second context, if there is one.
        weigh_context: weighs a context.
    """
    settings, resolved = model.settings, model.resolved
    if settings.tool not in SERVERS:
        return bill
    known = set(bill.devices())
    lines, growth = list(bill.lines), list(bill.growth)
    loading, process = list(bill.loading), list(bill.process)
    page_cache, reasons = list(bill.page_cache), list(bill.reasons)
    if draft is not None:
        second = weigh_context(draft.context)
        own = tuple(_lines(second, draft, known))
        if draft.dropped:
            loading += own
        else:
            lines += own
            page_cache += [_part(line) for line in second.page_cache if draft.own_weights]
            growth += [_part(line) for line in second.growth if line.formula != "prompt-cache"]
            process.append(_part(second_context_line(draft.spec, draft.resolved, own_weights=draft.own_weights)))
        reasons += [f"Of the draft: {reason}" for reason in second.reasons if reason not in bill.reasons]
    lines += _ngram_lines(settings, resolved)
    growth += [*draft_growth(bill, model, draft, weigh_context), *ngram_growth(settings, resolved)]
    return replace(
        bill,
        lines=tuple(lines),
        loading=tuple(loading),
        process=tuple(process),
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
    if draft.reads_hidden and not draft.dropped:
        yield _head_outputs(draft)


def _head_outputs(draft: DraftContext) -> BillLine:
    """The output buffer grows once before the server is ready, in a first trial (``common_context_can_seq_rm``).

    Beside the logits there is then the hidden state of each row, and where tokens are picked in the graph the
    logits, probabilities, token and candidates that they are picked from.
    """
    picked = 3 * draft.spec.vocab_size + 1 if draft.resolved.samples else 0
    size = 4 * draft.resolved.n_seq_max * (hidden_width(draft.spec) + picked)
    note = "hidden states for the next step" + (", and candidates picked on its device" if picked else "")
    return host_line(size, "output-buffer.head", LineBasis.EXACT, note, part=DRAFT)


def _part(line: BillLine, dropped: str | None = None) -> BillLine:
    note = f"{line.note}; let go once loaded: {dropped}" if dropped else line.note
    return replace(line, part=DRAFT, note=note)


def _ngram_lines(settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    for kind, size in ngram_bytes(settings.speculation, resolved.n_seq_max).items():
        note = "what follows each n-gram" if kind == "ngram-mod" else "where each n-gram was seen last"
        yield host_line(size, f"{kind}.table", LineBasis.EXACT, note, part=NGRAM)

"""Which of several files of one model to take: the best weights that leave nothing in RAM and keep the limits.

In: ``Request``, the MODELs on offer. Out: a ``Weighing`` whose plan says why not the others.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from terazi.errors import TeraziError
from terazi.models.hub import tag_of
from terazi.placement.plan import Plan, Rejected, Verdict
from terazi.service.request import Request, weigh_request
from terazi.service.weighing import Weighing
from terazi.units import format_bytes

#: Bits a weight beyond which a file is taken to be hardly better and only slower: Q6_K has 6.6. A rule of thumb.
_ENOUGH_BITS: Final = 7.0
#: Bits a weight below which a model is taken to suffer, another rule of thumb; such a file is
#: only taken if nothing else fits at all.
_LEAST_BITS: Final = 3.9


def choose_file(request: Request, offers: Sequence[str]) -> Weighing:
    """Weigh *offers* from the best file down, as far as it takes.

    Raises:
        TeraziError: not one of them can be weighed.
    """
    weighed: list[tuple[str, Weighing]] = []
    errors: list[TeraziError] = []
    for offer in offers:
        try:
            weighed.append((offer, weigh_request(replace(request, model=offer))))
        except TeraziError as error:
            errors.append(error)
    if not weighed:
        raise errors[0]
    weighed.sort(key=lambda row: -bits(row[1]))
    taken = _best([weighing for _, weighing in weighed])
    name, weighing = weighed[taken]
    outcome = weighing.outcome
    if not isinstance(outcome, Plan):
        return weighing
    others = [
        Rejected(option=_label(offer, other), why=_why(other, weighing))
        for i, (offer, other) in enumerate(weighed)
        if i != taken
    ]
    reason = f"{_label(name, weighing)} of {len(weighed)} files on offer: {_because(weighing)}."
    return replace(
        weighing,
        outcome=replace(outcome, reasons=(reason, *outcome.reasons), rejected=(*others, *outcome.rejected)),
    )


def bits(weighing: Weighing) -> float:
    """Bits a weight of the whole file."""
    return 8 * weighing.spec.weights_bytes / max(1, weighing.spec.parameter_count)


def _best(weighed: Sequence[Weighing]) -> int:
    """Index into *weighed*, which come with the most bits first."""
    plans = [w.plan for w in weighed]
    indices = range(len(weighed))
    good = [i for i in indices if bits(weighed[i]) >= _LEAST_BITS]
    for among in (
        [i for i in good if bits(weighed[i]) <= _ENOUGH_BITS and _is(plans[i], Verdict.FITS)],
        [i for i in reversed(good) if _is(plans[i], Verdict.FITS)],
        # each bit more is paid for at every token, so the smallest good one is the one to offload
        [i for i in reversed(good) if plans[i] is not None],
        [i for i in indices if _is(plans[i], Verdict.FITS)],
        [i for i in indices if plans[i] is not None],
    ):
        if among:
            return among[0]
    return len(weighed) - 1  # the smallest came nearest


def _is(plan: Plan | None, verdict: Verdict) -> bool:
    return plan is not None and plan.verdict is verdict


def _label(offer: str, weighing: Weighing) -> str:
    return tag_of(offer.rpartition("/")[2]) or weighing.spec.quantisation


def _because(weighing: Weighing) -> str:
    size = f"{format_bytes(weighing.spec.weights_bytes)}, {bits(weighing):.1f} bits a weight"
    if _is(weighing.plan, Verdict.FITS):
        return f"{size}, the best that leaves nothing in RAM"
    return f"{size}, and none that is good enough leaves nothing in RAM"


def _why(other: Weighing, taken: Weighing) -> str:
    size = f"{bits(other):.1f} bits a weight"
    if other.plan is None:
        return f"{size}; it is refused: {getattr(other.outcome, 'reason', '')}".rstrip(".")
    ours, theirs = taken.forecast, other.forecast
    speed = ""
    if ours is not None and theirs is not None:
        speed = f", {theirs.decode_tok_s.mid:.3g} against {ours.decode_tok_s.mid:.3g} tok/s"
    if other.plan.verdict is Verdict.FITS_OFFLOADED and _is(taken.plan, Verdict.FITS):
        return f"{size}; a part would stay in RAM{speed}"
    if bits(other) > bits(taken):
        return f"{size}, hardly better than {bits(taken):.1f}{speed}"
    return f"{size}, worse weights than need be{speed}"

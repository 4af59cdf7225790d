"""Tokens guessed ahead by llama-server: what its settings ask for, and what that costs where the model lies.

In: ``ModelSpec``, the bill, settings, a ``Timing``. Out: ``Guessing``.
"""

import math

from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.performance.speculation import ASSUMED_ACCEPTED, PASS_S, Guessing, guess
from terazi.performance.timing import Timing
from terazi.performance.traffic import skipped_blocks


def guessing_of(
    spec: ModelSpec,
    bill: Bill,
    settings: LlamaCppSettings,
    model: Timing,
    *,
    streams: int,
    depth: float,
    accepted: float | None,
) -> Guessing:
    """One step that guesses, as *settings* say, which name one kind at least."""
    said = settings.speculation
    drafted = max(1, said.n_max)
    plain = model.step(batch=streams, depth=depth)
    check = model.step(batch=streams, depth=depth, checked=drafted)
    pass_s = 0.0
    if any(kind.startswith("draft") for kind in said.kinds or ()):
        pass_s = PASS_S + _read_bytes(spec, bill) / _rate(model)
    return guess(
        plain_s=plain.seconds,
        check_s=check.seconds,
        draft_pass_s=pass_s,
        drafted=drafted,
        accepted=ASSUMED_ACCEPTED if accepted is None else accepted,
    )


def guessing_words(one: Guessing, many: Guessing, streams: int, accepted: float | None) -> str:
    """What guessing does, in a sentence."""
    said = f"guessing ahead: {one.tokens:.2f} tokens a step that takes {one.step_s / one.plain_s:.2f} plain ones"
    if streams > 1:
        said += f", {many.gain:.2f} times as fast with {streams} streams"
    return said if accepted is not None else f"{said} (accepted/drafted {ASSUMED_ACCEPTED} assumed)"


def _read_bytes(spec: ModelSpec, bill: Bill) -> float:
    """A pass of the draft: of a model beside it its weights, of the model's own head one block and the output."""
    beside = sum(line.bytes for line in bill.lines if line.term is Term.WEIGHTS and line.part == "draft")
    if beside:
        return float(beside)
    first = spec.block_count - skipped_blocks(spec)
    tied = not any(t.name == "output.weight" for t in spec.tensors)
    head = "token_embd.weight" if tied else "output.weight"
    return float(
        sum(t.n_bytes for t in spec.tensors if t.name == head or (t.block is not None and t.block >= first))
    )


def _rate(model: Timing) -> float:
    """Bytes per second where the last layer lies."""
    name = model.resolved.layer_devices[-1] if model.resolved.layer_devices else HOST
    rates = model.rates(name) if name in model.speeds else model.rates(next(iter(model.speeds)))
    return max(math.ulp(1.0), rates.efficiency.memory * rates.bandwidth)

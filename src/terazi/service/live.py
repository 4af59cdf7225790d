"""What a running engine says of itself, for ``terazi ps``."""

import contextlib
from typing import Any

from terazi.engines.llama_cpp.endpoints import parse_metrics, parse_props, parse_slots

#: The engine leaves the first token of an answer out of its time, so the token that proved it ready took none.
_MEASURABLE_S = 0.01


def live_figures(props: str | None, slots: str | None, metrics: str | None) -> dict[str, Any]:
    """What the engine's three answers say; None for what it doesn't tell. Rates are means since it started."""
    said: dict[str, Any] = {"build": None, "context": None, "slots": None, "slots_busy": None}
    with contextlib.suppress(ValueError):
        if props is not None:
            read = parse_props(props)
            said.update(build=read.build_info, context=read.n_ctx)
    with contextlib.suppress(ValueError):
        if slots is not None:
            states = parse_slots(slots)
            said.update(slots=len(states), slots_busy=sum(slot.is_processing for slot in states))
    counts: dict[str, float] = {}
    with contextlib.suppress(ValueError):
        counts = parse_metrics(metrics) if metrics is not None else {}
    for name, tokens, seconds in (
        ("decode_tok_s", "output_tokens", "output_s"),
        ("prefill_tok_s", "prompt_tokens", "prompt_s"),
    ):
        said[tokens] = counts.get(tokens)
        long_enough = counts.get(seconds, 0.0) >= _MEASURABLE_S and tokens in counts
        said[name] = counts[tokens] / counts[seconds] if long_enough else None
    return said

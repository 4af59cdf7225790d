"""The ``Workload`` noun: what the caller wants to serve."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How the model will be used.

    Args:
        context: tokens that one sequence may grow to; None lets the plan choose.
        users: streams at once.
        prompt: tokens of a typical prompt, for the forecast.
        output: tokens of a typical answer, for the forecast.
        ttft_limit_s: seconds within which the first token must come; None is no limit.
        itl_limit_s: seconds between two tokens of one stream at most; None is no limit.
    """

    context: int | None = None
    users: int = 1
    prompt: int = 512
    output: int = 128
    ttft_limit_s: float | None = None
    itl_limit_s: float | None = None
    schema: str = "terazi.workload/1"

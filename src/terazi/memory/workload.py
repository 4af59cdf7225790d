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
    """

    context: int | None = None
    users: int = 1
    prompt: int = 512
    output: int = 128
    schema: str = "terazi.workload/1"

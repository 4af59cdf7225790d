"""Many users on one plan: what they see of llama-server, and how many an engine can take within limits.

In: ``ModelSpec``, ``Plan``, ``Machine``, ``Workload``, limits. Out: ``Served``, a number of users.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from terazi.hardware.machine import Machine
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.calibration import Calibration
from terazi.performance.queueing import Load, Served, serve, users_at_slo
from terazi.performance.timing import Timing
from terazi.placement.plan import Plan

#: llama-server works prompts in the order they came; clumping as vLLM's is assumed.
_OWN_PROMPTS, _CLUMPING, _ENTRY_S = 1.0, 0.062, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """llama.cpp's steps for the closed loop: prompts run by themselves, between the steps of the streams."""

    model: Timing

    def __call__(
        self, *, streams: int, depth: float, prompt_tokens: float = 0.0, prompt_depth: float = 0.0
    ) -> float:
        seconds = self.model.step(batch=streams, depth=depth).seconds if streams else 0.0
        if prompt_tokens:
            before = max(0.0, prompt_depth - prompt_tokens / 2)
            seconds += self.model.prefill(math.ceil(before + prompt_tokens), math.floor(before)).seconds
        return seconds


def served(model: Timing, workload: Workload, users: int, cached: int = 0) -> Served:
    """What *users* see of a llama-server whose steps *model* times; *cached* tokens of each prompt are known."""
    prompt = max(1, min(workload.prompt, model.resolved.n_ctx_seq))
    load = Load(users=users, prompt=prompt, output=max(1, workload.output), cached=cached)
    return serve(
        _Steps(model=model),
        load,
        slots=model.resolved.n_seq_max,
        chunk=max(load.fresh, 1),
        clumping=_CLUMPING,
        own_prompts=_OWN_PROMPTS,
        entry_s=_ENTRY_S,
    )


def users_within(
    spec: ModelSpec,
    plan: Plan,
    machine: Machine,
    workload: Workload,
    *,
    ttft_s: float | None = None,
    itl_s: float | None = None,
    calibration: Calibration | None = None,
) -> int:
    """The most users at once that still see the first token within *ttft_s* and each next one within *itl_s*.

    On average, at the middle estimate; 0 if not even one does. The plan's own slots are the most that run at once.

    Args:
        workload: prompt and output of each; its users don't count.
        ttft_s, itl_s: limits in seconds; None is no limit.
    """
    return users_at_slo(_counter(spec, plan, machine, workload, calibration), ttft_s=ttft_s, itl_s=itl_s)


def _counter(
    spec: ModelSpec, plan: Plan, machine: Machine, workload: Workload, calibration: Calibration | None
) -> Callable[[int], Served]:
    """What a number of users would see."""
    if isinstance(plan.settings, VllmSettings):
        from terazi.performance.vllm_forecast import VllmTiming

        length = workload.prompt + workload.output
        timing = VllmTiming.of(spec, plan.settings, machine, length=length, calibration=calibration)
        load = Load(users=1, prompt=workload.prompt, output=max(1, workload.output))
        return lambda users: timing.served(replace(load, users=users))
    model = Timing.of(spec, plan, machine, calibration)
    return lambda users: served(model, workload, users)

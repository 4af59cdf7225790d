"""The forecast of a plan, and the judge of plans that is made of the same steps.

In: ``ModelSpec``, ``Plan``, ``Machine``, ``Workload``, a ``Calibration`` if there is one. Out: ``Forecast``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from terazi.hardware.machine import Machine
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.efficiency import DECODE_SPREAD, PREFILL_SPREAD
from terazi.performance.outlook import Forecast, Interval, faster, slower, widen
from terazi.performance.power import NO_POWER_OF_CPU
from terazi.performance.timing import Timing
from terazi.placement.plan import Plan

if TYPE_CHECKING:
    from terazi.performance.calibration import Calibration

__all__ = ["Forecast", "Interval", "forecast", "score"]

#: Widening of the interval per doubling of the streams, down and up: dense batches of the table stay within 16 % at
#: 32 streams, routed experts within a third.
_DENSE_WIDEN, _EXPERT_WIDEN = (0.03, 0.02), (0.06, 0.03)


def forecast(
    spec: ModelSpec,
    plan: Plan,
    machine: Machine,
    workload: Workload,
    *,
    tariff_per_kwh: float | None = None,
    calibration: "Calibration | None" = None,
    accepted: float | None = None,
    cached: int = 0,
) -> Forecast:
    """Speed, latency and energy of *plan* on *machine* under *workload*.

    Args:
        tariff_per_kwh: price of electricity, in the currency that the cost shall have.
        calibration: what this machine was measured to deliver; its devices narrow the interval.
        accepted: guessed tokens that are right, of those drafted, where the plan guesses; None is assumed.
        cached: tokens of the prompt that the prefix cache holds already.
    """
    if not isinstance(plan.settings, LlamaCppSettings):
        from terazi.performance.vllm_forecast import forecast_vllm

        return forecast_vllm(
            spec,
            plan,
            machine,
            workload,
            tariff_per_kwh=tariff_per_kwh,
            calibration=calibration,
            accepted=accepted,
            cached=cached,
        )
    settings = llama_cpp_settings(plan.settings)
    model = Timing.of(spec, plan, machine, calibration)
    streams = max(1, min(workload.users, model.resolved.n_seq_max))
    depth = min(workload.prompt + workload.output / 2, float(model.resolved.n_ctx_seq))
    prompt = max(1, min(workload.prompt, model.resolved.n_ctx_seq))
    known = max(0, min(cached, prompt - 1))

    alone = model.step(batch=1, depth=depth)
    together = alone if streams == 1 else model.step(batch=streams, depth=depth)
    alone_spread = model.spread(alone.by_device, DECODE_SPREAD)
    prefill = model.prefill(prompt, known)
    prefill_spread = model.spread(prefill.by_device, PREFILL_SPREAD)
    basis = [*model.words()]
    gain_alone = gain = 1.0
    if settings.speculation.kinds:
        from terazi.performance.guessing import guessing_of, guessing_words
        from terazi.performance.speculation import ACCEPTED_SPREAD

        guessed = guessing_of(spec, plan.bill, settings, model, streams=1, depth=depth, accepted=accepted)
        many = guessing_of(spec, plan.bill, settings, model, streams=streams, depth=depth, accepted=accepted)
        gain_alone, gain = guessed.gain, many.gain
        basis.append(guessing_words(guessed, many, streams, accepted))
        if accepted is None:
            alone_spread = alone_spread[0] * ACCEPTED_SPREAD[0], alone_spread[1] * ACCEPTED_SPREAD[1]
    by = _EXPERT_WIDEN if spec.expert_count else _DENSE_WIDEN
    together_spread = widen(model.spread(together.by_device, DECODE_SPREAD), by, streams)

    first = slower(prefill.seconds + model.break_s(prompt, known), prefill_spread)
    step = slower(model.first_token_s(alone), alone_spread)
    ttft = Interval(low=first.low + step.low, mid=first.mid + step.mid, high=first.high + step.high)
    itl, share = together.seconds, 0.0
    if workload.users > 1:
        from terazi.performance.many_users import served

        seen = served(model, workload, workload.users, known)
        itl, share = seen.tpot_s, seen.prefill_share
        ttft = slower(seen.ttft_s, prefill_spread)

    throughput = faster(gain * streams / itl, together_spread)
    if spec.expert_count and streams > 1:
        basis.append("experts that a batch touches: popular ones are shared, as three measured models do")
    if workload.users > model.resolved.n_seq_max:
        basis.append(f"{workload.users} users share {model.resolved.n_seq_max} slots; those without one wait")
    said = Forecast(
        decode_tok_s=faster(gain_alone / alone.seconds, alone_spread),
        throughput_tok_s=throughput,
        prefill_tok_s=faster((prompt - known) / prefill.seconds, prefill_spread),
        ttft_s=ttft,
        itl_s=slower(itl / gain, together_spread),
        basis=tuple(basis),
        prefill_share=share,
    )
    if workload.ttft_limit_s is not None or workload.itl_limit_s is not None:
        from terazi.performance.many_users import served
        from terazi.performance.queueing import within_limits

        users = within_limits(
            lambda n: served(model, workload, n, known), workload, prefill_spread, together_spread
        )
        said = replace(said, users_at_slo=users)
    if not machine.devices:  # start-up is part of the product
        return replace(said, basis=(*said.basis, NO_POWER_OF_CPU))
    from terazi.performance.watts import with_watts

    return with_watts(spec, plan, machine, workload, said, tariff_per_kwh=tariff_per_kwh)


def score(
    spec: ModelSpec, machine: Machine, workload: Workload, calibration: "Calibration | None" = None
) -> Callable[[Plan], float]:
    """A judge of plans for ``placement.solve``: output tokens per second of the workload, prompts included.

    It takes three steps of the model, and no interval: the solver asks it of many plans.
    """

    def judge(plan: Plan) -> float:
        users, output = max(1, workload.users), max(1, workload.output)
        if not isinstance(plan.settings, LlamaCppSettings):
            from terazi.performance.queueing import Load
            from terazi.performance.vllm_forecast import VllmTiming

            timing = VllmTiming.of(
                spec, plan.settings, machine, length=workload.prompt + output, calibration=calibration
            )
            seen = timing.served(Load(users=users, prompt=workload.prompt, output=output))
            return seen.throughput_tok_s * timing.load.replicas
        model = Timing.of(spec, plan, machine, calibration)
        slots = max(1, model.resolved.n_seq_max)
        streams = max(1, min(users, slots))
        depth = min(workload.prompt + output / 2, float(model.resolved.n_ctx_seq))
        prompt = max(1, min(workload.prompt, model.resolved.n_ctx_seq))
        first = model.prefill(prompt).seconds + model.break_s(prompt) + model.step(batch=1, depth=depth).seconds
        step = model.step(batch=streams, depth=depth).seconds
        return users * output / (users * first + -(-users // slots) * output * step)

    return judge

"""Weighs for vLLM: chooses its settings for a model, or takes those of a ready command line."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from terazi.errors import UsageError
from terazi.hardware.machine import Machine
from terazi.memory.companion import Companion
from terazi.memory.vllm.build import BUILD
from terazi.memory.vllm.ranks import DRAFT
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.workload import Workload
from terazi.models.sources import load_model
from terazi.models.spec import ModelSpec
from terazi.placement.plan import Plan, Refusal
from terazi.service.weighing import Weighing

if TYPE_CHECKING:
    from terazi.engines.recognise import Spoken


def weigh_spec(
    spec: ModelSpec,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    price_per_kwh: float | None = None,
) -> Weighing:
    """Choose the settings that aren't pinned, and weigh.

    Raises:
        UsageError: a pin that isn't vLLM's.
    """
    from terazi.performance.appraiser import Appraiser
    from terazi.placement.vllm import solve_vllm
    from terazi.service.calibrations import calibration_of

    used = calibration_of(machine)
    appraiser = Appraiser(spec, machine, workload, None if used is None else used.calibration)
    outcome = solve_vllm(spec, machine, workload, pins, appraiser=appraiser)
    return _weighing(spec, machine, outcome, (), price_per_kwh=price_per_kwh)


def weigh_words(
    spoken: "Spoken", machine: Machine, *, prompt: int, output: int, price_per_kwh: float | None = None
) -> Weighing:
    """Weigh exactly the command line *spoken*.

    Raises:
        UsageError: the command names no model, or a flag or value that vLLM refuses.
        ModelFileError: the model can't be read.
    """
    from terazi.engines.vllm.commands import parse_command
    from terazi.placement.vllm import follow_vllm

    command = parse_command(spoken.argv, spoken.environment)
    if command.unknown_flags:
        raise UsageError(
            f"vLLM {BUILD} has no flag {', '.join(command.unknown_flags)}, so it would not start",
            hint=next(iter(command.notes), "compare with: vllm serve --help=all"),
        )
    if command.model is None:
        raise UsageError("the vllm command names no model", hint="say vllm serve MODEL")
    spec = load_model(_source(command.model))
    notes = list(command.notes)
    speculation = command.settings.speculation
    draft = None
    if speculation is not None and speculation.method == "draft_model" and speculation.model is not None:
        draft = load_model(_source(speculation.model))
    elif speculation is not None and not speculation.method.startswith("ngram"):
        notes.append(f"Not in the bill: the weights and the cache of the draft ({speculation.method}).")
    outcome = follow_vllm(spec, machine, command.settings, prompt=prompt, output=output, draft=draft)
    weighing = _weighing(spec, machine, outcome, tuple(notes), price_per_kwh=price_per_kwh)
    beside = () if draft is None else (Companion(DRAFT, "--speculative-config", draft),)
    return replace(weighing, companions=beside)


def _source(model: str) -> str:
    """vLLM takes a path if there is one, else a repository on the hub."""
    if os.path.exists(model) or ":" in model or model.count("/") != 1 or model.startswith((".", "/", "~")):  # noqa: PTH110 - as in models.sources
        return model
    return f"hf:{model}"


def _weighing(
    spec: ModelSpec,
    machine: Machine,
    outcome: Plan | Refusal,
    notes: tuple[str, ...],
    *,
    price_per_kwh: float | None = None,
) -> Weighing:
    speed = None
    if isinstance(outcome, Plan):
        from terazi.performance.forecast import forecast
        from terazi.service.calibrations import calibration_of

        used = calibration_of(machine)
        calibration = None if used is None else used.calibration
        speed = forecast(
            spec, outcome, machine, outcome.workload, tariff_per_kwh=price_per_kwh, calibration=calibration
        )
        if used is not None:
            speed = replace(speed, basis=(used.words, *speed.basis))
    return Weighing(
        spec=spec,
        machine=machine,
        workload=outcome.workload,
        outcome=outcome,
        forecast=speed,
        notes=notes,
    )


def typed_command(weighing: Weighing) -> tuple[str, ...]:
    """The command line that these settings are, as a person could type it."""
    from terazi.engines.vllm.arguments import settings_argv

    settings = weighing.outcome.settings
    if not isinstance(settings, VllmSettings):
        raise TypeError(f"not vLLM's settings: {type(settings).__name__}")
    return settings_argv(settings, _named(weighing.spec))


def _named(spec: ModelSpec) -> str:
    """What vLLM would be given: the folder of the files, the repository, or what was asked for."""
    if spec.origin.startswith("hf:"):
        return spec.origin.removeprefix("hf:").partition(":")[0]
    if spec.files and spec.format == "safetensors":
        return spec.files[0].path.rpartition("/")[0] or "."
    return spec.origin or spec.name

"""Weighs for llama.cpp: chooses its settings for a model, or takes those of a ready command line."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from terazi.errors import RefusedError, UsageError
from terazi.hardware.machine import Basis, Device, Figure, Machine
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.architectures import known_to_engine
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import BUILD, FIT_MARGIN_BYTES, LlamaCppSettings
from terazi.memory.llama_cpp.speculation import Speculation
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.models.sources import load_companion, load_model
from terazi.models.spec import ModelSpec
from terazi.performance.appraiser import Appraiser
from terazi.performance.forecast import forecast
from terazi.placement.plan import Plan, Refusal, Rejected
from terazi.service.calibrations import calibration_of, taught
from terazi.service.weighing import Weighing
from terazi.units import MIB

if TYPE_CHECKING:
    from terazi.engines.llama_cpp.commands import Command
    from terazi.engines.llama_cpp.extra_files import ExtraFile
    from terazi.engines.recognise import Spoken

#: llama.cpp's own variables, each the default of a flag (``common/arg.cpp``, b11434).
_EXPORTED = ("LLAMA_ARG_", "MTMD_BACKEND_DEVICE")


def weigh_spec(
    spec: ModelSpec,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    price_per_kwh: float | None,
    draft: ModelSpec | None = None,
    projector: ModelSpec | None = None,
) -> Weighing:
    """Choose the settings that aren't pinned, and weigh; *draft* may guess tokens for the model, if that is faster.

    Args:
        projector: loaded beside it, so that it takes images or sound.

    Raises:
        RefusedError: no llama.cpp of the known build can load this architecture.
        UsageError: the engine can't draft with *draft*, or *projector* is another model's.
    """
    from terazi.placement.solve import solve

    _check_architecture(spec)
    used = calibration_of(machine)
    appraiser = Appraiser(spec, machine, workload, None if used is None else used.calibration)
    seeing = () if projector is None else (Companion("mmproj", "--mmproj", projector),)
    outcome = solve(spec, machine, workload, pins, score=appraiser, companions=seeing)
    plain = _weighing(spec, machine, workload, outcome, price_per_kwh=price_per_kwh)
    plain = dataclasses.replace(plain, companions=seeing)
    if draft is None:
        return plain
    beside = (Companion("draft", "--spec-draft-model", draft), *seeing)
    drafting = {**pins, "speculation": _guessing_with(beside)}
    outcome = solve(spec, machine, workload, drafting, score=appraiser, companions=beside)
    guessed = _weighing(spec, machine, workload, outcome, price_per_kwh=price_per_kwh)
    return _faster(plain, dataclasses.replace(guessed, companions=beside))


def _guessing_with(beside: tuple[Companion, ...]) -> Speculation:
    """As the draft's file asks for, else a plain draft model."""
    from terazi.memory.llama_cpp.draft import settle

    said = settle(LlamaCppSettings(), beside).speculation
    return said if said.kinds else dataclasses.replace(said, kinds=("draft-simple",))


def _faster(plain: Weighing, guessed: Weighing) -> Weighing:
    """*guessed* if its draft pays, and either way what the other would have been."""
    with_it, without = guessed.plan, plain.plan
    if with_it is None or guessed.forecast is None:
        if without is None:
            return plain
        lacks = getattr(guessed.outcome, "reason", "it doesn't fit").rstrip(".")
        return _beside_plan(plain, without, Rejected(option="the draft model", why=lacks))
    if without is None or plain.forecast is None:
        return guessed
    ours, theirs = guessed.forecast.throughput_tok_s.mid, plain.forecast.throughput_tok_s.mid
    said = f"{theirs:.3g} against {ours:.3g} tok/s in all"
    if ours > theirs:
        return _beside_plan(guessed, with_it, Rejected(option="no draft model", why=said))
    said = f"it would cost {100 * (1 - ours / theirs):.0f} % ({ours:.3g} against {theirs:.3g} tok/s in all)"
    return _beside_plan(plain, without, Rejected(option="the draft model", why=said))


def _beside_plan(weighing: Weighing, plan: Plan, other: Rejected) -> Weighing:
    outcome = dataclasses.replace(plan, rejected=(other, *plan.rejected))
    return dataclasses.replace(weighing, outcome=outcome)


def weigh_words(
    spoken: "Spoken", machine: Machine, *, prompt: int, output: int, price_per_kwh: float | None
) -> Weighing:
    """Weigh exactly the command line *spoken*, as it would start here: with the variables that are exported.

    Raises:
        UsageError: the command names no model, or a flag or value that the engine refuses.
        ModelFileError: the model can't be read.
    """
    from terazi.engines.llama_cpp.commands import parse_command

    exported = {name: value for name, value in os.environ.items() if name.startswith(_EXPORTED)}
    command = parse_command(spoken.argv, {**exported, **spoken.environment})
    if exported:
        told = (
            f"Set in this shell, and read by the engine unless a flag says otherwise: {', '.join(sorted(exported))}"
        )
        command = dataclasses.replace(command, notes=(*command.notes, told))
    if command.unknown_flags:
        raise UsageError(
            f"{command.tool} {BUILD} has no flag {', '.join(command.unknown_flags)}, so it would not start",
            hint=f"compare with: {command.tool} --help",
        )
    spec = load_model(_model_argument(command))
    command = _with_projector(command, spoken)
    return weigh_parsed(command, spec, machine, prompt=prompt, output=output, price_per_kwh=price_per_kwh)


def weigh_parsed(
    command: "Command",
    spec: ModelSpec,
    machine: Machine,
    *,
    prompt: int,
    output: int,
    price_per_kwh: float | None,
) -> Weighing:
    """Weigh *spec* under the settings of *command*, with the files that it names beside the model.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
        ModelFileError: a file beside the model can't be read.
    """
    from terazi.placement.follow import follow

    _check_architecture(spec)
    companions = tuple(_beside(file) for file in command.extra_files)
    notes = command.notes
    if companions or command.settings.speculation.kinds:
        from terazi.memory.llama_cpp.draft import settle, speculation_notes

        command = dataclasses.replace(command, settings=settle(command.settings, companions))
        notes = (*notes, *speculation_notes(spec, command.settings, companions))
    machine = with_rpc(machine, command.settings)
    workload = dataclasses.replace(workload_of(command, spec, machine), prompt=prompt, output=output)
    outcome = follow(spec, machine, command.settings, workload, companions)
    notes = (*notes, *_fit_note(command, spec, machine, outcome, alone=not companions))
    weighing = _weighing(spec, machine, workload, outcome, price_per_kwh=price_per_kwh, notes=notes)
    return dataclasses.replace(weighing, companions=companions)


def _model_argument(command: "Command") -> str:
    """The MODEL that a command line names. One on the hub is preferred, as by the engine itself.

    Raises:
        UsageError: it names none.
    """
    if command.hf_repo is not None:
        from terazi.models.hub import from_flags

        return str(from_flags(command.hf_repo, command.hf_file))
    if command.model_url is not None:
        return command.model_url
    if command.model_path is None:
        raise UsageError(f"the {command.tool} command names no model", hint="add -m path/to/model.gguf")
    return command.model_path


def _with_projector(command: "Command", spoken: "Spoken") -> "Command":
    """*command* with the projector that ``-hf`` loads besides the model, unless it says otherwise.

    Source: ``common_models_handler_init`` in ``common/arg.cpp``, b11434.
    """
    given = {"--no-mmproj", "--no-mmproj-auto", "--mmproj", "-mm", "--mmproj-url", "-mmu"} & set(spoken.argv)
    if command.hf_repo is None or given or command.tool == "llama-fit-params":
        return command
    from terazi.engines.llama_cpp.extra_files import ExtraFile
    from terazi.models.sources.hub import projector_of

    projector = projector_of(_model_argument(command))
    if projector is None:
        return command
    note = f"-hf loads the multimodal projector {projector.rpartition(':')[2]} as well; --no-mmproj leaves it out."
    return dataclasses.replace(
        command,
        extra_files=(*command.extra_files, ExtraFile("mmproj", "--mmproj", projector)),
        notes=(*command.notes, note),
    )


def _fit_note(
    command: "Command", spec: ModelSpec, machine: Machine, outcome: Plan | Refusal, *, alone: bool
) -> tuple[str, ...]:
    """What ``--fit``, which is on unless said otherwise, would make of a command that leaves too little free."""
    if not alone or not any("--fit" in reason for reason in outcome.bill.reasons):
        return ()
    from terazi.engines.llama_cpp.arguments import settings_argv
    from terazi.placement.engine_fit import LEAST_CONTEXT, fit_layers

    margins = tuple(int(mib) * MIB for mib in (command.fit_target or "").split(",") if mib.isdecimal())
    least = command.fit_context or ""
    fitted = fit_layers(
        spec,
        machine.devices,
        command.settings,
        machine.host.isa,
        target_bytes=margins or (FIT_MARGIN_BYTES,),
        least_context=int(least) if least.isdecimal() else LEAST_CONTEXT,
    )
    if fitted == command.settings:
        return ()
    words = settings_argv(fitted, spec.files[0].path if spec.files else spec.name)
    return (f"The engine's --fit would go on with: {' '.join(words)}",)


def _beside(file: "ExtraFile") -> Companion:
    """The header of a file that is loaded beside the model: another model, or a part of one."""
    if file.part != "draft":
        return Companion(file.part, file.flag, load_companion(file.path, file.part, origin=file.path), file.scale)
    spec = load_model(file.path)
    _check_architecture(spec)
    return Companion(file.part, file.flag, spec)


def workload_of(command: "Command", spec: ModelSpec, machine: Machine) -> Workload:
    """What a command line says about its use: the context that one sequence gets, and its slots.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    resolved = resolve(spec, command.settings, machine.devices)
    return Workload(context=resolved.n_ctx_seq, users=max(1, command.settings.n_parallel or 1))


def with_rpc(machine: Machine, settings: LlamaCppSettings) -> Machine:
    """The machine as the engine sees it with ``--rpc``: one device per endpoint, before the others.

    Stand-ins that *machine* brings (``2x RPC 24GiB``) are used in order; endpoints beyond them get this host's
    memory, because that is what an RPC server on a CPU reports.
    """
    given = [d for d in machine.devices if d.backend == "rpc"]
    others = [d for d in machine.devices if d.backend != "rpc"]
    host = machine.host
    unknown = Figure(value=None, basis=Basis.ASSUMED, note="an RPC server does not say")
    given.extend(
        Device(
            id=f"RPC{index}",
            name=f"RPC server {settings.rpc[index]}",
            vendor="rpc",
            backend="rpc",
            memory_total_bytes=host.ram_total_bytes,
            memory_free_bytes=host.usable_ram_bytes,
            memory_bandwidth=host.ram_bandwidth,
            flops_fp16=host.flops,
            tdp_w=unknown,
            notes=("memory not given: counted as this host's",),
        )
        for index in range(len(given), len(settings.rpc))
    )
    return dataclasses.replace(machine, devices=(*given[: len(settings.rpc)], *others))


def _check_architecture(spec: ModelSpec) -> None:
    if spec.format != "gguf":
        raise UsageError(
            f"{spec.name} is no GGUF model, and llama.cpp loads no other",
            hint="name a GGUF of it, e.g. hf:ORG/REPO-GGUF:Q4_K_M, whose header alone travels; or convert it with"
            " llama.cpp's convert_hf_to_gguf.py",
        )
    if not known_to_engine(spec.architecture):
        raise RefusedError(
            f"llama.cpp {BUILD} does not know the architecture {spec.architecture!r} of {spec.name}",
            hint="look for a newer llama.cpp build, or another conversion of the model",
        )


def _weighing(
    spec: ModelSpec,
    machine: Machine,
    workload: Workload,
    outcome: Plan | Refusal,
    *,
    price_per_kwh: float | None,
    notes: tuple[str, ...] = (),
) -> Weighing:
    speed = None
    if isinstance(outcome, Plan):
        used = calibration_of(machine)
        calibration = None if used is None else used.calibration
        speed = forecast(spec, outcome, machine, workload, tariff_per_kwh=price_per_kwh, calibration=calibration)
        if used is not None:
            speed = dataclasses.replace(speed, basis=(used.words, *speed.basis))
        speed = taught(speed, spec, outcome, machine)
    return Weighing(spec=spec, machine=machine, workload=workload, outcome=outcome, forecast=speed, notes=notes)


def typed_command(weighing: Weighing) -> tuple[str, ...]:
    """The command line that these settings are, as a person could type it."""
    from terazi.engines.llama_cpp.arguments import settings_argv
    from terazi.engines.llama_cpp.extra_files import ExtraFile, as_typed
    from terazi.models.hub import PREFIX

    path = weighing.spec.files[0].path if weighing.spec.files else weighing.spec.name
    beside: list[tuple[str, ...]] = [
        as_typed(ExtraFile(c.part, c.flag, c.spec.files[0].path, c.scale))
        for c in weighing.companions
        if c.spec.files and not c.spec.files[0].path.startswith(PREFIX)
    ]
    if path.startswith(PREFIX) and not any(c.part == "mmproj" for c in weighing.companions):
        beside.append(("--no-mmproj",))  # -hf would load one, if the repository has it
    return settings_argv(llama_cpp_settings(weighing.outcome.settings), path, beside)

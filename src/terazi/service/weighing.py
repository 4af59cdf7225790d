"""From a MODEL or a ready command line to a weighing: spec, machine, plan or refusal, forecast.

Here the sources, the probe and the core meet; the command line and ``up`` both come through here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from terazi.errors import RefusedError, UsageError
from terazi.hardware.machine import Basis, Device, Figure, Machine
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.architectures import known_to_engine
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.sources import load_model
from terazi.models.spec import ModelSpec
from terazi.performance.forecast import Forecast, forecast, score
from terazi.placement.plan import DeviceShare, Plan, Refusal

if TYPE_CHECKING:
    from terazi.engines.llama_cpp.commands import Command

# Rooms that only some invocations need are imported where they are used: start-up is part of the product.

#: A saved machine is a few kilobytes; nobody's file makes us read more than this.
_MACHINE_FILE_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """One model against one machine under one workload, and what came of it.

    ``companions`` are the files that a weighed command loads beside the model.
    """

    spec: ModelSpec
    machine: Machine
    workload: Workload
    outcome: Plan | Refusal
    forecast: Forecast | None
    notes: tuple[str, ...] = ()
    companions: tuple[Companion, ...] = ()

    @property
    def plan(self) -> Plan | None:
        """The plan, unless it was refused."""
        return self.outcome if isinstance(self.outcome, Plan) else None

    @property
    def shares(self) -> tuple[DeviceShare, ...]:
        """What each device holds: of the plan, or of what came closest to one."""
        return self.outcome.closest if isinstance(self.outcome, Refusal) else self.outcome.devices


def find_machine(text: str | None) -> Machine:
    """``None`` or ``this`` is this computer; ``*.json`` a saved machine; anything else a preset.

    Raises:
        UsageError: if it is none of these.
    """
    from terazi.hardware.probe import load_catalogue, read_machine

    if text is None or text == "this":
        return read_machine()
    if text.endswith(".json"):
        return _read_saved(text)
    from terazi.hardware.presets import parse_machine

    return parse_machine(text, load_catalogue())


def _read_saved(path: str) -> Machine:
    import json

    from terazi.hardware.saved import machine_from_json

    hint = "save one with: terazi weigh demo --json, under `machine`"
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time here
            text = file.read(_MACHINE_FILE_LIMIT + 1)
        if len(text) > _MACHINE_FILE_LIMIT:
            raise UsageError(f"{path} is too large to be a saved machine", hint=hint)
        document = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as a saved machine: {error}", hint=hint) from error
    if isinstance(document, dict) and document.get("schema") == "terazi.weighing/1":
        document = document.get("machine")
    return machine_from_json(document)


def weigh_model(
    argument: str,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    price_per_kwh: float | None = None,
) -> Weighing:
    """Choose the settings that aren't pinned, and weigh; the cost comes in the currency of *price_per_kwh*.

    Raises:
        ModelFileError, UsageError: the model can't be read.
        RefusedError: no llama.cpp of the known build can load this architecture.
    """
    from terazi.placement.solve import solve

    spec = load_model(argument)
    _check_architecture(spec)
    if workload.context is None and workload.prompt + workload.output > spec.context_length > 0:
        # what was asked for is longer than what would be chosen
        workload = dataclasses.replace(workload, context=workload.prompt + workload.output)
    outcome = solve(spec, machine, workload, pins, score=score(spec, machine, workload))
    return _weighing(spec, machine, workload, outcome, price_per_kwh=price_per_kwh)


def weigh_command(
    argv: Sequence[str], machine: Machine, *, prompt: int, output: int, price_per_kwh: float | None = None
) -> Weighing:
    """Weigh exactly the engine command line *argv*; *prompt* and *output* (tokens) are for the forecast.

    Raises:
        UsageError: the command is of no engine known here, or a value is wrong.
        ModelFileError: the model can't be read.
    """
    from terazi.engines.llama_cpp.commands import parse_command
    from terazi.placement.follow import follow

    command = parse_command(argv)
    if command.unknown_flags:
        raise UsageError(
            f"{command.tool} {BUILD} has no flag {', '.join(command.unknown_flags)}, so it would not start",
            hint=f"compare with: {command.tool} --help",
        )
    if command.hf_repo is not None:
        raise UsageError(
            f"the model of this command lies on Hugging Face ({command.hf_repo}), which can't be read yet",
            hint="download the file and say -m path/to/model.gguf",
        )
    if command.model_path is None:
        raise UsageError(f"the {command.tool} command names no local model file", hint="add -m path/to/model.gguf")
    spec = load_model(command.model_path)
    _check_architecture(spec)
    machine = with_rpc(machine, command.settings)
    workload = dataclasses.replace(workload_of(command, spec, machine), prompt=prompt, output=output)
    companions = tuple(Companion(file.part, file.flag, load_model(file.path)) for file in command.extra_files)
    outcome = follow(spec, machine, command.settings, workload, companions)
    weighing = _weighing(spec, machine, workload, outcome, price_per_kwh=price_per_kwh, notes=command.notes)
    return dataclasses.replace(weighing, companions=companions)


def split_command_line(line: str) -> list[str]:
    """One line of a command file as words.

    Raises:
        UsageError: if a quote is not closed.
    """
    import shlex

    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"not a command line: {line.strip()!r} ({error})", hint="check its quotes") from error


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
        speed = forecast(spec, outcome, machine, workload, tariff_per_kwh=price_per_kwh)
    return Weighing(spec=spec, machine=machine, workload=workload, outcome=outcome, forecast=speed, notes=notes)


def typed_command(weighing: Weighing) -> tuple[str, ...]:
    """The command line that these settings are, as a person could type it."""
    from terazi.engines.llama_cpp.arguments import settings_argv

    path = weighing.spec.files[0].path if weighing.spec.files else weighing.spec.name
    beside = [(c.flag, c.spec.files[0].path) for c in weighing.companions if c.spec.files]
    return settings_argv(weighing.outcome.settings, path, beside)

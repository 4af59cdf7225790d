"""Weighs for Ollama: a model of its store, a Modelfile, or any GGUF model under its rules.

Ollama starts a llama-server of its own; its choices make that command line, and llama.cpp's rules weigh it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from terazi.engines.llama_cpp.commands import parse_command as parse_llama_command
from terazi.engines.ollama.arguments import llama_server_argv
from terazi.engines.ollama.commands import parse_command, unknown_flags_error
from terazi.engines.ollama.modelfile import LIMIT_BYTES, Modelfile, parse_modelfile
from terazi.engines.ollama.options import with_environment, with_parameters
from terazi.errors import ModelFileError, UsageError
from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.settings import BUILD
from terazi.memory.ollama.launch import Beside, Launch, launch
from terazi.memory.ollama.settings import COMMIT, ENGINE_BUILD, OllamaSettings
from terazi.memory.workload import Workload
from terazi.models.sources import load_model
from terazi.models.sources.files import exists, read_whole
from terazi.models.sources.ollama import load_ollama
from terazi.models.spec import ModelSpec
from terazi.placement.engine_fit import fit_layers
from terazi.placement.plan import Plan, Refusal
from terazi.service.weigh_llama_cpp import weigh_parsed
from terazi.service.weighing import Weighing
from terazi.units import format_bytes

if TYPE_CHECKING:
    from terazi.engines.recognise import Spoken

#: Settings that can be pinned → whether Ollama can be told.
_PINS = ("type_k", "type_v", "n_gpu_layers", "n_batch", "n_ubatch", "flash_attn")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A model with what comes with it, and what was asked for. Paths are absolute."""

    spec: ModelSpec
    asked: OllamaSettings
    projectors: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    draft: str | None = None
    notes: tuple[str, ...] = ()


def weigh_words(
    spoken: "Spoken", machine: Machine, *, prompt: int, output: int, price_per_kwh: float | None
) -> Weighing:
    """Weigh what ``ollama run NAME`` loads, or what ``ollama create -f Modelfile`` would make.

    Raises:
        UsageError: the command loads no model, or says what Ollama refuses.
        ModelFileError: the model can't be read.
    """
    command = parse_command(spoken.argv)
    if command.unknown_flags:
        raise unknown_flags_error(command.unknown_flags)
    asked, notes = with_environment(OllamaSettings(), spoken.environment)
    if command.modelfile is not None:
        parts = _of_modelfile(command.modelfile, asked)
    else:
        parts = _of_store(command.model or "", asked)
    parts = dataclasses.replace(parts, notes=(*command.notes, *notes, *parts.notes))
    return _weigh(parts, machine, spoken.environment, prompt=prompt, output=output, price_per_kwh=price_per_kwh)


def weigh_modelfile(
    path: str,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    price_per_kwh: float | None,
) -> Weighing:
    """Weigh the model that the Modelfile *path* describes.

    Raises:
        UsageError: Ollama would refuse it, or a pin can't be told to Ollama.
        ModelFileError: the model can't be read.
    """
    parts = _of_modelfile(path, OllamaSettings())
    return _weigh_pinned(parts, machine, workload, pins, price_per_kwh=price_per_kwh)


def weigh_spec(
    argument: str,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    price_per_kwh: float | None,
) -> Weighing:
    """Weigh the model *argument* as Ollama would run it.

    Raises:
        UsageError: a pin can't be told to Ollama.
        ModelFileError: the model can't be read, or is no GGUF file.
    """
    if argument.startswith("ollama:"):
        parts = _of_store(argument, OllamaSettings())
    else:
        parts = _Parts(spec=load_model(argument), asked=OllamaSettings())
    return _weigh_pinned(parts, machine, workload, pins, price_per_kwh=price_per_kwh)


def _of_store(name: str, asked: OllamaSettings) -> _Parts:
    origin = name if name.startswith("ollama:") else f"ollama:{name}"
    model = load_ollama(name, origin=origin)
    asked, notes = with_parameters(asked, model.parameters)
    return _Parts(
        spec=model.spec,
        asked=asked,
        projectors=model.projectors,
        adapters=model.adapters,
        draft=model.draft,
        notes=notes,
    )


def _of_modelfile(path: str, asked: OllamaSettings) -> _Parts:
    data = read_whole(path, LIMIT_BYTES)
    if len(data) > LIMIT_BYTES:
        raise UsageError(f"{path} is too large to be a Modelfile", hint="give the Modelfile itself")
    modelfile = parse_modelfile(data.decode("utf-8", "replace"))
    folder = path.rpartition("/")[0] or "."
    parts = _of_source(modelfile, folder, asked)
    asked, notes = with_parameters(parts.asked, dict(modelfile.parameters))
    return dataclasses.replace(
        parts,
        asked=asked,
        adapters=(*parts.adapters, *(_beside(folder, adapter) for adapter in modelfile.adapters)),
        draft=_beside(folder, modelfile.drafts[-1]) if modelfile.drafts else parts.draft,
        notes=(*parts.notes, *notes),
    )


def _of_source(modelfile: Modelfile, folder: str, asked: OllamaSettings) -> _Parts:
    """``FROM``: a file or folder beside the Modelfile if there is one, else a model of the store."""
    first = _beside(folder, modelfile.sources[0])
    if not exists(first):
        return _of_store(modelfile.sources[0], asked)
    spec = load_model(first)
    return _Parts(spec=spec, asked=asked, projectors=tuple(_beside(folder, s) for s in modelfile.sources[1:]))


def _beside(folder: str, path: str) -> str:
    """A path of a Modelfile, which counts from where the Modelfile is (``expandPath``)."""
    import os

    path = os.path.expanduser(path)  # noqa: PTH111 - as in the sources
    return path if path.startswith("/") else f"{folder}/{path}"


def _weigh_pinned(
    parts: _Parts,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    price_per_kwh: float | None,
) -> Weighing:
    import os

    asked, notes = with_environment(parts.asked, os.environ)
    parts = dataclasses.replace(parts, asked=_pinned(asked, workload, pins), notes=(*notes, *parts.notes))
    return _weigh(parts, machine, {}, prompt=workload.prompt, output=workload.output, price_per_kwh=price_per_kwh)


def _pinned(asked: OllamaSettings, workload: Workload, pins: Mapping[str, object]) -> OllamaSettings:
    """*asked* with what was typed: as ``num_ctx``, ``num_gpu`` and the like, which override a model's own."""
    strangers = sorted(set(pins) - set(_PINS))
    if strangers:
        raise UsageError(
            f"Ollama can't be told {', '.join(strangers)}",
            hint="drop it, or weigh for llama.cpp: --engine llama.cpp",
        )
    asked = dataclasses.replace(
        asked,
        num_ctx=workload.context or asked.num_ctx,
        num_parallel=workload.users if workload.users > 1 else asked.num_parallel,
    )
    kind, layers, batch, fused = (pins.get(name) for name in ("type_k", "n_gpu_layers", "n_batch", "flash_attn"))
    batch = pins.get("n_ubatch") if batch is None else batch
    if isinstance(kind, str):
        asked = dataclasses.replace(asked, kv_cache_type=kind)
    if isinstance(layers, int):
        asked = dataclasses.replace(asked, num_gpu=layers)
    if isinstance(batch, int):
        asked = dataclasses.replace(asked, num_batch=batch)
    if fused in {"on", "off"}:
        asked = dataclasses.replace(asked, flash_attention=fused == "on")
    return asked


def _weigh(
    parts: _Parts,
    machine: Machine,
    environment: Mapping[str, str],
    *,
    prompt: int,
    output: int,
    price_per_kwh: float | None,
) -> Weighing:
    spec = parts.spec
    if spec.format != "gguf":
        raise ModelFileError(
            f"{spec.name} is no GGUF model, and Ollama converts it before it runs it.",
            hint="Weigh the GGUF file that comes of it.",
        )
    beside = Beside(projector_bytes=_projector_bytes(parts.projectors), draft=parts.draft is not None)
    chosen = launch(spec, machine.devices, machine.host, parts.asked, beside)
    argv = llama_server_argv(
        chosen,
        spec.files[0].path,
        projectors=parts.projectors,
        adapters=parts.adapters,
        draft=parts.draft,
    )
    command = parse_llama_command(argv, environment)
    seen = dataclasses.replace(machine, devices=chosen.devices)
    settings = dataclasses.replace(command.settings, fit=chosen.fit)
    fitted = fit_layers(spec, seen.devices, settings, machine.host.isa, target_bytes=(chosen.fit_target_bytes,))
    moved = fitted != settings
    weighing = weigh_parsed(
        dataclasses.replace(command, settings=dataclasses.replace(fitted, fit=False)),
        spec,
        seen,
        prompt=prompt,
        output=output,
        price_per_kwh=price_per_kwh,
    )
    reasons = _reasons(chosen, weighing, moved=moved)
    return dataclasses.replace(
        weighing,
        outcome=_by_ollama(weighing.outcome, reasons),
        notes=(*parts.notes, *weighing.notes),
    )


def _projector_bytes(projectors: Sequence[str]) -> int | None:
    """``mmprojMemoryRequirement``: the tensors of the projector."""
    if not projectors:
        return None
    from terazi.models.gguf import read_header
    from terazi.models.sources.files import opened

    with opened(projectors[0]) as (fetch, size):
        return sum(tensor.n_bytes for tensor in read_header(fetch, size, projectors[0]).tensors)


def _reasons(chosen: Launch, weighing: Weighing, *, moved: bool) -> tuple[str, ...]:
    bill = weighing.outcome.bill
    held = sum(bill.on(device).total_bytes for device in bill.devices() if device != HOST)
    reasons = [
        f"Ollama ({COMMIT}) carries llama.cpp {ENGINE_BUILD}; the bill follows the rules of {BUILD}.",
        *chosen.reasons,
    ]
    if chosen.devices:
        reasons.append(f"What it will hold on the cards is {format_bytes(held)}.")
    if moved:
        margin = format_bytes(chosen.fit_target_bytes)
        reasons.append(f"llama-server's --fit keeps {margin} of each card free, so it places the layers like this.")
    return tuple(reasons)


def _by_ollama(outcome: Plan | Refusal, reasons: tuple[str, ...]) -> Plan | Refusal:
    bill = dataclasses.replace(outcome.bill, engine="ollama")
    if isinstance(outcome, Plan):
        return dataclasses.replace(outcome, engine="ollama", bill=bill, reasons=(*reasons, *outcome.reasons))
    return dataclasses.replace(outcome, bill=bill, reason=f"{outcome.reason} {' '.join(reasons)}")

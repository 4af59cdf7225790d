"""From a MODEL or a ready command line to a weighing: spec, machine, plan or refusal, forecast.

Here the sources, the probe and the core meet; the command line and ``up`` both come through here. What is each
engine's own lies in ``weigh_llama_cpp`` and its siblings.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from terazi.errors import ModelFileError, UsageError
from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.models.sources import load_companion, load_model
from terazi.service.engine_choice import engines_not_taken, usual_engine
from terazi.service.weighing import Weighing

# Rooms that only some invocations need are imported where they are used: start-up is part of the product.

#: A saved machine is a few kilobytes; nobody's file makes us read more than this.
_MACHINE_FILE_LIMIT = 1024 * 1024


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
    from terazi.models.gguf_window import display
    from terazi.models.sources.files import read_whole

    hint = "save one with: terazi weigh demo --json, under `machine`"
    try:
        data = read_whole(path, _MACHINE_FILE_LIMIT)
    except (ModelFileError, UsageError) as error:
        raise UsageError(error.message, hint=hint) from error
    if len(data) > _MACHINE_FILE_LIMIT:
        raise UsageError(f"{display(path)} is too large to be a saved machine", hint=hint)
    try:
        document = json.loads(data.decode())
        json.dumps(document, ensure_ascii=False).encode()  # half a character can't be shown or hashed
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{display(path)} can't be read as a saved machine: {error}", hint=hint) from error
    if isinstance(document, dict) and document.get("schema") == "terazi.weighing/1":
        document = document.get("machine")
    return machine_from_json(document)


def weigh_model(
    argument: str,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    engine: str | None = None,
    price_per_kwh: float | None = None,
    draft: str | None = None,
    mmproj: str | None = None,
) -> Weighing:
    """Choose the settings that aren't pinned, and weigh; the cost comes in the currency of *price_per_kwh*.

    Args:
        argument: MODEL; a Modelfile is weighed as Ollama would run it.
        machine: to weigh it against.
        workload: what is to be served.
        pins: settings that are not to be chosen.
        engine: ``llama.cpp``, ``ollama`` or ``vllm``; None takes the one that reads the model's format.
        price_per_kwh: of electricity.
        draft: a MODEL that may guess tokens for it (llama.cpp).
        mmproj: a projector's file, loaded beside it (llama.cpp).

    Raises:
        ModelFileError, UsageError: the model can't be read.
        RefusedError: no llama.cpp of the known build can load this architecture.
    """
    modelfile = _is_modelfile(argument)
    if draft is not None and (modelfile or engine not in {None, "llama.cpp"}):
        raise UsageError(
            "a draft model is chosen for llama.cpp alone",
            hint="leave out --draft, or weigh the command itself: terazi weigh -- vllm serve …",
        )
    if mmproj is not None and (modelfile or engine not in {None, "llama.cpp"}):
        raise UsageError("a projector is loaded by llama.cpp alone", hint="leave out the projector")
    if engine == "ollama" or (modelfile and engine is None):
        from terazi.service import weigh_ollama

        weigh = weigh_ollama.weigh_modelfile if modelfile else weigh_ollama.weigh_spec
        return _with_engines(weigh(argument, machine, workload, pins, price_per_kwh=price_per_kwh))
    spec = load_model(argument)
    if workload.context is None and workload.prompt + workload.output > spec.context_length > 0:
        workload = _for_short_model(workload, spec.context_length)
    if (engine or usual_engine(spec)) == "vllm" and draft is None and mmproj is None:
        from terazi.service import weigh_vllm

        return _with_engines(weigh_vllm.weigh_spec(spec, machine, workload, pins, price_per_kwh=price_per_kwh))
    ranks = next((name for name in ("tensor_parallel", "pipeline_parallel") if name in pins), None)
    if ranks is not None:
        raise UsageError(
            f"--{ranks.replace('_', '-')} is a setting of vLLM, and this would be weighed for llama.cpp",
            hint="leave it out, give shares of the cards with --tensor-split, or add --engine vllm",
        )
    from terazi.service.weigh_llama_cpp import weigh_spec

    guesser = None if draft is None else load_model(draft)
    projector = None if mmproj is None else load_companion(mmproj, "mmproj", origin=mmproj)
    return _with_engines(
        weigh_spec(spec, machine, workload, pins, price_per_kwh=price_per_kwh, draft=guesser, projector=projector)
    )


def _with_engines(weighing: Weighing) -> Weighing:
    """*weighing*, whose plan also says why it is for this engine."""
    plan = weighing.plan
    if plan is None:
        return weighing
    others = engines_not_taken(weighing.spec, plan.engine, plan.workload.users)
    return dataclasses.replace(weighing, outcome=dataclasses.replace(plan, rejected=(*plan.rejected, *others)))


def _for_short_model(workload: Workload, length: int) -> Workload:
    """*workload* for a model of *length* tokens, which is less than its prompt and answer.

    The usual lengths are nobody's wish, and give way; asked for, they come before its length.
    """
    usual = Workload()
    if (workload.prompt, workload.output) != (usual.prompt, usual.output):
        return dataclasses.replace(workload, context=workload.prompt + workload.output)
    output = max(1, length // 4)
    return dataclasses.replace(
        workload, prompt=max(1, min(usual.prompt, length - output)), output=min(output, usual.output)
    )


def _is_modelfile(argument: str) -> bool:
    if "modelfile" not in argument.lower():  # start-up is part of the product
        return False
    from terazi.engines.ollama.modelfile import is_modelfile

    return is_modelfile(argument)


def weigh_command(
    argv: Sequence[str], machine: Machine, *, prompt: int, output: int, price_per_kwh: float | None = None
) -> Weighing:
    """Weigh exactly the engine command line *argv*; *prompt* and *output* (tokens) are for the forecast.

    Raises:
        UsageError: the command is of no engine known here, or a value is wrong.
        ModelFileError: the model can't be read.
    """
    from terazi.engines.recognise import recognise

    spoken = recognise(argv)
    if spoken.engine == "llama.cpp":
        from terazi.service.weigh_llama_cpp import weigh_words

        return weigh_words(spoken, machine, prompt=prompt, output=output, price_per_kwh=price_per_kwh)
    if spoken.engine == "ollama":
        from terazi.service import weigh_ollama

        return weigh_ollama.weigh_words(spoken, machine, prompt=prompt, output=output, price_per_kwh=price_per_kwh)
    from terazi.service import weigh_vllm

    return weigh_vllm.weigh_words(spoken, machine, prompt=prompt, output=output, price_per_kwh=price_per_kwh)


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


def typed_command(weighing: Weighing) -> tuple[str, ...]:
    """The command line that these settings are, as a person could type it."""
    if weighing.outcome.bill.engine == "vllm":
        from terazi.service import weigh_vllm

        return weigh_vllm.typed_command(weighing)
    from terazi.service import weigh_llama_cpp

    return weigh_llama_cpp.typed_command(weighing)

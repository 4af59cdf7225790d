"""From a plan to llama-server's command line: every setting that moves memory is said, none is left to a guess."""

import re

from terazi.engines.base import Expectation, LaunchSpec
from terazi.engines.llama_cpp.arguments import FIT_OFF, Flag, memory_flags
from terazi.engines.llama_cpp.binary import UPDATE_HINT, Binary
from terazi.engines.llama_cpp.reconcile import UNPRINTED
from terazi.errors import EngineError
from terazi.memory.bill import Term
from terazi.memory.settings import llama_cpp_settings
from terazi.models.spec import ModelSpec
from terazi.placement.plan import Plan

#: The verbosity at which build b11434 prints its buffer sizes and devices (``trace``; 3, the default, prints none).
LOG_VERBOSITY = 4

#: Inherited ``LLAMA_ARG_*`` variables count as flags (``common/arg.cpp``) and would change the plan unseen.
UNSET_ENV = ("LLAMA_ARG_", "LLAMA_API_KEY")

#: Without it an abort first runs a debugger over the dying process, for seconds (``ggml.c:ggml_print_backtrace``).
QUICK_DEATH = ("GGML_NO_BACKTRACE", "1")


#: Device ids count in PCI order, as the probe reads them; CUDA's own default puts the fastest card first.
DEVICE_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def launch_spec(
    plan: Plan,
    spec: ModelSpec,
    binary: Binary,
    *,
    port: int,
    api_key: str,
    model_path: str,
    model_name: str,
    threads: int | None = None,
    slot_dir: str | None = None,
    projector_path: str | None = None,
) -> LaunchSpec:
    """The process that carries out *plan*.

    Args:
        plan: settings and bill.
        spec: the model; one without a chat template is served without the template engine's checks.
        binary: what will be run; only flags that it has are used.
        port: where it listens, on 127.0.0.1 only.
        api_key: goes through the environment, never into argv, where every user of the machine could read it.
        model_path: the first (or only) file.
        model_name: the id that clients use.
        threads: CPU threads; None lets the engine choose.
        slot_dir: a folder in which it may write down what its slots hold; None if it shall not.
        projector_path: of the projector that the plan counts.

    Raises:
        EngineError: if *binary* lacks a flag that the plan needs.
    """
    argv, notes = [binary.path], []
    settings = llama_cpp_settings(plan.settings)
    own = (
        Flag(names=("--model", "-m"), value=model_path),
        Flag(names=("--alias", "-a"), value=_alias(model_name)),
        Flag(names=("--host",), value="127.0.0.1"),
        Flag(names=("--port",), value=str(port)),
        *(() if projector_path is None else (Flag(names=("--mmproj", "-mm"), value=projector_path),)),
    )
    for flag in (*own, *memory_flags(settings), FIT_OFF, *_service_flags(spec, threads), *_slot_flags(slot_dir)):
        name = binary.spelling(*flag.names)
        if name is not None:
            argv += [name] if flag.value is None else [name, flag.value]
        elif flag.needed:
            raise EngineError(
                f"{binary.path} ({binary.label}) has no {flag.names[0]}, which this plan needs.", hint=UPDATE_HINT
            )
        else:
            notes.append(f"{flag.names[0]} left out, this binary doesn't have it: {flag.why}")
    embeds = (
        settings.embedding
    )  # the OpenAI-shaped endpoint refuses models without a pooling layer, this one doesn't
    return LaunchSpec(
        plan_id=plan.id,
        engine="llama.cpp",
        model_name=model_name,
        argv=tuple(argv),
        env=(("LLAMA_API_KEY", api_key), QUICK_DEATH, DEVICE_ORDER),
        unset_env=UNSET_ENV,
        base_url=f"http://127.0.0.1:{port}",
        api_key=api_key,
        health_path="/health",
        probe_path="/embedding" if embeds else "/v1/completions",
        probe_body='{"content": "1"}' if embeds else '{"prompt": "1", "max_tokens": 1, "cache_prompt": false}',
        look_path="/metrics" if binary.spelling("--metrics") else "/health",
        batch_tokens=settings.n_batch,
        expectations=_expectations(plan),
        notes=tuple(notes),
    )


def _alias(model_name: str) -> str:
    """``--alias`` takes a comma-separated list; a comma in a name would make two of it."""
    return re.sub(r"[,\s]+", "-", model_name)


def _service_flags(spec: ModelSpec, threads: int | None) -> tuple[Flag, ...]:
    flags = [
        Flag(names=("--verbosity", "-lv", "--log-verbosity"), value=str(LOG_VERBOSITY), needed=False,
              why="the log may lack the buffer sizes"),
        Flag(names=("--log-colors",), value="off", needed=False, why="the log may hold colour codes"),
        Flag(names=("--metrics",), needed=False, why="no engine metrics"),
        Flag(names=("--slots",), needed=False, why="no view of the slots"),
        Flag(names=("--no-ui", "--no-webui"), needed=False, why="the engine's own page stays on"),
        Flag(names=("--offline",), needed=False, why="it has no network mode to switch off"),
    ]  # fmt: skip
    if spec.chat_template:
        flags.append(Flag(names=("--jinja",), needed=False, why="chat templates are applied the old way"))
    if threads is not None:
        flags.append(Flag(names=("--threads", "-t"), value=str(threads)))
    return tuple(flags)


def _slot_flags(slot_dir: str | None) -> tuple[Flag, ...]:
    """Slots keep their prompts when others work: else only the last one that was used could be written down."""
    if slot_dir is None:
        return ()
    return (
        Flag(names=("--slot-save-path",), value=f"{slot_dir}/", needed=False, why="prompts can't be kept"),
        Flag(names=("--no-cache-idle-slots",), needed=False, why="only the last prompt can be kept"),
    )


def _expectations(plan: Plan) -> tuple[Expectation, ...]:
    """What the log should say, a term and device at a time; what a driver takes isn't in llama.cpp's log."""
    sums: dict[tuple[str, str], int] = {}
    for line in (*plan.bill.lines, *plan.bill.page_cache):
        overhead = line.term is Term.OVERHEAD
        if line.formula in UNPRINTED:
            continue
        if overhead and line.formula != "output-buffer":
            continue
        term = "output" if overhead else line.term.value
        sums[term, line.device] = sums.get((term, line.device), 0) + line.bytes
    return tuple(Expectation(term=term, device=device, bytes=n) for (term, device), n in sums.items())

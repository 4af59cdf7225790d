"""From a plan to llama-server's command line: every setting that moves memory is said, none is left to a guess."""

import re
from dataclasses import dataclass

from terazi.engines.base import Expectation, LaunchSpec
from terazi.engines.llama_cpp.binary import UPDATE_HINT, Binary
from terazi.errors import EngineError
from terazi.memory.bill import Term
from terazi.memory.llama_cpp.layers import ALL_LAYERS
from terazi.memory.llama_cpp.settings import LlamaCppSettings
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """One flag: its spellings, preferred first; its value; whether a binary without it can't be used."""

    names: tuple[str, ...]
    value: str | None = None
    needed: bool = True
    why: str = ""


def settings_argv(settings: LlamaCppSettings, model_path: str) -> tuple[str, ...]:
    """The command that a person could type to get exactly *settings* (build b11434's spellings)."""
    words = [settings.tool, "-m", model_path]
    for flag in (*_memory_flags(settings), _FIT_OFF):
        words += [flag.names[0]] if flag.value is None else [flag.names[0], flag.value]
    return tuple(words)


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

    Raises:
        EngineError: if *binary* lacks a flag that the plan needs.
    """
    argv, notes = [binary.path], []
    settings = plan.settings
    own = (
        _Flag(names=("--model", "-m"), value=model_path),
        _Flag(names=("--alias", "-a"), value=_alias(model_name)),
        _Flag(names=("--host",), value="127.0.0.1"),
        _Flag(names=("--port",), value=str(port)),
    )
    for flag in (*own, *_memory_flags(settings), _FIT_OFF, *_service_flags(spec, threads)):
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
        expectations=_expectations(plan),
        notes=tuple(notes),
    )


_FIT_OFF = _Flag(names=("--fit", "-fit"), value="off")


def _alias(model_name: str) -> str:
    """``--alias`` takes a comma-separated list; a comma in a name would make two of it."""
    return re.sub(r"[,\s]+", "-", model_name)


def _service_flags(spec: ModelSpec, threads: int | None) -> tuple[_Flag, ...]:
    flags = [
        _Flag(names=("--verbosity", "-lv", "--log-verbosity"), value=str(LOG_VERBOSITY), needed=False,
              why="the log may lack the buffer sizes"),
        _Flag(names=("--log-colors",), value="off", needed=False, why="the log may hold colour codes"),
        _Flag(names=("--metrics",), needed=False, why="no engine metrics"),
        _Flag(names=("--slots",), needed=False, why="no view of the slots"),
        _Flag(names=("--no-ui", "--no-webui"), needed=False, why="the engine's own page stays on"),
        _Flag(names=("--offline",), needed=False, why="it has no network mode to switch off"),
    ]  # fmt: skip
    if spec.chat_template:
        flags.append(_Flag(names=("--jinja",), needed=False, why="chat templates are applied the old way"))
    if threads is not None:
        flags.append(_Flag(names=("--threads", "-t"), value=str(threads)))
    return tuple(flags)


def _memory_flags(s: LlamaCppSettings) -> tuple[_Flag, ...]:
    """Every setting of the plan. What only names a default of the tool (no split, no override) is left unsaid."""
    flags = [
        _Flag(names=("-c", "--ctx-size"), value=str(s.n_ctx)),
        _Flag(names=("-b", "--batch-size"), value=str(s.n_batch)),
        _Flag(names=("-ub", "--ubatch-size"), value=str(s.n_ubatch)),
        _Flag(names=("-fa", "--flash-attn"), value=s.flash_attn),
        _Flag(names=("-ctk", "--cache-type-k"), value=s.type_k),
        _Flag(names=("-ctv", "--cache-type-v"), value=s.type_v),
    ]

    def add(names: tuple[str, ...], value: str | None = None, *, when: bool) -> None:
        if when:
            flags.append(_Flag(names=names, value=value))

    layers = "all" if s.n_gpu_layers == ALL_LAYERS else str(s.n_gpu_layers)
    add(("-np", "--parallel"), str(s.n_parallel), when=s.n_parallel is not None)
    add(("--kv-unified", "-kvu"), when=s.kv_unified is True)
    add(("--no-kv-unified", "-no-kvu"), when=s.kv_unified is False)
    add(("--swa-full",), when=s.swa_full)
    add(("-ngl", "--gpu-layers", "--n-gpu-layers"), layers, when=s.n_gpu_layers is not None)
    add(("-sm", "--split-mode"), s.split_mode, when=s.split_mode != "layer")
    add(("-ts", "--tensor-split"), ",".join(f"{x:.9g}" for x in s.tensor_split), when=bool(s.tensor_split))
    add(("-mg", "--main-gpu"), str(s.main_gpu), when=s.main_gpu != 0)
    add(("--rpc",), ",".join(s.rpc), when=bool(s.rpc))
    add(("-dev", "--device"), ",".join(s.devices), when=bool(s.devices))
    add(("--no-kv-offload", "-nkvo"), when=not s.kv_offload)
    add(("--no-repack", "-nr"), when=not s.repack)
    add(("--no-op-offload",), when=not s.op_offload)
    add(("--no-host",), when=s.no_host)
    overrides = ",".join(f"{pattern}={buffer}" for pattern, buffer in s.override_tensor)
    add(("-ot", "--override-tensor"), overrides, when=bool(overrides))
    add(("--cpu-moe", "-cmoe"), when=s.cpu_moe)
    add(("-ncmoe", "--n-cpu-moe"), str(s.n_cpu_moe), when=s.n_cpu_moe > 0)
    add(("--cache-ram", "-cram"), str(s.cache_ram_mib), when=s.cache_ram_mib is not None)
    add(("--ctx-checkpoints", "-ctxcp"), str(s.ctx_checkpoints), when=s.ctx_checkpoints is not None)
    add(("--embedding", "--embeddings"), when=s.embedding)
    # b11434 has one --load-mode where older builds had --no-mmap and --mlock; mapped is what "auto" does.
    mode = {(True, True): "mmap+mlock", (False, True): "mlock", (False, False): "none"}.get((s.mmap, s.mlock))
    add(("-lm", "--load-mode"), mode, when=mode is not None)
    return tuple(flags)


def _expectations(plan: Plan) -> tuple[Expectation, ...]:
    """What the log should say, a term and device at a time; what a driver takes isn't in llama.cpp's log."""
    sums: dict[tuple[str, str], int] = {}
    for line in (*plan.bill.lines, *plan.bill.page_cache):
        overhead = line.term is Term.OVERHEAD
        if overhead and line.formula != "output-buffer":
            continue
        term = "output" if overhead else line.term.value
        sums[term, line.device] = sums.get((term, line.device), 0) + line.bytes
    return tuple(Expectation(term=term, device=device, bytes=n) for (term, device), n in sums.items())

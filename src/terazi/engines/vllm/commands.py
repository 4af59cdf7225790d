"""Reads a vLLM command line as its own parser does: argv and environment → settings.

``vllm serve MODEL …`` and ``python -m vllm.entrypoints.openai.api_server --model MODEL …`` (also
``vllm.entrypoints.launchers…``). Source: ``FlexibleArgumentParser``, ``make_arg_parser``, vLLM 0.32.0: dashes and
underscores mean the same, ``--flag=value`` and the beginning of a flag are taken,
and JSON may come piecemeal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from terazi.engines.vllm.flags import FORMER, LISTS, SWITCHES, VALUES
from terazi.engines.vllm.values import Json, human_int, json_object, length, set_piece, text_value, whole_number
from terazi.errors import UsageError
from terazi.memory.vllm.build import BUILD
from terazi.memory.vllm.settings import Speculation, VllmSettings
from terazi.units import GIB

#: Modules that ``python -m`` starts the server with.
_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_SHORT: Final = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-sc": "--speculative-config",
}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("not positive")
    return number


def _sized(text: str) -> int:
    number = human_int(text)
    if number < 1:
        raise ValueError("not positive")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise ValueError("not above 0 and up to 1")
    return number


def _gib(text: str) -> int:
    number = float(text)
    if not 0 <= number < 2**20:
        raise ValueError("not a size in GiB")
    return round(number * GIB)


#: Flag → what its value does to the settings.
_SETTERS: Final[Mapping[str, Callable[[VllmSettings, str], VllmSettings]]] = {
    "--tensor-parallel-size": lambda s, text: replace(s, tensor_parallel=_positive(text)),
    "--pipeline-parallel-size": lambda s, text: replace(s, pipeline_parallel=_positive(text)),
    "--data-parallel-size": lambda s, text: replace(s, data_parallel=_positive(text)),
    "--dtype": lambda s, text: replace(s, dtype=text),
    "--quantization": lambda s, text: replace(s, quantization=text),
    "--kv-cache-dtype": lambda s, text: replace(s, kv_cache_dtype=text),
    "--max-model-len": lambda s, text: replace(s, max_model_len=length(text)),
    "--max-num-seqs": lambda s, text: replace(s, max_num_seqs=_positive(text)),
    "--max-num-batched-tokens": lambda s, text: replace(s, max_num_batched_tokens=_sized(text)),
    "--gpu-memory-utilization": lambda s, text: replace(s, gpu_memory_utilization=_share(text)),
    "--kv-cache-memory-bytes": lambda s, text: replace(s, kv_cache_memory_bytes=_sized(text)),
    "--num-gpu-blocks-override": lambda s, text: replace(s, num_gpu_blocks_override=_positive(text)),
    "--block-size": lambda s, text: replace(s, block_size=_positive(text)),
    "--cpu-offload-gb": lambda s, text: replace(s, cpu_offload_bytes=_gib(text)),
    "--kv-offloading-size": lambda s, text: replace(s, kv_offloading_bytes=_gib(text)),
    "--mamba-block-size": lambda s, text: replace(s, mamba_block_size=_positive(text)),
    "--mamba-cache-dtype": lambda s, text: replace(s, mamba_cache_dtype=text),
    "--mamba-ssm-cache-dtype": lambda s, text: replace(s, mamba_ssm_cache_dtype=text),
}
#: Switch → what it does when it is on, or off (``--no-…``).
_SWITCHES: Final[Mapping[str, Callable[[VllmSettings, bool], VllmSettings]]] = {
    "--enforce-eager": lambda s, on: replace(s, enforce_eager=on),
    "--enable-expert-parallel": lambda s, on: replace(s, expert_parallel=on),
    "--enable-prefix-caching": lambda s, on: replace(s, prefix_caching=on),
    "--enable-chunked-prefill": lambda s, on: replace(s, chunked_prefill=on),
    "--async-scheduling": lambda s, on: replace(s, async_scheduling=on),
    "--disable-hybrid-kv-cache-manager": lambda s, on: replace(s, hybrid_kv_cache=not on),
}
#: Variables that move memory → what they do; they count above the flags (``platforms/cpu.py``).
_VARIABLES: Final[Mapping[str, Callable[[VllmSettings, str], VllmSettings]]] = {
    "VLLM_CPU_KVCACHE_SPACE": lambda s, text: replace(s, kv_cache_memory_bytes=_positive(text) * GIB),
    "VLLM_PP_LAYER_PARTITION": lambda s, text: replace(
        s, layer_partition=tuple(_positive(part) for part in text.split(","))
    ),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": lambda s, text: replace(s, enable_long_length=bool(int(text))),
}
#: Flags whose memory isn't in the bill → what it is.
_NOT_WEIGHED: Final = {
    "--enable-lora": "the LoRA adapters and their buffers",
    "--lora-modules": "the LoRA adapters and their buffers",
    "--decode-context-parallel-size": "what decode context parallelism changes",
    "--prefill-context-parallel-size": "what prefill context parallelism changes",
    "--kv-transfer-config": "buffers of a KV connector",
    "--enable-eplb": "redundant experts",
    "--hf-overrides": "what an overridden config value changes",
    "--kv-cache-dtype-skip-layers": "layers that keep an unquantised cache",
    "--compilation-config": "what a compilation config changes",
    "--attention-backend": "the block size that another attention backend prefers",
    "--performance-mode": "limits that a performance mode changes",
    "--enable-dbo": "the second half of dual-batch overlap",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line, read.

    Args:
        model: a folder, a file or a repository; None if it names none.
        settings: all that moves memory.
        unknown_flags: what this build doesn't have, as spelt. The engine would refuse to start.
        notes: what a reader of the bill should know about this command line.
    """

    model: str | None = None
    settings: VllmSettings = field(default_factory=VllmSettings)
    unknown_flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def parse_command(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Command:
    """Read *argv* (program first) as vLLM would.

    Args:
        argv: the command line.
        environment: variables, of which those that move memory count.

    Raises:
        UsageError: it isn't the server's command line, a value is missing, or vLLM would refuse it.
    """
    reader = _Reader()
    reader.read(_arguments(argv))
    reader.read_environment(environment or {})
    return reader.command()


def _arguments(argv: Sequence[str]) -> list[str]:
    words = list(argv)
    name = words[0].replace("\\", "/").rsplit("/", 1)[-1] if words else ""
    if name == "vllm":
        if words[1:2] != ["serve"]:
            raise UsageError(
                f"vllm {' '.join(words[1:2]) or 'without a command'} loads no model that can be weighed.",
                hint="Give vllm serve MODEL with its flags.",
            )
        return words[2:]
    if "-m" in words and words[words.index("-m") + 1 : words.index("-m") + 2]:
        module = words[words.index("-m") + 1]
        if module in _MODULES:
            return words[words.index("-m") + 2 :]
        raise UsageError(
            f"{module} is no server of vLLM {BUILD}.", hint=f"Use vllm serve, or python -m {_MODULES[0]}."
        )
    raise UsageError("This is no command line of vLLM's server.", hint="Give vllm serve MODEL with its flags.")


class _Reader:
    """The state of one reading."""

    def __init__(self) -> None:
        self._settings = VllmSettings()
        self._model: str | None = None
        self._speculation: dict[str, Json] = {}
        self._unknown: list[str] = []
        self._notes: list[str] = []

    def read(self, words: list[str]) -> None:
        index = 0
        while index < len(words):
            spelt = words[index]
            index += 1
            if not spelt.startswith("-"):
                if self._model is None:
                    self._model = spelt
                else:
                    self._unknown.append(spelt)
                continue
            name, given, value = spelt.partition("=")
            flag, _, path = _plain(name).partition(".")
            flag = _whole(_SHORT.get(flag, flag))
            if flag in SWITCHES and not path:
                self._switch(flag)
                continue
            if flag in LISTS:
                while index < len(words) and not words[index].startswith("-"):
                    index += 1
                self._remark(flag, spelt)
                continue
            if flag not in VALUES and flag not in {"--config", "-O", "--optimization-level"}:
                self._refuse(flag, spelt)
                if not given and index < len(words) and not words[index].startswith("-"):
                    index += 1
                continue
            if not given:
                if index >= len(words):
                    raise UsageError(
                        f"{spelt} is the last word but takes a value.", hint=f"Give {spelt} its value."
                    )
                value = words[index]
                index += 1
            self._value(flag, path, value, spelt)

    def read_environment(self, environment: Mapping[str, str]) -> None:
        for variable, setter in _VARIABLES.items():
            value = environment.get(variable)
            if value:
                self._set(setter, value, variable)

    def command(self) -> Command:
        settings = self._settings
        if self._speculation:
            settings = replace(settings, speculation=_speculation(self._speculation))
        return Command(
            model=self._model,
            settings=settings,
            unknown_flags=tuple(self._unknown),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _switch(self, flag: str) -> None:
        name = flag
        positive = not flag.startswith("--no-")
        if not positive and f"--{flag.removeprefix('--no-')}" in SWITCHES:
            name = f"--{flag.removeprefix('--no-')}"
        setter = _SWITCHES.get(name)
        if setter is not None:
            self._settings = setter(self._settings, positive)
        elif positive:
            self._remark(name, flag)

    def _value(self, flag: str, path: str, value: str, spelt: str) -> None:
        if flag == "--model":
            self._model = value
        elif flag == "--speculative-config":
            try:
                if path:
                    set_piece(self._speculation, path, value)
                else:
                    self._speculation.update(json_object(value))
            except ValueError as error:
                raise _bad(spelt, value, str(error)) from None
        elif flag == "--config":
            self._notes.append(f"The flags in {value} aren't read; put them on the command line.")
        elif flag in _SETTERS:
            self._set(_SETTERS[flag], value, spelt)
        else:
            self._remark(flag, spelt)

    def _set(self, setter: Callable[[VllmSettings, str], VllmSettings], value: str, spelt: str) -> None:
        try:
            self._settings = setter(self._settings, value)
        except (ValueError, OverflowError) as error:
            raise _bad(spelt, value, str(error)) from None

    def _remark(self, flag: str, spelt: str) -> None:
        if flag in _NOT_WEIGHED:
            self._notes.append(f"Not in the bill: {_NOT_WEIGHED[flag]} ({spelt}).")

    def _refuse(self, flag: str, spelt: str) -> None:
        self._unknown.append(spelt.partition("=")[0])
        if flag in FORMER:
            self._notes.append(f"vLLM {BUILD} has no {flag}: {FORMER[flag]}.")


def _plain(name: str) -> str:
    """``--max_model_len`` → ``--max-model-len``; what follows a dot stays."""
    if not name.startswith("--"):
        return name
    flag, dot, rest = name.partition(".")
    return flag.replace("_", "-") + dot + rest


def _whole(flag: str) -> str:
    """The flag that *flag* is the beginning of, if there is only one: argparse takes such."""
    if flag in SWITCHES or flag in VALUES or flag in LISTS or not flag.startswith("--") or len(flag) < 5:
        return flag
    longer = [known for known in (*SWITCHES, *VALUES, *LISTS) if known.startswith(flag)]
    return longer[0] if len(longer) == 1 else flag


def _speculation(values: Mapping[str, Json]) -> Speculation:
    """``SpeculativeConfig``, as far as it moves memory.

    Raises:
        UsageError: it doesn't say how many tokens are guessed.
    """
    model = text_value(values, "model")
    method = text_value(values, "method") or ("ngram" if model in {"ngram", "[ngram]"} else "draft_model")
    tokens = whole_number(values, "num_speculative_tokens")
    if tokens is None or tokens < 1:
        raise UsageError(
            "--speculative-config doesn't say how many tokens are guessed.", hint='Add "num_speculative_tokens": 4.'
        )
    return Speculation(
        method=method,
        tokens=tokens,
        model=None if method.startswith("ngram") else model,
        tensor_parallel=whole_number(values, "draft_tensor_parallel_size"),
    )


def _bad(spelt: str, value: str, why: str) -> UsageError:
    if why.startswith(("invalid literal", "could not convert")):  # what int() and float() say
        why = "no number"
    return UsageError(
        f"{spelt.partition('=')[0]} {value!r} is not a value that vLLM takes.", hint=f"It is {why}." if why else ""
    )

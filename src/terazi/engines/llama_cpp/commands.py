"""Reads a llama.cpp command line as the engine's own parser does: argv → settings.

Source: ``common/arg.cpp:common_params_parse_ex``, b11434. Long flags may be spelt with underscores;
``--flag=value`` is not accepted by the engine, and neither here. A flag that the tool doesn't have is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from terazi.engines.llama_cpp.extra_files import FILE_FLAGS, ExtraFile, with_file
from terazi.engines.llama_cpp.flags import flag_values
from terazi.engines.llama_cpp.setters import SWITCH_SETTERS, VALUE_SETTERS
from terazi.engines.llama_cpp.values import FALSEY, TRUTHY, Setter, read_int
from terazi.errors import UsageError
from terazi.memory.llama_cpp.cache_types import is_quantised_cache
from terazi.memory.llama_cpp.resolve import SERVER_SLOTS
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings

TOOLS = ("llama-server", "llama-cli", "llama-fit-params")
#: ``llama COMMAND`` → the tool that it starts.
_SUBCOMMANDS = {
    "serve": "llama-server",
    "server": "llama-server",
    "cli": "llama-cli",
    "fit-params": "llama-fit-params",
}

#: Canonical flag → its other spellings, and its environment variable.
_MOVERS = {
    "--model": ("-m", "LLAMA_ARG_MODEL"),
    "--hf-repo": ("-hf -hfr", "LLAMA_ARG_HF_REPO"),
    "--hf-file": ("-hff", "LLAMA_ARG_HF_FILE"),
    "--model-url": ("-mu", "LLAMA_ARG_MODEL_URL"),
    "--ctx-size": ("-c", "LLAMA_ARG_CTX_SIZE"),
    "--parallel": ("-np", "LLAMA_ARG_N_PARALLEL"),
    "--batch-size": ("-b", "LLAMA_ARG_BATCH"),
    "--ubatch-size": ("-ub", "LLAMA_ARG_UBATCH"),
    "--flash-attn": ("-fa", "LLAMA_ARG_FLASH_ATTN"),
    "--cache-type-k": ("-ctk", "LLAMA_ARG_CACHE_TYPE_K"),
    "--cache-type-v": ("-ctv", "LLAMA_ARG_CACHE_TYPE_V"),
    "--gpu-layers": ("-ngl --n-gpu-layers", "LLAMA_ARG_N_GPU_LAYERS"),
    "--split-mode": ("-sm", "LLAMA_ARG_SPLIT_MODE"),
    "--tensor-split": ("-ts", "LLAMA_ARG_TENSOR_SPLIT"),
    "--main-gpu": ("-mg", "LLAMA_ARG_MAIN_GPU"),
    "--device": ("-dev", "LLAMA_ARG_DEVICE"),
    "--rpc": ("", "LLAMA_ARG_RPC"),
    "--load-mode": ("-lm", "LLAMA_ARG_LOAD_MODE"),
    "--lazy-mode": ("-lzm", "LLAMA_ARG_LAZY_MODE"),
    "--check-tensors": ("", ""),
    "--override-tensor": ("-ot", "LLAMA_ARG_OVERRIDE_TENSOR"),
    "--n-cpu-moe": ("-ncmoe", "LLAMA_ARG_N_CPU_MOE"),
    "--n-cpu-ffn": ("-ncffn", "LLAMA_ARG_N_CPU_FFN"),
    "--cache-ram": ("-cram", "LLAMA_ARG_CACHE_RAM"),
    "--ctx-checkpoints": ("-ctxcp --swa-checkpoints", "LLAMA_ARG_CTX_CHECKPOINTS"),
    "--fit": ("-fit", "LLAMA_ARG_FIT"),
    "--fit-target": ("-fitt", "LLAMA_ARG_FIT_TARGET"),
    "--fit-ctx": ("-fitc", "LLAMA_ARG_FIT_CTX"),
    "--spec-type": ("", "LLAMA_ARG_SPEC_TYPE"),
    "--spec-default": ("", ""),
    "--spec-draft-model": ("-md --model-draft", "LLAMA_ARG_SPEC_DRAFT_MODEL"),
    "--spec-draft-hf": ("-hfd -hfrd --hf-repo-draft", "LLAMA_ARG_SPEC_DRAFT_HF_REPO"),
    "--spec-draft-n-max": ("", "LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    "--spec-draft-backend-sampling": ("", "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING"),
    "--spec-draft-ngl": ("-ngld --gpu-layers-draft --n-gpu-layers-draft", "LLAMA_ARG_N_GPU_LAYERS_DRAFT"),
    "--spec-draft-device": ("-devd --device-draft", ""),
    "--spec-draft-type-k": ("-ctkd --cache-type-k-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
    "--spec-draft-type-v": ("-ctvd --cache-type-v-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
    "--spec-draft-override-tensor": ("-otd --override-tensor-draft", ""),
    "--spec-draft-cpu-moe": ("-cmoed --cpu-moe-draft", "LLAMA_ARG_SPEC_DRAFT_CPU_MOE"),
    "--spec-draft-n-cpu-moe": (
        "-ncmoed --n-cpu-moe-draft --spec-draft-ncmoe",
        "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
    ),
    "--spec-ngram-simple-size-m": ("", ""),
    "--spec-ngram-map-k-size-m": ("", ""),
    "--spec-ngram-map-k4v-size-m": ("", ""),
    "--spec-ngram-mod-n-max": ("", ""),
    "--kv-unified": ("-kvu", "LLAMA_ARG_KV_UNIFIED"),
    "--swa-full": ("", "LLAMA_ARG_SWA_FULL"),
    "--kv-offload": ("-kvo", "LLAMA_ARG_KV_OFFLOAD"),
    "--repack": ("", "LLAMA_ARG_REPACK"),
    "--op-offload": ("", ""),
    "--no-host": ("", "LLAMA_ARG_NO_HOST"),
    "--mmproj": ("-mm", "LLAMA_ARG_MMPROJ"),
    "--mmproj-offload": ("", "LLAMA_ARG_MMPROJ_OFFLOAD"),
    # no LLAMA_ARG_ prefix: older than the flag
    "--mmproj-device": ("-mmdev", "MTMD_BACKEND_DEVICE"),
    "--image-max-tokens": ("", "LLAMA_ARG_IMAGE_MAX_TOKENS"),
    "--mtmd-batch-max-tokens": ("", "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"),
    "--lora": ("", ""),
    "--lora-scaled": ("", ""),
    "--control-vector": ("", ""),
    "--control-vector-scaled": ("", ""),
    "--control-vector-layer-range": ("", ""),
    "--warmup": ("", ""),
    "--cpu-moe": ("-cmoe", "LLAMA_ARG_CPU_MOE"),
    # reranking switches the embedding output on too
    "--embedding": ("--embeddings --rerank --reranking", "LLAMA_ARG_EMBEDDINGS"),
}
_ALIASES = {alias: flag for flag, (aliases, _) in _MOVERS.items() for alias in aliases.split()}
#: Negative spellings → canonical switch.
_NEGATIVE = {
    **dict.fromkeys(("-no-kvu", "--no-kv-unified"), "--kv-unified"),
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), "--kv-offload"),
    **dict.fromkeys(("-nr", "--no-repack"), "--repack"),
    "--no-op-offload": "--op-offload",
    "--no-mmproj-offload": "--mmproj-offload",
    "--no-warmup": "--warmup",
    "--no-spec-draft-backend-sampling": "--spec-draft-backend-sampling",
}
#: Spellings of other builds that this one refuses → (flag, value) that mean the same here.
_FORMER = {
    "--no-mmap": ("--load-mode", "none"),
    "--mmap": ("--load-mode", "mmap"),
    "--mlock": ("--load-mode", "mmap+mlock"),
}
#: Kinds of speculation whose draft may lie beside the model in a repository.
_WITH_SIDECARS = frozenset({"draft-dflash", "draft-dspark", "draft-eagle3", "draft-mtp"})
#: Flags whose devices must be there when they are read.
_NAMES_DEVICES = frozenset({"--device", "--mmproj-device", "--spec-draft-device"})
#: What llama-server switches off beside a projector (``server-context.cpp:load_model``).
_NOT_WITH_IMAGES = frozenset({"--context-shift", "--cache-reuse"})
#: These keep ``-hf`` from fetching a projector; one that ``--mmproj`` names is loaded all the same.
_NO_PROJECTOR = frozenset({"--no-mmproj", "--no-mmproj-auto"})
#: Flags where a suffix such as ``4k`` would be dropped in silence.
_WHOLE_NUMBERS = frozenset(
    {
        "--ctx-size",
        "--parallel",
        "--batch-size",
        "--ubatch-size",
        "--gpu-layers",
        "--main-gpu",
        "--n-cpu-moe",
        "--spec-draft-n-max",
        "--spec-draft-ngl",
        "--spec-draft-n-cpu-moe",
    }
)
#: Flags whose memory isn't in the bill → what it is.
_NOT_WEIGHED = {
    **dict.fromkeys(("-mmu", "--mmproj-url"), "the multimodal projector"),
    **dict.fromkeys(("-lcs", "--lookup-cache-static"), "the lookup cache of n-grams, a copy for each slot"),
    **dict.fromkeys(("-lcd", "--lookup-cache-dynamic"), "the lookup cache of n-grams, a copy for each slot"),
    **dict.fromkeys(("-bs", "--backend-sampling"), "the buffers of sampling on the device"),
    "--override-kv": "what an overridden hyperparameter changes",
    "--pooling": "the outputs of a pooling layer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line, read.

    Args:
        tool: one of ``TOOLS``.
        model_path: ``-m``; None if the model is named otherwise.
        hf_repo, hf_file: ``-hf`` (``org/repo[:quant]``) and ``-hff``.
        model_url: ``-mu``.
        fit_target, fit_context: ``--fit-target`` (MiB a card) and ``--fit-ctx``, as typed; a typed ``-c 0`` asks
            for the whole context, so nothing less will do.
        settings: all that moves memory.
        extra_files: files that are loaded beside the model, in the order of the command.
        unknown_flags: what this tool of this build doesn't have, as spelt. The engine would refuse to start.
        notes: what a reader of the bill should know about this command line.
    """

    tool: str
    model_path: str | None = None
    hf_repo: str | None = None
    hf_file: str | None = None
    model_url: str | None = None
    fit_target: str | None = None
    fit_context: str | None = None
    settings: LlamaCppSettings = field(default_factory=LlamaCppSettings)
    extra_files: tuple[ExtraFile, ...] = ()
    unknown_flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def parse_command(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Command:
    """Read *argv* (program first) as llama.cpp would.

    Args:
        argv: the command line.
        environment: variables of which the ``LLAMA_ARG_…`` ones count, below the flags.

    Raises:
        UsageError: for a program that isn't known here, a missing value, or a value that the engine refuses.
    """
    tool, arguments = _tool(argv)
    reader = _Reader(tool)
    reader.read_environment(environment or {})
    reader.read_arguments(arguments)
    return reader.command()


def _tool(argv: Sequence[str]) -> tuple[str, list[str]]:
    if not argv:
        raise UsageError("The command line is empty.", hint=f"Give one of {', '.join(TOOLS)} with its flags.")
    name = argv[0].replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")
    if name == "llama" and len(argv) > 1 and argv[1] in _SUBCOMMANDS:
        return _SUBCOMMANDS[argv[1]], list(argv[2:])
    if name not in TOOLS:
        raise UsageError(
            f"{argv[0]!r} is not a llama.cpp tool that can be weighed.", hint=f"Use one of {', '.join(TOOLS)}."
        )
    return name, list(argv[1:])


def _number(value: str, spelt: str) -> int:
    try:
        return read_int(value)
    except ValueError as error:
        raise UsageError(
            f"{spelt} {value!r} is not a value that llama.cpp takes.", hint=f"About {spelt}: {error}."
        ) from None


class _Reader:
    """The state of one reading."""

    def __init__(self, tool: str) -> None:
        self._values = flag_values(tool)
        self._tool = tool
        self._settings = LlamaCppSettings(tool=tool)
        self._names: dict[str, str] = {}
        self._files: tuple[ExtraFile, ...] = ()
        self._about_images: list[str] = []
        self._per_slot = 0
        self._context_given = False
        self._unknown: list[str] = []
        self._notes: list[str] = []

    def read_environment(self, environment: Mapping[str, str]) -> None:
        for flag, (_, variable) in _MOVERS.items():
            if flag not in self._values or not variable:
                continue
            value = environment.get(variable)
            if flag in _NEGATIVE.values() and variable.replace("_ARG_", "_ARG_NO_") in environment:
                value = "off"
            if value is None or (flag in SWITCH_SETTERS and value not in TRUTHY | FALSEY):
                continue
            if value in FALSEY and flag in SWITCH_SETTERS and flag not in _NEGATIVE.values():
                continue  # a plain switch can't be switched off
            self._set(flag, value, spelt=variable)

    def read_arguments(self, arguments: list[str]) -> None:
        index = 0
        while index < len(arguments):
            spelt = arguments[index]
            index += 1
            flag = spelt.replace("_", "-") if spelt.startswith("--") else spelt
            count = self._values.get(flag)
            if count is None:
                if flag in _FORMER:
                    former, value = _FORMER[flag]
                    self._note(f"{BUILD} refuses {spelt}; it is weighed as {former} {value}.")
                    self._set(former, value, spelt=spelt)
                else:
                    self._unknown.append(spelt)
                    # its value, if it has one, is not a flag of its own
                    while index < len(arguments) and not arguments[index].startswith("-"):
                        index += 1
                continue
            values = arguments[index : index + count]
            index += count
            if len(values) < count:
                raise UsageError(f"{spelt} is the last word but takes a value.", hint=f"Give {spelt} its value.")
            self._apply(flag, spelt, values)

    def command(self) -> Command:
        settings = self._settings
        if settings.flash_attn == "off" and is_quantised_cache(settings.type_v):
            raise UsageError(
                f"A quantised V cache ({settings.type_v}) needs flash attention.",
                hint="Drop -fa off, or use -ctv f16.",
            )
        self._note_images()
        if self._per_slot > 0 and not self._context_given:
            slots = SERVER_SLOTS if settings.n_parallel is None else settings.n_parallel
            settings = replace(settings, n_ctx=slots * self._per_slot)
        self._note_sidecars()
        return Command(
            tool=self._tool,
            model_path=self._names.get("--model"),
            hf_repo=self._names.get("--hf-repo"),
            hf_file=self._names.get("--hf-file"),
            model_url=self._names.get("--model-url"),
            fit_target=self._names.get("--fit-target"),
            fit_context=str(2**32 - 1) if self._context_given else self._names.get("--fit-ctx"),
            settings=settings,
            extra_files=self._extra_files(),
            unknown_flags=tuple(self._unknown),
            notes=tuple(self._notes),
        )

    def _note_sidecars(self) -> None:
        """``common_models_handler_init``: with ``-hf``, a repository's own draft file is loaded too."""
        kinds = [kind for kind in self._settings.speculation.kinds or () if kind in _WITH_SIDECARS]
        if kinds and self._names.get("--hf-repo") and not any(file.part == "draft" for file in self._extra_files()):
            self._note(
                f"If the repository has a draft file of its own ({', '.join(kinds)}), llama.cpp drafts with it; "
                "weigh that one with -md."
            )

    def _note_images(self) -> None:
        """What a projector does to other settings, and the one that nobody named."""
        if any(file.part == "mmproj" for file in self._files):
            for flag in self._about_images:
                if flag in _NOT_WITH_IMAGES:
                    self._note(f"Beside a projector llama.cpp switches {flag} off.")
        elif self._names.get("--hf-repo") and not _NO_PROJECTOR.intersection(self._about_images):
            self._note("Not in the bill: the projector that -hf fetches too, if there is one; see --no-mmproj.")

    def _extra_files(self) -> tuple[ExtraFile, ...]:
        """A draft from a repository: ``-md`` beside it names the file there."""
        repo = self._names.get("--spec-draft-hf")
        if not repo:
            return self._files
        file = next((f":{found.path}" for found in self._files if found.flag == "--spec-draft-model"), "")
        return with_file(self._files, "--spec-draft-model", f"hf:{repo}{file}")

    def _apply(self, flag: str, spelt: str, values: list[str]) -> None:
        if flag in _NOT_WEIGHED:
            self._note(f"Not in the bill: {_NOT_WEIGHED[flag]} ({' '.join([spelt, *values])}).")
        if flag in _NOT_WITH_IMAGES | _NO_PROJECTOR:
            self._about_images.append(flag)
        if flag == "--kv-unified-per-slot":
            self._per_slot = _number(values[0], spelt)
        canonical = _NEGATIVE.get(flag) or _ALIASES.get(flag, flag)
        value = "\n".join(values) if values else ("off" if flag in _NEGATIVE else "on")
        if canonical in _NAMES_DEVICES and "RPC" in value.upper() and not self._settings.rpc:
            raise UsageError(
                f"Where llama.cpp reads {spelt} {value} it doesn't know the servers of --rpc yet.",
                hint=f"Put --rpc before {spelt}.",
            )
        if canonical in _MOVERS:
            self._set(canonical, value, spelt=spelt)

    def _set(self, flag: str, value: str, *, spelt: str) -> None:
        self._context_given = self._context_given or flag == "--ctx-size"
        if flag in FILE_FLAGS:
            self._name_file(flag, value, spelt)
            return
        setter: Setter | None = VALUE_SETTERS.get(flag) or SWITCH_SETTERS.get(flag)
        if setter is None:
            self._names[flag] = value
            return
        try:
            self._settings = setter(self._settings, value)
        except ValueError as error:
            raise UsageError(
                f"{spelt} {value!r} is not a value that llama.cpp takes.", hint=f"About {spelt}: {error}."
            ) from None
        if flag in _WHOLE_NUMBERS and value.strip()[:1].isdigit():
            number = read_int(value)
            if str(number) != value.strip().lstrip("+"):
                self._note(f"llama.cpp reads {spelt} {value} as {number}.")

    def _name_file(self, flag: str, value: str, spelt: str) -> None:
        try:
            self._files = with_file(self._files, flag, value)
        except ValueError as error:
            raise UsageError(
                f"{spelt} {value!r} is not a value that llama.cpp takes.", hint=f"About {spelt}: {error}."
            ) from None

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

"""Settings as llama.cpp's own flags, build b11434's spellings: every setting that moves memory is said.

In: ``LlamaCppSettings``. Out: ``Flag`` by ``Flag``, or the words of a command that a person could type.
"""

from collections.abc import Sequence
from typing import NamedTuple

from terazi.memory.llama_cpp.layers import ALL_LAYERS
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import NO_SPECULATION, Speculation
from terazi.models.hub import PREFIX, parse_reference


class Flag(NamedTuple):
    """One flag: its spellings, preferred first; its value; whether a binary without it can't be used."""

    names: tuple[str, ...]
    value: str | None = None
    needed: bool = True
    why: str = ""


#: Without it the engine would move layers and cut the context behind the plan's back.
FIT_OFF = Flag(names=("--fit", "-fit"), value="off")


def settings_argv(
    settings: LlamaCppSettings, model_path: str, beside: Sequence[tuple[str, ...]] = ()
) -> tuple[str, ...]:
    """The command that a person could type to get exactly *settings* (build b11434's spellings).

    *beside* are further files: the words that name each to the engine.
    """
    words = [settings.tool, *_model_words(model_path), *(word for pair in beside for word in pair)]
    if not settings.warmup:
        words.append("--no-warmup")
    if any(settings.vector_range):
        words += ["--control-vector-layer-range", *map(str, settings.vector_range)]
    for flag in (*memory_flags(settings), FIT_OFF):
        words += [flag.names[0]] if flag.value is None else [flag.names[0], flag.value]
    return tuple(words)


def _speculation_flags(s: Speculation) -> list[Flag]:
    """What differs from the engine's defaults."""
    default = NO_SPECULATION
    layers = "all" if s.n_gpu_layers == ALL_LAYERS else str(s.n_gpu_layers)
    overrides = ",".join(f"{pattern}={buffer}" for pattern, buffer in s.override_tensor)
    kinds = None if s.kinds is None else ",".join(s.kinds) or "none"
    said = (
        (("--spec-type",), kinds, s.kinds is not None),
        (("--spec-draft-n-max",), str(s.n_max), s.n_max != default.n_max),
        (("--no-spec-draft-backend-sampling",), None, not s.backend_sampling),
        (("-ngld", "--spec-draft-ngl"), layers, s.n_gpu_layers is not None),
        (("-devd", "--spec-draft-device"), ",".join(s.devices), bool(s.devices)),
        (("-ctkd", "--spec-draft-type-k"), s.type_k, s.type_k != default.type_k),
        (("-ctvd", "--spec-draft-type-v"), s.type_v, s.type_v != default.type_v),
        (("-otd", "--spec-draft-override-tensor"), overrides, bool(overrides)),
        (("-cmoed", "--spec-draft-cpu-moe"), None, s.cpu_moe),
        (("-ncmoed", "--spec-draft-n-cpu-moe"), str(s.n_cpu_moe), s.n_cpu_moe > 0),
        (("--spec-ngram-simple-size-m",), str(s.ngram_simple_m), s.ngram_simple_m != default.ngram_simple_m),
        (("--spec-ngram-map-k-size-m",), str(s.ngram_map_k_m), s.ngram_map_k_m != default.ngram_map_k_m),
        (("--spec-ngram-map-k4v-size-m",), str(s.ngram_map_k4v_m), s.ngram_map_k4v_m != default.ngram_map_k4v_m),
        (("--spec-ngram-mod-n-max",), str(s.ngram_mod_n_max), s.ngram_mod_n_max != default.ngram_mod_n_max),
    )
    return [Flag(names=names, value=value) for names, value, when in said if when]


def _model_words(path: str) -> tuple[str, ...]:
    """How the engine is told where the model is: a file here, one on the hub, or an address."""
    if path.startswith(("https://", "http://")):
        return "--model-url", path
    if path.startswith(PREFIX):
        reference = parse_reference(path)
        return "-hf", reference.repository, "-hff", reference.file or ""
    return "-m", path


def memory_flags(s: LlamaCppSettings) -> tuple[Flag, ...]:
    """Every setting of the plan. What only names a default of the tool (no split, no override) is left unsaid."""
    flags = [
        Flag(names=("-c", "--ctx-size"), value=str(s.n_ctx)),
        Flag(names=("-b", "--batch-size"), value=str(s.n_batch)),
        Flag(names=("-ub", "--ubatch-size"), value=str(s.n_ubatch)),
        Flag(names=("-fa", "--flash-attn"), value=s.flash_attn),
        Flag(names=("-ctk", "--cache-type-k"), value=s.type_k),
        Flag(names=("-ctv", "--cache-type-v"), value=s.type_v),
    ]

    def add(names: tuple[str, ...], value: str | None = None, *, when: bool) -> None:
        if when:
            flags.append(Flag(names=names, value=value))

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
    add(("--no-mmproj-offload",), when=not s.mmproj_offload)
    add(("-mmdev", "--mmproj-device"), s.mmproj_device, when=s.mmproj_offload and bool(s.mmproj_device))
    add(("--image-max-tokens",), str(s.image_max_tokens), when=s.image_max_tokens > 0)
    add(("--mtmd-batch-max-tokens",), str(s.mtmd_batch_tokens), when=s.mtmd_batch_tokens > 0)
    flags += _speculation_flags(s.speculation)
    add(("--check-tensors",), when=s.check_tensors)
    add(("-lm", "--load-mode"), s.load_mode, when=s.load_mode != "auto")
    add(("-lzm", "--lazy-mode"), s.lazy_mode, when=s.lazy_mode != "auto")
    return tuple(flags)

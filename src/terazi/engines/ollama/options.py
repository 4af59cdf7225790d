"""Reads what can be told to Ollama: variables of the environment and parameters of a model.

In: texts. Out: ``OllamaSettings`` and notes. Sources, Ollama at commit fb30760: ``envconfig/config.go``;
``Options.FromMap`` and ``FormatParams`` in ``api/types.go``; ``deprecatedParameters`` in ``parser/parser.go``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from terazi.errors import UsageError
from terazi.memory.llama_cpp.cache_types import CACHE_TYPES
from terazi.memory.ollama.settings import COMMIT, OllamaSettings

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
#: Variables that Ollama has and that move no memory of a model that is alone.
_WITHOUT_MEMORY: Final = frozenset({
    "OLLAMA_DEBUG", "OLLAMA_DEBUG_LOG_REQUESTS", "OLLAMA_GO_TEMPLATE", "OLLAMA_HOST", "OLLAMA_LOAD_TIMEOUT",
    "OLLAMA_MAX_TRANSFER_STREAMS", "OLLAMA_MAX_QUEUE", "OLLAMA_MODELS", "OLLAMA_NO_CLOUD", "OLLAMA_NOHISTORY",
    "OLLAMA_NOPRUNE", "OLLAMA_ORIGINS", "OLLAMA_EDITOR", "OLLAMA_REMOTES", "OLLAMA_AUTH",
})  # fmt: skip
#: Variables whose effect isn't in the bill → what it is.
_NOT_APPLIED: Final[Mapping[str, str]] = {
    "OLLAMA_KEEP_ALIVE": "how long the model stays in memory",
    "OLLAMA_MAX_LOADED_MODELS": "other models that stay loaded beside this one",
    "OLLAMA_LLM_LIBRARY": "another set of libraries; describe the cards with --on",
    "OLLAMA_VULKAN": "whether Vulkan cards are found; describe the cards with --on",
    "OLLAMA_IGPU_ENABLE": "whether integrated cards are found; describe the cards with --on",
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES",
         "GPU_DEVICE_ORDINAL"),
        "which cards are seen; describe them with --on",
    ),
}  # fmt: skip
#: Options of a model that change what is generated, and no memory.
_SAMPLING: Final = frozenset({
    "num_keep", "seed", "num_predict", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "temperature",
    "repeat_penalty", "presence_penalty", "frequency_penalty", "stop", "num_thread",
})  # fmt: skip
_DEPRECATED: Final = frozenset({
    "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "mirostat", "mirostat_tau",
    "mirostat_eta",
})  # fmt: skip
#: Option → *asked* with that value.
_NUMBERS: Final[Mapping[str, Callable[[OllamaSettings, int], OllamaSettings]]] = {
    "num_ctx": lambda asked, value: replace(asked, num_ctx=value),
    "num_batch": lambda asked, value: replace(asked, num_batch=value),
    "num_gpu": lambda asked, value: replace(asked, num_gpu=value),
    "main_gpu": lambda asked, value: replace(asked, main_gpu=value),
    "draft_num_predict": lambda asked, value: replace(asked, draft_num_predict=value),
}
_LARGEST: Final = 2**31 - 1


def with_environment(
    asked: OllamaSettings, environment: Mapping[str, str]
) -> tuple[OllamaSettings, tuple[str, ...]]:
    """*asked* after Ollama's variables were read, and notes on those that it doesn't know or that aren't applied.

    Raises:
        UsageError: a cache type that llama.cpp doesn't have.
    """
    notes: list[str] = []
    for name, raw in environment.items():
        value = raw.strip().strip("\"'")
        if name in _NOT_APPLIED:
            notes.append(f"{name} is not applied: {_NOT_APPLIED[name]}.")
        elif name in _VARIABLES:
            asked = _VARIABLES[name](asked, value, notes)
        elif name.startswith("OLLAMA_") and name not in _WITHOUT_MEMORY:
            notes.append(f"Ollama ({COMMIT}) has no variable {name}.")
    return asked, tuple(notes)


def with_parameters(
    asked: OllamaSettings, parameters: Mapping[str, object]
) -> tuple[OllamaSettings, tuple[str, ...]]:
    """*asked* after a model's parameters were read, and notes on those that Ollama doesn't know.

    Raises:
        UsageError: a value that Ollama refuses.
    """
    notes: list[str] = []
    for name, value in parameters.items():
        if name in _NUMBERS:
            asked = _NUMBERS[name](asked, _number(name, value))
        elif name == "use_mmap":
            asked = replace(asked, use_mmap=_switch(name, value))
        elif name in _DEPRECATED:
            notes.append(f"Ollama no longer heeds the parameter {name}.")
        elif name not in _SAMPLING:
            notes.append(f"Ollama ({COMMIT}) has no parameter {name[:60]!r} and ignores it.")
    return asked, tuple(notes)


def _context_length(asked: OllamaSettings, value: str, notes: list[str]) -> OllamaSettings:
    return replace(asked, context_length=_count("OLLAMA_CONTEXT_LENGTH", value, 0, notes))


def _num_parallel(asked: OllamaSettings, value: str, notes: list[str]) -> OllamaSettings:
    return replace(asked, num_parallel=max(1, _count("OLLAMA_NUM_PARALLEL", value, 1, notes)))


def _gpu_overhead(asked: OllamaSettings, value: str, notes: list[str]) -> OllamaSettings:
    overhead = _count("OLLAMA_GPU_OVERHEAD", value, 0, notes)
    if overhead:
        notes.append("OLLAMA_GPU_OVERHEAD changes the default context only; llama-server places layers without it.")
    return replace(asked, gpu_overhead_bytes=overhead)


def _spread(asked: OllamaSettings, value: str, _: list[str]) -> OllamaSettings:
    return replace(asked, sched_spread=_flag(value) or False)


def _flash_attention(asked: OllamaSettings, value: str, _: list[str]) -> OllamaSettings:
    return replace(asked, flash_attention=_flag(value))


def _cache_type(asked: OllamaSettings, value: str, _: list[str]) -> OllamaSettings:
    kind = value.lower()
    if kind and kind not in CACHE_TYPES:
        raise UsageError(
            f"OLLAMA_KV_CACHE_TYPE={value[:40]} is no cache type of llama.cpp, so it would not start",
            hint=f"use one of {', '.join(CACHE_TYPES)}",
        )
    return replace(asked, kv_cache_type=kind)


def _fit(asked: OllamaSettings, value: str, _: list[str]) -> OllamaSettings:
    return replace(asked, fit=value not in {"off", "disabled", "false", "0"})


def _fit_target(asked: OllamaSettings, value: str, notes: list[str]) -> OllamaSettings:
    return replace(asked, fit_target_mib=_count("LLAMA_ARG_FIT_TARGET", value.partition(",")[0], 1024, notes))


_VARIABLES: Final = {
    "OLLAMA_CONTEXT_LENGTH": _context_length,
    "OLLAMA_NUM_PARALLEL": _num_parallel,
    "OLLAMA_GPU_OVERHEAD": _gpu_overhead,
    "OLLAMA_SCHED_SPREAD": _spread,
    "OLLAMA_FLASH_ATTENTION": _flash_attention,
    "OLLAMA_KV_CACHE_TYPE": _cache_type,
    "LLAMA_ARG_FIT": _fit,
    "LLAMA_ARG_FIT_TARGET": _fit_target,
}


def _count(name: str, value: str, default: int, notes: list[str]) -> int:
    """An unsigned number as ``strconv.ParseUint`` reads it; Ollama goes on with its default otherwise."""
    if value.isascii() and value.isdecimal() and int(value[:20]) <= 2**63:
        return int(value)
    if value:
        notes.append(f"{name}={value[:40]!r} is no number; Ollama goes on with {default}.")
    return default


def _flag(value: str) -> bool | None:
    """``BoolWithDefault``: empty is unset, and what is no boolean counts as true."""
    return None if not value else value not in _FALSE


def _number(name: str, value: object) -> int:
    """A whole number out of JSON or a Modelfile's text."""
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if text.removeprefix("-").isdecimal() and len(text) < 12 else None
    if isinstance(value, float) and abs(value) <= _LARGEST:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= _LARGEST:
        return value
    raise UsageError(f"the parameter {name} takes a whole number", hint=f"write for example: PARAMETER {name} 8192")


def _switch(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip() in _TRUE | _FALSE:
        return value.strip() in _TRUE
    raise UsageError(f"the parameter {name} takes true or false", hint=f"write for example: PARAMETER {name} false")

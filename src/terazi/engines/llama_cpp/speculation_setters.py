"""What the flags of speculative decoding do to the settings, build b11434.

Source: the handlers in ``common/arg.cpp`` that write ``params.speculative``. Each draft flag reads its value as the
flag of the model itself does.
"""

from collections.abc import Callable
from dataclasses import replace

from terazi.engines.llama_cpp.values import (
    Setter,
    read_cache_type,
    read_count,
    read_gpu_layers,
    read_int,
    read_names,
    read_overrides,
    read_switch,
)
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import KINDS, Speculation

#: Longest n-gram that the engine takes.
_LONGEST = 1024


def _kinds(speculation: Speculation, value: str) -> Speculation:
    """Each ``--spec-type`` adds to those before; one ``none`` in a list makes the whole list none."""
    names = [name for name in value.split(",") if name]
    unknown = [name for name in names if name not in KINDS and name != "none"]
    if unknown and "none" not in names[: names.index(unknown[0])]:
        raise ValueError(f"it takes one or more of none, {', '.join(sorted(KINDS))}")
    added = () if "none" in names else tuple(names)
    return replace(speculation, kinds=(*(speculation.kinds or ()), *added))


def _default_kinds(speculation: Speculation, value: str) -> Speculation:
    """``--spec-default``, a plain switch."""
    if not read_switch(value):
        return speculation
    return replace(speculation, kinds=(*(speculation.kinds or ()), "ngram-mod"), ngram_mod_n_max=64)


def _gram(value: str) -> int:
    number = read_int(value)
    if not 1 <= number <= _LONGEST:
        raise ValueError(f"it takes a number of tokens from 1 to {_LONGEST}")
    return number


def _mod_tokens(value: str) -> int:
    number = read_count(value, "tokens")
    if number > _LONGEST:
        raise ValueError(f"it takes a number of tokens from 0 to {_LONGEST}")
    return number


def _of(change: Callable[[Speculation, str], Speculation]) -> Setter:
    def setter(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
        return replace(settings, speculation=change(settings.speculation, value))

    return setter


#: Canonical flag → setter.
SPECULATION_SETTERS: dict[str, Setter] = {
    "--spec-type": _of(_kinds),
    "--spec-draft-n-max": _of(lambda s, value: replace(s, n_max=read_count(value, "tokens"))),
    "--spec-draft-ngl": _of(lambda s, value: replace(s, n_gpu_layers=read_gpu_layers(value))),
    "--spec-draft-device": _of(lambda s, value: replace(s, devices=read_names(value))),
    "--spec-draft-type-k": _of(lambda s, value: replace(s, type_k=read_cache_type(value))),
    "--spec-draft-type-v": _of(lambda s, value: replace(s, type_v=read_cache_type(value))),
    "--spec-draft-override-tensor": _of(
        lambda s, value: replace(s, override_tensor=(*s.override_tensor, *read_overrides(value)))
    ),
    "--spec-draft-n-cpu-moe": _of(lambda s, value: replace(s, n_cpu_moe=read_count(value, "layers"))),
    "--spec-ngram-simple-size-m": _of(lambda s, value: replace(s, ngram_simple_m=_gram(value))),
    "--spec-ngram-map-k-size-m": _of(lambda s, value: replace(s, ngram_map_k_m=_gram(value))),
    "--spec-ngram-map-k4v-size-m": _of(lambda s, value: replace(s, ngram_map_k4v_m=_gram(value))),
    "--spec-ngram-mod-n-max": _of(lambda s, value: replace(s, ngram_mod_n_max=_mod_tokens(value))),
}

#: Canonical switch → setter; the value is ``on``, or ``off`` from a negative spelling.
SPECULATION_SWITCHES: dict[str, Setter] = {
    "--spec-default": _of(_default_kinds),
    "--spec-draft-cpu-moe": _of(lambda s, value: replace(s, cpu_moe=read_switch(value))),
    "--spec-draft-backend-sampling": _of(lambda s, value: replace(s, backend_sampling=read_switch(value))),
}

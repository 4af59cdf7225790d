"""What each memory-moving flag of build b11434 does to the settings, and how its value is read.

Source: the handlers in ``common/arg.cpp``. A setter takes the settings and the value and returns new settings;
a bad value is a ``ValueError`` with a sentence that says what is allowed.
"""

import math
from dataclasses import replace

from terazi.engines.llama_cpp.speculation_setters import SPECULATION_SETTERS, SPECULATION_SWITCHES
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

#: ``llama_max_devices`` (``GGML_SCHED_MAX_BACKENDS``); ``arg.cpp`` takes fewer shares than that.
MAX_DEVICES = 16
LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
#: ``LLM_FFN_DENSE_REGEX`` of ``common/common.h``, for one block.
_DENSE_OF = r"blk\.{}\.ffn_(up|down|gate)\."


def _n_ctx(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    number = read_int(value)
    if number < 0:
        raise ValueError("it takes a number of tokens, or 0 for the model's own context")
    return replace(settings, n_ctx=number)


def _n_parallel(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    number = read_int(value)
    if number == 0:
        raise ValueError("it takes at least one slot, or -1 for the tool's default")
    return replace(settings, n_parallel=None if number < 0 else number)


def _n_batch(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, n_batch=_positive(value))


def _n_ubatch(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, n_ubatch=0 if read_int(value) == 0 else _positive(value))


def _positive(value: str) -> int:
    number = read_int(value)
    if number < 1:
        raise ValueError("it takes a number of tokens from 1")
    return number


def _flash_attn(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    if value in {"auto", "-1"}:
        return replace(settings, flash_attn="auto")
    try:
        return replace(settings, flash_attn="on" if read_switch(value) else "off")
    except ValueError:
        raise ValueError("it takes on, off or auto") from None


def _type_k(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, type_k=read_cache_type(value))


def _type_v(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, type_v=read_cache_type(value))


def _gpu_layers(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, n_gpu_layers=read_gpu_layers(value))


def _split_mode(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    if value not in {"none", "layer", "row", "tensor"}:
        raise ValueError("it takes none, layer, row or tensor")
    return replace(settings, split_mode=value)


def _tensor_split(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    try:
        shares = tuple(float(part) for part in value.replace("/", ",").split(",") if part)
    except ValueError:
        shares = ()
    if not shares or any(share < 0 or not math.isfinite(share) for share in shares):
        raise ValueError("it takes shares like 3,1 or 3/1")
    if len(shares) >= MAX_DEVICES:
        raise ValueError(f"it takes at most {MAX_DEVICES - 1} shares")
    return replace(settings, tensor_split=shares)


def _main_gpu(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, main_gpu=read_int(value))


def _devices(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, devices=read_names(value))


def _rpc(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    # each --rpc adds its servers to those before
    return replace(settings, rpc=settings.rpc + read_names(value))


def _load_mode(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    if value not in LOAD_MODES:
        raise ValueError(f"it takes one of {', '.join(LOAD_MODES)}")
    return replace(settings, load_mode=value)


def _lazy_mode(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    if value not in {"on", "off", "auto"}:
        raise ValueError("it takes on, off or auto")
    return replace(settings, lazy_mode=value)


def _override_tensor(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, override_tensor=(*settings.override_tensor, *read_overrides(value)))


def _n_cpu_moe(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, n_cpu_moe=read_count(value, "layers"))


def _n_cpu_ffn(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    number = read_int(value)
    if not 0 <= number <= 512:
        raise ValueError("it takes a number of layers from 0 to 512")
    pairs = tuple((_DENSE_OF.format(block), "CPU") for block in range(number))
    return replace(settings, override_tensor=settings.override_tensor + pairs)


def _cache_ram(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, cache_ram_mib=read_int(value))


def _ctx_checkpoints(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, ctx_checkpoints=max(0, read_int(value)))


def _mmproj_device(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    if "," in value:
        raise ValueError("it takes one device")
    return replace(settings, mmproj_device=value, mmproj_offload=value != "none")


def _image_max_tokens(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, image_max_tokens=max(0, read_int(value)))


def _mtmd_batch_tokens(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, mtmd_batch_tokens=max(0, read_int(value)))


def _vector_range(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    first, last = value.split("\n")
    return replace(settings, vector_range=(read_int(first), read_int(last)))


def _fit(settings: LlamaCppSettings, value: str) -> LlamaCppSettings:
    return replace(settings, fit=read_switch(value))


#: Canonical flag → setter, for flags that take a value.
VALUE_SETTERS: dict[str, Setter] = {
    **SPECULATION_SETTERS,
    "--ctx-size": _n_ctx,
    "--parallel": _n_parallel,
    "--batch-size": _n_batch,
    "--ubatch-size": _n_ubatch,
    "--flash-attn": _flash_attn,
    "--cache-type-k": _type_k,
    "--cache-type-v": _type_v,
    "--gpu-layers": _gpu_layers,
    "--split-mode": _split_mode,
    "--tensor-split": _tensor_split,
    "--main-gpu": _main_gpu,
    "--device": _devices,
    "--rpc": _rpc,
    "--load-mode": _load_mode,
    "--lazy-mode": _lazy_mode,
    "--override-tensor": _override_tensor,
    "--n-cpu-moe": _n_cpu_moe,
    "--n-cpu-ffn": _n_cpu_ffn,
    "--cache-ram": _cache_ram,
    "--ctx-checkpoints": _ctx_checkpoints,
    "--fit": _fit,
    "--control-vector-layer-range": _vector_range,
    "--mmproj-device": _mmproj_device,
    "--image-max-tokens": _image_max_tokens,
    "--mtmd-batch-max-tokens": _mtmd_batch_tokens,
}

#: Canonical switch → setter; the value is ``on``, or ``off`` from a negative spelling.
SWITCH_SETTERS: dict[str, Setter] = {
    **SPECULATION_SWITCHES,
    "--kv-unified": lambda settings, value: replace(settings, kv_unified=read_switch(value)),
    "--swa-full": lambda settings, value: replace(settings, swa_full=read_switch(value)),
    "--kv-offload": lambda settings, value: replace(settings, kv_offload=read_switch(value)),
    "--repack": lambda settings, value: replace(settings, repack=read_switch(value)),
    "--op-offload": lambda settings, value: replace(settings, op_offload=read_switch(value)),
    "--check-tensors": lambda settings, value: replace(settings, check_tensors=read_switch(value)),
    "--no-host": lambda settings, value: replace(settings, no_host=read_switch(value)),
    "--cpu-moe": lambda settings, value: replace(settings, cpu_moe=read_switch(value)),
    "--mmproj-offload": lambda settings, value: replace(settings, mmproj_offload=read_switch(value)),
    "--warmup": lambda settings, value: replace(settings, warmup=read_switch(value)),
    "--embedding": lambda settings, value: replace(settings, embedding=read_switch(value)),
}

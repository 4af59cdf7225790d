"""What vLLM makes of its settings: the defaults that depend on the device, the model and how it is used.

In: ``VllmModel``, ``VllmSettings``, ``Target``. Out: ``Resolved``. Sources (vLLM 0.32.0):
``engine/arg_utils.py:get_batch_defaults``, ``config/model.py:_resolve_auto_dtype``, ``config/vllm.py``,
``platforms/interface.py:update_block_size_for_backend``, ``platforms/cpu.py:check_and_update_config``.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from terazi.errors import UsageError
from terazi.memory.vllm.cache import CacheSpec, Limits
from terazi.memory.vllm.dtypes import CACHE_DTYPES, PACKED_LATENT, cache_bytes, element_bytes, plain_name
from terazi.memory.vllm.model import CacheKind, LayerCache, VllmModel
from terazi.memory.vllm.pool import Placed
from terazi.memory.vllm.settings import AUTO_LENGTH, VllmSettings
from terazi.memory.vllm.state import StateShape
from terazi.memory.vllm.target import Platform, Target
from terazi.units import GIB, pad

#: ``CacheConfig.DEFAULT_BLOCK_SIZE``.
_GPU_BLOCK: Final = 16
_CPU_BLOCK: Final = 128
#: Families that compute wrongly in float16 (``_FLOAT16_NOT_SUPPORTED_MODELS``).
NO_FLOAT16: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
#: ``EagleModelTypes``.
_EAGLE: Final = frozenset({"eagle", "eagle3", "mtp", "extract_hidden_states"})
#: Guessing methods beside which steps may overlap (``EagleModelTypes``, ``NgramGPUTypes`` and others).
_OVERLAPS: Final = frozenset({"eagle", "eagle3", "mtp", "draft_model", "dspark", "dflash", "ngram_gpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Settings with every default filled in.

    ``fit_length`` says that ``max_model_len`` is still to be fitted to the memory. ``stages`` are the layers of
    each pipeline stage. ``caches`` are those of one rank of every stage, in the order of the layers.
    """

    target: Target
    dtype: str
    element_bytes: int
    max_model_len: int
    fit_length: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    one_table: bool
    block_size: int
    kv_cache_dtype: str
    stages: tuple[range, ...]
    caches: tuple[Placed, ...]
    limits: Limits
    quantization: str | None
    online: str | None


def resolve(model: VllmModel, settings: VllmSettings, target: Target) -> Resolved:
    """Fill in *settings*.

    Raises:
        UsageError: a value that vLLM has no meaning for.
    """
    dtype, size = _dtype(model, settings, target)
    length = settings.max_model_len
    fit_length = length == AUTO_LENGTH
    if length is None or fit_length:
        length = model.max_length
    chunked = settings.chunked_prefill is not False
    prefix = settings.prefix_caching if settings.prefix_caching is not None else not model.attention_free
    seqs, tokens = _batch(settings, target, length, chunked=chunked)
    amx = "amx_tile" in target.isa
    if target.platform is Platform.CPU and model.latent and not amx:
        # the reference kernel prefills whole prompts and keeps no prefixes
        prefix, tokens = False, max(length, 2048)
    aligned = prefix and any(c.kind is CacheKind.STATE for c in model.caches)
    guessed = settings.speculation.tokens if settings.speculation else 0
    limits = Limits(
        max_model_len=length,
        in_flight_tokens=_concurrent_batches(settings, target) * tokens,
        aligned_states=aligned,
        guessed_tokens=guessed,
    )
    kv_dtype = _kv_dtype(model, settings)
    block, caches = _caches(model, settings, target, element_size=size, kv_dtype=kv_dtype, aligned=aligned)
    method, online = _quantization(model, settings)
    return Resolved(
        target=target,
        dtype=dtype,
        element_bytes=size,
        max_model_len=length,
        fit_length=fit_length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        prefix_caching=prefix,
        one_table=_one_table(model, settings),
        block_size=block,
        kv_cache_dtype=kv_dtype,
        stages=stages(model.layers, settings),
        caches=caches,
        limits=limits,
        quantization=method,
        online=online,
    )


def stages(layers: int, settings: VllmSettings) -> tuple[range, ...]:
    """Layers of each pipeline stage: ``distributed/utils.py:get_pp_indices``.

    Raises:
        UsageError: ``VLLM_PP_LAYER_PARTITION`` doesn't match.
    """
    count = settings.pipeline_parallel
    if settings.layer_partition:
        sizes = list(settings.layer_partition)
        if len(sizes) != count or sum(sizes) != layers:
            raise UsageError(
                f"VLLM_PP_LAYER_PARTITION names {len(sizes)} stages with {sum(sizes)} layers in all;"
                f" there are {count} stages and {layers} layers",
                hint="give one number for each stage; they sum up to the model's layers",
            )
    else:
        sizes = [layers // count] * count
        for index in range(2, layers % count + 2):  # all but the last, which has the head, from the back
            sizes[-index] += 1
    starts = [sum(sizes[:i]) for i in range(count)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def _one_table(model: VllmModel, settings: VllmSettings) -> bool:
    """Whether windows keep every block: on request, and for chunks beside an Eagle kind of guessing."""
    if settings.hybrid_kv_cache is not None:
        return not settings.hybrid_kv_cache
    return model.chunked and settings.speculation is not None and settings.speculation.method in _EAGLE


def _dtype(model: VllmModel, settings: VllmSettings, target: Target) -> tuple[str, int]:
    said = plain_name(settings.dtype)
    if said == "auto":
        value = model.config.value("torch_dtype", "dtype")
        said = plain_name(value) if isinstance(value, str) else "float32"
        supported = ["bfloat16", "float16", "float32"]
        if target.capability is not None and target.capability < 80:
            supported.remove("bfloat16")
        if model.model_type in NO_FLOAT16:
            supported.remove("float16")
        if said == "float32" or said not in supported:
            said = supported[0]
    size = element_bytes(said)
    if size is None:
        raise UsageError(
            f"--dtype {settings.dtype} is none that vLLM computes in", hint="use auto, bfloat16 or float16"
        )
    return said, size


def _batch(settings: VllmSettings, target: Target, length: int, *, chunked: bool) -> tuple[int, int]:
    """``_set_default_max_num_seqs_and_batched_tokens_args``: (sequences, tokens) of one step."""
    api = settings.served_by_api
    ranks = settings.world_size
    if target.platform is Platform.CPU:
        default_tokens, default_seqs = (2048 if api else 4096) * ranks, (128 if api else 256) * ranks
    elif target.memory_bytes >= 160 * GIB:
        default_tokens, default_seqs = 16_384, 1024
    elif target.memory_bytes >= 70 * GIB and "a100" not in target.name.lower():
        default_tokens, default_seqs = (8192 if api else 16_384), 1024
    else:
        default_tokens, default_seqs = (2048 if api else 8192), 256
    seqs = settings.max_num_seqs if settings.max_num_seqs is not None else default_seqs
    tokens = settings.max_num_batched_tokens
    if tokens is None:
        tokens = default_tokens if chunked else max(length, default_tokens)
        tokens = min(seqs * length, tokens)
    if settings.max_num_seqs is None:
        seqs = min(seqs, tokens)
    return seqs, tokens


def _concurrent_batches(settings: VllmSettings, target: Target) -> int:
    """``VllmConfig.max_concurrent_batches``: steps in flight at once, with the second model runner on cards."""
    if target.platform is Platform.CPU:
        return settings.pipeline_parallel
    method = settings.speculation.method if settings.speculation else None
    overlap = settings.async_scheduling
    if overlap is None:
        overlap = method is None or method in _OVERLAPS
    return settings.pipeline_parallel + (1 if overlap else 0)


def _kv_dtype(model: VllmModel, settings: VllmSettings) -> str:
    said = settings.kv_cache_dtype
    if said not in CACHE_DTYPES:
        raise UsageError(
            f"--kv-cache-dtype {said} is none that vLLM knows", hint=f"use one of {', '.join(sorted(CACHE_DTYPES))}"
        )
    if said == "auto":
        config = model.config
        algorithm = config.value(
            "quantization_config.kv_cache_scheme.num_bits", "quantization_config.kv_cache_quant_algo"
        )
        kind = config.value("quantization_config.kv_cache_scheme.type")
        if (algorithm == 8 and kind == "float") or algorithm == "FP8":
            return "fp8_e4m3"
    return said


def _quantization(model: VllmModel, settings: VllmSettings) -> tuple[str | None, str | None]:
    """(the checkpoint's method, the one that is applied while loading)."""
    value = model.config.value("quantization_config.quant_method", "compression_config.quant_method")
    method = value.replace("compressed_tensors", "compressed-tensors") if isinstance(value, str) else None
    return method, settings.quantization if method is None else None


def _caches(
    model: VllmModel,
    settings: VllmSettings,
    target: Target,
    *,
    element_size: int,
    kv_dtype: str,
    aligned: bool,
) -> tuple[int, tuple[Placed, ...]]:
    """The block size, and every layer's cache on one rank."""
    ranks = settings.tensor_parallel
    smallest = _smallest_block(model, target)
    block = settings.block_size or (_CPU_BLOCK if target.platform is Platform.CPU else max(_GPU_BLOCK, smallest))
    if target.platform is Platform.CPU and model.latent and "amx_tile" not in target.isa:
        block = 16
    sizes = _StateSizes.of(model, settings, target, element_size)
    page: int | None = None
    if model.hybrid:
        attention = next(c for c in model.caches if c.state is None)
        per_token = token_bytes(attention, ranks, element_size, kv_dtype)
        largest = max(sizes.bytes_of(c.state) for c in model.caches if c.state is not None)
        unit = max(smallest, block, 128 if model.latent else 0)
        block, page = _aligned_block(block, unit, smallest, per_token=per_token, state=largest)
    placed: list[Placed] = []
    for cache in model.caches:
        if cache.state is not None:
            length = max(settings.max_model_len or 0, 0) or model.max_length
            spec = CacheSpec(
                kind=CacheKind.STATE,
                block_size=block if aligned else settings.mamba_block_size or length,
                state_bytes=sizes.bytes_of(cache.state),
                padded_bytes=page,
                checkpoints=cache.state.checkpoints,
            )
        else:
            spec = _attention_cache(cache, ranks, block, smallest, element_size=element_size, kv_dtype=kv_dtype)
        placed.append(Placed(cache.layer, spec))
    return block, tuple(placed)


def _smallest_block(model: VllmModel, target: Target) -> int:
    """Tokens of the smallest block that the attention kernels take (``get_supported_kernel_block_sizes``)."""
    if target.platform is Platform.CPU:
        return 16 if model.latent and "amx_tile" not in target.isa else 32
    if model.latent and target.capability is not None and target.capability // 10 == 10:
        return 32  # FlashInfer's latent attention
    return 16


class _StateSizes(NamedTuple):
    """What the bytes of a state depend on."""

    ranks: int
    guessed: int
    conv_size: int
    state_size: int

    @classmethod
    def of(cls, model: VllmModel, settings: VllmSettings, target: Target, element_size: int) -> "_StateSizes":
        conv_size = element_bytes(settings.mamba_cache_dtype) or element_size
        return cls(
            ranks=settings.tensor_parallel,
            guessed=settings.speculation.tokens if settings.speculation else 0,
            conv_size=conv_size,
            state_size=element_bytes(_state_dtype(model, settings, target)) or conv_size,
        )

    def bytes_of(self, shape: StateShape) -> int:
        """One layer's state on one rank."""
        conv = shape.conv_elements(self.ranks, self.guessed) * self.conv_size
        return conv + shape.state_elements(self.ranks) * self.state_size


def token_bytes(cache: LayerCache, ranks: int, element_size: int, kv_dtype: str) -> int:
    """Bytes of one token in one layer on one rank.

    Raises:
        UsageError: a packed type whose layout isn't known here.
    """
    if cache.kind is CacheKind.LATENT and kv_dtype in PACKED_LATENT:
        return PACKED_LATENT[kv_dtype]
    size = cache_bytes(kv_dtype, element_size)
    if size is None:
        raise UsageError(
            f"The layout of a {kv_dtype} cache isn't known here, so it can't be weighed.",
            hint="Use --kv-cache-dtype auto or fp8.",
        )
    heads = 1 if cache.kind is CacheKind.LATENT else max(1, cache.heads // ranks)
    elements = cache.head_size + cache.value_size
    if kv_dtype.endswith("_per_token_head"):
        if kv_dtype.startswith("int4"):
            elements //= 2
        return heads * (elements + 8)  # a 32-bit scale for each key and each value
    return heads * elements * size


def _attention_cache(
    cache: LayerCache, ranks: int, block: int, smallest: int, *, element_size: int, kv_dtype: str
) -> CacheSpec:
    size = block
    if cache.kind is CacheKind.SLIDING:  # the largest kernel block within the primary one
        size = max(smallest, block // smallest * smallest)
    return CacheSpec(
        kind=cache.kind,
        block_size=size,
        token_bytes=token_bytes(cache, ranks, element_size, kv_dtype),
        window=cache.window,
        shape=(max(1, cache.heads // ranks), cache.head_size, cache.value_size),
    )


def _state_dtype(model: VllmModel, settings: VllmSettings, target: Target) -> str:
    """``mamba_ssm_cache_dtype`` after the model's and the platform's say."""
    said = settings.mamba_ssm_cache_dtype
    if said == "auto" and model.model_type == "nemotron_h":
        value = model.config.value("mamba_ssm_cache_dtype")
        said = value if isinstance(value, str) else "float32"
    if said == "auto" and model.model_type.startswith("qwen3_5"):
        value = model.config.value("mamba_ssm_dtype")
        said = value if isinstance(value, str) else said
    if target.platform is Platform.CPU and "avx512_bf16" in target.isa:
        said = "float32"  # the accelerated kernels keep it so
    return said


def _aligned_block(block: int, unit: int, smallest: int, *, per_token: int, state: int) -> tuple[int, int | None]:
    """``_align_hybrid_block_size``: a block of attention as large as *state*, and the page both then have."""
    wanted = pad(unit * -(-state // (unit * per_token)), smallest)
    block = max(block, wanted)
    page = block * per_token
    return block, page if page != state else None

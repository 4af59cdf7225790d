"""The settings of one vLLM engine, as its command line gives them."""

from dataclasses import dataclass
from typing import Final

#: ``--max-model-len auto`` and ``-1``: as long as the memory allows.
AUTO_LENGTH: Final = -1
#: ``CacheConfig.gpu_memory_utilization``.
DEFAULT_UTILIZATION: Final = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """``--speculative-config``: who guesses tokens ahead.

    Args:
        method: ``ngram``, ``draft_model``, ``mtp``, ``eagle``, ``eagle3`` … as vLLM names it.
        tokens: ``num_speculative_tokens``.
        model: the draft model's path or repository, where the method needs one.
        tensor_parallel: ``draft_tensor_parallel_size``; None is the target's.
    """

    method: str
    tokens: int
    model: str | None = None
    tensor_parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """What moves memory. ``None`` leaves the choice to vLLM, which makes it by device, model and usage.

    Args:
        tensor_parallel, pipeline_parallel, data_parallel: ranks in each direction.
        expert_parallel: whole experts on each rank instead of slices of all.
        layer_partition: ``VLLM_PP_LAYER_PARTITION``, layers of each pipeline stage; empty is an even split.
        dtype: ``auto``, ``bfloat16``, ``float16`` (also ``half``), ``float32`` (also ``float``).
        quantization: ``--quantization``; None is what the config says.
        kv_cache_dtype: ``auto``, ``bfloat16``, ``float16``, ``fp8`` …
        max_model_len: tokens of one sequence; -1 is as many as fit.
        max_num_seqs, max_num_batched_tokens: limits of one step.
        gpu_memory_utilization: share of each device (of the host, on CPU) that vLLM takes in all.
        kv_cache_memory_bytes: KV cache of each rank; set, the utilization no longer counts.
        num_gpu_blocks_override: KV blocks, whatever was measured.
        block_size: tokens of a KV block.
        enforce_eager: no CUDA graphs.
        cpu_offload_bytes: weights of each rank that stay in host memory.
        kv_offloading_bytes: host memory for evicted KV blocks, all ranks together.
        prefix_caching, chunked_prefill, async_scheduling: switches; None is the default for this model.
        hybrid_kv_cache: False with ``--disable-hybrid-kv-cache-manager``.
        mamba_block_size, mamba_cache_dtype, mamba_ssm_cache_dtype, mamba_cache_mode: caches of recurrent layers.
        enable_long_length: ``VLLM_ALLOW_LONG_MAX_MODEL_LEN``.
        served_by_api: the API server's defaults; False is the ``LLM`` class.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    layer_partition: tuple[int, ...] = ()
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    cpu_offload_bytes: int = 0
    kv_offloading_bytes: int = 0
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    hybrid_kv_cache: bool | None = None
    mamba_block_size: int | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_cache_mode: str = "none"
    enable_long_length: bool = False
    served_by_api: bool = True
    speculation: Speculation | None = None

    @property
    def world_size(self) -> int:
        """Ranks of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

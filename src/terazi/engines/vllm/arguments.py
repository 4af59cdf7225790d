"""Settings as vLLM's own flags: the command that a person could type to get exactly these.

In: ``VllmSettings``. Out: words, build 0.32.0's spellings.
"""

import json

from terazi.memory.vllm.settings import AUTO_LENGTH, DEFAULT_UTILIZATION, VllmSettings
from terazi.units import GIB


def settings_argv(settings: VllmSettings, model: str) -> tuple[str, ...]:
    """``vllm serve MODEL`` with every setting that isn't vLLM's own default."""
    words = ["vllm", "serve", model]

    def add(flag: str, value: object, *, when: bool) -> None:
        if when:
            words.extend([flag, str(value)])

    s = settings
    add("--tensor-parallel-size", s.tensor_parallel, when=s.tensor_parallel != 1)
    add("--pipeline-parallel-size", s.pipeline_parallel, when=s.pipeline_parallel != 1)
    add("--data-parallel-size", s.data_parallel, when=s.data_parallel != 1)
    add("--dtype", s.dtype, when=s.dtype != "auto")
    add("--quantization", s.quantization, when=s.quantization is not None)
    add("--kv-cache-dtype", s.kv_cache_dtype, when=s.kv_cache_dtype != "auto")
    length = "auto" if s.max_model_len == AUTO_LENGTH else s.max_model_len
    add("--max-model-len", length, when=s.max_model_len is not None)
    add("--max-num-seqs", s.max_num_seqs, when=s.max_num_seqs is not None)
    add("--max-num-batched-tokens", s.max_num_batched_tokens, when=s.max_num_batched_tokens is not None)
    utilization = f"{s.gpu_memory_utilization:g}"
    add("--gpu-memory-utilization", utilization, when=s.gpu_memory_utilization != DEFAULT_UTILIZATION)
    add("--kv-cache-memory-bytes", s.kv_cache_memory_bytes, when=s.kv_cache_memory_bytes is not None)
    add("--num-gpu-blocks-override", s.num_gpu_blocks_override, when=s.num_gpu_blocks_override is not None)
    add("--block-size", s.block_size, when=s.block_size is not None)
    add("--cpu-offload-gb", f"{s.cpu_offload_bytes / GIB:g}", when=s.cpu_offload_bytes > 0)
    add("--kv-offloading-size", f"{s.kv_offloading_bytes / GIB:g}", when=s.kv_offloading_bytes > 0)
    add("--mamba-block-size", s.mamba_block_size, when=s.mamba_block_size is not None)
    add("--mamba-cache-dtype", s.mamba_cache_dtype, when=s.mamba_cache_dtype != "auto")
    add("--mamba-ssm-cache-dtype", s.mamba_ssm_cache_dtype, when=s.mamba_ssm_cache_dtype != "auto")
    for flag, value in (
        ("enable-prefix-caching", s.prefix_caching),
        ("enable-chunked-prefill", s.chunked_prefill),
        ("async-scheduling", s.async_scheduling),
        ("disable-hybrid-kv-cache-manager", None if s.hybrid_kv_cache is None else not s.hybrid_kv_cache),
    ):
        if value is not None:
            words.append(f"--{flag}" if value else f"--no-{flag}")
    words += ["--enforce-eager"] if s.enforce_eager else []
    words += ["--enable-expert-parallel"] if s.expert_parallel else []
    if s.speculation is not None:
        guess: dict[str, object] = {"method": s.speculation.method, "num_speculative_tokens": s.speculation.tokens}
        if s.speculation.model is not None:
            guess["model"] = s.speculation.model
        if s.speculation.tensor_parallel is not None:
            guess["draft_tensor_parallel_size"] = s.speculation.tensor_parallel
        words += ["--speculative-config", json.dumps(guess)]
    return tuple(words)

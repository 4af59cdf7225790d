"""What a person can tell Ollama that moves memory: a model's parameters and the service's environment.

Names and defaults: ``api.DefaultOptions`` and ``envconfig/config.go``, Ollama at commit fb30760 (August 2026),
which carries llama.cpp b10488.
"""

from dataclasses import dataclass
from typing import Final

#: Of the Ollama that these rules were read from, and of the engine inside it.
COMMIT: Final = "fb30760"
ENGINE_BUILD: Final = "b10488"


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaSettings:
    """One configuration of Ollama.

    Args:
        num_ctx: ``num_ctx`` of the model or of the request; None leaves it to Ollama.
        num_batch: likewise.
        num_gpu: layers to offload; -1 leaves it to llama-server, 0 is the CPU alone.
        main_gpu: the one card to use.
        use_mmap: None leaves it to Ollama.
        draft_num_predict: tokens to draft at once; None is the default (4 with a draft model, else none).
        context_length: ``OLLAMA_CONTEXT_LENGTH``; 0 goes by the cards' memory.
        num_parallel: ``OLLAMA_NUM_PARALLEL``.
        kv_cache_type: ``OLLAMA_KV_CACHE_TYPE``; empty is llama-server's own (f16).
        flash_attention: ``OLLAMA_FLASH_ATTENTION``; None goes by the cards.
        sched_spread: ``OLLAMA_SCHED_SPREAD``: never choose one card.
        gpu_overhead_bytes: ``OLLAMA_GPU_OVERHEAD``: counts against the default context only.
        fit: False with ``LLAMA_ARG_FIT=off``.
        fit_target_mib: ``LLAMA_ARG_FIT_TARGET``; None is Ollama's own.
    """

    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int = -1
    main_gpu: int | None = None
    use_mmap: bool | None = None
    draft_num_predict: int | None = None
    context_length: int = 0
    num_parallel: int = 1
    kv_cache_type: str = ""
    flash_attention: bool | None = None
    sched_spread: bool = False
    gpu_overhead_bytes: int = 0
    fit: bool = True
    fit_target_mib: int | None = None

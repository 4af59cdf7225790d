"""The settings of llama.cpp that move memory, as its command line states them.

Names follow llama.cpp's own (``common/arg.cpp``, b11434). ``None`` means "not given": the engine decides.
"""

from dataclasses import dataclass

from terazi.memory.llama_cpp.speculation import NO_SPECULATION, Speculation
from terazi.units import MIB

#: The build whose rules this package redoes.
BUILD = "b11434"
#: ``--fit`` leaves this much free on each device (``fit_params_target`` of ``common/common.h``).
FIT_MARGIN_BYTES = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """One llama.cpp configuration.

    Args:
        tool: which of llama.cpp's programs it is for; ``llama-server`` and ``llama-cli`` (a server of one slot)
            reserve logits for their slots only, ``llama-fit-params`` for a whole micro-batch.
        n_ctx: ``-c``; 0 is the model's training context.
        n_parallel: ``-np``; None is the tool's default (llama-server: 4 slots with a unified cache; others 1).
        kv_unified: ``--kv-unified`` / ``--no-kv-unified``; None is the tool's default.
        n_batch, n_ubatch: ``-b``, ``-ub``.
        flash_attn: ``on``, ``off`` or ``auto``.
        type_k, type_v: ggml type names of the cache, e.g. ``f16``, ``q8_0``.
        swa_full: ``--swa-full``.
        n_gpu_layers: ``-ngl``; None is the engine's default (all that there are devices for).
        split_mode: ``none``, ``layer``, ``row`` or ``tensor``.
        tensor_split: ``-ts``; empty splits by free memory.
        main_gpu: ``-mg``.
        devices: ``-dev`` names; empty is all. ``("none",)`` is the CPU alone.
        rpc: ``--rpc`` endpoints, in order.
        kv_offload: False with ``--no-kv-offload``.
        load_mode: ``--load-mode``: ``auto``, ``none``, ``mmap``, ``mlock``, ``mmap+mlock`` or ``dio`` (direct I/O).
        lazy_mode: ``--lazy-mode``: ``on``, ``off`` or ``auto``: whether marked tables stay in the file.
        repack, op_offload, no_host, check_tensors: the other loading switches.
        override_tensor: ``-ot`` pairs of (regular expression, buffer type), in order.
        cpu_moe, n_cpu_moe: ``--cpu-moe``, ``--n-cpu-moe``.
        cache_ram_mib: ``--cache-ram``; None is the engine's default (8192), -1 no limit, 0 off.
        ctx_checkpoints: ``--ctx-checkpoints``; None is the engine's default.
        embedding: ``--embedding``.
        fit: False with ``--fit off``.
        speculation: ``--spec-type`` and all that belongs to it.
        mmproj_offload: False with ``--no-mmproj-offload``.
        mmproj_device: ``--mmproj-device``; empty follows ``-dev``, ``none`` is the host.
        image_max_tokens: ``--image-max-tokens``; 0 is the projector's own limit.
        mtmd_batch_tokens: ``--mtmd-batch-max-tokens``; 0 is the engine's default.
        vector_range: ``--control-vector-layer-range``; 0 is the first block but one, and the last.
        warmup: False with ``--no-warmup``: a projector's graph is reserved with the first image only.
    """

    tool: str = "llama-server"
    n_ctx: int = 0
    n_parallel: int | None = None
    kv_unified: bool | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    swa_full: bool = False
    n_gpu_layers: int | None = None
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    devices: tuple[str, ...] = ()
    rpc: tuple[str, ...] = ()
    kv_offload: bool = True
    load_mode: str = "auto"
    lazy_mode: str = "auto"
    repack: bool = True
    op_offload: bool = True
    no_host: bool = False
    check_tensors: bool = False
    override_tensor: tuple[tuple[str, str], ...] = ()
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    cache_ram_mib: int | None = None
    ctx_checkpoints: int | None = None
    embedding: bool = False
    fit: bool = True
    mmproj_offload: bool = True
    mmproj_device: str = ""
    image_max_tokens: int = 0
    mtmd_batch_tokens: int = 0
    vector_range: tuple[int, int] = (0, 0)
    warmup: bool = True
    speculation: Speculation = NO_SPECULATION

    @property
    def draft_mtp(self) -> bool:
        """Whether draft heads (NextN blocks) are loaded along with a model that has some."""
        return self.speculation.uses("draft-mtp")

    @property
    def mmap(self) -> bool:
        """Whether the file is to be mapped (``llama_model_loader``); with ``auto`` a device may turn it off."""
        return self.load_mode in {"auto", "mmap", "mmap+mlock"}

    @property
    def mlock(self) -> bool:
        """Whether host weights are to be locked in memory (``load_tensors``)."""
        return self.load_mode in {"mlock", "mmap+mlock"}

"""From a command line's settings to the figures that llama.cpp computes with: defaults, clamps, padding.

Sources, b11434: ``src/llama-context.cpp:llama_context`` (contexts and batches), ``llama_init_from_model`` (what it
refuses), ``tools/server/server.cpp`` and ``server-context.cpp:server_output_limits`` (llama-server's defaults),
``common/fit.cpp:common_params_fit_impl`` (the context of ``--fit``).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.llama_cpp.cache_rules import head_widths, is_causal, stores_latent
from terazi.memory.llama_cpp.cache_types import CACHE_TYPES, is_quantised_cache
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.layers import assign_layers, gpu_layers, select_devices
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.units import pad

#: The engine pads contexts and caches to this many cells.
CELLS = 256
#: ``LLAMA_MAX_SEQ`` of ``src/llama-cparams.h``.
MAX_SEQUENCES = 256
#: llama-cli runs a llama-server inside itself, with one slot.
SERVERS = frozenset({"llama-server", "llama-cli"})
#: Slots of a llama-server that is not told how many.
SERVER_SLOTS = 4
#: ``llm_arch_supports_rs_rollback``: recurrent states can go back by a few tokens.
_ROLLS_BACK = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "glm5-next",
        "kimi-k3",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
    }
)

#: ``llama_init_from_model`` switches flash attention off for these.
_NEVER_FUSED = frozenset({"grok"})
#: Their graph hands values over without heads, which only the cache of a run without flash attention can store.
_ABORTS_FUSED = frozenset({"plm"})

#: ``llm_arch_supports_sm_tensor``: their tensors can't be cut.
_NEVER_CUT: Final = frozenset(
    (
        *(
            "grok",
            "mpt",
            "plamo2",
            "minicpm3",
            "gemma3n",
            "mamba",
            "mamba2",
            "jamba",
            "falcon-h1",
            "olmo2",
            "olmoe",
        ),
        *(
            "deepseek2",
            "deepseek32",
            "hy_v4",
            "dots3note",
            "glm-dsa",
            "bitnet",
            "t5",
            "nemotron_h",
            "nemotron_h_moe",
        ),
        *("granitehybrid", "minimax-01", "minimax-m2", "minimax-m3", "mistral4", "kimi-linear", "bailingmoe3"),
        *("kimi-k3", "glm5-next", "qwen3tts"),
    )
)


class Resolved(NamedTuple):
    """The figures that the engine allocates by.

    Args:
        n_ctx: cells of all sequences together; ``n_ctx_seq`` those that one sequence may use.
        n_stream: separate caches (1 if unified, else one a slot); ``n_seq_max`` is the number of slots.
        n_tokens: tokens of the largest graph that is reserved.
        n_outputs: logits rows that this graph computes.
        devices: the accelerators in use, in the engine's order.
        layer_devices: device id (or ``bill.HOST``) of each block; the last entry is the output layer.
        full_offload: every layer and the output are to be offloaded, if devices are there.
        pipeline: four copies of each graph input are kept (several devices, all layers offloaded).
        cut: the devices that share every tensor (``-sm tensor``); ``devices`` then holds the first of them alone.
        kept_states: recurrent states a slot: the last, and those that a rejected draft goes back to.
        draft_head: the context is that of the model's own draft head, beside the one of the model.
        samples: tokens are picked in the graph (``--spec-draft-backend-sampling``).
    """

    n_ctx: int
    n_ctx_seq: int
    n_stream: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    n_tokens: int
    n_outputs: int
    flash_attn: bool
    devices: tuple[Device, ...]
    layer_devices: tuple[str, ...]
    full_offload: bool
    pipeline: bool
    cut: tuple[Device, ...] = ()
    kept_states: int = 1
    draft_head: bool = False
    samples: bool = False

    @property
    def unified(self) -> bool:
        """All sequences share one cache."""
        return self.n_stream == 1


def resolve(spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> Resolved:
    """Apply the defaults of ``settings.tool`` and the engine's clamps.

    Raises:
        UsageError: for what llama.cpp itself refuses (cache types, slots, devices).
    """
    check_cache_types(spec, settings)
    return resolve_figures(spec, settings, lambda: share_out(spec, settings, devices))


class Shares(NamedTuple):
    """What ``-ngl``, ``-ts``, ``-sm`` and their like decide: fields of ``Resolved``."""

    devices: tuple[Device, ...]
    layer_devices: tuple[str, ...]
    full_offload: bool
    cut: tuple[Device, ...]


def share_out(spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> Shares:
    """Choose among *devices*, and share the layers out to them.

    Raises:
        UsageError: for devices or a split mode that llama.cpp itself refuses.
    """
    chosen = select_devices(settings, devices)
    _check_split_mode(spec.architecture, settings, chosen)
    cut: tuple[Device, ...] = ()
    if settings.split_mode == "tensor":
        # several devices are one to all rules but those of tensor_split.py
        cut, chosen = chosen, chosen[:1]
    return Shares(
        devices=chosen,
        layer_devices=assign_layers(
            replace(settings, tensor_split=()) if cut else settings, chosen, spec.block_count
        ),
        full_offload=gpu_layers(settings, spec.block_count) > spec.block_count,
        cut=cut,
    )


def resolve_figures(spec: ModelSpec, settings: LlamaCppSettings, shared_out: Callable[[], Shares]) -> Resolved:
    """``resolve`` for cache types that are checked, with layers as *shared_out* says when all else is in order.

    Raises:
        UsageError: for what llama.cpp itself refuses.
    """
    if spec.architecture in _ABORTS_FUSED and settings.flash_attn != "off":
        raise UsageError(
            f"llama.cpp would abort: it can't run {spec.architecture} with flash attention.", hint="Use -fa off."
        )
    slots, unified = _slots(settings)
    wanted = _wanted_context(spec, settings, 1 if unified else slots)
    n_ubatch_asked = settings.n_ubatch or settings.n_batch
    n_batch_asked = settings.n_batch
    if settings.embedding and settings.tool in SERVERS:
        n_batch_asked = min(n_batch_asked, n_ubatch_asked)
    n_batch = min(wanted, n_batch_asked) if is_causal(spec) else n_batch_asked
    n_ubatch = min(n_batch, n_ubatch_asked)

    n_ctx = pad(wanted, CELLS)
    n_ctx_seq = n_ctx
    if not unified:
        n_ctx_seq = pad(n_ctx // slots, CELLS)
        n_ctx = n_ctx_seq * slots

    outputs = _outputs(settings, slots, n_batch_asked, n_batch)
    if outputs < slots or (n_batch < 2 and settings.tool in SERVERS):
        # the engine aborts: GGML_ASSERT(n_outputs_max <= cparams.n_outputs_max), or its first test batch of two
        raise UsageError(
            f"A batch of {n_batch} tokens is too small for {slots} slots: llama.cpp would abort.",
            hint=f"Use -b {max(2, slots)} or more, a context that is at least as long, or fewer slots with -np.",
        )
    chosen, layer_devices, full, cut = shared_out()
    tokens = min(n_ctx, n_ubatch)
    return Resolved(
        n_ctx=n_ctx,
        n_ctx_seq=n_ctx_seq,
        n_stream=1 if unified else slots,
        n_seq_max=slots,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_tokens=pad(tokens, slots),
        n_outputs=min(tokens, outputs),
        flash_attn=settings.flash_attn != "off" and spec.architecture not in _NEVER_FUSED,
        devices=chosen,
        layer_devices=layer_devices,
        full_offload=full,
        cut=cut,
        pipeline=len(chosen) > 1 and full and _allows_pipeline(settings),
        kept_states=1 + (settings.speculation.states_back if spec.architecture in _ROLLS_BACK else 0),
    )


def _allows_pipeline(settings: LlamaCppSettings) -> bool:
    """One tensor moved by hand turns the copies off."""
    moved = settings.override_tensor or settings.cpu_moe or settings.n_cpu_moe > 0
    return settings.split_mode == "layer" and settings.kv_offload and not moved


def _check_split_mode(architecture: str, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> None:
    """By rows: ``make_gpu_buft_list``; only SYCL still has such buffers. By tensors: ``llama_init_from_model``."""
    lacking = [device.id for device in devices if device.backend.lower() != "sycl"]
    if settings.split_mode == "row" and lacking:
        raise UsageError(
            f"llama.cpp {BUILD} can't split a model by rows on {', '.join(lacking)}.",
            hint="Use -sm layer, or -sm tensor.",
        )
    if settings.split_mode != "tensor":
        return
    if architecture in _NEVER_CUT:
        raise UsageError(
            f"llama.cpp {BUILD} can't cut the tensors of {architecture} models (-sm tensor).", hint="Use -sm layer."
        )
    if not devices:
        raise UsageError("-sm tensor needs a device to run on.", hint="Use -sm layer, or name a device with -dev.")
    if settings.flash_attn == "off":
        raise UsageError("-sm tensor needs flash attention.", hint="Drop -fa off, or use -sm layer.")


def check_cache_types(spec: ModelSpec, settings: LlamaCppSettings) -> None:
    """Refuse the cache types that ``llama_init_from_model`` refuses.

    Raises:
        UsageError: quantised V without flash attention, rows that aren't whole blocks, or two types for one row.
    """
    family = family_of(spec)
    if family and stores_latent(spec, family) and settings.type_k != settings.type_v:
        raise UsageError(
            "This model keeps K and V in one compressed row, so llama.cpp wants the same type for both.",
            hint=f"Use -ctk {settings.type_k} -ctv {settings.type_k}.",
        )
    full, window = head_widths(spec, window=False), head_widths(spec, window=True)
    widths = (
        ("-ctk", settings.type_k, full[0]),
        ("-ctv", settings.type_v, full[1]),
        ("-ctk", settings.type_k, window[0]),
        ("-ctv", settings.type_v, window[1]),
    )
    for flag, name, width in widths:
        if name not in CACHE_TYPES:
            raise UsageError(
                f"llama.cpp has no KV cache type {name!r}.", hint=f"Use one of: {', '.join(CACHE_TYPES)}."
            )
        if not is_quantised_cache(name):
            continue
        if (settings.flash_attn == "off" or spec.architecture in _NEVER_FUSED) and flag == "-ctv":
            raise UsageError(
                f"A quantised V cache ({name}) needs flash attention.", hint="Drop -fa off, or use -ctv f16."
            )
        block = CACHE_TYPES[name].block_size
        # flash attention needs whole blocks a head, else a row of all heads must be whole
        rows = [width] if settings.flash_attn != "off" else [width * heads for heads in spec.head_count_kv]
        if any(row % block for row in rows):
            raise UsageError(
                f"A {name} KV cache needs head widths in multiples of {block}; this model has {width}.",
                hint=f"Use {flag} f16 or bf16.",
            )


def _slots(settings: LlamaCppSettings) -> tuple[int, bool]:
    slots, unified = settings.n_parallel, settings.kv_unified
    if slots is None or slots < 0:
        if settings.tool == "llama-server":
            # server.cpp overwrites --no-kv-unified here
            return SERVER_SLOTS, True
        slots = 1
    slots = max(1, slots)
    if slots > MAX_SEQUENCES:
        raise UsageError(f"llama.cpp serves at most {MAX_SEQUENCES} slots, not {slots}.", hint="Lower -np.")
    return slots, bool(unified)


def _wanted_context(spec: ModelSpec, settings: LlamaCppSettings, streams: int) -> int:
    if settings.n_ctx > 0:
        return settings.n_ctx
    # --fit (on by default) gives each stream a whole training context; llama-fit-params prints without fitting
    fitted = settings.fit and settings.tool != "llama-fit-params"
    return spec.context_length * (streams if fitted else 1)


def _outputs(settings: LlamaCppSettings, slots: int, n_batch_asked: int, n_batch: int) -> int:
    if settings.tool in SERVERS and not settings.embedding:
        return max(1, min(n_batch_asked, slots * (1 + settings.speculation.drafted)))
    return n_batch

"""The llama-server that Ollama starts for a model: slots, context, batch, cards, load mode.

Sources, Ollama at commit fb30760: ``Scheduler.load``, ``selectLlamaServerPlacement`` and
``applyLlamaServerMmapDefaults`` in ``server/sched.go``; ``startLlamaServer`` and what it calls in
``llm/llama_server.go``; ``Serve`` (the default context) and ``modelOptions`` in ``server/routes.go``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from terazi.hardware.machine import Device, Host
from terazi.memory.llama_cpp.settings import FIT_MARGIN_BYTES
from terazi.memory.ollama.predict import USABLE_PERCENT, batch_surcharge, generation_batch, predict_bytes
from terazi.memory.ollama.settings import OllamaSettings
from terazi.models.spec import ModelSpec
from terazi.units import GIB, MIB, format_bytes

#: Total memory of the cards → the context that Ollama takes when nobody says.
_TIERS: Final = ((47 * GIB, 262_144), (23 * GIB, 32_768))
_LEAST_CONTEXT: Final = 4096
#: ``num_ctx`` is never below these.
_CONTEXT_FLOOR, _VISION_FLOOR = 4, 2048
_EMBEDDING_BATCH: Final = 2048
#: ``draft_num_predict`` where a draft model comes with the model.
_DRAFTS: Final = 4
#: Architectures that Ollama gives one slot, whatever ``OLLAMA_NUM_PARALLEL`` says.
_ONE_SLOT: Final = frozenset({
    "mllama", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h",
    "nemotron_h_moe", "nemotron_h_omni",
})  # fmt: skip
#: What a projector is given beside its weights.
_PROJECTOR_HEADROOM: Final = GIB
_HOST_HEADROOM_MIN: Final = 8 * 10**9
#: Cards whose backend has the fused kernel; CUDA ones from compute capability 6 on.
_FUSED: Final = frozenset({"cuda", "rocm", "vulkan", "metal", "cpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What comes with a model: bytes of its projector's tensors (None without one), and whether a draft model."""

    projector_bytes: int | None = None
    draft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What Ollama starts, and why.

    Args:
        devices: the cards that llama-server sees; the others stay out of its sight.
        main_gpu: it uses that one of them alone (``--split-mode none --main-gpu``); None splits over all.
        slots: requests at once, each with its own cache.
        n_ctx_seq: context of one request; the server gets ``slots`` times as much.
        batch: tokens, of the batch and of the micro-batch.
        flash_attention: ``on``, ``off`` or ``auto``.
        cache_type: of K and V; empty is llama-server's own.
        gpu_layers: None leaves them to llama-server and its ``--fit``.
        embedding: it is a model for embeddings.
        load_mode: ``none`` or ``dio``; None is llama-server's own.
        projector_offload: the projector may go to a card.
        draft_tokens: how many are drafted at once; 0 is without a draft.
        fit: llama-server may place layers itself.
        fit_target_bytes: what it then leaves free on each card.
        predicted_bytes: what Ollama believes that model, cache and batch take.
        available_bytes: free memory of the cards that it put this against.
        reasons: the choices, in words.
    """

    devices: tuple[Device, ...]
    main_gpu: int | None
    slots: int
    n_ctx_seq: int
    batch: int
    flash_attention: str
    cache_type: str
    gpu_layers: int | None
    embedding: bool
    load_mode: str | None
    projector_offload: bool
    draft_tokens: int
    fit: bool
    fit_target_bytes: int
    predicted_bytes: int
    available_bytes: int
    reasons: tuple[str, ...]


def launch(
    spec: ModelSpec, devices: tuple[Device, ...], host: Host, asked: OllamaSettings, beside: Beside = Beside()
) -> Launch:
    """How Ollama would start *spec* on these cards, nothing else being loaded.

    Args:
        spec: a GGUF model.
        devices: the cards that Ollama finds, each with its free memory.
        host: its memory.
        asked: what the model and the environment say.
        beside: what comes with the model.
    """
    reasons: list[str] = []
    embedding = f"{spec.architecture}.pooling_type" in spec.metadata
    slots = _slots(spec, asked, reasons, embedding=embedding)
    n_ctx = _context(spec, devices, asked, reasons, vision=beside.projector_bytes is not None)
    believed = predict_bytes(spec, n_ctx * slots)
    chosen, main_gpu = _place(devices, host, asked, believed, reasons)
    available = _available(chosen, host)
    fused = _flash_attention(chosen, asked)
    if embedding:
        batch = min(asked.num_batch or min(_EMBEDDING_BATCH, n_ctx), n_ctx * slots)
        surcharge = 0
    else:
        fits = generation_batch(n_ctx * slots, believed, available, chosen, flash_attention=fused != "off")
        batch = asked.num_batch or fits
        surcharge = batch_surcharge(batch)
    load_mode = _load_mode(spec, chosen, host, asked, believed=believed, available=available)
    if load_mode == "none" and asked.use_mmap is None:
        reasons.append("Ollama loads with mapping off here, so the kernel can't drop what weights stay in RAM.")
    offload, target = _projector(spec, chosen, asked, beside.projector_bytes, reasons)
    drafts = asked.draft_num_predict if asked.draft_num_predict is not None else _DRAFTS if beside.draft else 0
    return Launch(
        devices=chosen,
        main_gpu=main_gpu,
        slots=slots,
        n_ctx_seq=n_ctx,
        batch=batch,
        flash_attention=fused,
        cache_type=asked.kv_cache_type.lower(),
        gpu_layers=asked.num_gpu if asked.num_gpu >= 0 else None,
        embedding=embedding,
        load_mode=load_mode,
        projector_offload=offload,
        draft_tokens=max(0, drafts),
        fit=asked.fit,
        fit_target_bytes=target,
        predicted_bytes=believed + surcharge,
        available_bytes=available,
        reasons=(_thought(believed + surcharge, available, chosen), *reasons),
    )


def default_context(devices: Sequence[Device], gpu_overhead_bytes: int) -> int:
    """The context when nobody says: by the memory of all cards together."""
    total = sum(d.memory_total_bytes - gpu_overhead_bytes for d in devices)
    return next((n_ctx for least, n_ctx in _TIERS if total >= least), _LEAST_CONTEXT)


def shorter_context(n_ctx: int) -> int | None:
    """What Ollama tries once more when loading runs out of memory, and nobody said a context."""
    return 32_768 if n_ctx > 32_768 else _LEAST_CONTEXT if n_ctx > _LEAST_CONTEXT else None


def _slots(spec: ModelSpec, asked: OllamaSettings, reasons: list[str], *, embedding: bool) -> int:
    slots = max(1, asked.num_parallel)
    if slots > 1 and (embedding or spec.architecture in _ONE_SLOT):
        reasons.append(f"Ollama gives {spec.architecture} one slot, whatever OLLAMA_NUM_PARALLEL says.")
        return 1
    return slots


def _context(
    spec: ModelSpec, devices: tuple[Device, ...], asked: OllamaSettings, reasons: list[str], *, vision: bool
) -> int:
    n_ctx = asked.num_ctx or asked.context_length
    if not n_ctx:
        n_ctx = default_context(devices, asked.gpu_overhead_bytes)
        total = sum(d.memory_total_bytes for d in devices)
        reasons.append(
            f"Nobody says a context: by {format_bytes(total)} of card memory Ollama takes {n_ctx} tokens."
        )
        shorter = shorter_context(min(n_ctx, spec.context_length or n_ctx))
        if shorter is not None:
            reasons.append(f"If loading runs out of memory, Ollama tries once more with {shorter} tokens.")
    n_ctx = max(n_ctx, _VISION_FLOOR if vision else _CONTEXT_FLOOR)
    if 0 < spec.context_length < n_ctx:
        reasons.append(f"The model was trained on {spec.context_length} tokens, and Ollama goes no further.")
        n_ctx = spec.context_length
    return n_ctx


def _place(
    devices: tuple[Device, ...], host: Host, asked: OllamaSettings, predicted: int, reasons: list[str]
) -> tuple[tuple[Device, ...], int | None]:
    """The cards that llama-server sees, and which of them it uses alone."""
    if asked.num_gpu == 0 or len(devices) <= 1:
        return devices, asked.main_gpu
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.backend.lower(), []).append(device)

    def preference(device: Device) -> tuple[bool, int]:
        return not device.unified_memory, _available((device,), host)

    if asked.main_gpu is not None:
        named = [group[asked.main_gpu] for group in groups.values() if 0 <= asked.main_gpu < len(group)]
        if named:
            return (max(named, key=preference),), 0
    elif not asked.sched_spread:
        fitting = [d for d in devices if predicted <= _available((d,), host) * USABLE_PERCENT // 100]
        if fitting:
            best = max(fitting, key=preference)
            reasons.append(
                f"By Ollama's estimate one card is enough, so it takes {best.id} alone ({USABLE_PERCENT} % of its "
                f"{format_bytes(best.memory_free_bytes)} free)."
            )
            return (best,), 0
    best_group = max(groups.values(), key=lambda g: (any(not d.unified_memory for d in g), _available(g, host)))
    return tuple(best_group), asked.main_gpu  # a number that no card has goes on to llama-server


def _free(devices: Sequence[Device]) -> int:
    return sum(d.memory_free_bytes for d in devices)


def _available(devices: Sequence[Device], host: Host) -> int:
    """Free memory of *devices*; what shares the RAM can't have more than is free there."""
    shared = _free([d for d in devices if d.unified_memory])
    return _free(devices) - shared + min(shared, host.usable_ram_bytes)


def _flash_attention(devices: Sequence[Device], asked: OllamaSettings) -> str:
    if asked.flash_attention is not None:
        return "on" if asked.flash_attention else "off"
    return "auto" if all(d.backend.lower() in _FUSED for d in devices) else "off"


def _load_mode(
    spec: ModelSpec, devices: Sequence[Device], host: Host, asked: OllamaSettings, *, believed: int, available: int
) -> str | None:
    """``appendLoadModeArgs``, ``disableMmapDefaultReason`` and ``disableMmapForHostPressure``, on Linux."""
    if any(d.unified_memory and d.backend.lower() in {"cuda", "rocm"} for d in devices):
        return "dio"
    if asked.use_mmap is not None:
        return None if asked.use_mmap else "none"
    if asked.num_gpu == 0 or not devices:
        return "none"
    if any(d.backend.lower() == "metal" for d in devices):
        partial = asked.num_gpu <= spec.block_count if asked.num_gpu > 0 else 0 < available < believed
        return "none" if partial else None
    if any(d.unified_memory for d in devices) or believed > available * USABLE_PERCENT // 100:
        return None
    pressure = spec.file_bytes + max(_HOST_HEADROOM_MIN, host.ram_total_bytes // 10)
    return "none" if host.usable_ram_bytes < pressure else None


def _projector(
    spec: ModelSpec,
    devices: Sequence[Device],
    asked: OllamaSettings,
    projector_bytes: int | None,
    reasons: list[str],
) -> tuple[bool, int]:
    """Whether the projector goes to a card, and what ``--fit`` must leave free for it (bytes a card)."""
    usual = FIT_MARGIN_BYTES if asked.fit_target_mib is None else asked.fit_target_mib * MIB
    if projector_bytes is None:
        return True, usual
    needed = projector_bytes + _PROJECTOR_HEADROOM
    small = any(0 < min(d.memory_free_bytes, d.memory_total_bytes) < needed for d in devices)
    if asked.num_gpu == 0 or 0 < asked.num_gpu < spec.block_count + 1 or small:
        reasons.append("Ollama keeps the projector off the cards here.")
        return False, usual
    if asked.fit_target_mib is not None:
        return True, usual
    return True, -(-needed // MIB) * MIB


def _thought(predicted: int, available: int, devices: Sequence[Device]) -> str:
    where = " + ".join(d.id for d in devices)
    free = f"{format_bytes(available)} free on {where}" if devices else "no card"
    return f"Ollama believes that this takes {format_bytes(predicted)}, and puts it against {free}."

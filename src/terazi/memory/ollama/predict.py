"""What Ollama believes that a model will take, before it starts it; and the batch that it affords by that.

Sources, Ollama at commit fb30760: ``PredictServerVRAM`` in ``llm/llama_server.go``; ``automaticGenerationBatch``
and what it calls in ``server/sched.go``. The estimate knows no quantised cache, no sliding window, no latent
attention, no head sizes of their own and no compute buffers; it decides nevertheless on which card a model goes.
"""

from collections.abc import Sequence
from typing import Final

from terazi.hardware.machine import Device
from terazi.models.spec import MetadataValue, ModelSpec
from terazi.units import GIB, MIB

#: Per cent of the free memory that Ollama fills by its own estimate.
USABLE_PERCENT: Final = 80
_MEDIUM, _LARGE, _USUAL, _CONSTRAINED = 1024, 2048, 512, 256
#: Batch → the most, in per cent of the free memory, that the model may take; and what the batch is said to cost.
_HEADROOM_PERCENT: Final = {_LARGE: 60, _MEDIUM: 75, _USUAL: 100}
_SURCHARGE: Final = {_LARGE: 2 * GIB, _MEDIUM: 768 * MIB, _USUAL: 0}
_SMALL_CARD_BYTES: Final = 8 * GIB


def predict_bytes(spec: ModelSpec, n_ctx: int) -> int:
    """``PredictServerVRAM``: the file's size, and a full-length f16 cache of the layer with the fewest heads.

    Args:
        spec: a GGUF model.
        n_ctx: cells of all slots together.
    """
    heads = max(_each(spec, "attention.head_count") or (1,))
    kv_heads = min(_each(spec, "attention.head_count_kv") or (1,)) or 1
    head_dim = spec.embedding_length // heads if heads > 0 else 0
    return spec.file_bytes + 2 * spec.block_count * kv_heads * head_dim * n_ctx * 2


def generation_batch(
    n_ctx: int, predicted: int, available: int, devices: Sequence[Device], *, flash_attention: bool
) -> int:
    """``automaticGenerationBatch``: tokens a batch when nobody says; *available* is free memory of the cards."""
    cuda = [d for d in devices if d.backend.lower() == "cuda"]
    if not flash_attention and cuda:
        small = any(min(d.memory_free_bytes, d.memory_total_bytes) <= _SMALL_CARD_BYTES for d in cuda)
        return _CONSTRAINED if n_ctx > 4096 and small else _USUAL
    batch = _LARGE if n_ctx > 32_768 else _MEDIUM if n_ctx > 4096 else _USUAL
    while batch > _USUAL and not _affords(batch, predicted, available):
        batch = _MEDIUM if batch > _MEDIUM else _USUAL
    return batch


def batch_surcharge(batch: int) -> int:
    """``generationBatchSurcharge``: what a batch of *batch* tokens is said to cost."""
    return next((_SURCHARGE[size] for size in (_LARGE, _MEDIUM) if batch >= size), 0)


def _affords(batch: int, predicted: int, available: int) -> bool:
    if predicted == 0 or available == 0:
        return True
    threshold = available * USABLE_PERCENT // 100
    if predicted > threshold or predicted > available * _HEADROOM_PERCENT[batch] // 100:
        return False
    return _SURCHARGE[batch] <= threshold - predicted


def _each(spec: ModelSpec, key: str) -> tuple[int, ...]:
    value: MetadataValue | None = spec.metadata.get(f"{spec.architecture}.{key}")
    values = value if isinstance(value, tuple) else (value,)
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))

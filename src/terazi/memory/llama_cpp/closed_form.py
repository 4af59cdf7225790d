"""Compute buffers by closed form: sums of the widest tensors that live at once in each layout.

Fitted to what llama.cpp b11434 reserves for decoders with gated feed-forward blocks. The allocator leaves up to one
activation more or less, so this is a model, not the engine's arithmetic.
"""

from collections.abc import Mapping

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.models.spec import ModelSpec


def compute_bytes(spec: ModelSpec, resolved: Resolved, caches: tuple[CacheLayer, ...]) -> Mapping[str, int]:
    """Bytes of the compute buffer of the host and of each device in use."""
    tokens = resolved.n_tokens
    activation = 4 * spec.embedding_length * tokens
    logits = 4 * spec.vocab_size * resolved.n_outputs
    cells = {(cache.window, cache.cells) for cache in caches}
    mask = sum((2 if resolved.flash_attn else 4) * length * tokens for _, length in cells)
    peak = _widest(spec, resolved, max((length for _, length in cells), default=0))
    used = [device.id for device in resolved.devices if device.id in resolved.layer_devices]
    if not used:
        return {HOST: mask + 5 * activation + max(logits, peak)}
    if resolved.pipeline:
        sizes = {HOST: 4 * mask + 10 * activation}
        for device in used:
            sizes[device] = 4 * mask + 7 * activation + peak
        sizes[used[0]] = 4 * mask + 16 * activation + peak
        sizes[used[-1]] = 4 * mask + max(5 * activation + logits, 7 * activation + peak)
        return sizes
    if HOST not in resolved.layer_devices and len(used) == 1:
        return {HOST: mask + 4 * activation, used[0]: mask + 4 * activation + max(logits, peak)}
    sizes = {HOST: mask + 5 * activation + peak}
    for device in used:
        sizes[device] = mask + 2 * activation + peak
    sizes[used[-1]] = max(activation + logits, mask + 2 * activation + peak)
    return sizes


def _widest(spec: ModelSpec, resolved: Resolved, cells: int) -> int:
    """The widest point inside a block."""
    tokens = resolved.n_tokens
    inner = max(spec.feed_forward_length, default=0)
    peak = 3 * 4 * inner * tokens
    if spec.expert_count:
        expert = spec.metadata.get(f"{spec.architecture}.expert_feed_forward_length", inner)
        width = 4 * spec.expert_used_count * (expert if isinstance(expert, int) else inner) * tokens
        joined = 4 * spec.expert_used_count * spec.embedding_length * tokens
        peak = max(peak if spec.architecture != "llama" else 0, 3 * width + (joined if joined > 2 * width else 0))
    if not resolved.flash_attn:
        heads = max(spec.head_count, default=0)
        peak = max(peak, 4 * tokens * cells * heads + 4 * heads * spec.key_length * tokens)
    return peak

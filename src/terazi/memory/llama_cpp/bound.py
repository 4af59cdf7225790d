"""Upper bounds for architectures whose rules aren't known here.

Every block is taken to keep K and V at full length, and recurrent state where the file has the keys for one. The
compute buffers are sums of the widest tensors that live at once in a decoder's layouts, with room to spare: on the
measured cases of build b11434 (18 architectures) no buffer was larger than its bound.
"""

from collections.abc import Mapping

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.scheduler import PIPELINE_COPIES
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec

#: Activations of the model's width that may be live besides what is counted one by one.
_ACTIVATIONS = 32


def state_bytes(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
    """Recurrent state of each device: 32-bit floats, one copy a slot (``llama_hparams::n_embd_r``, ``_s``)."""
    per_block = 4 * _state_elements(spec) * resolved.n_seq_max
    if not per_block:
        return {}
    mixed = 0 in spec.head_count_kv and any(spec.head_count_kv)
    sizes: dict[str, int] = {}
    for block in range(spec.block_count):
        if mixed and spec.head_count_kv[block]:
            continue  # files that say so per block: those with heads attend, the others recur
        device = resolved.layer_devices[block] if settings.kv_offload else HOST
        sizes[device] = sizes.get(device, 0) + per_block
    return sizes


def compute_bound_bytes(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, caches: tuple[CacheLayer, ...]
) -> Mapping[str, int]:
    """Bytes that the compute buffer of the host and of each device in use can't exceed."""
    tokens = resolved.n_tokens
    copies = PIPELINE_COPIES if resolved.pipeline else 1
    cells = max((cache.cells for cache in caches), default=resolved.n_ctx_seq)
    # two caches of different length may each have their mask
    masks = 2 * (2 if resolved.flash_attn else 4) * cells * tokens
    activation = 4 * spec.embedding_length * tokens
    logits = 4 * spec.vocab_size * max(resolved.n_outputs, resolved.n_seq_max)
    state = 8 * _state_elements(spec) * resolved.n_seq_max
    # a cache that another device shares, or that stays on the host, is copied whole
    moved = max((cache.k_bytes + cache.v_bytes for cache in caches), default=0)
    inner = _widest(spec, resolved, cells)
    size = copies * (masks + 4 * activation) + _ACTIVATIONS * activation + 2 * logits + 2 * inner + 2 * state
    if len(resolved.devices) > 1 or not settings.kv_offload:
        size += 4 * moved
    sizes = dict.fromkeys((HOST, *(device.id for device in resolved.devices)), size)
    if state and not settings.kv_offload:
        # the scan stays with its state, so whole blocks run on the host and their weights are copied there
        sizes[HOST] += 2 * spec.weights_bytes
    return sizes


def _widest(spec: ModelSpec, resolved: Resolved, cells: int) -> int:
    """The widest point of a block: feed-forward, experts, attention without fusion, decompressed heads, scan."""
    tokens = resolved.n_tokens
    heads = max(spec.head_count, default=0)
    inner = max(spec.feed_forward_length, default=0)
    expert = _number(spec, "expert_feed_forward_length", inner)
    peaks = [
        4 * inner,
        4 * spec.expert_used_count * (expert + spec.embedding_length),
        2 * heads * (spec.key_length + spec.value_length + 2 * _number(spec, "attention.kv_lora_rank", 0)),
        8
        * (
            _number(spec, "ssm.inner_size", 0)
            + 2 * _number(spec, "ssm.group_count", 0) * _number(spec, "ssm.state_size", 0)
        ),
        # a chunked scan keeps products of the state and of chunks of 64 tokens
        8 * _number(spec, "ssm.time_step_rank", 0) * (_number(spec, "ssm.state_size", 0) + 64),
    ]
    if not resolved.flash_attn or _number(spec, "attention.indexer.head_count", 0):
        peaks.append(2 * heads * (cells + spec.key_length))
    return 4 * max(peaks) * tokens


def _state_elements(spec: ModelSpec) -> int:
    """Elements of one block's state for one sequence, the largest that any of the known layouts would give."""
    convolution = max(_number(spec, "ssm.conv_kernel", 0) - 1, 0)
    inner, state = _number(spec, "ssm.inner_size", 0), _number(spec, "ssm.state_size", 0)
    mamba = convolution * (inner + 2 * _number(spec, "ssm.group_count", 0) * state) + state * inner
    short = spec.embedding_length * max(_number(spec, "shortconv.l_cache", 1) - 1, 0)
    heads = max(spec.head_count, default=0)
    kda = _number(spec, "kda.head_dim", 0)
    linear = heads * (3 * max(convolution, 3) * kda + kda * kda)
    head = _number(spec, "wkv.head_size", 0)
    rwkv = spec.embedding_length * (head + _number(spec, "token_shift_count", 2)) if head else 0
    return max(mamba, short, linear, rwkv)


def _number(spec: ModelSpec, key: str, default: int) -> int:
    value = spec.metadata.get(f"{spec.architecture}.{key}", default)
    if isinstance(value, tuple):
        value = max((entry for entry in value if isinstance(entry, int)), default=default)
    return value if isinstance(value, int) else default

"""Upper bounds for architectures whose rules aren't known here.

Every block is taken to keep K and V at full length, and recurrent state where the file has the keys for one. The
compute buffers are sums of the widest tensors that live at once in a decoder's layouts, with room to spare. They
follow where work is done: a host that only looks embeddings up holds inputs alone, and logits are on the device of
the output matrix only. On all measured cases of build b11434, known architectures included, none was exceeded.
"""

from collections.abc import Mapping

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, backend_of
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.scheduler import PIPELINE_COPIES
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import Placement
from terazi.models.spec import ModelSpec

#: Activations of the model's width that may be live besides what is counted one by one.
_ACTIVATIONS = 10
#: The same on a host that does no more than look embeddings up.
_LOOKED_UP = 8
#: Room for what a family adds to a block's widest point.
_SLACK = 1.25


def state_bytes(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
    """Recurrent state of each device: 32-bit floats, one copy a slot (``llama_hparams::n_embd_r``, ``_s``)."""
    per_block = 4 * _state_elements(spec) * resolved.n_seq_max * resolved.kept_states
    if not per_block:
        return {}
    mixed = 0 in spec.head_count_kv and any(spec.head_count_kv)
    sizes: dict[str, int] = {}
    for block in range(trunk_length(spec)):
        if mixed and spec.head_count_kv[block]:
            continue  # files that say so per block: those with heads attend, the others recur
        device = resolved.layer_devices[block] if settings.kv_offload else HOST
        sizes[device] = sizes.get(device, 0) + per_block
    return sizes


def compute_bound_bytes(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    caches: tuple[CacheLayer, ...],
    placements: tuple[Placement, ...],
) -> Mapping[str, int]:
    """Bytes that the compute buffer of the host and of each device in use can't exceed."""
    tokens = resolved.n_tokens
    copies = PIPELINE_COPIES if resolved.pipeline else 1
    cells = max((cache.cells for cache in caches), default=resolved.n_ctx_seq)
    if spec.metadata.get(f"{spec.architecture}.attention.causal") is False:
        cells = tokens  # an encoder sees its batch and keeps nothing
    if not any(".attn_q" in tensor.name or ".attn_kv" in tensor.name for tensor in spec.tensors):
        cells = 0
    # two caches of different length may each have their mask
    inputs = 2 * (2 if resolved.flash_attn else 4) * cells * tokens
    if not resolved.flash_attn:
        inputs += 2 * 8 * tokens * max((cache.v_width for cache in caches), default=0)
    # hyper-connections keep several residual streams
    activation = 4 * spec.embedding_length * tokens * max(1, _number(spec, "hyper_connection.count", 1))
    rows = 4 * tokens * sum(t.shape[0] for t in spec.tensors if t.name.startswith("per_layer_token_embd"))
    state = 4 * _state_elements(spec) * resolved.n_seq_max
    # a cache that another device shares, or that stays on the host, is copied whole
    moved = 2 * max((cache.k_bytes + cache.v_bytes for cache in caches), default=0)
    elsewhere = not settings.kv_offload or (len(resolved.devices) > 1 and _shares_caches(spec))
    inner = round(_SLACK * _widest(spec, settings, resolved, caches, cells)) + 4 * state
    if _number(spec, "attention.relative_buckets_count", 0):
        inner *= copies  # the bias of the first block goes to every device
    base = copies * (inputs + 4 * activation + rows) + _ACTIVATIONS * activation + 2 * rows
    sizes = {}
    for device in (HOST, *(device.id for device in resolved.devices)):
        if device == HOST and _only_looks_up(settings, resolved, placements):
            sizes[device] = copies * (inputs + 2 * activation + rows) + _LOOKED_UP * activation + 2 * rows
            continue
        sizes[device] = base + inner
        if device == resolved.layer_devices[-1]:
            sizes[device] += 4 * spec.vocab_size * max(resolved.n_outputs, resolved.n_seq_max)
        if elsewhere and device != HOST:
            sizes[device] += moved * (copies if settings.kv_offload else 1) + 2 * state
    staged = 2 * _largest_on_host(placements)
    for device_in_use in resolved.devices:
        if settings.op_offload and backend_of(device_in_use) in CUDA_LIKE | {"vulkan", "sycl"}:
            # a long prompt's products with host weights run here, on copies
            sizes[device_in_use.id] += staged
    return sizes


def _only_looks_up(settings: LlamaCppSettings, resolved: Resolved, placements: tuple[Placement, ...]) -> bool:
    """No block, cache or weight of a block is on the host."""
    if HOST in resolved.layer_devices or not settings.kv_offload:
        return False
    return not any(placement.device == HOST and placement.tensor.block is not None for placement in placements)


def _largest_on_host(placements: tuple[Placement, ...]) -> int:
    on_host = (p.tensor.n_bytes for p in placements if p.device == HOST and p.tensor.block is not None)
    return max(on_host, default=0)


def _shares_caches(spec: ModelSpec) -> bool:
    """Whether blocks attend that make no keys of their own."""
    makers = {
        t.block for t in spec.tensors if t.name.endswith(("attn_k.weight", "attn_qkv.weight", "_kv_a_mqa.weight"))
    }
    return any(t.block not in makers for t in spec.tensors if t.name.endswith("attn_q.weight"))


def _widest(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    caches: tuple[CacheLayer, ...],
    cells: int,
) -> int:
    """The widest point of a block: feed-forward, experts, attention without fusion, decompressed heads, scan."""
    tokens = resolved.n_tokens
    heads = max(spec.head_count, default=0)
    inner = max(spec.feed_forward_length, default=0)
    used = spec.expert_used_count
    expert = _number(spec, "expert_feed_forward_length", inner)
    scan, states = _number(spec, "ssm.inner_size", 0), _number(spec, "ssm.state_size", 0)
    attention = heads * (
        3 * spec.key_length + 2 * spec.value_length + 2 * _number(spec, "attention.kv_lora_rank", 0)
    )
    # beside a state on the host the engine may find fused attention there as well, and fuse none then
    on_host = bool(resolved.devices) and any(cache.device == HOST for cache in caches)
    refused = on_host and settings.flash_attn == "auto" and bool(_state_elements(spec))
    if not resolved.flash_attn or refused or _number(spec, "attention.indexer.head_count", 0):
        attention += heads * cells
    if _number(spec, "attention.relative_buckets_count", 0):
        # T5: never fused, and every pair of tokens has a bias, besides those of the encoder's output
        attention += 6 * heads * max(cells, spec.context_length)
    values = 4 * cells * resolved.n_stream * max((c.v_width for c in caches), default=0) if refused else 0
    peaks = [
        3 * inner,
        used * (3 * expert + 2 * spec.embedding_length) + 3 * spec.expert_count,
        attention,
        5 * (scan + 2 * _number(spec, "ssm.group_count", 0) * states),
        # a chunked scan keeps products of the state and of chunks of 64 tokens
        8 * _number(spec, "ssm.time_step_rank", 0) * (states + 64),
    ]
    return 4 * max(peaks) * tokens + values


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

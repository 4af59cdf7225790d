"""Recurrent state: which blocks keep one, and its size, to the byte.

Sources, b11434: ``src/llama-memory-recurrent.cpp:llama_memory_recurrent`` (tensors), ``src/llama-hparams.cpp``
(``n_embd_r``, ``n_embd_s``: widths), ``src/llama-model.cpp:create_memory`` (which blocks). The state is always in
32-bit floats, one row a slot and kept state, whatever the context.
"""

from typing import NamedTuple

from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.blocks import recurrent_blocks, trunk_length
from terazi.memory.llama_cpp.buffers import allocation_bytes
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec


class StateLayer(NamedTuple):
    """The state of one block: the end of what its convolution saw (R), and the sum that it carries on (S).

    Widths are in elements a slot.
    """

    block: int
    device: str
    r_width: int
    s_width: int
    n_bytes: int


class Scan(NamedTuple):
    """The dimensions of a block's scan or convolution: the ``ssm.*`` and ``shortconv.*`` keys."""

    kernel: int
    inner: int
    state: int
    heads: int
    groups: int

    @property
    def channels(self) -> int:
        """Width of what is convolved."""
        return self.inner + 2 * self.groups * self.state


def scan_of(spec: ModelSpec) -> Scan:
    """The dimensions that *spec* states; 0 where it says nothing."""
    if number(spec, "shortconv.l_cache"):
        return Scan(number(spec, "shortconv.l_cache"), spec.embedding_length, 0, 0, 0)
    head = number(spec, "kda.head_dim")
    if head:
        heads = max(spec.head_count, default=0)
        return Scan(number(spec, "ssm.conv_kernel") or 4, head * heads, head, heads, heads)
    keys = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    return Scan(*(number(spec, f"ssm.{key}") for key in keys))


def state_layers(
    spec: ModelSpec, family: Family, settings: LlamaCppSettings, resolved: Resolved
) -> tuple[StateLayer, ...]:
    """One entry for each block that keeps recurrent state. Draft heads have none."""
    if resolved.draft_head:
        return ()
    if family.drawing == "deepseek4":
        return _compressor_states(spec, settings, resolved)
    r_width, s_width = _widths(spec)
    by_id = {device.id: device for device in resolved.devices}
    layers = []
    for block, recurs in enumerate(recurrent_blocks(spec, family.recurrent)):
        if not recurs:
            continue
        device = resolved.layer_devices[block] if settings.kv_offload else HOST
        rows = resolved.n_seq_max * resolved.kept_states
        sizes = (
            allocation_bytes(by_id.get(device), "f32", (width, rows), 4 * width * rows)
            for width in (r_width, s_width)
        )
        layers.append(StateLayer(block, device, r_width, s_width, sum(sizes)))
    return tuple(layers)


def _compressor_states(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...]:
    """What DeepSeek V4's compressors carry from batch to batch: values (R) and scores (S) of open spans."""
    from terazi.memory.llama_cpp.compressed_cache import compressors

    by_id = {device.id: device for device in resolved.devices}
    layers = []
    for block in range(trunk_length(spec)):
        parts = compressors(spec, block)
        width = sum(part.state_width * part.state_rows for part in parts)
        device = resolved.layer_devices[block] if settings.kv_offload else HOST
        planes = resolved.n_seq_max * resolved.kept_states
        size = sum(
            2
            * allocation_bytes(
                by_id.get(device), "f32", (part.state_width, part.state_rows * planes), 4 * n * planes
            )
            for part in parts
            for n in (part.state_width * part.state_rows,)
        )
        if parts:
            layers.append(StateLayer(block, device, width, width, size))
    return tuple(layers)


def _widths(spec: ModelSpec) -> tuple[int, int]:
    """``n_embd_r`` and ``n_embd_s``."""
    head = number(spec, "wkv.head_size")
    if head:
        return spec.embedding_length * (number(spec, "token_shift_count") or 2), spec.embedding_length * head
    if spec.architecture == "minimax-01":
        return 0, spec.key_length * spec.key_length * max(spec.head_count, default=0)
    scan = scan_of(spec)
    return max(scan.kernel - 1, 0) * scan.channels, scan.state * scan.inner


def number(spec: ModelSpec, key: str) -> int:
    """A count among the architecture's own keys; 0 if it isn't there."""
    value = spec.metadata.get(f"{spec.architecture}.{key}", 0)
    return value if isinstance(value, int) else 0

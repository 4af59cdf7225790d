"""How large each buffer of weights gets, and what of a mapped one belongs to no tensor in it.

Sources, b11434: ``src/llama-model.cpp:load_tensors`` (mapped buffers), ``llama_model_loader::get_mapping_range`` (a
mapped buffer reaches from its first to its last tensor in the file).
"""

from typing import NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.buffers import HOST_ALIGNMENT, allocation_bytes, backend_of
from terazi.memory.llama_cpp.repack import amx_bytes, multiplies
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import BufferKind, Placement, uses_mmap
from terazi.models.spec import Tensor
from terazi.units import pad


class WeightBuffer(NamedTuple):
    """One buffer of weights.

    ``tensor_bytes`` is what its tensors need. A mapped buffer may span more, ``buffer_bytes`` in all: of that,
    ``gap_bytes`` belong to no mapped buffer's tensors. ``largest_bytes`` is its largest tensor, as in the file, and
    ``products`` are the types and shapes of the matrices that every token of a batch is multiplied with.
    """

    device: str
    kind: BufferKind
    tensor_bytes: int
    buffer_bytes: int
    mapped: bool
    gap_bytes: int
    largest_bytes: int
    products: frozenset[tuple[str, tuple[int, ...]]]


def weight_buffers(
    placements: tuple[Placement, ...], settings: LlamaCppSettings, resolved: Resolved, isa: frozenset[str]
) -> tuple[WeightBuffer, ...]:
    """The buffers that *placements* make, host first."""
    groups: dict[tuple[str, BufferKind], list[Tensor]] = {}
    for placement in placements:
        groups.setdefault((placement.device, placement.kind), []).append(placement.tensor)
    by_id = {device.id: device for device in resolved.devices}
    mapped = {
        key: tensors for key, tensors in groups.items() if _maps(settings, resolved, by_id.get(key[0]), key[1])
    }
    buffers = []
    for key, tensors in sorted(groups.items(), key=lambda group: group[0][0] != HOST):
        where, kind = key
        device = by_id.get(where)
        needed = sum(_bytes(tensor, device, kind, isa) for tensor in tensors)
        span = _mapped_bytes(tensors) if key in mapped else needed
        # what another buffer maps is counted there, and a tensor that is there twice is mapped once
        others = [tensor for other, there in mapped.items() if other != key and key in mapped for tensor in there]
        reach = span - _inside(tensors, others)
        # a mapping ends with its last tensor; the tensors' own sizes include padding behind it
        needed = min(needed, pad(reach, HOST_ALIGNMENT))
        buffers.append(
            WeightBuffer(
                device=where,
                kind=kind,
                tensor_bytes=needed,
                buffer_bytes=span,
                mapped=key in mapped,
                gap_bytes=max(0, reach - needed),
                largest_bytes=max(tensor.n_bytes for tensor in tensors),
                products=_products(tensors),
            )
        )
    return tuple(buffers)


def _maps(settings: LlamaCppSettings, resolved: Resolved, device: Device | None, kind: BufferKind) -> bool:
    if kind is BufferKind.LAZY:
        return True
    if not uses_mmap(settings, resolved):
        return False
    return kind is BufferKind.PLAIN or (kind is BufferKind.DEVICE and backend_of(device) == "metal")


def _bytes(tensor: Tensor, device: Device | None, kind: BufferKind, isa: frozenset[str]) -> int:
    payload = tensor.n_bytes
    if kind is BufferKind.AMX:
        payload = amx_bytes(tensor, isa) or payload
    return allocation_bytes(device, tensor.dtype, tensor.shape, payload)


def _products(tensors: list[Tensor]) -> frozenset[tuple[str, tuple[int, ...]]]:
    """The output matrix is left out: few tokens of a batch come to it."""
    kinds = {(tensor.dtype, tensor.shape): tensor for tensor in tensors if tensor.block is not None}
    return frozenset(kind for kind, tensor in kinds.items() if multiplies(tensor))


def _mapped_bytes(tensors: list[Tensor]) -> int:
    return sum(end - start for start, end in _spans(tensors).values())


def _spans(tensors: list[Tensor]) -> dict[int, tuple[int, int]]:
    """File part → where the first of *tensors* begins and the last ends."""
    spans: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        part, start, end = tensor.file_index, tensor.offset, tensor.offset + tensor.n_bytes
        known = spans.get(part, (start, end))
        spans[part] = (min(known[0], start), max(known[1], end))
    return spans


def _inside(tensors: list[Tensor], others: list[Tensor]) -> int:
    """Bytes of *others* that lie in what a mapping of *tensors* spans."""
    if not others:
        return 0
    spans, own = _spans(tensors), {tensor.name for tensor in tensors}
    return sum(
        other.n_bytes
        for other in {tensor.name: tensor for tensor in others}.values()
        if other.name not in own
        and other.file_index in spans
        and spans[other.file_index][0] <= other.offset < spans[other.file_index][1]
    )

"""Words the lines of a bill: what each buffer, cache, state and compute buffer is called, and what memory it is.

In: sizes that the other modules worked out. Out: ``BillLine``.
"""

from collections.abc import Iterator, Mapping

from terazi.hardware.machine import Basis
from terazi.memory.bill import HOST, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.bound import state_bytes
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, PINNED_HOST, backend_of
from terazi.memory.llama_cpp.kv import CacheGroup
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer
from terazi.memory.llama_cpp.weights import BufferKind
from terazi.models.spec import ModelSpec

_KIND_NOTES = {
    BufferKind.PLAIN: "weights in host memory",
    BufferKind.DEVICE: "weights",
    BufferKind.REPACK: "weights repacked for this CPU, a second copy",
    BufferKind.AMX: "weights repacked for AMX, a second copy",
    BufferKind.PINNED: "weights in pinned host memory",
    BufferKind.LAZY: "a table that is read row by row",
}


def weights_line(buffer: WeightBuffer, settings: LlamaCppSettings) -> BillLine:
    return BillLine(
        term=Term.WEIGHTS,
        device=buffer.device,
        bytes=buffer.tensor_bytes,
        formula=f"weights.{buffer.kind.value}",
        basis=LineBasis.EXACT,
        memory=_weights_memory(buffer, settings),
        note=_KIND_NOTES[buffer.kind]
        + (", mapped from the file" if buffer.mapped else "")
        + (", locked" if settings.mlock and _locks(buffer) else ""),
    )


def gap_line(buffer: WeightBuffer, settings: LlamaCppSettings) -> BillLine:
    locked = settings.mlock and _locks(buffer)
    return BillLine(
        term=Term.WEIGHTS,
        device=buffer.device,
        bytes=buffer.gap_bytes,
        formula="weights.mapped-gaps",
        basis=LineBasis.EXACT,
        memory=Memory.PINNED if locked else Memory.PAGE_CACHE,
        note="mapped along with them: tensors between the first and the last that live elsewhere"
        + (", locked too" if locked else ""),
    )


def cache_lines(groups: tuple[CacheGroup, ...], basis: LineBasis) -> Iterator[BillLine]:
    for group in groups:
        yield BillLine(
            term=Term.KV,
            device=group.device,
            bytes=group.n_bytes,
            formula="kv.window" if group.window else "kv.full",
            basis=basis,
            memory=_memory(group.device),
            note=f"{group.layers} layers of {group.cells} cells",
        )


def state_lines(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, states: tuple[StateLayer, ...] | None
) -> Iterator[BillLine]:
    """The recurrent state; at most what the file's keys allow if *states* aren't known."""
    known = states is not None
    sizes: dict[str, int] = {} if known else dict(state_bytes(spec, settings, resolved))
    for layer in states or ():
        sizes[layer.device] = sizes.get(layer.device, 0) + layer.n_bytes
    for device, size in sizes.items():
        yield BillLine(
            term=Term.STATE,
            device=device,
            bytes=size,
            formula="state.slots" if known else "state.bound",
            basis=LineBasis.EXACT if known else LineBasis.UPPER_BOUND,
            memory=_memory(device),
            note=f"recurrent state for {resolved.n_seq_max} sequences",
        )


def compute_lines(sizes: Mapping[str, int], resolved: Resolved, basis: LineBasis | None) -> Iterator[BillLine]:
    """A line a device; *basis* None is a bound."""
    # the host's own lies in the first device's pinned memory, if it has some (``llama_context``)
    pinned = bool(resolved.devices) and backend_of(resolved.devices[0]) in PINNED_HOST
    for device, size in sizes.items():
        yield BillLine(
            term=Term.COMPUTE,
            device=device,
            bytes=size,
            formula="compute.replay" if basis else "compute.bound",
            basis=basis or LineBasis.UPPER_BOUND,
            memory=Memory.PINNED if pinned and device == HOST else _memory(device),
            note=f"graph of {resolved.n_tokens} tokens, logits for {resolved.n_outputs} of them",
        )


def overhead_lines(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    width = spec.vocab_size + (spec.embedding_length if settings.embedding else 0)
    # in pinned memory of the device that computes the output (``output_reserve``)
    last = next((device for device in resolved.devices if device.id == resolved.layer_devices[-1]), None)
    yield BillLine(
        term=Term.OVERHEAD,
        device=HOST,
        bytes=4 * resolved.n_seq_max * width,
        formula="output-buffer",
        basis=LineBasis.EXACT,
        memory=Memory.PINNED if backend_of(last) in PINNED_HOST else Memory.ANONYMOUS,
        note="logits that the caller reads, one row a slot",
    )
    for device in resolved.devices:
        if backend_of(device) in CUDA_LIKE and device.context_bytes.value:
            yield BillLine(
                term=Term.OVERHEAD,
                device=device.id,
                bytes=round(device.context_bytes.value),
                formula="driver-context",
                # a card that nobody measured gets what a line through others says
                basis=LineBasis.CATALOGUE if device.context_bytes.basis is Basis.CATALOGUE else LineBasis.MODELLED,
                memory=Memory.DEVICE,
                note=device.context_bytes.note or "what the driver takes before the first tensor",
            )


def _memory(device: str) -> Memory:
    return Memory.ANONYMOUS if device == HOST else Memory.DEVICE


def _locks(buffer: WeightBuffer) -> bool:
    """Whether ``--load-mode mlock`` locks *buffer*: those of the host that are no copies in another layout."""
    return buffer.kind in {BufferKind.PLAIN, BufferKind.PINNED}


def _weights_memory(buffer: WeightBuffer, settings: LlamaCppSettings) -> Memory:
    if buffer.kind is BufferKind.PINNED or (settings.mlock and _locks(buffer)):
        return Memory.PINNED
    return Memory.PAGE_CACHE if buffer.mapped else _memory(buffer.device)

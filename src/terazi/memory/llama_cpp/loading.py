"""What is held only while the weights are read: staging buffers and copies.

Source, b11434: ``src/llama-model-loader.cpp:load_all_data``, which fills one buffer after the other and gives its
staging back each time, so the most demanding one counts; ``src/llama-mmap.cpp:read_aligned_chunk`` (direct I/O);
``ggml/src/ggml-rpc/ggml-rpc.cpp:serialize_set_tensor`` and ``rpc_serve_client`` (a tensor is one message, whole, at
both ends). Mapped weights of the host take nothing: they are used where the file is. ``--check-tensors`` reads them
in place. The warm-up run stays within the buffers that are there.
"""

from collections.abc import Iterator
from typing import Final

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.buffers import PINNED_HOST, backend_of
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer
from terazi.memory.llama_cpp.weights import BufferKind, uses_mmap
from terazi.units import MIB, pad

#: ``LLAMA_DIRECT_IO_BUFFER_SIZE``, and the block of a file system as a rule (``st_blksize``).
_DIRECT_IO_BYTES: Final = 64 * MIB
_BLOCK_BYTES: Final = 4096
#: Staging buffers for uploads to a card, and the size of each without direct I/O.
_STAGING_BUFFERS: Final = 4
_STAGING_BYTES: Final = MIB
#: ``sizeof(rpc_tensor)``, a flag and an offset before the data of a message.
_RPC_HEADER_BYTES: Final = 296 + 1 + 8
#: Repacked weights go through ``set_tensor`` like a device's.
_NOT_HOST: Final = frozenset({BufferKind.DEVICE, BufferKind.REPACK, BufferKind.AMX})


def loading_lines(
    settings: LlamaCppSettings, resolved: Resolved, buffers: tuple[WeightBuffer, ...]
) -> Iterator[BillLine]:
    """The most demanding buffer's staging on the host, and the largest message on each RPC device."""
    if settings.tool == "llama-fit-params":
        return
    by_id = {device.id: device for device in resolved.devices}
    read = uses_mmap(settings, resolved)
    staged = [
        line for buffer in buffers if (line := _staging(buffer, by_id.get(buffer.device), settings, mapped=read))
    ]
    if staged:
        yield max(staged, key=lambda line: line.bytes)
    for buffer in buffers:
        if backend_of(by_id.get(buffer.device)) == "rpc":
            yield _line(
                buffer.device, buffer.largest_bytes + _RPC_HEADER_BYTES, "rpc-message", Memory.DEVICE, _MESSAGE
            )


_MESSAGE = "the largest tensor, received whole before it is stored"


def _staging(
    buffer: WeightBuffer, device: Device | None, settings: LlamaCppSettings, *, mapped: bool
) -> BillLine | None:
    if buffer.mapped:
        return None
    direct = settings.load_mode == "dio"
    chunk = min(_DIRECT_IO_BYTES, pad(buffer.largest_bytes, _BLOCK_BYTES) + _BLOCK_BYTES) if direct else 0
    if buffer.kind not in _NOT_HOST:
        return _line(HOST, chunk, "direct-io", Memory.ANONYMOUS, "read in aligned pieces") if chunk else None
    message = buffer.largest_bytes + _RPC_HEADER_BYTES if backend_of(device) == "rpc" else 0
    if mapped:
        note = "the largest tensor, sent whole"
        return _line(HOST, message, "rpc-message", Memory.ANONYMOUS, note) if message else None
    if backend_of(device) in PINNED_HOST and not settings.check_tensors:
        each = _DIRECT_IO_BYTES + 2 * _BLOCK_BYTES if direct else _STAGING_BYTES
        return _line(
            HOST,
            _STAGING_BUFFERS * each,
            "upload-staging",
            Memory.PINNED,
            f"{_STAGING_BUFFERS} buffers for uploads",
        )
    size = buffer.largest_bytes + message + chunk
    return _line(HOST, size, "read-buffer", Memory.ANONYMOUS, "the largest tensor that isn't read in place")


def _line(device: str, size: int, formula: str, memory: Memory, note: str) -> BillLine:
    return BillLine(
        term=Term.OVERHEAD,
        device=device,
        bytes=size,
        formula=formula,
        basis=LineBasis.EXACT,
        memory=memory,
        note=note,
    )

"""How much of a buffer one tensor takes: alignment, and the padding that a backend adds.

Sources, b11434: ``ggml/src/ggml-backend.cpp:ggml_backend_buft_alloc_buffer_n_plan``,
``ggml/src/ggml-cuda/ggml-cuda.cu:ggml_backend_cuda_buffer_type_get_alloc_size``.
"""

from math import prod

from terazi.hardware.machine import Device
from terazi.units import pad

#: Bytes; ``TENSOR_ALIGNMENT`` of ``ggml/src/ggml-impl.h``, for host buffers and CPU-backed RPC servers.
HOST_ALIGNMENT = 32
#: Bytes; ``ggml_backend_cuda_buffer_type_get_alignment``.
CUDA_ALIGNMENT = 128
#: Elements; ``MATRIX_ROW_PADDING``: quantised rows are padded so that a kernel may read past the last.
CUDA_ROW_PADDING = 512

#: Backends built from the CUDA sources.
CUDA_LIKE = frozenset({"cuda", "rocm", "hip", "musa"})
#: Backends that offer pinned host memory, which the engine then prefers to a repacked CPU buffer.
PINNED_HOST = CUDA_LIKE | {"vulkan", "sycl"}

_PLAIN = frozenset({"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})


def is_quantised(dtype: str) -> bool:
    """Whether *dtype* (a ggml type name in any case) is stored in blocks."""
    return dtype.upper() not in _PLAIN


def backend_of(device: Device | None) -> str:
    """The device's backend in lower case; ``cpu`` for the host."""
    return device.backend.lower() if device else "cpu"


def alignment_bytes(device: Device | None) -> int:
    """What tensors are aligned to in the buffers of *device* (None is the host)."""
    return CUDA_ALIGNMENT if backend_of(device) in CUDA_LIKE else HOST_ALIGNMENT


def allocation_bytes(device: Device | None, dtype: str, shape: tuple[int, ...], payload_bytes: int) -> int:
    """Bytes that a tensor takes in a buffer of *device* (None is the host).

    Args:
        device: where it goes.
        dtype: ggml type name, in any case.
        shape: in ggml order; the first dimension is the row.
        payload_bytes: ``ggml_nbytes``.
    """
    row = shape[0]
    if backend_of(device) in CUDA_LIKE and is_quantised(dtype) and row % CUDA_ROW_PADDING:
        missing = CUDA_ROW_PADDING - row % CUDA_ROW_PADDING
        payload_bytes += missing * payload_bytes // prod(shape)
    return pad(payload_bytes, alignment_bytes(device))

"""Work memory that backends take with the first large batch, and keep: no buffer of the log holds it.

Sources, b11434: ``ggml/src/ggml-cpu/ggml-cpu.c:ggml_graph_plan`` and ``repack.cpp:work_size`` (the CPU's work
buffer); in ``ggml/src/ggml-cuda`` ``mmq.cu:ggml_cuda_mul_mat_q``, ``mmq.cuh`` (stream-k),
``fattn-common.cuh:launch_fattn``, ``common.cuh:cublas_handle`` and the pools of ``ggml-cuda.cu`` (CUDA and HIP).
Flash attention's half-precision copies of a quantised cache are not among them: this build counts them into the
compute buffer (``ggml_cuda_flash_attn_ext_get_alloc_size``, in ``compute.py``).
"""

from collections.abc import Iterable
from math import prod
from typing import Final

from terazi.hardware.machine import Device
from terazi.memory.llama_cpp.buffers import CUDA_ROW_PADDING, backend_of, is_quantised
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.models.spec import ModelSpec
from terazi.units import MIB, pad

Product = tuple[str, tuple[int, ...]]

#: Bytes and elements of what a token is turned into before a product with weights of a type (``vec_dot_type``).
_Q8_0, _Q8_1, _Q8_K = (34, 32), (36, 32), (292, 256)
_TURNED: Final = {"F32": (0, 1), "F16": (2, 1), "BF16": (2, 1), "Q4_1": _Q8_1, "Q5_1": _Q8_1}
_BY_32: Final = frozenset({"Q1_0", "Q2_0", "Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4"})
#: Queries and cells of a tile of flash attention (``GGML_FA_TILE_Q``, ``GGML_FA_TILE_KV``).
_TILE: Final = 64
#: Threads counted on: a bill doesn't know ``-t``.
_THREADS: Final = 32
_CACHE_LINE: Final = 64
#: ``sizeof(struct mmid_row_mapping)``.
_ROW_MAPPING: Final = 8

#: ``block_q8_1_mmq``: bytes for so many elements.
_MMQ_BLOCK: Final = (144, 128)
#: Rows and columns of the largest tile of ``mul_mat_q``, and multiprocessors of the largest card.
_MMQ_TILE: Final = 128
_MULTIPROCESSORS: Final = 192
#: Granularity of a pool in virtual memory, and the largest workspace that the engine gives cuBLAS (4 MiB before
#: Hopper).
_POOL_STEP: Final = 2 * MIB
_CUBLAS_BYTES: Final = 32 * MIB
#: HIP is built without virtual memory as a rule: its pool keeps a block for each size it was asked for, 5 % larger.
_LEGACY_SHARE: Final = 1.05


def cpu_work_bytes(
    spec: ModelSpec, resolved: Resolved, caches: Iterable[CacheLayer], products: Iterable[Product]
) -> int:
    """The CPU backend's work buffer: as large as the most demanding operation of a whole micro-batch needs.

    Args:
        spec, resolved: what is loaded.
        caches: those whose attention runs there.
        products: types and shapes of the matrices that are multiplied with there.
    """
    tokens, used = resolved.n_tokens, max(1, spec.expert_used_count)
    largest = 0
    for dtype, shape in products:
        experts = shape[2] if len(shape) > 2 else 0
        rows = tokens * (used if experts else 1)
        size = _turned_bytes(dtype, shape[0] * rows)
        if experts:
            size += experts * (rows * _ROW_MAPPING + 8 + _CACHE_LINE) + 4 * _CACHE_LINE
        largest = max(largest, pad(size, _CACHE_LINE))
    for cache in caches:
        heads = max(spec.head_count)
        if resolved.flash_attn:
            k, v = cache.k_head, cache.v_head or cache.k_head
            tile = 4 * _TILE * (2 * k + 2 * v + 2 * _TILE)
            decode = 4 * (heads * (2 + v) + k + 2 * v)
            largest = max(largest, _THREADS * max(tile, decode))
        else:
            # the weights of attention are turned to half precision for the product with V
            largest = max(largest, 2 * heads * cache.cells * tokens)
    return largest + _CACHE_LINE * _THREADS if largest else 0


def _turned_bytes(dtype: str, elements: int) -> int:
    kind = dtype.upper()
    size, block = _TURNED.get(kind) or (_Q8_0 if kind in _BY_32 else _Q8_K)
    return elements // block * size


def cuda_work_bytes(
    spec: ModelSpec, device: Device, resolved: Resolved, caches: Iterable[CacheLayer], products: Iterable[Product]
) -> int:
    """What a CUDA or HIP device's pool grows to, at most, and cuBLAS's workspace.

    The pool is a stack that is empty between operations, so it is as large as the most demanding one needs.
    """
    tokens, used = resolved.n_tokens, max(1, spec.expert_used_count)
    hip = backend_of(device) in {"rocm", "hip"}
    fixup = 4 * _MULTIPROCESSORS * _MMQ_TILE * _MMQ_TILE
    sizes = [0]
    for dtype, shape in products:
        experts = len(shape) > 2
        rows = tokens * (used if experts else 1)
        if is_quantised(dtype):
            size, block = _MMQ_BLOCK
            turned = rows * pad(shape[0], CUDA_ROW_PADDING) * size // block + _MMQ_TILE * size
            sizes.append(turned + fixup + (8 * rows if experts else 0))
            if hip and not experts:
                # where its own kernel is slower, the matrix is turned to half precision for the library's
                sizes.append(2 * prod(shape) + 2 * rows * (shape[0] + shape[1]))
        elif dtype.upper() != "F32":
            sizes.append(2 * rows * (shape[0] + shape[1]) + (4 * rows * (shape[0] + shape[1]) if experts else 0))
    for cache in caches:
        heads, v = max(spec.head_count), cache.v_head or cache.k_head
        if resolved.flash_attn:
            sizes.append(8 * _MULTIPROCESSORS * _TILE * (2 + v // 2))
        else:
            # K and V as half precision, and what the product with them gives
            sizes.append(2 * tokens * heads * (cache.cells + cache.k_head + v))
    if hip:
        return round(_LEGACY_SHARE * sum(sorted(set(sizes))[-2:]))
    return pad(max(sizes), _POOL_STEP) + _CUBLAS_BYTES

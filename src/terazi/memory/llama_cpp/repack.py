"""Which weights the CPU backend repacks into a buffer of its own, for which CPU flags.

Sources, b11434: ``ggml/src/ggml-cpu/repack.cpp:ggml_repack_get_optimal_repack_type`` and its ``supports_op``,
``ggml/src/ggml-cpu/amx/amx.cpp``, ``ggml/src/ggml-cpu/ggml-cpu.cpp:ggml_backend_cpu_get_extra_buffer_types``.
The engine is taken to be built for the host that it runs on (``GGML_NATIVE``, or the variant chosen at start).
"""

from math import prod

from terazi.models.spec import Tensor

_AVX2 = frozenset({"avx2"})
_AVX512 = frozenset({"avx512f"})
_I8MM = frozenset({"asimd", "i8mm"})
_DOTPROD = frozenset({"asimd", "asimddp"})
_AMX = frozenset({"amx_int8", "avx512_vnni"})

#: Type → alternatives of (flags that all must be there, what the number of rows must be a multiple of).
_REPACKED = {
    "Q4_0": ((_AVX2, 8), (_I8MM, 4), (_DOTPROD, 4)),
    "Q4_K": ((_AVX2, 8), (_I8MM, 8), (_DOTPROD, 8)),
    "Q2_K": ((_AVX512, 8),),
    "Q5_K": ((_I8MM, 8), (_DOTPROD, 8)),
    "Q6_K": ((_I8MM, 8), (_DOTPROD, 8)),
    "IQ4_NL": ((_AVX2, 8), (_DOTPROD, 4)),
    "MXFP4": ((_AVX2, 8), (_DOTPROD, 4)),
    "Q8_0": ((_I8MM, 4), (_DOTPROD, 4)),
    "Q1_0": ((_I8MM, 4), (_DOTPROD, 4)),
}
#: Type → (what the row must be a multiple of, extra bytes a block, elements a block) in AMX's own format.
_AMX_FORMATS = {
    "Q4_0": (32, 0, 32),
    "Q4_1": (32, 0, 32),
    "Q8_0": (32, 4, 32),
    "Q4_K": (256, 4, 256),
    "Q5_K": (256, 4, 256),
    "Q6_K": (256, 0, 256),
    "IQ4_XS": (256, 2, 256),
    "F16": (16, 0, 1),
}
#: Tables that are looked up by row, and small weights of other operations: never matrix products.
_LOOKED_UP = (
    "token_embd",
    "per_layer_token_embd",
    "nextn.embed_tokens",
    "position_embd",
    "token_types",
    "conv1d",
    "rel_b",
    "tid2eid",
    "_ape",
)


def multiplies(tensor: Tensor) -> bool:
    """Whether *tensor* is the left side of a matrix product (``LLM_TENSOR_INFOS``), the only operation repacked."""
    if not tensor.name.endswith(".weight") or any(part in tensor.name for part in _LOOKED_UP):
        return False
    return _dimensions(tensor) >= 2


def is_repacked(tensor: Tensor, isa: frozenset[str]) -> bool:
    """Whether the weight of a matrix product goes to ``CPU_REPACK`` on a CPU with the flags *isa*."""
    if _dimensions(tensor) != (3 if "_exps" in tensor.name or "_chexps" in tensor.name else 2):
        return False
    rows = tensor.shape[1]
    return any(flags <= isa and rows % multiple == 0 for flags, multiple in _REPACKED.get(tensor.dtype.upper(), ()))


def amx_bytes(tensor: Tensor, isa: frozenset[str]) -> int | None:
    """Bytes in the ``AMX`` buffer for the weight of a matrix product, or None if it doesn't go there."""
    form = _AMX_FORMATS.get(tensor.dtype.upper())
    if form is None or not isa >= _AMX or "_exps" in tensor.name or _dimensions(tensor) != 2:
        return None
    multiple, extra, block = form
    if tensor.shape[0] % multiple or tensor.shape[1] % 32:
        return None
    return tensor.n_bytes + extra * (prod(tensor.shape) // block)


def _dimensions(tensor: Tensor) -> int:
    count = len(tensor.shape)
    while count > 1 and tensor.shape[count - 1] == 1:
        count -= 1
    return count

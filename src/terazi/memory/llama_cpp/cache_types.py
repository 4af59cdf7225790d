"""The types that a KV cache may have: ``kv_cache_types`` of ``common/arg.cpp``, b11434."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheType:
    """Elements and bytes of one block (``ggml/src/ggml-common.h``)."""

    block: int
    n_bytes: int
    quantised: bool = True

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row, as ``ggml_row_size`` counts them."""
        return elements // self.block * self.n_bytes


CACHE_TYPES = {
    "f32": CacheType(1, 4, quantised=False),
    "f16": CacheType(1, 2, quantised=False),
    "bf16": CacheType(1, 2, quantised=False),
    "q8_0": CacheType(32, 34),
    "q4_0": CacheType(32, 18),
    "q4_1": CacheType(32, 20),
    "iq4_nl": CacheType(32, 18),
    "q5_0": CacheType(32, 22),
    "q5_1": CacheType(32, 24),
}

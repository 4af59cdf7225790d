"""DeepSeek V4's caches: a window of plain keys in every block, compressed keys of the rest, compressor states.

Source, b11434: ``src/llama-kv-cache-dsv4.cpp``. A block compresses by 4 (and then has an indexer), by 128 or not at
all. Every slot has streams of its own, also where the cache is unified.
"""

from typing import NamedTuple

from terazi.memory.llama_cpp.resolve import CELLS
from terazi.models.spec import ModelSpec
from terazi.units import pad

#: How many tokens become one; those that overlap have an indexer.
OVERLAPPING, PLAIN = 4, 128


class Compressor(NamedTuple):
    """One compressed cache of a block: its tokens to a key, the width of a key, and its state in 32-bit floats."""

    name: str
    ratio: int
    width: int
    state_width: int
    state_rows: int

    @property
    def overlaps(self) -> bool:
        """Whether keys are made of the tokens of two spans."""
        return self.ratio == OVERLAPPING

    def cells(self, n_ctx_seq: int) -> int:
        """Keys of one slot."""
        return pad(max(1, -(-n_ctx_seq // self.ratio)), CELLS)


def compressors(spec: ModelSpec, block: int) -> tuple[Compressor, ...]:
    """The compressed caches of *block*."""
    ratios = spec.metadata.get(f"{spec.architecture}.attention.compress_ratios")
    ratio = ratios[block] if isinstance(ratios, tuple) and block < len(ratios) else 0
    width, index = spec.key_length, spec.metadata.get(f"{spec.architecture}.attention.indexer.key_length")
    if ratio == OVERLAPPING and isinstance(index, int):
        rows = 2 * OVERLAPPING
        return (
            Compressor("attn_compressor", OVERLAPPING, width, 2 * width, rows),
            Compressor("indexer_compressor", OVERLAPPING, index, 2 * index, rows),
        )
    return (Compressor("attn_compressor", PLAIN, width, width, PLAIN),) if ratio == PLAIN else ()

"""Every tensor type of ggml: number, name, elements per block, bytes per block.

Source: ``enum ggml_type`` in ``ggml/include/ggml.h``, the table ``type_traits`` in ``ggml/src/ggml.c`` and the
``static_assert`` of each block in ``ggml/src/ggml-common.h``, llama.cpp build b11434. Names are ggml's own
(``ggml_type_name``), as logs and ``--cache-type-k`` spell them: ``f16``, ``q4_K``, ``iq2_xxs``.
"""

from typing import Final, NamedTuple


class GgmlType(NamedTuple):
    """One tensor type. A row of ``n`` elements takes ``n / block_size * block_bytes`` bytes."""

    id: int
    name: str
    block_size: int
    block_bytes: int


#: A super-block of the k- and i-quants (``QK_K``).
_QK_K: Final = 256

_TYPES: Final = (
    GgmlType(0, "f32", 1, 4),
    GgmlType(1, "f16", 1, 2),
    GgmlType(2, "q4_0", 32, 2 + 16),
    GgmlType(3, "q4_1", 32, 2 * 2 + 16),
    GgmlType(6, "q5_0", 32, 2 + 4 + 16),
    GgmlType(7, "q5_1", 32, 2 * 2 + 4 + 16),
    GgmlType(8, "q8_0", 32, 2 + 32),
    GgmlType(9, "q8_1", 32, 2 * 2 + 32),
    GgmlType(10, "q2_K", _QK_K, 2 * 2 + 16 + 64),
    GgmlType(11, "q3_K", _QK_K, 2 + 64 + 32 + 12),
    GgmlType(12, "q4_K", _QK_K, 2 * 2 + 12 + 128),
    GgmlType(13, "q5_K", _QK_K, 2 * 2 + 12 + 128 + 32),
    GgmlType(14, "q6_K", _QK_K, 2 + 16 + 192),
    GgmlType(15, "q8_K", _QK_K, 4 + 256 + 32),
    GgmlType(16, "iq2_xxs", _QK_K, 2 + 64),
    GgmlType(17, "iq2_xs", _QK_K, 2 + 64 + 8),
    GgmlType(18, "iq3_xxs", _QK_K, 2 + 96),
    GgmlType(19, "iq1_s", _QK_K, 2 + 32 + 16),
    GgmlType(20, "iq4_nl", 32, 2 + 16),
    GgmlType(21, "iq3_s", _QK_K, 2 + 104 + 4),
    GgmlType(22, "iq2_s", _QK_K, 2 + 64 + 16),
    GgmlType(23, "iq4_xs", _QK_K, 2 + 2 + 4 + 128),
    GgmlType(24, "i8", 1, 1),
    GgmlType(25, "i16", 1, 2),
    GgmlType(26, "i32", 1, 4),
    GgmlType(27, "i64", 1, 8),
    GgmlType(28, "f64", 1, 8),
    GgmlType(29, "iq1_m", _QK_K, 32 + 16 + 8),
    GgmlType(30, "bf16", 1, 2),
    GgmlType(34, "tq1_0", _QK_K, 2 + 4 + 48),
    GgmlType(35, "tq2_0", _QK_K, 2 + 64),
    GgmlType(39, "mxfp4", 32, 1 + 16),
    GgmlType(40, "nvfp4", 64, 4 + 32),
    GgmlType(41, "q1_0", 128, 2 + 16),
    GgmlType(42, "q2_0", 64, 2 + 16),
)

#: Type by the number that a GGUF file stores.
TYPE_BY_ID: Final = {t.id: t for t in _TYPES}
#: Type by ggml's name.
TYPE_BY_NAME: Final = {t.name: t for t in _TYPES}

#: Numbers that once were types. llama.cpp refuses files that use them; the text says what they were.
REMOVED: Final = {
    4: "Q4_2 (removed in 2023)",
    5: "Q4_3 (removed in 2023)",
    31: "Q4_0_4_4 (removed: use Q4_0, the engine repacks it when loading)",
    32: "Q4_0_4_8 (removed: use Q4_0, the engine repacks it when loading)",
    33: "Q4_0_8_8 (removed: use Q4_0, the engine repacks it when loading)",
    36: "IQ4_NL_4_4 (removed: use IQ4_NL, the engine repacks it when loading)",
    37: "IQ4_NL_4_8 (removed: use IQ4_NL, the engine repacks it when loading)",
    38: "IQ4_NL_8_8 (removed: use IQ4_NL, the engine repacks it when loading)",
}


def row_bytes(name: str, n: int) -> int:
    """Bytes of a row of *n* elements of type *name* (``ggml_row_size`` in ``ggml.c``).

    Raises:
        KeyError: *name* is not a type of this build.
        ValueError: *n* is not a whole number of blocks.
    """
    kind = TYPE_BY_NAME[name]
    blocks, rest = divmod(n, kind.block_size)
    if rest:
        raise ValueError(f"{n} elements are not a whole number of {name} blocks of {kind.block_size}")
    return blocks * kind.block_bytes

"""The table of tensor types against the one in the gguf package, which we did not write."""

import gguf
import pytest

from terazi.models.ggml_types import REMOVED, TYPE_BY_ID, TYPE_BY_NAME, row_bytes

#: Newer than some releases of the gguf package; sizes from the static_assert lines of ggml-common.h, b11434.
NEWER = {"nvfp4": (64, 36), "q1_0": (128, 18), "q2_0": (64, 18)}
#: The gguf package still counts the f32 fields that block_q8_1 had before they became halves; the engine's
#: static_assert says 2 * 2 + 32. The type occurs only in computation, never in files.
THEIRS_WRONG = {"Q8_1": (32, 36)}


@pytest.mark.parametrize("kind", list(gguf.GGMLQuantizationType), ids=lambda k: k.name)
def test_sizes_are_those_of_the_gguf_package(kind: gguf.GGMLQuantizationType) -> None:
    ours = TYPE_BY_ID[kind.value]
    assert ours.name.lower() == kind.name.lower()
    assert (ours.block_size, ours.block_bytes) == THEIRS_WRONG.get(kind.name, gguf.GGML_QUANT_SIZES[kind])


def test_only_known_newer_types_are_beyond_the_gguf_package() -> None:
    theirs = {kind.value for kind in gguf.GGMLQuantizationType}
    extra = {t.name: (t.block_size, t.block_bytes) for t in TYPE_BY_ID.values() if t.id not in theirs}
    assert extra.items() <= NEWER.items()


def test_every_number_up_to_the_newest_is_a_type_or_removed() -> None:
    assert not TYPE_BY_ID.keys() & REMOVED.keys()
    assert sorted(TYPE_BY_ID.keys() | REMOVED.keys()) == list(range(43))
    assert len(TYPE_BY_NAME) == len(TYPE_BY_ID)


def test_row_bytes() -> None:
    assert row_bytes("f16", 3) == 6
    assert row_bytes("q4_K", 4096) == 2304
    assert row_bytes("q8_0", 0) == 0
    with pytest.raises(ValueError, match="whole number of q4_K blocks"):
        row_bytes("q4_K", 4000)
    with pytest.raises(KeyError):
        row_bytes("Q4_0_4_4", 32)

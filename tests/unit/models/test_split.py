"""Split models: names and keys as the engine's loader wants them."""

from collections.abc import Sequence

import pytest

from gguf_writer import UINT16, TensorRow, Typed, header
from terazi.errors import ModelFileError
from terazi.models.gguf import GgufHeader, header_from_bytes
from terazi.models.split import check_parts, other_parts, split_path

ONE: list[TensorRow] = [("a", (4,), "f32")]
TWO: list[TensorRow] = [("b", (4,), "f32"), ("c", (4,), "f32")]


def part(
    number: int | None, count: int | None, tensors: Sequence[TensorRow], path: str, total: int | None = None
) -> GgufHeader:
    keys: dict[str, object] = {}
    if number is not None:
        keys["split.no"] = Typed(UINT16, number)
    if count is not None:
        keys["split.count"] = Typed(UINT16, count)
    if total is not None:
        keys["split.tensors.count"] = total
    raw, data = header(keys, tensors)
    return header_from_bytes(raw + bytes(data), path)


def test_names() -> None:
    assert split_path("/d/m", 0, 3) == "/d/m-00001-of-00003.gguf"
    first = part(0, 3, ONE, "/d/m-00001-of-00003.gguf")
    assert other_parts(first) == ("/d/m-00002-of-00003.gguf", "/d/m-00003-of-00003.gguf")


@pytest.mark.parametrize("count", [None, 0, 1])
def test_whole_models_have_no_other_parts(count: int | None) -> None:
    assert other_parts(part(None, count, ONE, "/d/m-00001-of-00003.gguf")) == ()


def test_later_part_leads_to_the_first() -> None:
    with pytest.raises(ModelFileError, match="part 2 of 3") as caught:
        other_parts(part(1, 3, ONE, "/d/m-00002-of-00003.gguf"))
    assert "/d/m-00001-of-00003.gguf" in caught.value.hint
    with pytest.raises(ModelFileError, match="part 2 of 3"):
        other_parts(part(1, 3, ONE, "/d/renamed.gguf"))


@pytest.mark.parametrize("path", ["/d/renamed.gguf", "/d/m-00001-of-00002.gguf", "-00001-of-00003.gguf"])
def test_renamed_first_part(path: str) -> None:
    with pytest.raises(ModelFileError, match="doesn't end in -00001-of-00003"):
        other_parts(part(0, 3, ONE, path))


def test_split_number_is_required() -> None:
    with pytest.raises(ModelFileError, match=r"split\.no"):
        other_parts(part(None, 3, ONE, "/d/m-00001-of-00003.gguf"))


def test_parts_that_belong_together() -> None:
    check_parts([part(0, 2, ONE, "p1", 3), part(1, 2, TWO, "p2")])


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([part(0, 2, ONE, "p1", 3), part(0, 2, TWO, "p2")], "p2 calls itself part 1"),
        ([part(0, 2, ONE, "p1", 3), part(None, None, TWO, "p2")], r"p2 .* lacks the key split\.no"),
        ([part(0, 2, ONE, "p1", 2), part(1, 2, ONE, "p2")], "tensor a, which an earlier part"),
        ([part(0, 2, ONE, "p1", 4), part(1, 2, TWO, "p2")], "announces 4 tensors; its 2 parts hold 3"),
        ([part(0, 2, ONE, "p1"), part(1, 2, TWO, "p2")], r"split\.tensors\.count"),
    ],
)
def test_parts_that_do_not(parts: list[GgufHeader], words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        check_parts(parts)

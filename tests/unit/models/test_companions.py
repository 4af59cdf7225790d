"""Files beside a model: what they must be."""

import pytest

from gguf_writer import TensorRow, header
from terazi.errors import ModelFileError
from terazi.models.companions import build_companion
from terazi.models.gguf import GgufHeader, header_from_bytes

ROW: list[TensorRow] = [("direction.3", (32,), "f32")]


def of(keys: dict[str, object], rows: list[TensorRow]) -> GgufHeader:
    raw, data = header(keys, rows)
    return header_from_bytes(raw, "/models/part.gguf", len(raw) + data)


PROJECTOR: dict[str, object] = {"general.architecture": "clip", "clip.has_audio_encoder": True}
ADAPTER: dict[str, object] = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}


def test_its_keys_and_tensors_are_kept_and_layers_are_not_made_up() -> None:
    spec = build_companion(of({**ADAPTER, "general.name": "Tuned"}, ROW), "lora", origin="x")
    assert (spec.name, spec.architecture, spec.block_count, spec.origin) == ("Tuned", "llama", 0, "x")
    assert [t.name for t in spec.tensors] == ["direction.3"]
    assert spec.files[0].path == "/models/part.gguf"
    assert build_companion(of(PROJECTOR, ROW), "mmproj").name == "part.gguf"


@pytest.mark.parametrize(
    ("part", "keys", "rows"),
    [
        ("mmproj", {**PROJECTOR, "clip.has_audio_encoder": False}, ROW),
        ("mmproj", {"general.architecture": "llama"}, ROW),
        ("mmproj", PROJECTOR, []),
        ("lora", {**ADAPTER, "general.type": "model"}, ROW),
        ("lora", {**ADAPTER, "adapter.type": "ia3"}, ROW),
        ("control-vector", {}, [("direction.0", (32,), "f32")]),
        ("control-vector", {}, [("direction.x", (32,), "f32")]),
        ("control-vector", {}, [("direction.1", (32,), "f16")]),
        ("control-vector", {}, [("direction.1", (32, 2), "f32")]),
        ("control-vector", {}, [("blk.1", (32,), "f32")]),
    ],
)
def test_another_kind_of_file_is_named(part: str, keys: dict[str, object], rows: list[TensorRow]) -> None:
    with pytest.raises(ModelFileError, match=r"part\.gguf is not a"):
        build_companion(of(keys, rows), part)

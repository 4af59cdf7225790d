"""Safetensors models on disk: every layout that people have, and every way that one is broken."""

import json
from pathlib import Path

import pytest

from safetensors_writer import TINY_CONFIG, tiny_rows, write
from terazi.errors import ModelFileError, TeraziError
from terazi.models.sources import load_model
from terazi.models.spec import ModelSpec

ROWS = tiny_rows()


def config(folder: Path, name: str = "config.json", **keys: object) -> None:
    (folder / name).write_text(json.dumps({**TINY_CONFIG, **keys}))


def sharded(folder: Path, count: int = 3, stem: str = "model") -> dict[str, str]:
    names = list(ROWS)
    weight_map: dict[str, str] = {}
    for i in range(count):
        file = f"{stem}-{i + 1:05d}-of-{count:05d}.safetensors"
        part = {name: ROWS[name] for name in names[i::count]}
        write(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def refusal(path: Path) -> TeraziError:
    with pytest.raises(TeraziError) as caught:
        load_model(str(path))
    assert caught.value.hint
    return caught.value


def is_tiny(spec: ModelSpec) -> None:
    assert spec.format == "safetensors"
    assert spec.architecture == "llama"
    assert {t.name for t in spec.tensors} == set(ROWS)
    elements = 100 * 64 * 2 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64)
    assert spec.parameter_count == elements
    assert spec.weights_bytes == 2 * elements
    assert spec.quantisation == "BF16"
    assert spec.metadata["hidden_size"] == 64
    for tensor in spec.tensors:
        assert ROWS[tensor.name] == (tensor.dtype, tensor.shape)


def test_one_file(tmp_path: Path) -> None:
    config(tmp_path)
    write(tmp_path / "model.safetensors", ROWS)
    is_tiny(load_model(str(tmp_path)))
    is_tiny(load_model(str(tmp_path / "model.safetensors")))
    assert load_model(str(tmp_path)).name == tmp_path.name


def test_shards_by_index(tmp_path: Path) -> None:
    config(tmp_path)
    sharded(tmp_path)
    spec = load_model(str(tmp_path))
    is_tiny(spec)
    assert len(spec.files) == 3
    assert {t.file_index for t in spec.tensors} == {0, 1, 2}
    is_tiny(load_model(str(tmp_path / "model.safetensors.index.json")))


def test_shards_without_an_index(tmp_path: Path) -> None:
    config(tmp_path)
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    is_tiny(load_model(str(tmp_path)))


def test_a_consolidated_copy_is_not_counted_twice(tmp_path: Path) -> None:
    config(tmp_path)
    sharded(tmp_path)
    write(tmp_path / "consolidated.safetensors", ROWS)
    write(tmp_path / "adapter_model.safetensors", {"x": ("F32", (1,))})
    is_tiny(load_model(str(tmp_path)))


def test_mistrals_own_layout(tmp_path: Path) -> None:
    params = {"dim": 64, "n_layers": 2, "head_dim": 16, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 2,
              "vocab_size": 100}  # fmt: skip
    (tmp_path / "params.json").write_text(json.dumps(params))
    write(tmp_path / "consolidated.safetensors", {"layers.0.attention.wq.weight": ("BF16", (64, 64))})
    spec = load_model(str(tmp_path))
    assert (spec.block_count, spec.key_length, spec.head_count_kv) == (2, 16, (2, 2))
    assert spec.tensors[0].block == 0


def test_a_chat_template_is_noticed(tmp_path: Path) -> None:
    config(tmp_path)
    write(tmp_path / "model.safetensors", ROWS)
    assert not load_model(str(tmp_path)).chat_template
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert load_model(str(tmp_path)).chat_template


def test_packed_weights_count_one_by_one(tmp_path: Path) -> None:
    config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128})
    rows = {
        "model.layers.0.self_attn.q_proj.qweight": ("I32", (8, 64)),
        "model.layers.0.self_attn.q_proj.qzeros": ("I32", (1, 8)),
        "model.layers.0.self_attn.q_proj.scales": ("F16", (1, 64)),
        "model.norm.weight": ("F16", (64,)),
    }
    write(tmp_path / "model.safetensors", rows)
    spec = load_model(str(tmp_path))
    assert spec.parameter_count == 64 * 64 + 64
    assert spec.quantisation == "GPTQ 4-bit"


def test_missing_shard(tmp_path: Path) -> None:
    config(tmp_path)
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "1 of the 3 files" in refusal(tmp_path).message


def test_index_and_files_disagree(tmp_path: Path) -> None:
    config(tmp_path)
    sharded(tmp_path)
    write(tmp_path / "model-00002-of-00003.safetensors", {"x": ("F32", (1,))})
    assert "promises" in refusal(tmp_path).message


@pytest.mark.parametrize(
    "file", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "", 5, "x.bin", "a\0.safetensors"]
)
def test_an_index_leads_nowhere_else(tmp_path: Path, file: object) -> None:
    config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    assert "no usable index" in refusal(tmp_path).message


def test_files_of_two_models(tmp_path: Path) -> None:
    config(tmp_path)
    write(tmp_path / "a.safetensors", ROWS)
    write(tmp_path / "b.safetensors", ROWS)
    assert "earlier file" in refusal(tmp_path).message


def test_without_a_config(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", ROWS)
    assert "config.json" in refusal(tmp_path).message
    assert type(refusal(tmp_path / "other.safetensors")) is not ModelFileError


def test_a_file_that_is_still_arriving(tmp_path: Path) -> None:
    config(tmp_path)
    path = write(tmp_path / "model.safetensors", ROWS)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    assert "cut off" in refusal(tmp_path).message
    with path.open("r+b") as file:
        file.truncate(100)
    assert "cut off" in refusal(tmp_path).message


def test_folders_without_a_model(tmp_path: Path) -> None:
    assert "directory" in refusal(tmp_path).message
    config(tmp_path)
    assert "config alone" in refusal(tmp_path).hint
    (tmp_path / "m.gguf").write_bytes(b"")
    assert "m.gguf" in refusal(tmp_path).hint


def test_a_config_alone(tmp_path: Path) -> None:
    config(tmp_path)
    spec = load_model(str(tmp_path / "config.json"))
    assert spec.format == "config"
    assert {t.name: (t.dtype, t.shape) for t in spec.tensors} == ROWS
    assert spec.name == tmp_path.name

"""What a sparse twin consists of."""

import dataclasses

import pytest

from specs import llama_spec
from terazi.errors import UsageError
from terazi.models.spec import ModelFile
from terazi.models.twin import twin_files


def part(name: str, size: int) -> ModelFile:
    return ModelFile(path=f"/models/{name}", size_bytes=size, data_offset=100, alignment=32)


def test_one_file_keeps_its_size_and_not_its_name() -> None:
    spec = dataclasses.replace(llama_spec(), files=(part("odd\udce4.gguf", 5000),))
    assert [(file.name, file.size_bytes) for file in twin_files(spec)] == [("twin.gguf", 5000)]


def test_parts_get_the_names_that_the_engine_looks_for() -> None:
    spec = dataclasses.replace(llama_spec(), files=tuple(part(f"x-{n}", 1000 + n) for n in range(3)))
    assert [file.name for file in twin_files(spec)] == [f"twin-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert [file.source.path for file in twin_files(spec)] == ["/models/x-0", "/models/x-1", "/models/x-2"]


def test_what_is_no_gguf_file_has_no_twin() -> None:
    with pytest.raises(UsageError, match="no GGUF"):
        twin_files(dataclasses.replace(llama_spec(), format="safetensors", files=(part("m", 1),)))

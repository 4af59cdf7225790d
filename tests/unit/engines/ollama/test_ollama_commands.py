"""``ollama`` command lines, and the llama-server command that comes of them."""

import pytest

from specs import card, host, llama_spec
from terazi.engines.llama_cpp.commands import parse_command as parse_llama_command
from terazi.engines.ollama.arguments import llama_server_argv
from terazi.engines.ollama.commands import OllamaCommand, parse_command
from terazi.errors import UsageError
from terazi.memory.ollama.launch import Beside, launch
from terazi.memory.ollama.settings import OllamaSettings


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("ollama run llama3.2", OllamaCommand(model="llama3.2")),
        ("ollama run llama3.2 why is the sky blue", OllamaCommand(model="llama3.2")),
        ("ollama run --keepalive 5m --think=false m:8b --format json", OllamaCommand(model="m:8b")),
        ("ollama run m --verbos", OllamaCommand(model="m", unknown_flags=("--verbos",))),
        ("ollama create mine", OllamaCommand(modelfile="Modelfile")),
        ("ollama create mine -f other/Modelfile", OllamaCommand(modelfile="other/Modelfile")),
    ],
)
def test_commands(line: str, command: OllamaCommand) -> None:
    assert parse_command(line.split()) == command


def test_quantising_is_said() -> None:
    assert "not quantised to q4_0" in parse_command(["ollama", "create", "m", "-q", "q4_0"]).notes[0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ollama", "no model"),
        ("ollama run", "no model"),
        ("ollama serve", "when one is asked"),
        ("ollama ps", "no model"),
    ],
)
def test_commands_that_load_nothing(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_command(line.split())
    assert "ollama run NAME" in caught.value.hint


def test_what_ollama_starts_is_a_command_of_llama_server() -> None:
    asked = OllamaSettings(num_ctx=8192, num_parallel=2, kv_cache_type="q8_0", num_gpu=20, use_mmap=False)
    made = launch(llama_spec(), (card(),), host(), asked, Beside(projector_bytes=2**30, draft=True))
    argv = llama_server_argv(made, "/b/m", projectors=("/b/p",), adapters=("/b/a", "/b/c"), draft="/b/d")
    command = parse_llama_command(argv)
    assert command.unknown_flags == ()
    assert command.notes == ()
    assert command.model_path == "/b/m"
    assert [(f.part, f.path) for f in command.extra_files] == [
        ("mmproj", "/b/p"), ("draft", "/b/d"), ("lora", "/b/a"), ("lora", "/b/c"),
    ]  # fmt: skip
    settings = command.settings
    assert (settings.n_ctx, settings.n_parallel, settings.n_gpu_layers) == (16_384, 2, 20)
    assert (settings.type_k, settings.type_v, settings.load_mode) == ("q8_0", "q8_0", "none")
    assert (settings.n_batch, settings.n_ubatch) == (made.batch, made.batch)
    assert settings.speculation.n_max == 4
    assert not settings.mmproj_offload, "a part of the layers stays in RAM, and so does the projector"

"""What hostile bytes are thrown at: each function takes any bytes and returns, or it has found a bug.

An error of Terazi's own tree is an answer. Everything else (a crash, a hang, memory that follows a count in the
file) is a finding. ``fuzz.py`` looks for new ones, ``test_corpus.py`` repeats the old ones.
"""

from collections.abc import Callable

from terazi.engines.llama_cpp.commands import parse_command
from terazi.engines.recognise import recognise
from terazi.errors import TeraziError
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.scale import Scale
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models import from_safetensors, safetensors
from terazi.models.from_gguf import build_spec
from terazi.models.gguf import header_from_bytes
from terazi.models.hf_config import parse_config
from terazi.models.spec import ModelSpec
from tiny_models import device

#: What the headers say they are the head of: large enough for any tensor.
_FILE_BYTES = 1 << 50
_DEVICES = (device("CUDA0", backend="cuda"), device("RPC0"))
_ISA = frozenset({"avx2", "avx512f"})
_SETTINGS = (
    LlamaCppSettings(),
    LlamaCppSettings(n_ctx=4096, n_parallel=2, kv_unified=False, n_gpu_layers=3, tensor_split=(1.0, 1.0)),
    LlamaCppSettings(n_ctx=2000, n_ubatch=24, flash_attn="off", n_gpu_layers=0),
    LlamaCppSettings(tool="llama-fit-params", n_ctx=512, type_k="q8_0", type_v="q8_0", cpu_moe=True),
)
#: A small model is weighed once more with everything kept, and must come out the same.
_SMALL = 200


def header(data: bytes) -> None:
    """The header of a GGUF file, weighed in several ways."""
    try:
        spec = build_spec([header_from_bytes(data, "m.gguf", _FILE_BYTES)])
    except TeraziError:
        return
    _weigh(spec)


def weights(data: bytes) -> None:
    """The header of a safetensors file."""
    _answered(lambda: safetensors.header_from_bytes(data, "m.safetensors", _FILE_BYTES))


def config(data: bytes) -> None:
    """A ``config.json``, beside a file without tensors; or an index."""
    _answered(lambda: from_safetensors.read_index(data, "model.safetensors.index.json"))
    try:
        head = safetensors.header_from_bytes(b"\2\0\0\0\0\0\0\0{}", "m.safetensors")
        spec = from_safetensors.build_spec(parse_config(data, "config.json"), [head], name="m")
    except TeraziError:
        return
    assert spec.block_count >= 0


def command(data: bytes) -> None:
    """A command line, one word a line."""
    words = data.decode("utf-8", "surrogateescape").split("\n")

    def parse() -> object:
        spoken = recognise(words)
        return parse_command(spoken.argv, spoken.environment) if spoken.engine == "llama.cpp" else spoken

    _answered(parse)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "header": header,
    "weights": weights,
    "config": config,
    "command": command,
}


def _answered(act: Callable[[], object]) -> object | None:
    try:
        return act()
    except TeraziError:
        return None


def _weigh(spec: ModelSpec) -> None:
    for settings in _SETTINGS:
        bill = _answered(lambda settings=settings: weigh(spec, settings, _DEVICES, _ISA))  # type: ignore[misc]
        if len(spec.tensors) < _SMALL and spec.block_count < _SMALL:
            scale = Scale(spec, _DEVICES, _ISA, patience=0)
            again = _answered(lambda settings=settings, scale=scale: scale.weigh(settings))  # type: ignore[misc]
            assert bill == again

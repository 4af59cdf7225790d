"""Writes the seeds of the corpus: small headers of many families, without vocabulary. It takes no arguments."""

import json
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parents[1] / "src")]

import family_twins  # noqa: E402 - the paths come first
import recurrent_twins  # noqa: E402
from gguf_writer import header  # noqa: E402
from terazi.models.gguf import header_from_bytes  # noqa: E402
from terazi.models.spec import ArrayInfo  # noqa: E402

FAMILIES = (
    "gemma2",
    "gemma4",
    "deepseek2-old",
    "glm-dsa",
    "qwen3vlmoe",
    "mimo2",
    "nomic-bert-moe",
    "gemma3n",
    "phi2",
)
RECURRENT = ("qwen3next", "mamba2", "kimi-linear", "rwkv7", "falcon-h1", "nemotron_h", "lfm2-window")
COMMANDS = (
    "llama-server -m m.gguf -c 32768 -np 4 -ngl 99 -ts 3,1 -ctk q8_0 -ctv q8_0 -fa on",
    "LLAMA_ARG_CTX_SIZE=4096 llama-cli -m m.gguf --n-cpu-moe 12 -ot exps=CPU -sm none -mg 1 --no-mmap",
    "llama-fit-params --model m.gguf --rpc 10.0.0.1:50052,10.0.0.2:50052 -b 512 -ub 256 --swa-full",
    "vllm serve m --tensor-parallel-size 2",
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1536,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 1024,
    "torch_dtype": "bfloat16",
}
BLOCKS = 3


def main() -> None:
    """Write them all."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FAMILIES:
            twin = family_twins.TWINS[name]
            small(family_twins.write_twin(Path(folder), name, twin), name)
        for name in RECURRENT:
            small(recurrent_twins.write_recurrent_twin(Path(folder), name), name)
    for number, line in enumerate(COMMANDS):
        write("command", f"seed-{number}", "\n".join(line.split()).encode())
    write("config", "seed-llama", json.dumps(CONFIG, separators=(",", ":")).encode())
    text = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}, "metadata": {}}).encode()
    write("config", "seed-index", text)
    entries = {
        "model.layers.0.mlp.up_proj.weight": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]},
        "lm_head.weight": {"dtype": "F8_E4M3", "shape": [8, 4], "data_offsets": [64, 96]},
        "__metadata__": {"format": "pt"},
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    write("weights", "seed", len(text).to_bytes(8, "little") + text)


def small(path: Path, name: str) -> None:
    """The header of the twin at *path* with its first blocks only, and without its vocabulary."""
    with path.open("rb") as file:
        read = header_from_bytes(file.read(1 << 20), size=path.stat().st_size)
    metadata: dict[str, object] = {}
    blocks = next(value for key, value in read.metadata.items() if key.endswith(".block_count"))
    for key, value in read.metadata.items():
        if key.startswith("tokenizer.") or isinstance(value, ArrayInfo):
            continue
        if key.endswith(".block_count"):
            metadata[key] = BLOCKS
        else:
            metadata[key] = list(value) if isinstance(value, tuple) else value
            if isinstance(value, tuple) and len(value) == blocks:
                metadata[key] = list(value[:BLOCKS])
    rows = [(t.name, t.shape, t.dtype) for t in read.tensors if t.block is None or t.block < BLOCKS]
    write("header", f"seed-{name}", header(metadata, rows)[0])


def write(target: str, name: str, data: bytes) -> None:
    """Write one file of the corpus."""
    folder = FOLDER / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()

"""LoRA adapters and control vectors for a model, with zeros for weights."""

from collections.abc import Iterable
from pathlib import Path

from gguf_writer import TensorRow, write_gguf
from terazi.models.spec import ModelSpec


def lora_rows(
    model: ModelSpec, parts: Iterable[str], rank: int, *, blocks: Iterable[int] | None = None, dtype: str = "f16"
) -> list[TensorRow]:
    """Both halves for the named weights of the blocks; a name with a dot is taken as it is."""
    shapes = {tensor.name: tensor.shape for tensor in model.tensors}
    every = range(model.block_count) if blocks is None else blocks
    names = [
        name for part in parts for name in ([part] if "." in part else [f"blk.{b}.{part}.weight" for b in every])
    ]
    rows: list[TensorRow] = []
    for name in names:
        first, second = shapes[name][:2]
        if name == "token_embd.weight":
            rows += [(f"{name}.lora_a", (rank, second), dtype), (f"{name}.lora_b", (rank, first), dtype)]
        else:
            rows += [(f"{name}.lora_a", (first, rank), dtype), (f"{name}.lora_b", (rank, second), dtype)]
    return rows


def write_lora(path: Path, model: ModelSpec, rows: list[TensorRow], **more: object) -> Path:
    """An adapter file; *more* keys (with ``__`` for dots) replace those that the engine demands."""
    keys: dict[str, object] = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0}
    keys.update({key.replace("__", "."): value for key, value in more.items()})
    return write_gguf(path, model.architecture, keys, rows, sparse=False)


def write_vector(path: Path, width: int, blocks: Iterable[int]) -> Path:
    """A control vector for some blocks."""
    rows: list[TensorRow] = [(f"direction.{block}", (width,), "f32") for block in blocks]
    return write_gguf(path, "controlvector", {"controlvector.model_hint": "llama"}, rows, sparse=False)

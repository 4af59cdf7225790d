"""Reads ``golden/published_models.json`` and writes sparse files of its models for the engine to weigh."""

from pathlib import Path

import bill_cases
from gguf_writer import write_gguf
from terazi.models.ggml_types import TYPE_BY_NAME
from terazi.models.spec import ModelSpec

PATH = Path(__file__).parent / "golden" / "published_models.json"
#: So many tokens in the files: the engine reads a large vocabulary slowly, and its size says nothing new.
VOCAB = 8192
_NAMES = {name.upper(): name for name in TYPE_BY_NAME}


def load() -> dict[str, bill_cases.Measured]:
    return bill_cases.load(PATH)


def write_published(folder: Path, spec: ModelSpec, *, vocab_size: int = VOCAB) -> Path:
    """Write *spec*, with a small vocabulary if none is given, and return the file's path."""
    prefix = f"{spec.architecture}."
    metadata: dict[str, object] = {
        ".context_length": spec.context_length,
        ".embedding_length": spec.embedding_length,
        ".block_count": spec.block_count,
        ".vocab_size": vocab_size,
        "tokenizer.ggml.token_type_count": 1,
    }
    # what a spec says itself need not be among its metadata
    told: dict[str, tuple[int, ...]] = {
        "attention.head_count": spec.head_count,
        "attention.head_count_kv": spec.head_count_kv,
        "attention.key_length": (spec.key_length,),
        "attention.value_length": (spec.value_length,),
        "feed_forward_length": spec.feed_forward_length,
    }
    for key, values in told.items():
        if any(values):
            metadata[f".{key}"] = values[0] if len(set(values)) == 1 else list(values)
    for key, value in spec.metadata.items():
        metadata["." + key.removeprefix(prefix)] = list(value) if isinstance(value, tuple) else value
    rows = [
        (
            tensor.name,
            tuple(vocab_size if length == spec.vocab_size else length for length in tensor.shape)
            if tensor.block is None or ".nextn." in tensor.name or "tid2eid" in tensor.name
            else tensor.shape,
            _NAMES[tensor.dtype],
        )
        for tensor in spec.tensors
    ]
    path = folder / f"{spec.name}.gguf"
    return write_gguf(path, spec.architecture, metadata, rows, vocab_size=vocab_size, tokenizer="llama")

"""Makes a ``ModelSpec`` from the headers of a model's file or files, whatever its architecture.

Defaults and checks are those of ``llama_model_base::load_hparams`` in ``src/llama-model.cpp``, llama.cpp build
b11434. What only one family knows (window patterns, recurrent state, latent attention) stays in
``ModelSpec.metadata`` for that family's rules.
"""

from collections.abc import Sequence
from typing import Final, TypeGuard

from terazi.errors import ModelFileError
from terazi.models.file_types import FILE_TYPES, GUESSED
from terazi.models.ggml_types import TYPE_BY_NAME
from terazi.models.gguf import GgufHeader
from terazi.models.gguf_window import display
from terazi.models.spec import ArrayInfo, MetadataValue, ModelFile, ModelSpec, Tensor
from terazi.models.split import check_parts

#: A file that claims more layers is broken (llama.cpp itself stops at 512, ``LLAMA_MAX_LAYERS``).
BLOCKS_LIMIT: Final = 1024
#: The engine aborts over more experts (``LLAMA_MAX_EXPERTS``), and where more are used than there are.
EXPERTS_LIMIT: Final = 1024

#: ``general.type`` or architecture of files that belong to a model but are none.
_COMPANIONS: Final = {
    "adapter": ("a LoRA adapter", "Give the base model; the adapter is added with llama-server's --lora."),
    "mmproj": ("the vision or audio part of a model", "Give the language model; this file goes with --mmproj."),
    "clip": ("the vision or audio part of a model", "Give the language model; this file goes with --mmproj."),
    "imatrix": ("an importance matrix for quantising", "Give the model's own .gguf file."),
    "controlvector": ("a control vector", "Give the model; the vector is added with --control-vector."),
}


def build_spec(parts: Sequence[GgufHeader], *, origin: str = "") -> ModelSpec:
    """The model that *parts* hold: one header, or those of a split model in order.

    Args:
        parts: headers, the first one first; each tensor's ``file_index`` is its part's place here.
        origin: what the user asked for.

    Raises:
        ModelFileError: a key that the engine demands is missing (it is named) or makes no sense, the file is
            not a model, or the parts don't belong together. An unknown architecture is no error.
    """
    check_parts(parts)
    keys = _Keys(parts[0])
    arch = _architecture(parts[0])
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    if not tensors:
        raise ModelFileError(
            f"{keys.label} holds no tensors: it is a vocabulary or an empty shell, not a model.",
            hint="Give the model's own .gguf file.",
        )
    blocks = keys.number(f"{arch}.block_count")
    if not 0 < blocks <= BLOCKS_LIMIT:
        raise keys.senseless(f"{arch}.block_count", blocks)
    width = keys.number(f"{arch}.embedding_length")
    head_count = keys.per_layer(f"{arch}.attention.head_count", blocks, (0,) * blocks)
    # The engine takes the first layer's heads here, also in models whose layers differ.
    per_head = width // head_count[0] if head_count[0] else 0
    # a first block without attention leaves them unread, except in PLaMo 2
    stated = per_head or arch == "plamo2"
    experts = keys.number(f"{arch}.expert_count", 0)
    used = max(keys.per_layer(f"{arch}.expert_used_count", blocks, (0,)))
    if experts > EXPERTS_LIMIT:
        raise keys.senseless(f"{arch}.expert_count", experts)
    if used > experts:
        raise keys.senseless(f"{arch}.expert_used_count", used)
    metadata = keys.metadata
    name = metadata.get("general.name")
    return ModelSpec(
        name=display(name) if isinstance(name, str) and name.strip() else _stem(keys.label),
        architecture=arch,
        block_count=blocks,
        context_length=keys.number(f"{arch}.context_length"),
        embedding_length=width,
        vocab_size=_vocab_size(keys, arch, tensors),
        head_count=head_count,
        head_count_kv=keys.per_layer(f"{arch}.attention.head_count_kv", blocks, head_count),
        feed_forward_length=keys.per_layer(f"{arch}.feed_forward_length", blocks, (0,) * blocks),
        key_length=keys.number(f"{arch}.attention.key_length", per_head) if stated else 0,
        value_length=keys.number(f"{arch}.attention.value_length", per_head) if stated else 0,
        expert_count=experts,
        expert_used_count=used,
        sliding_window=_window(keys, f"{arch}.attention.sliding_window"),
        quantisation=_quantisation(metadata.get("general.file_type"), tensors),
        parameter_count=sum(_elements(tensor) for tensor in tensors),
        tensors=tensors,
        files=tuple(
            ModelFile(path=p.path, size_bytes=p.size_bytes, data_offset=p.data_offset, alignment=p.alignment)
            for p in parts
        ),
        chat_template=bool(metadata.get("tokenizer.chat_template")),
        metadata=metadata,
        origin=origin,
    )


class _Keys:
    """Typed access to a header's keys; each complaint names the file and the key."""

    __slots__ = ("label", "metadata")

    def __init__(self, header: GgufHeader) -> None:
        self.label = display(header.path)
        self.metadata = header.metadata

    def number(self, key: str, default: int | None = None) -> int:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFileError(
                f"{self.label} lacks the key {key}, without which no engine can load it.",
                hint="Download a current file of this model, or convert it again.",
            )
        if not _is_count(value):
            raise self.senseless(key, value)
        return value

    def per_layer(self, key: str, blocks: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """One number for each layer, from an array or from one number for all."""
        value = self.metadata.get(key)
        if value is None:
            return default
        if isinstance(value, tuple):
            if len(value) != blocks:
                raise ModelFileError(
                    f"{self.label} has {len(value)} entries under {key} for its {blocks} layers.",
                    hint="Download a current file of this model, or convert it again.",
                )
            if all(_is_count(v) for v in value):
                return tuple(int(v) for v in value)
        if not _is_count(value):
            raise self.senseless(key, value)
        return (value,) * blocks

    def senseless(self, key: str, value: object) -> ModelFileError:
        shown = f"{value:,}" if isinstance(value, int) else str(value)[:40]
        return ModelFileError(
            f"{self.label} has the senseless value {display(shown)} under {key}.",
            hint="It is damaged, or made by a faulty converter: download it again.",
        )


def _is_count(value: MetadataValue) -> TypeGuard[int]:
    """A whole number that a u32 holds (signed types are used for counts as well)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _architecture(header: GgufHeader) -> str:
    label, metadata = display(header.path), header.metadata
    arch = metadata.get("general.architecture")
    for value in (metadata.get("general.type"), arch):
        if isinstance(value, str) and value in _COMPANIONS:
            what, hint = _COMPANIONS[value]
            raise ModelFileError(f"{label} is {what}, not a model.", hint=hint)
    if isinstance(arch, str) and arch.strip():
        return arch
    raise ModelFileError(
        f"{label} lacks the key general.architecture, so it isn't a language model.",
        hint="Give the model's own .gguf file.",
    )


def _vocab_size(keys: _Keys, arch: str, tensors: tuple[Tensor, ...]) -> int:
    """The engine counts the tokens; without a vocabulary it takes ``vocab_size`` (``llama_vocab::impl::load``).

    A converter that gives neither leaves the rows of the embedding matrix.
    """
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, ArrayInfo):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    rows = next((t.shape[-1] for t in tensors if t.name == "token_embd.weight"), 0)
    return keys.number(f"{arch}.vocab_size", rows)


def _window(keys: _Keys, key: str) -> int | None:
    """The sliding window in tokens; a 0 switches it off, and so do some converters' arrays of one."""
    value = keys.metadata.get(key)
    if isinstance(value, tuple):
        counts = [int(v) for v in value if _is_count(v)]
        return max(counts, default=0) or None
    return keys.number(key, 0) or None


def _quantisation(file_type: MetadataValue | None, tensors: tuple[Tensor, ...]) -> str:
    if isinstance(file_type, int) and (name := FILE_TYPES.get(file_type & ~GUESSED)):
        return name
    by_type: dict[str, int] = {}
    for tensor in tensors:
        by_type[tensor.dtype] = by_type.get(tensor.dtype, 0) + tensor.n_bytes
    return max(by_type, key=lambda dtype: by_type[dtype]).upper()


def _elements(tensor: Tensor) -> int:
    kind = TYPE_BY_NAME[tensor.dtype]
    return tensor.n_bytes // kind.block_bytes * kind.block_size


def _stem(label: str) -> str:
    return label.rsplit("/", 1)[-1].removesuffix(".gguf")

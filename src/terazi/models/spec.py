"""The ``ModelSpec`` noun: hyperparameters and tensors of one model, as its header states them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

#: A metadata value small enough to keep. Long arrays (vocabularies) are kept as ``ArrayInfo`` only.
Scalar: TypeAlias = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayInfo:
    """An array that was skipped over, not materialised: its element type's name and its length.

    A string of more than a MiB is described so as well, with the element type ``char``.
    """

    element_type: str
    length: int


MetadataValue: TypeAlias = Scalar | tuple[Scalar, ...] | ArrayInfo


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor. In a GGUF model ``shape`` is in ggml order (``ne``: the contiguous dimension first).

    ``dtype`` is ggml's name (``f32``, ``q4_K``; see ``models.ggml_types``). ``n_bytes`` is the payload, without the
    padding between tensors. ``offset`` counts from the file's ``data_offset``. ``block`` is N of ``blk.N.…``, else
    None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int
    offset: int
    file_index: int
    block: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One part on disk. ``data_offset`` is where tensor data begins; sizes in bytes.

    ``path`` is absolute, symbolic links in it are left alone. It may hold bytes that aren't text (as lone
    surrogates); ``models.gguf_window.display`` makes it fit to show.
    """

    path: str
    size_bytes: int
    data_offset: int
    alignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as its header states it. Per-layer tuples have ``block_count`` entries.

    ``format`` is ``gguf`` (tensors named and shaped as ggml does), ``safetensors`` (tensors named as the file does,
    shapes slowest dimension first, dtypes as the file spells them) or ``config`` (a ``config.json`` alone: the
    tensors are what that architecture makes of it). In the latter two, ``metadata`` is the config, nested keys
    joined by dots (``text_config.hidden_size``), and ``architecture`` its ``model_type``.

    ``head_count_kv[i] == 0`` means that layer *i* has no attention cache of its own.
    ``metadata`` holds every key of the header (long arrays as ``ArrayInfo``), so a family's rule can read
    what this noun doesn't name.
    """

    name: str
    format: str = "gguf"
    architecture: str
    block_count: int
    context_length: int
    embedding_length: int
    vocab_size: int
    head_count: tuple[int, ...]
    head_count_kv: tuple[int, ...]
    feed_forward_length: tuple[int, ...]
    key_length: int
    value_length: int
    expert_count: int = 0
    expert_used_count: int = 0
    sliding_window: int | None = None
    quantisation: str = "unknown"
    parameter_count: int = 0
    tensors: tuple[Tensor, ...] = ()
    files: tuple[ModelFile, ...] = ()
    chat_template: bool = False
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    origin: str = ""
    reasons: tuple[str, ...] = ()
    schema: str = "terazi.model/1"

    @property
    def weights_bytes(self) -> int:
        """Sum of all tensors' payloads."""
        return sum(t.n_bytes for t in self.tensors)

    @property
    def file_bytes(self) -> int:
        """Size of all parts on disk."""
        return sum(f.size_bytes for f in self.files)

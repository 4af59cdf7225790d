"""Makes a ``ModelSpec`` from a config and the headers of safetensors files, or from a config alone.

In: ``HfConfig`` and headers; the caller has fetched them. Out: ``ModelSpec``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from terazi.errors import ModelFileError
from terazi.models.bounded_json import parse_object
from terazi.models.gguf_window import display
from terazi.models.hf_config import HfConfig, quantisation_of, shape_of
from terazi.models.safetensors import DTYPE_BITS, SafetensorsHeader, in_order
from terazi.models.spec import MetadataValue, ModelFile, ModelSpec, Tensor

#: Bytes of an index; the largest known (140,000 tensors) takes some 15 MB.
INDEX_LIMIT_BYTES: Final = 64 * 1024**2
#: Files of one model; the largest known have some 200.
FILES_LIMIT: Final = 4096

#: Names of the embedding matrix; its first dimension is the vocabulary.
_EMBEDDINGS: Final = ("embed_tokens.weight", "tok_embeddings.weight", "wte.weight", "embeddings.weight",
                      "word_embeddings.weight", "embed_in.weight")  # fmt: skip
#: Endings of tensors that describe others and hold no parameters of their own.
_DESCRIBING: Final = (
    "scale", "scales", "scale_inv", "scale_2", "qzeros", "g_idx", "zero_point", "absmax", "quant_map",
    "weight_shape", "quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4",
    "input_global_scale", "weight_global_scale",
)  # fmt: skip
_NAMES: Final[Mapping[str, str]] = {"F8_E4M3": "FP8", "F8_E5M2": "FP8"}


class Index(NamedTuple):
    """A sharded model's index: its files in order of their names, and the file of each tensor."""

    files: tuple[str, ...]
    weight_map: Mapping[str, str]


def read_index(data: bytes, label: str) -> Index:
    """Read a ``*.safetensors.index.json``.

    Raises:
        ModelFileError: it is no index, or names files outside its own folder.
    """
    if len(data) > INDEX_LIMIT_BYTES:
        raise _bad_index(label, f"is larger than {INDEX_LIMIT_BYTES // 1024**2} MiB")
    document = parse_object(data, label, what="the index")
    entries = document.get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise _bad_index(label, "has no weight_map")
    weight_map: dict[str, str] = {}
    for tensor, file in entries.items():
        if not isinstance(file, str) or not _plain(file):
            raise _bad_index(label, f"leads to {display(str(file)[:60])!r}, which is no safetensors file beside it")
        weight_map[tensor] = file
    files = tuple(sorted(set(weight_map.values())))
    if len(files) > FILES_LIMIT:
        raise _bad_index(label, f"names {len(files):,} files")
    return Index(files=files, weight_map=weight_map)


def check_index(index: Index, headers: Sequence[SafetensorsHeader], label: str) -> None:
    """Check that the files hold what *index* promises; *headers* are those of ``index.files``, in order.

    Raises:
        ModelFileError: a tensor isn't in the file that the index names.
    """
    held = {file: {t.name for t in header.tensors} for file, header in zip(index.files, headers, strict=True)}
    for tensor, file in index.weight_map.items():
        if tensor not in held[file]:
            raise ModelFileError(
                f"{display(file)} lacks the tensor {display(tensor)}, which {label} promises.",
                hint="Files of different downloads are mixed; download them again.",
            )


def build_spec(
    config: HfConfig,
    headers: Sequence[SafetensorsHeader],
    *,
    name: str,
    origin: str = "",
    chat_template: bool = False,
) -> ModelSpec:
    """The model that *headers* hold, in the order of their files.

    Args:
        config: of this model.
        headers: each tensor's ``file_index`` is its file's place here.
        name: what to call it; the config rarely says.
        origin: what the user asked for.
        chat_template: whether one comes with the model.

    Raises:
        ModelFileError: there are no tensors, files don't belong together, or the config makes no sense.
    """
    tensors = in_order(headers)
    if not tensors:
        raise ModelFileError(f"{display(name)} holds no tensors.", hint="Give the folder that holds the weights.")
    files = tuple(
        ModelFile(path=h.path, size_bytes=h.size_bytes, data_offset=h.data_offset, alignment=1) for h in headers
    )
    return spec_of(
        config, tensors, files=files, form="safetensors", name=name, origin=origin, chat_template=chat_template
    )


def spec_of(
    config: HfConfig,
    tensors: tuple[Tensor, ...],
    *,
    files: tuple[ModelFile, ...] = (),
    form: str,
    name: str,
    origin: str,
    chat_template: bool = False,
    reasons: tuple[str, ...] = (),
) -> ModelSpec:
    """A ``ModelSpec`` of *config* and *tensors*, wherever these come from."""
    shape = shape_of(config)
    rows = next((t.shape[0] for t in tensors if t.name.endswith(_EMBEDDINGS) and len(t.shape) == 2), 0)
    metadata: dict[str, MetadataValue] = dict(config.metadata)
    return ModelSpec(
        name=display(name),
        format=form,
        architecture=config.model_type or config.text_type or "unknown",
        block_count=shape.block_count,
        context_length=shape.context_length,
        embedding_length=shape.embedding_length,
        vocab_size=shape.vocab_size or rows,
        head_count=shape.head_count,
        head_count_kv=shape.head_count_kv,
        feed_forward_length=shape.feed_forward_length,
        key_length=shape.key_length,
        value_length=shape.value_length,
        expert_count=shape.expert_count,
        expert_used_count=shape.expert_used_count,
        sliding_window=shape.sliding_window,
        quantisation=quantisation_of(config) or _commonest(tensors),
        parameter_count=parameter_count(tensors, _packed_bits(config)),
        tensors=tensors,
        files=files,
        chat_template=chat_template,
        metadata=metadata,
        origin=origin,
        reasons=reasons,
    )


def parameter_count(tensors: Iterable[Tensor], packed_bits: int | None) -> int:
    """Weights of the model: packed ones (*packed_bits* each) are counted one by one, scales not at all."""
    total = 0
    for tensor in tensors:
        if tensor.name.endswith(_DESCRIBING):
            continue
        bits = tensor.n_bytes * 8
        stored = DTYPE_BITS.get(tensor.dtype, 8)
        packed = packed_bits is not None and tensor.dtype in {"I32", "U8", "I8", "I64"} and packed_bits < stored
        total += bits // (packed_bits if packed and packed_bits else stored)
    return total


def _packed_bits(config: HfConfig) -> int | None:
    for key in ("bits", "config_groups.group_0.weights.num_bits"):
        value = config.value(f"quantization_config.{key}")
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 16:
            return value
    method = config.value("quantization_config.quant_method", "quantization_config.quant_algo")
    four_bit = isinstance(method, str) and method.lower() in {"mxfp4", "nvfp4", "bitsandbytes", "modelopt"}
    if four_bit and config.value("quantization_config.load_in_8bit") is not True:
        return 4
    return None


def _commonest(tensors: Iterable[Tensor]) -> str:
    by_type: dict[str, int] = {}
    for tensor in tensors:
        by_type[tensor.dtype] = by_type.get(tensor.dtype, 0) + tensor.n_bytes
    dtype = max(by_type, key=lambda name: by_type[name], default="unknown")
    return _NAMES.get(dtype, dtype)


def _plain(file: str) -> bool:
    """A file's name without a folder: nothing that an index says leads anywhere else."""
    return (
        file.endswith(".safetensors") and not set(file) & set("/\\\0:") and len(file) < 256 and file.isprintable()
    )


def _bad_index(label: str, what: str) -> ModelFileError:
    return ModelFileError(
        f"{label} is no usable index: it {what}.", hint="Download it again from where it was published."
    )

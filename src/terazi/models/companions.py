"""Makes a ``ModelSpec`` from the header of a file that an engine loads beside a model: a projector, an adapter.

Such a file has no layers of its own that a text model would count, so those fields are 0; its keys and tensors are
in ``metadata`` and ``tensors``. What each kind must be is what llama.cpp b11434 demands: ``tools/mtmd/clip.cpp``
(``clip_model_loader``), ``src/llama-adapter.cpp`` (``llama_adapter_lora_init_impl``) and ``common/common.cpp``
(``common_control_vector_load_one``).
"""

from typing import Final

from terazi.errors import ModelFileError
from terazi.models.gguf import GgufHeader
from terazi.models.gguf_window import display
from terazi.models.spec import ModelFile, ModelSpec

#: Part → what such a file is called.
NAMES: Final = {
    "mmproj": "a multimodal projector",
    "lora": "a LoRA adapter",
    "control-vector": "a control vector",
}
_ENCODERS: Final = ("clip.has_vision_encoder", "clip.has_audio_encoder")


def build_companion(header: GgufHeader, part: str, *, origin: str = "") -> ModelSpec:
    """The file as a spec without layers.

    Args:
        header: of the file.
        part: ``mmproj``, ``lora`` or ``control-vector``.
        origin: what the user asked for.

    Raises:
        ModelFileError: if it is none of that kind.
    """
    label, metadata = display(header.path), header.metadata
    wrong = _complaint(header, part)
    if wrong:
        raise ModelFileError(
            f"{label} is not {NAMES[part]}: {wrong}.",
            hint="Give the file that was made for this model; the model itself goes with -m.",
        )
    architecture = metadata.get("general.architecture")
    name = metadata.get("general.name")
    return ModelSpec(
        name=display(name) if isinstance(name, str) and name.strip() else label.rsplit("/", 1)[-1],
        architecture=architecture if isinstance(architecture, str) else part,
        block_count=0,
        context_length=0,
        embedding_length=0,
        vocab_size=0,
        head_count=(),
        head_count_kv=(),
        feed_forward_length=(),
        key_length=0,
        value_length=0,
        tensors=header.tensors,
        files=(
            ModelFile(
                path=header.path,
                size_bytes=header.size_bytes,
                data_offset=header.data_offset,
                alignment=header.alignment,
            ),
        ),
        metadata=metadata,
        origin=origin,
    )


def _complaint(header: GgufHeader, part: str) -> str | None:
    """What the engine would object to."""
    metadata, tensors = header.metadata, header.tensors
    if not tensors:
        return "it holds no tensors"
    if part == "mmproj":
        if not any(metadata.get(key) is True for key in _ENCODERS):
            return "it says of no vision or audio encoder that it has one"
    elif part == "lora":
        if metadata.get("general.type") != "adapter":
            return f"its general.type is {display(str(metadata.get('general.type', 'missing')))}"
        if metadata.get("adapter.type") != "lora":
            return f"its adapter.type is {display(str(metadata.get('adapter.type', 'missing')))}"
    elif any(not _is_direction(t.name) or t.dtype != "f32" or len(t.shape) != 1 for t in tensors):
        return "it holds other tensors than directions"
    return None


def _is_direction(name: str) -> bool:
    head, _, number = name.partition(".")
    return head == "direction" and number.isdecimal() and int(number[:9]) > 0

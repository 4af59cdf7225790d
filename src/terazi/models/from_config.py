"""Makes a ``ModelSpec`` from a config alone: the tensors that its architecture makes, in the types that it says.

In: ``HfConfig``. Out: ``ModelSpec`` of the format ``config``.
"""

from typing import Final

from terazi.errors import ModelFileError
from terazi.models.from_safetensors import spec_of
from terazi.models.gguf_window import display
from terazi.models.hf_config import HfConfig, shape_of
from terazi.models.hf_families import draw, families
from terazi.models.hf_stored import Storage
from terazi.models.safetensors import DTYPE_BITS, block_of
from terazi.models.spec import ModelSpec, Tensor

#: No real model has more; a config that says so is hostile.
_TENSORS_LIMIT: Final = 2**19
_SIGNED_LIMIT: Final = 2**63


def build_config_spec(config: HfConfig, *, name: str, origin: str = "") -> ModelSpec:
    """The model that *config* describes.

    Raises:
        ModelFileError: the config makes no sense, or its family's tensors aren't known here.
    """
    shape = shape_of(config)
    drawing = draw(config)
    if drawing is None:
        raise ModelFileError(
            f"Which tensors {display(config.text_type or 'it')} has can't be told from its config alone.",
            hint="Give the model's safetensors folder or hf:org/repo, whose headers say them. From a config: "
            + ", ".join(families())
            + ".",
        )
    # a config can lie about a count only so far: what it makes is bounded before it is made
    if shape.block_count * max(1, shape.expert_count) * 3 > _TENSORS_LIMIT:
        raise ModelFileError(
            f"{config.label} describes {shape.block_count:,} layers of {shape.expert_count:,} experts.",
            hint="No real model has as many; download the config again.",
        )
    storage = Storage(config)
    tensors: list[Tensor] = []
    offset = 0
    for part in drawing(config, shape):
        for stored in storage.store(part):
            bits = DTYPE_BITS[stored.dtype]
            for extent in stored.shape:
                bits *= extent
            if not 0 < bits < _SIGNED_LIMIT:
                raise ModelFileError(
                    f"{config.label} gives {display(stored.name)} the impossible shape {list(stored.shape)}.",
                    hint="Download a current config.json of this model.",
                )
            n_bytes = -(-bits // 8)
            tensors.append(
                Tensor(stored.name, stored.shape, stored.dtype, n_bytes, offset, 0, block_of(stored.name))
            )
            offset += n_bytes
    reasons = list(storage.reasons)
    if config.prefix:
        reasons.append(
            f"Only the language model is counted: what {display(config.model_type)} has besides "
            "(vision, audio, projectors) can't be told from its config alone."
        )
    return spec_of(
        config, tuple(tensors), form="config", name=name, origin=origin, reasons=tuple(dict.fromkeys(reasons))
    )

"""The ``Companion`` noun: a file that the engine loads beside the model, such as a draft model or a projector."""

from typing import Final, NamedTuple

from terazi.models.spec import ModelSpec

#: ``Companion.part`` of a draft model.
DRAFT: Final = "draft"


class Companion(NamedTuple):
    """One file beside the model.

    Args:
        part: what it is for, as bill lines say it: ``draft``, ``mmproj``, ``lora``, ``control-vector``.
        flag: the flag that names it to the engine.
        spec: its header.
        scale: of an adapter; one of 0 is loaded but not applied.
    """

    part: str
    flag: str
    spec: ModelSpec
    scale: float = 1.0

"""The scales of one search: each model that it weighs, on each set of devices, is made ready once.

In: a model, devices. Out: its ``Scale``. A search weighs the model itself and a short twin of it (``sums``), over
and over with other contexts and layouts.
"""

from collections.abc import Callable

from terazi.hardware.machine import Device
from terazi.memory.llama_cpp.scale import Scale
from terazi.models.spec import ModelSpec


class Scales:
    """Keeps scales, and short twins, for as long as the search goes on.

    Args:
        isa: flags of the host's CPU.
    """

    def __init__(self, isa: frozenset[str]) -> None:
        self._isa = isa
        # the model is kept beside its scale, so that its number stays its own
        self._scales: dict[tuple[int, tuple[Device, ...]], Scale] = {}
        self._twins: dict[int, tuple[ModelSpec, ModelSpec]] = {}

    def of(self, spec: ModelSpec, devices: tuple[Device, ...]) -> Scale:
        """The scale of *spec* on *devices*."""
        key = id(spec), devices
        scale = self._scales.get(key)
        if scale is None:
            scale = self._scales[key] = Scale(spec, devices, self._isa)
        return scale

    def twin(self, spec: ModelSpec, make: Callable[[ModelSpec], ModelSpec]) -> ModelSpec:
        """What *make* makes of *spec*, made once."""
        known = self._twins.get(id(spec))
        if known is None:
            known = self._twins[id(spec)] = spec, make(spec)
        return known[1]

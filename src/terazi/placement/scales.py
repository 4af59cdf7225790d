"""The scales of one search: each model that it weighs, on each set of devices, is made ready once.

In: a model, devices. Out: its ``Scale``. A search weighs the model itself and a short twin of it (``sums``), over
and over with other contexts and layouts.
"""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar, cast

from terazi.hardware.machine import Device
from terazi.models.spec import ModelSpec

if TYPE_CHECKING:
    from terazi.memory.llama_cpp.scale import Scale


_T = TypeVar("_T")


class Scales:
    """Keeps scales, and short twins, for as long as the search goes on.

    Args:
        isa: flags of the host's CPU.
    """

    def __init__(self, isa: frozenset[str]) -> None:
        self._isa = isa
        # the model is kept beside its scale, so that its number stays its own
        self._scales: dict[tuple[int, tuple[Device, ...]], Scale] = {}
        self._asked: dict[tuple[int, tuple[Device, ...]], ModelSpec] = {}
        self._twins: dict[int, tuple[ModelSpec, ModelSpec]] = {}
        self._notes: dict[Hashable, object] = {}

    def of(self, spec: ModelSpec, devices: tuple[Device, ...]) -> "Scale":
        """The scale of *spec* on *devices*."""
        key = id(spec), devices
        scale = self._scales.get(key)
        if scale is None:
            # a search of one bill spares the import
            from terazi.memory.llama_cpp.scale import Scale

            scale = self._scales[key] = Scale(spec, devices, self._isa)
        return scale

    def again(self, spec: ModelSpec, devices: tuple[Device, ...]) -> "Scale | None":
        """The scale from the second time on: a single bill is sooner made without one."""
        key = id(spec), devices
        if key in self._asked or key in self._scales:
            return self.of(spec, devices)
        self._asked[key] = spec
        return None

    def twin(self, spec: ModelSpec, make: Callable[[ModelSpec], ModelSpec]) -> ModelSpec:
        """What *make* makes of *spec*, made once."""
        known = self._twins.get(id(spec))
        if known is None:
            known = self._twins[id(spec)] = spec, make(spec)
        return known[1]

    def noted(self, key: Hashable, find: Callable[[], _T]) -> _T:
        """What *find* found the first time for *key*: the same question comes again in one search."""
        if key not in self._notes:
            self._notes[key] = find()
        return cast("_T", self._notes[key])

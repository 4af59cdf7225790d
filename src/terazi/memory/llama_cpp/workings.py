"""The parts of a bill before they are lines: who works them out, and the way that keeps nothing."""

from collections.abc import Mapping
from typing import Protocol

from terazi.hardware.machine import Device
from terazi.memory.llama_cpp.bound import compute_bound_bytes
from terazi.memory.llama_cpp.compute import compute_bytes
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.kv import CacheLayer, cache_layers
from terazi.memory.llama_cpp.recurrent import StateLayer, state_layers
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import Placement, WeightBuffer, place_tensors, weight_buffers
from terazi.models.spec import ModelSpec


class Workings(Protocol):
    """Works out the parts of one model's bills on the same devices."""

    def resolve(self, settings: LlamaCppSettings) -> Resolved:
        """``resolve.resolve``; the other parts are asked for what it gave."""

    def caches(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheLayer, ...]:
        """``kv.cache_layers``."""

    def states(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...] | None:
        """``recurrent.state_layers``; None if the family isn't known."""

    def buffers(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[WeightBuffer, ...]:
        """``weights.weight_buffers``."""

    def compute_bytes(self, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
        """``compute.compute_bytes``, or its bound if the family isn't known."""


class Direct:
    """Each part straight from its module."""

    def __init__(
        self, spec: ModelSpec, family: Family | None, devices: tuple[Device, ...], isa: frozenset[str]
    ) -> None:
        self._spec, self._family, self._devices, self._isa = spec, family, devices, isa
        self._caches: tuple[CacheLayer, ...] = ()
        self._states: tuple[StateLayer, ...] | None = None
        self._placements: tuple[Placement, ...] = ()

    def resolve(self, settings: LlamaCppSettings) -> Resolved:
        """Defaults and clamps."""
        return resolve(self._spec, settings, self._devices)

    def caches(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheLayer, ...]:
        """The caches of all blocks."""
        self._caches = cache_layers(self._spec, self._family, settings, resolved)
        return self._caches

    def states(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...] | None:
        """The states of all blocks that recur."""
        if self._family:
            self._states = state_layers(self._spec, self._family, settings, resolved)
        return self._states

    def buffers(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[WeightBuffer, ...]:
        """Where tensors lie, by buffer."""
        self._placements = place_tensors(self._spec, settings, resolved, self._isa)
        return weight_buffers(self._placements, settings, resolved, self._isa)

    def compute_bytes(self, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
        """Compute buffers by device, after all other parts."""
        if self._family is None:
            return compute_bound_bytes(self._spec, settings, resolved, self._caches, self._placements)
        return compute_bytes(
            self._spec,
            self._family,
            settings,
            resolved,
            caches=self._caches,
            states=self._states or (),
            placements=self._placements,
        )

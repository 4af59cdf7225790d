"""The parts of a bill before they are lines: who works them out, and the way that keeps nothing."""

from collections.abc import Mapping
from typing import Protocol

from terazi.memory.llama_cpp.bound import compute_bound_bytes
from terazi.memory.llama_cpp.compute import compute_bytes
from terazi.memory.llama_cpp.draft_head import HEADS
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.kv import CacheGroup, CacheLayer, cache_groups, cache_layers
from terazi.memory.llama_cpp.recurrent import StateLayer, state_layers
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import Placement, WeightBuffer, place_tensors, weight_buffers
from terazi.models.spec import ModelSpec


class Workings(Protocol):
    """Works out the parts of one model's bills on the same devices."""

    @property
    def family(self) -> Family | None:
        """The model's family; None if its rules aren't known."""

    def caches(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheLayer, ...]:
        """``kv.cache_layers``."""

    def cache_groups(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheGroup, ...]:
        """``kv.cache_groups`` of them."""

    def states(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...] | None:
        """``recurrent.state_layers``; None if the family isn't known."""

    def buffers(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[WeightBuffer, ...]:
        """``weights.weight_buffers``."""

    def compute_bytes(self, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
        """``compute.compute_bytes``, or its bound if the family isn't known."""


class KeptWorkings(Workings, Protocol):
    """The same, and it resolves settings too: it may know what they share with others."""

    def resolve(self, settings: LlamaCppSettings) -> Resolved:
        """``resolve.resolve``; the other parts are then asked for what it gave."""


class Direct:
    """Each part straight from its module, once.

    Args:
        spec, family, isa: the model, and the flags of the host's CPU.
        borrowed: weights of another model that its graph uses too.
    """

    def __init__(
        self,
        spec: ModelSpec,
        family: Family | None,
        isa: frozenset[str],
        borrowed: tuple[Placement, ...] = (),
    ) -> None:
        self._spec, self.family, self._isa, self._borrowed = spec, family, isa, borrowed
        self._caches: tuple[CacheLayer, ...] | None = None
        self._placements: tuple[Placement, ...] | None = None
        self._buffers: tuple[WeightBuffer, ...] | None = None

    def caches(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheLayer, ...]:
        """The caches of all blocks."""
        if self._caches is None:
            self._caches = cache_layers(self._spec, self.family, settings, resolved)
        return self._caches

    def cache_groups(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheGroup, ...]:
        """The caches by device and kind."""
        return cache_groups(self.caches(settings, resolved))

    def states(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...] | None:
        """The states of all blocks that recur."""
        return state_layers(self._spec, self.family, settings, resolved) if self.family else None

    def buffers(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[WeightBuffer, ...]:
        """Where tensors lie, by buffer."""
        if self._buffers is None:
            placements = self._placed(settings, resolved)
            self._buffers = weight_buffers(placements, settings, resolved, self._isa)
        return self._buffers

    def compute_bytes(self, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
        """Compute buffers by device."""
        caches = self.caches(settings, resolved)
        placements = (*self._placed(settings, resolved), *self._borrowed)
        if self.family is None or (resolved.draft_head and self._spec.architecture not in HEADS):
            return compute_bound_bytes(self._spec, settings, resolved, caches, placements)
        return compute_bytes(
            self._spec,
            self.family,
            settings,
            resolved,
            caches=caches,
            states=self.states(settings, resolved) or (),
            placements=placements,
        )

    def _placed(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[Placement, ...]:
        if self._placements is None:
            self._placements = place_tensors(self._spec, settings, resolved, self._isa)
        return self._placements

"""The parts of a bill before they are lines, for whoever keeps them from one bill of a model to the next."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Protocol

from terazi.memory.bill import BillLine
from terazi.memory.llama_cpp.kv import CacheGroup, CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer
from terazi.memory.llama_cpp.weights import Placement


class Kept(Protocol):
    """One model on the same devices. Settings are resolved first; the other parts are asked for what that gave."""

    def resolve(self, settings: LlamaCppSettings) -> Resolved:
        """``resolve.resolve``."""

    def caches(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheLayer, ...]:
        """``kv.cache_layers``."""

    def cache_groups(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheGroup, ...]:
        """``kv.cache_groups`` of them."""

    def states(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...] | None:
        """``recurrent.state_layers``; None if the family isn't known."""

    def placements(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[Placement, ...]:
        """``weights.place_tensors``."""

    def buffers(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[WeightBuffer, ...]:
        """``weight_buffers.weight_buffers``."""

    def compute_bytes(self, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
        """``compute.compute_bytes`` without adapters, or its bound if the graph isn't known."""

    def once(self, key: Hashable, make: Callable[[], Iterable[BillLine]]) -> tuple[BillLine, ...]:
        """What *make* gives, which hangs on *key* and on what settles where tensors lie, and on nothing else."""

"""One model on the same devices, weighed over and over: what settings don't touch is worked out once.

The solver asks for thousands of bills of one model. ``Scale.weigh`` gives what ``bill.weigh`` gives, but keeps the
parts by what they depend on: where tensors lie (``-ngl``, ``-ts``, ``-ot`` and the like), how large caches are
(context, slots, types), which graphs are reserved and their peaks (``replay``).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields
from operator import attrgetter

from terazi.hardware.machine import Device
from terazi.memory.bill import Bill, BillLine
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import kept_lines, weigh
from terazi.memory.llama_cpp.blocks import unrolled
from terazi.memory.llama_cpp.bound import compute_bound_bytes
from terazi.memory.llama_cpp.cache_rules import window_length
from terazi.memory.llama_cpp.context import Context
from terazi.memory.llama_cpp.families import attends_everywhere, family_of
from terazi.memory.llama_cpp.kv import (
    CacheGroup,
    CacheLayer,
    CacheShapes,
    cache_groups,
    cache_layers,
    cache_shapes,
    resized_caches,
    resized_groups,
    window_cells,
)
from terazi.memory.llama_cpp.limits import MISFITS, check_keys, misfit
from terazi.memory.llama_cpp.recurrent import StateLayer, state_layers
from terazi.memory.llama_cpp.replay import Replays
from terazi.memory.llama_cpp.resolve import Resolved, Shares, check_cache_types, resolve_figures, share_out
from terazi.memory.llama_cpp.scene import Layout, Weighed
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer, weight_buffers
from terazi.memory.llama_cpp.weights import Placement, place_tensors
from terazi.models.spec import ModelSpec

#: Settings that move no tensor of the model. Every other one, also one that is new, makes a layout of its own.
_MOVES_NOTHING = frozenset(
    {
        "n_ctx",
        "n_parallel",
        "kv_unified",
        "n_batch",
        "n_ubatch",
        "flash_attn",
        "type_k",
        "type_v",
        "swa_full",
        "cache_ram_mib",
        "ctx_checkpoints",
        "embedding",
        "fit",
    }
)
_layout_key = attrgetter(*(f.name for f in fields(LlamaCppSettings) if f.name not in _MOVES_NOTHING))


class Scale:
    """A model ready to be weighed many times. It is no use to two threads at once.

    Args:
        spec, devices, isa: as for ``bill.weigh``.
        patience: so many bills are worked out as if there were no others: fewer aren't worth a recording.
    """

    def __init__(
        self, spec: ModelSpec, devices: tuple[Device, ...], isa: frozenset[str], *, patience: int = 2
    ) -> None:
        self.spec, self.devices, self.isa = unrolled(spec), devices, isa
        spec = self.spec
        self.family = family_of(spec)
        self._replays = Replays(spec, self.family, patience) if self.family else None
        self._window = window_length(spec, self.family) if self.family else 0
        self._types: set[tuple[str, str, str]] = set()
        self._shares: dict[Hashable, tuple[int, Shares]] = {}
        self._weights: dict[int, tuple[tuple[Placement, ...], tuple[WeightBuffer, ...]]] = {}
        self._layouts: dict[int, Layout] = {}
        self._samples: dict[Hashable, tuple[tuple[CacheLayer, ...], tuple[CacheShapes, ...]] | None] = {}
        self._caches: dict[Hashable, tuple[CacheLayer, ...]] = {}
        self._groups: dict[Hashable, tuple[CacheGroup, ...]] = {}
        self._lines: dict[Hashable, tuple[BillLine, ...]] = {}
        self._states: dict[Hashable, tuple[StateLayer, ...] | None] = {}
        #: the number of the layout that is being weighed
        self._at = 0

    def weigh(self, settings: LlamaCppSettings, companions: tuple[Companion, ...] = ()) -> Bill:
        """As ``bill.weigh``.

        Raises:
            UsageError: for settings that llama.cpp itself refuses.
        """
        return weigh(self.spec, settings, self.devices, self.isa, companions, kept=self)

    def lines(self, settings: LlamaCppSettings) -> tuple[BillLine, ...]:
        """The ``lines`` of a bill without companions or speculation, and nothing else of it.

        Raises:
            UsageError: for settings that llama.cpp itself refuses.
            ModelFileError: for a file whose tensors aren't what its architecture needs.
        """
        try:
            resolved = self.resolve(settings)
            if resolved.cut:
                return self.weigh(settings).lines
            return kept_lines(Context(self.spec, settings, resolved, self.family), self)
        except MISFITS as error:
            raise misfit(self.spec) from error

    def resolve(self, settings: LlamaCppSettings) -> Resolved:
        """Defaults and clamps, for the layout of *settings*; the other parts are asked for what it gave."""
        types = (settings.type_k, settings.type_v, settings.flash_attn)
        if types not in self._types:
            check_cache_types(self.spec, settings)
            self._types.add(types)
        return resolve_figures(self.spec, settings, lambda: self._shared_out(settings))

    def caches(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheLayer, ...]:
        """The caches of all blocks."""
        key, short = self._cache_key(settings, resolved)
        found = self._caches.get(key)
        if found is None:
            sample = self._sampled(settings, resolved, short)
            found = self._caches[key] = (
                resized_caches(sample[0], settings, resolved, short)
                if sample
                else cache_layers(self.spec, self.family, settings, resolved)
            )
        return found

    def cache_groups(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[CacheGroup, ...]:
        """The caches by device and kind."""
        key, short = self._cache_key(settings, resolved)
        found = self._groups.get(key)
        if found is None:
            sample = self._sampled(settings, resolved, short)
            found = self._groups[key] = (
                resized_groups(sample[1], settings, resolved, short)
                if sample
                else cache_groups(self.caches(settings, resolved))
            )
        return found

    def _cache_key(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[Hashable, int]:
        """What caches depend on, and the cells of window caches."""
        short = window_cells(self._window, settings, resolved) if self._window else 0
        types = settings.type_k, settings.type_v, resolved.flash_attn
        return (self._at, resolved.n_ctx_seq, short, resolved.n_stream, *types), short

    def _sampled(
        self, settings: LlamaCppSettings, resolved: Resolved, short: int
    ) -> tuple[tuple[CacheLayer, ...], tuple[CacheShapes, ...]] | None:
        """Caches whose lengths and types alone change; None for families that count otherwise."""
        # which blocks there are, and how wide, hangs on flash attention alone
        place = self._at, resolved.flash_attn
        if place not in self._samples:
            sample = cache_layers(self.spec, self.family, settings, resolved)
            if attends_everywhere(self.spec):
                check_keys(self.spec, sample)
            plain = resized_caches(sample, settings, resolved, short) == sample
            self._samples[place] = (sample, cache_shapes(sample)) if plain else None
        return self._samples[place]

    def states(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[StateLayer, ...] | None:
        """The states of all blocks that recur."""
        if self.family is None:
            return None
        key = (self._at, resolved.n_seq_max)
        if key not in self._states:
            self._states[key] = state_layers(self.spec, self.family, settings, resolved)
        return self._states[key]

    def placements(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[Placement, ...]:
        """Where tensors lie."""
        return self._placed(settings, resolved)[0]

    def buffers(self, settings: LlamaCppSettings, resolved: Resolved) -> tuple[WeightBuffer, ...]:
        """Where tensors lie, by buffer."""
        return self._placed(settings, resolved)[1]

    def compute_bytes(self, settings: LlamaCppSettings, resolved: Resolved) -> Mapping[str, int]:
        """Compute buffers by device."""
        placements = self.placements(settings, resolved)
        if self._replays is None:
            caches = self.caches(settings, resolved)
            return compute_bound_bytes(self.spec, settings, resolved, caches, placements)
        layout = self._layouts.get(self._at)
        if layout is None:
            layout = self._layouts[self._at] = self._replays.layout(settings, resolved, placements)
        return self._replays.compute_bytes(
            Weighed(
                layout,
                settings,
                resolved,
                self.cache_groups(settings, resolved),
                self.states(settings, resolved) or (),
                lambda: self.caches(settings, resolved),
            )
        )

    def once(self, key: Hashable, make: Callable[[], Iterable[BillLine]]) -> tuple[BillLine, ...]:
        """Lines that hang on the layout and *key* alone."""
        place = self._at, key
        found = self._lines.get(place)
        if found is None:
            found = self._lines[place] = tuple(make())
        return found

    def _shared_out(self, settings: LlamaCppSettings) -> Shares:
        key = _layout_key(settings)
        known = self._shares.get(key)
        if known is None:
            known = self._shares[key] = len(self._shares), share_out(self.spec, settings, self.devices)
        self._at, shares = known
        return shares

    def _placed(
        self, settings: LlamaCppSettings, resolved: Resolved
    ) -> tuple[tuple[Placement, ...], tuple[WeightBuffer, ...]]:
        known = self._weights.get(self._at)
        if known is None:
            placements = place_tensors(self.spec, settings, resolved, self.isa)
            buffers = weight_buffers(placements, settings, resolved, self.isa)
            known = self._weights[self._at] = placements, buffers
        return known

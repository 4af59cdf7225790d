"""Finds layouts that fit for one complete set of the other settings (context, slots, cache type, ...).

In: settings without a layout. Out: ``Found``: what fits, best first, and what came nearest. The candidates, in this
order, the first group with something that fits being the answer:

1. every layer on one card; 2. every layer on several; 3. all but routed experts, or all but the first layers, on
cards, the rest in RAM; 4. the CPU alone.

``sums`` tells quickly what should fit, and the real bill judges it; a guess that the bill rejects is corrected by
what was missing and tried again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from terazi.errors import UsageError
from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import Capacity
from terazi.placement.judge import Judged, judge
from terazi.placement.layout import Role, Room, alone, spread
from terazi.placement.scales import Scales
from terazi.placement.sums import Space, place, survey

#: Pins that leave the layout to the engine's own rule; only ``-ngl`` is then searched.
_OWN_LAYOUT = frozenset({"tensor_split", "split_mode", "override_tensor", "main_gpu"})
#: How many different single cards are offered to the score.
_SINGLES = 3
#: How often a layout is corrected after the real bill said no to it.
_CORRECTIONS = 3

Counts = tuple[int, ...]


class Found(NamedTuple):
    """What the search met: ``fits`` in order of preference, ``closest`` if that is empty."""

    fits: tuple[Judged, ...]
    closest: Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One model (and what is loaded beside it) on one machine under some pins."""

    spec: ModelSpec
    machine: Machine
    capacity: Capacity
    pins: Mapping[str, object]
    scales: Scales
    companions: tuple[Companion, ...] = ()

    @property
    def total(self) -> int:
        """Layers to place, the output being one."""
        return self.spec.block_count + 1

    def run(self, settings: LlamaCppSettings) -> Found:
        """Try the groups of candidates.

        Raises:
            UsageError: for settings that llama.cpp itself refuses.
        """
        seen: list[Judged] = []
        for group in self._groups(settings):
            judged = list(group)
            fits = tuple(j for j in judged if not j.shortfall)
            if fits:
                return Found(fits=fits, closest=fits[0])
            seen += judged
        if not seen:
            # nothing was worth a real bill: show the pinned layers where the engine itself would put them
            pinned = self.pins.get("n_gpu_layers")
            seen = [self._judge(self._on_host(settings) if pinned is None else settings)]
        return Found(fits=(), closest=min(seen, key=lambda j: j.missing_bytes))

    def likely_whole(self, settings: LlamaCppSettings) -> bool:
        """Whether everything should fit on the accelerators (or, without any, in RAM). Asks no real bill."""
        devices = self.devices(settings)
        if self._host_only(devices):
            return self._likely_on_host(settings)
        if self._own_layout():
            return not self._judge(settings).shortfall
        if self._pinned_layers() < self.total:
            return False
        space = self._survey(settings, devices, partial=False)
        return any(
            space.host_fits(c) for c in (*self._singles(space, devices, 1), *_several(space, self.total, (0,)))
        )

    def likely(self, settings: LlamaCppSettings) -> bool:
        """Whether anything should fit at all. Asks no real bill.

        Raises:
            UsageError: for settings that llama.cpp itself refuses.
        """
        devices = self.devices(settings)
        if self._own_layout() and devices:
            return True
        if self.likely_whole(settings) or self._likely_on_host(settings):
            return True
        if self._host_only(devices):
            return False
        space = self._survey(settings, devices, partial=True)
        if any(space.host_fits(c) for c in self._partials(space, self._starts())):
            return True
        return self._may_move_experts(settings) and self._fewest_expert_blocks(settings, devices) is not None

    def devices(self, settings: LlamaCppSettings) -> tuple[Device, ...]:
        """The accelerators that may be used.

        Raises:
            UsageError: for a pinned device that isn't there.
        """
        if settings.devices == ("none",):
            return ()
        if not settings.devices:
            return self.machine.devices
        by_id = {d.id: d for d in self.machine.devices}
        for name in settings.devices:
            if name not in by_id:
                raise UsageError(
                    f"The machine has no device {name}.", hint=f"It has: {', '.join(by_id) or 'no accelerator'}."
                )
        return tuple(by_id[name] for name in settings.devices)

    def _groups(self, settings: LlamaCppSettings) -> Iterator[Iterator[Judged]]:
        devices = self.devices(settings)
        if self._host_only(devices):
            yield self._host_layout(settings)
            return
        if self._own_layout():
            yield self._engine_layout(settings)
            return
        pinned = self._pinned_layers()
        if pinned >= self.total:
            space = self._survey(settings, devices, partial=False)
            yield self._judged(settings, devices, self._singles(space, devices, _SINGLES))
            yield self._corrected(settings, devices, space, lambda s: _several(s, self.total, (0,)))
        if self._may_move_experts(settings):
            blocks = self._fewest_expert_blocks(settings, devices)
            if blocks is not None:
                yield self._experts_in_ram(settings, devices, blocks)
        space = self._survey(settings, devices, partial=True)
        yield self._corrected(settings, devices, space, lambda s: self._partials(s, self._starts()))
        if "n_gpu_layers" not in self.pins:
            yield self._host_layout(settings)

    def _host_only(self, devices: Sequence[Device]) -> bool:
        return not devices or self.pins.get("n_gpu_layers") == 0

    def _own_layout(self) -> bool:
        return any(self.pins.get(name) not in (None, (), "layer") for name in _OWN_LAYOUT)

    def _pinned_layers(self) -> int:
        """Layers for the accelerators as pinned; all if nothing (or "all") is."""
        pinned = self.pins.get("n_gpu_layers")
        return min(pinned, self.total) if isinstance(pinned, int) and pinned >= 0 else self.total

    def _starts(self) -> Sequence[int]:
        """First layers on accelerators that a partial layout may have."""
        return range(1, self.total) if "n_gpu_layers" not in self.pins else (self.total - self._pinned_layers(),)

    def _on_host(self, settings: LlamaCppSettings) -> LlamaCppSettings:
        none = ("none",) if self.machine.devices else ()
        return replace(settings, n_gpu_layers=0, tensor_split=(), devices=none)

    def _likely_on_host(self, settings: LlamaCppSettings) -> bool:
        if self.pins.get("n_gpu_layers"):
            return False
        return self._survey(self._on_host(settings), (), partial=False).host_fits(())

    def _judge(self, settings: LlamaCppSettings) -> Judged:
        scale = self.scales.again(self.spec, self.machine.devices)
        return judge(self.spec, self.machine, settings, self.capacity, self.companions, scale=scale)

    def _survey(self, settings: LlamaCppSettings, devices: tuple[Device, ...], *, partial: bool) -> Space:
        return survey(
            self.spec, self.machine, devices, settings, self.capacity, partial=partial, scales=self.scales
        )

    def _singles(self, space: Space, devices: Sequence[Device], limit: int) -> list[Counts]:
        """Cards that hold everything alone, fastest first, equal ones once."""
        different: dict[tuple[str, int, float], int] = {}
        for i in alone(space.rooms, 0, self.total):
            key = (devices[i].name, devices[i].memory_total_bytes, space.rooms[i].seconds_per_byte)
            different.setdefault(key, i)
        return [_only(i, self.total, len(devices)) for i in list(different.values())[:limit]]

    def _partials(self, space: Space, starts: Sequence[int]) -> list[Counts]:
        """Layouts that begin with the first feasible layer: on one card, and on several if that holds more."""
        best = self.total
        found: list[Counts] = []
        for i, room in enumerate(space.rooms):
            start = next((s for s in starts if s < best and room.reach(s, Role.ALONE) >= self.total), None)
            if start is not None:
                best, found = start, [_only(i, self.total - start, len(space.rooms))]
        return [*_several(space, self.total, [s for s in starts if s < best]), *found]

    def _host_layout(self, settings: LlamaCppSettings) -> Iterator[Judged]:
        yield self._judge(self._on_host(settings))

    def _judged(
        self, settings: LlamaCppSettings, devices: tuple[Device, ...], layouts: Sequence[Counts]
    ) -> Iterator[Judged]:
        for counts in layouts:
            yield self._judge(place(settings, devices, counts))

    def _corrected(
        self,
        settings: LlamaCppSettings,
        devices: tuple[Device, ...],
        space: Space,
        guess: Callable[[Space], Sequence[Counts]],
    ) -> Iterator[Judged]:
        """Guess, judge, and guess again with less room where the bill found too little."""
        for _ in range(_CORRECTIONS):
            over: dict[str, int] = {}
            for judged in self._judged(settings, devices, guess(space)):
                yield judged
                for s in judged.shortfall:
                    over[s.device] = max(over.get(s.device, 0), s.missing_bytes)
            over.pop(HOST, None)
            if not over:
                return
            smaller = [_shrunk(r, over.get(d.id, 0)) for r, d in zip(space.rooms, devices, strict=True)]
            space = space._replace(rooms=tuple(smaller))

    def _may_move_experts(self, settings: LlamaCppSettings) -> bool:
        given = settings.cpu_moe or settings.n_cpu_moe or "n_gpu_layers" in self.pins
        return bool(self.spec.expert_count) and not given

    def _fewest_expert_blocks(self, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> int | None:
        """The fewest blocks whose experts have to stay in RAM so that all else fits on the cards."""

        def fits(blocks: int) -> bool:
            space = self._survey(replace(settings, n_cpu_moe=blocks), devices, partial=False)
            layouts = (*self._singles(space, devices, 1), *_several(space, self.total, (0,)))
            return any(space.host_fits(c) for c in layouts)

        low, high, best = 1, self.spec.block_count, None
        while low <= high:
            middle = (low + high) // 2
            if fits(middle):
                best, high = middle, middle - 1
            else:
                low = middle + 1
        return best

    def _experts_in_ram(
        self, settings: LlamaCppSettings, devices: tuple[Device, ...], blocks: int
    ) -> Iterator[Judged]:
        for more in range(_CORRECTIONS):
            tried = replace(settings, n_cpu_moe=min(blocks + more, self.spec.block_count))
            space = self._survey(tried, devices, partial=False)
            layouts = self._singles(space, devices, 1) or _several(space, self.total, (0,))
            judged = list(self._judged(tried, devices, layouts))
            yield from judged
            if any(not j.shortfall for j in judged):
                return

    def _engine_layout(self, settings: LlamaCppSettings) -> Iterator[Judged]:
        """The largest ``-ngl`` that fits where the engine's own rule, or a pinned ``-ts``, shares layers out."""
        if "n_gpu_layers" in self.pins:
            yield self._judge(settings)
            return
        whole = self._judge(replace(settings, n_gpu_layers=self.total))
        yield whole
        low, high = 0, self.total - 1
        while whole.shortfall and low <= high:
            layers = (low + high) // 2
            judged = self._judge(replace(settings, n_gpu_layers=layers))
            yield judged
            if any(s.device != HOST for s in judged.shortfall):
                high = layers - 1
            else:
                low = layers + 1


def largest(
    values: Sequence[int], likely: Callable[[int], bool], found: Callable[[int], Found | None]
) -> tuple[int, Found] | None:
    """The largest of the ascending *values* for which *found* finds something, *likely* being a quick hint.

    Fitting is taken to be monotone: what fits for a value fits for a smaller one.
    """
    low, high = 0, len(values) - 1
    ask: Callable[[int], Found | bool | None] = likely
    best: tuple[int, Found] | None = None
    while True:
        place_ = -1
        while low <= high:
            middle = (low + high) // 2
            answer = ask(values[middle])
            if answer:
                place_, low = middle, middle + 1
                if isinstance(answer, Found):
                    best = (values[middle], answer)
            else:
                high = middle - 1
        if ask is found or place_ < 0:
            return best
        sure = found(values[place_])
        if sure is not None:
            return values[place_], sure
        # the hint was too hopeful: look below with real bills
        low, high, ask = 0, place_ - 1, found


def _several(space: Space, total: int, starts: Sequence[int]) -> list[Counts]:
    layout = spread(space.rooms, total, starts) if len(space.rooms) > 1 and starts else None
    return [] if layout is None else [layout[0]]


def _only(index: int, layers: int, devices: int) -> Counts:
    return tuple(layers if i == index else 0 for i in range(devices))


def _shrunk(room: Room, by: int) -> Room:
    if not by:
        return room
    a, b, c, d = (r - by for r in room.room)
    return room._replace(room=(a, b, c, d))

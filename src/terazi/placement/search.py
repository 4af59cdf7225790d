"""Finds layouts that fit for one complete set of the other settings (context, slots, cache type, ...).

In: settings without a layout. Out: ``Found``: what fits, best first, and what came nearest. The candidates, in this
order, the first group that fits being the answer:

1. every layer on one card; 2. every layer on several; 3. all but routed experts, or all but the first layers, on
cards, the rest in RAM; 4. the CPU alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from terazi.errors import UsageError
from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import Capacity
from terazi.placement.judge import Judged, judge
from terazi.placement.layout import Role, Room, alone, spread
from terazi.placement.sums import place, rooms

#: Pins that leave the layout to the engine's own rule; only ``-ngl`` is then searched.
_OWN_LAYOUT = frozenset({"tensor_split", "split_mode", "override_tensor", "main_gpu"})
#: How many single cards are offered to the score.
_SINGLES = 3
#: How often a layout is corrected after the real bill said no to it.
_CORRECTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search met: ``fits`` in order of preference, ``closest`` if that is empty."""

    fits: tuple[Judged, ...]
    closest: Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One model on one machine under some pins."""

    spec: ModelSpec
    machine: Machine
    capacity: Capacity
    pins: Mapping[str, object]

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
        return Found(fits=(), closest=min(seen, key=lambda j: j.missing_bytes))

    def whole(self, settings: LlamaCppSettings) -> bool:
        """Whether everything fits on the accelerators (or, without any, in RAM)."""
        return any(not judged.shortfall for group in self._whole_groups(settings) for judged in group)

    def _groups(self, settings: LlamaCppSettings) -> Iterator[Iterator[Judged]]:
        devices = self.devices(settings)
        if not devices or self._host_only():
            yield self._with_or_without_map(self._on_host(settings))
            return
        if self._own_layout():
            yield self._engine_layout(settings)
            return
        yield from self._whole_groups(settings)
        pinned = self.pins.get("n_gpu_layers")
        yield self._partial(settings, devices, pinned if isinstance(pinned, int) else None)
        if pinned is None:
            yield self._with_or_without_map(self._on_host(settings))

    def _whole_groups(self, settings: LlamaCppSettings) -> Iterator[Iterator[Judged]]:
        devices = self.devices(settings)
        if not devices or self._host_only():
            yield self._with_or_without_map(self._on_host(settings))
            return
        if self._own_layout():
            yield iter((self._judge(settings),))
            return
        pinned = self.pins.get("n_gpu_layers")
        if isinstance(pinned, int) and 0 <= pinned < self.total:
            return
        space = rooms(self.spec, self.machine, devices, settings, self.capacity, partial=False)
        yield self._single(settings, devices, space)
        yield self._several(settings, devices, space, (0,))

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

    def _host_only(self) -> bool:
        return self.pins.get("n_gpu_layers") == 0

    def _own_layout(self) -> bool:
        return any(self.pins.get(name) not in (None, (), "layer") for name in _OWN_LAYOUT)

    def _on_host(self, settings: LlamaCppSettings) -> LlamaCppSettings:
        none = ("none",) if self.machine.devices else ()
        return replace(settings, n_gpu_layers=0, tensor_split=(), devices=none)

    def _judge(self, settings: LlamaCppSettings) -> Judged:
        return judge(self.spec, self.machine, settings, self.capacity)

    def _single(
        self, settings: LlamaCppSettings, devices: tuple[Device, ...], space: Sequence[Room]
    ) -> Iterator[Judged]:
        chosen = alone(space, 0, self.total)[:_SINGLES]
        if not chosen:
            roomiest = max(range(len(devices)), key=lambda i: space[i].room[Role.ALONE])
            chosen = [roomiest]  # for the refusal: what came nearest
        for index in chosen:
            counts = tuple(self.total if i == index else 0 for i in range(len(devices)))
            yield self._judge(place(settings, devices, counts))

    def _several(
        self, settings: LlamaCppSettings, devices: tuple[Device, ...], space: Sequence[Room], starts: Sequence[int]
    ) -> Iterator[Judged]:
        rooms_now = list(space)
        for _ in range(_CORRECTIONS):
            layout = spread(rooms_now, self.total, starts) if len(devices) > 1 else None
            if layout is None:
                return
            judged = self._judge(place(settings, devices, layout[0]))
            yield judged
            over = {s.device: s.missing_bytes for s in judged.shortfall if s.device != HOST}
            if not over:
                return
            rooms_now = [_shrunk(r, over.get(d.id, 0)) for r, d in zip(rooms_now, devices, strict=True)]

    def _partial(
        self, settings: LlamaCppSettings, devices: tuple[Device, ...], pinned: int | None
    ) -> Iterator[Judged]:
        if pinned is None and self.spec.expert_count and not settings.cpu_moe and not settings.n_cpu_moe:
            yield from self._experts_in_ram(settings, devices)
        starts = range(1, self.total) if pinned is None else (max(0, self.total - pinned),)
        space = rooms(self.spec, self.machine, devices, settings, self.capacity, partial=starts[0] > 0)
        best = self.total
        for index in range(len(devices)):
            start = next((s for s in starts if space[index].reach(s, Role.ALONE) >= self.total), None)
            if start is not None and start < best:
                best = start
                counts = tuple(self.total - start if i == index else 0 for i in range(len(devices)))
                yield from self._with_or_without_map(place(settings, devices, counts))
        lower = [s for s in starts if s < best]
        if lower:
            for judged in self._several(settings, devices, space, lower):
                yield judged
                if any(s.device == HOST for s in judged.shortfall):
                    yield from self._with_or_without_map(judged.settings)

    def _with_or_without_map(self, settings: LlamaCppSettings) -> Iterator[Judged]:
        """As it is; and without mmap if parts of the file that nobody reads from the map are in the way."""
        judged = self._judge(settings)
        yield judged
        gaps = sum(line.bytes for line in judged.bill.lines if line.formula == "weights.mapped-gaps")
        if judged.shortfall and gaps and "mmap" not in self.pins:
            yield self._judge(replace(settings, mmap=False))

    def _experts_in_ram(self, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> Iterator[Judged]:
        """All layers on cards but for the routed experts of the first blocks: as few blocks as will do."""
        low, high = 1, self.spec.block_count
        best: Judged | None = None
        while low <= high:
            blocks = (low + high) // 2
            tried = replace(settings, n_cpu_moe=blocks)
            space = rooms(self.spec, self.machine, devices, tried, self.capacity, partial=False)
            judged = [*self._single(tried, devices, space), *self._several(tried, devices, space, (0,))]
            on_cards = [j for j in judged if not any(s.device != HOST for s in j.shortfall)]
            if on_cards:
                best, high = on_cards[0], blocks - 1
            else:
                low = blocks + 1
        if best is not None:
            yield from self._with_or_without_map(best.settings)

    def _engine_layout(self, settings: LlamaCppSettings) -> Iterator[Judged]:
        """The largest ``-ngl`` that fits where the engine's own rule, or a pinned ``-ts``, shares layers out."""
        pinned = self.pins.get("n_gpu_layers")
        if isinstance(pinned, int):
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


def _shrunk(room: Room, by: int) -> Room:
    if not by:
        return room
    a, b, c, d = (r - by for r in room.room)
    return replace(room, room=(a, b, c, d))

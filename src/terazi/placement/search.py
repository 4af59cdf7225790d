"""Finds layouts that fit for one complete set of the other settings (context, slots, cache type, ...).

In: settings without a layout. Out: ``Found``: what fits, best first, what came nearest, and what wasn't even near.
The candidates: every layer on one card, or on several; all but routed experts, or all but the first layers, on
cards, the rest in RAM; the CPU alone. What keeps all layers on cards makes the later ones idle, unless the host is
faster than a card that it would need.

``layout`` finds the fastest of each kind over what ``sums`` says of bytes and ``pace`` of speeds; the real bill
judges them, and a guess that the bill rejects is corrected by what was missing and tried again. A bill of a large
model takes a while, so beyond the likeliest candidate only so many are judged as *JUDGED_BLOCKS* allows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from terazi.errors import UsageError
from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.placement.appraiser import Appraiser
from terazi.placement.capacity import Capacity
from terazi.placement.judge import Judged, judge
from terazi.placement.layout import Layout, Role, alone, holds, spread
from terazi.placement.pace import Pace, active_bytes, by_bandwidth
from terazi.placement.plan import Rejected
from terazi.placement.scales import Scales
from terazi.placement.sums import Counts, Space, place, role_of, survey
from terazi.units import format_bytes

#: Pins that leave the layout to the engine's own rule; only ``-ngl`` is then searched.
_OWN_LAYOUT = frozenset({"tensor_split", "split_mode", "override_tensor", "main_gpu"})
#: How many different single cards are offered to the score.
_SINGLES = 3
#: How often a layout is corrected after the real bill said no to it.
_CORRECTIONS = 3
#: Bills that are weighed beyond the necessary ones, times the model's blocks: a bill of 126 blocks over 8 cards
#: takes 50 ms, and an answer shall take 200.
JUDGED_BLOCKS = 250
#: Cards over which sharing blocks out is tried besides leaving experts out.
_FEW_CARDS = 4
#: Up to so many times the slowest card in use for a layer, the host may be worth a look.
_COMPARABLE = 2.0


class Found(NamedTuple):
    """What the search met: ``fits`` in order of preference, ``closest`` if that is empty.

    ``lacking`` are layouts that no bill was needed for to say no.
    """

    fits: tuple[Judged, ...]
    closest: Judged
    lacking: tuple[Rejected, ...] = ()


@dataclass(slots=True)
class _Ledger:
    """What one search has spent and learnt so far."""

    blocks: float = 0.0
    active: list[float] = field(default_factory=list)
    paces: dict[tuple[object, ...], Pace] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One model (and what is loaded beside it) on one machine under some pins."""

    spec: ModelSpec
    machine: Machine
    capacity: Capacity
    pins: Mapping[str, object]
    scales: Scales
    companions: tuple[Companion, ...] = ()
    appraiser: Appraiser | None = None
    ledger: _Ledger = field(default_factory=_Ledger, repr=False, compare=False)

    @property
    def total(self) -> int:
        """Layers to place, the output being one."""
        return self.spec.block_count + 1

    def may_judge(self) -> bool:
        """Whether there is time for one more bill than is necessary."""
        return self.ledger.blocks + self.spec.block_count <= JUDGED_BLOCKS

    def run(self, settings: LlamaCppSettings) -> Found:
        """Try the kinds of layouts.

        Raises:
            UsageError: for settings that llama.cpp itself refuses.
        """
        devices = self.devices(settings)
        if self._host_only(devices):
            return self._found(list(self._host_layout(settings)))
        if self._own_layout():
            return self._found(list(self._engine_layout(settings)))
        seen: list[Judged] = []
        lacking: tuple[Rejected, ...] = ()
        if self._pinned_layers() >= self.total:
            space = self._survey(settings, devices, partial=False)
            seen += self._corrected(settings, devices, space, self._wholes)
            lacking = tuple(self._lacking(space, devices))
        fits = [j for j in seen if not j.shortfall]
        if fits and not self._host_may_help(settings, fits[0]):
            return self._found(seen, lacking)
        if not fits and self._may_move_experts(settings):
            blocks = self._fewest_expert_blocks(settings, devices)
            if blocks is not None:
                seen += self._experts_in_ram(settings, devices, blocks)
            else:  # not even the rest of all blocks fits
                bare = replace(settings, n_cpu_moe=self.spec.block_count)
                space = self._survey(bare, devices, partial=True)
                seen += self._corrected(bare, devices, space, lambda s: self._partials(s, self._starts()))
        space = self._survey(settings, devices, partial=True)
        starts = self._starts()
        seen += self._corrected(settings, devices, space, lambda s: self._partials(s, starts))
        on_cards = any(not j.shortfall for j in seen)
        if "n_gpu_layers" not in self.pins and (not on_cards or self._host_alone_is_faster(space)):
            seen += self._host_layout(settings)
        if not seen:
            # nothing was worth a real bill: show the pinned layers where the engine itself would put them
            pinned = self.pins.get("n_gpu_layers")
            seen = [self.weigh(self._on_host(settings) if pinned is None else settings)]
        return self._found(seen, lacking)

    @staticmethod
    def _found(seen: Sequence[Judged], lacking: tuple[Rejected, ...] = ()) -> Found:
        fits = tuple(j for j in seen if not j.shortfall)
        return Found(fits, fits[0] if fits else min(seen, key=lambda j: j.missing_bytes), lacking)

    def likely_whole(self, settings: LlamaCppSettings) -> bool:
        """Whether everything should fit on the accelerators (or, without any, in RAM). Asks no real bill."""
        devices = self.devices(settings)
        if self._host_only(devices):
            return self._likely_on_host(settings)
        if self._own_layout():
            return not self.weigh(settings).shortfall
        if self._pinned_layers() < self.total:
            return False
        return self._feasible(self._survey(settings, devices, partial=False))

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
        if self._partials(space, self._starts()):
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

    def weigh(self, settings: LlamaCppSettings) -> Judged:
        """One complete configuration against the real budget."""
        self.ledger.blocks += self.spec.block_count
        scale = self.scales.again(self.spec, self.machine.devices)
        return judge(self.spec, self.machine, settings, self.capacity, self.companions, scale=scale)

    def guessed(self) -> None:
        """A layout was scored without a bill, which takes a sixteenth of one's time."""
        self.ledger.blocks += self.spec.block_count / 16

    def space(self, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> Space:
        """What layouts that may leave layers to the host are looked for in."""
        return self._survey(settings, devices, partial=True)

    def seconds(self, settings: LlamaCppSettings, devices: tuple[Device, ...], counts: Counts) -> float:
        """What a layout takes as the sum of its layers' times."""
        active = self.ledger.active
        if not active:
            active.extend(active_bytes(self.spec))
        pace = self.pace(settings)
        mean = sum(active[:-1]) / max(1, self.spec.block_count) or 1.0
        first = next((d.id for d, n in zip(devices, counts, strict=True) if n), HOST)
        start = at = self.total - sum(counts)
        kept = sum(active[: min(start, self.spec.block_count)]) / mean
        total = kept * pace.beside_s[first] + (pace.begin_s[first] if start else 0.0)
        for device, count in zip(devices, counts, strict=True):
            if count:
                blocks = sum(active[at : min(at + count, self.spec.block_count)]) / mean
                total += blocks * pace.block_s[device.id] + (pace.entry_s[device.id] if at > start else 0.0)
                at += count
        last = next((d.id for d, n in reversed([*zip(devices, counts, strict=True)]) if n), HOST)
        return total + pace.output_s[last]

    def _survey(self, settings: LlamaCppSettings, devices: tuple[Device, ...], *, partial: bool) -> Space:
        return survey(
            self.spec,
            self.machine,
            devices,
            settings,
            self.capacity,
            pace=self.pace(settings),
            partial=partial,
            scales=self.scales,
        )

    def pace(self, settings: LlamaCppSettings) -> Pace:
        """Seconds a layer on each device under *settings*."""
        # what changes how fast a layer is; the context only changes how much a stream may read
        key = (settings.n_ubatch, settings.type_k, settings.type_v, settings.n_parallel, settings.flash_attn)
        known = self.ledger.paces.get(key)
        if known is None:
            said = self.appraiser.pace(settings) if self.appraiser is not None and self.machine.devices else None
            known = self.ledger.paces[key] = said or by_bandwidth(self.spec, self.machine)
        return known

    def _feasible(self, space: Space) -> bool:
        """Whether every layer should fit on the cards."""
        if any(space.shared):
            return bool(self._wholes(space))
        return space.host_fits((self.total, *(0,) * (len(space.rooms) - 1))) and holds(space.rooms, self.total, 0)

    def _wholes(self, space: Space) -> list[Layout]:
        """Every layer on one card, equal cards once, or on several; the fastest first."""
        different: dict[tuple[int, ...], Layout] = {}
        for layout in alone(space.rooms, self.total, (0,)):
            index = layout.counts.index(self.total)
            different.setdefault((layout.cost, space.budgets[index]), layout)
        found = list(different.values())[:_SINGLES]
        for evenly in self._manners():
            layout_ = spread(space.rooms, self.total, (0,), evenly=evenly)
            if layout_ is not None and layout_ not in found:
                found.append(layout_)
        return sorted((f for f in found if space.host_fits(f.counts)), key=lambda f: f.cost)

    def _partials(self, space: Space, starts: Sequence[int]) -> list[Layout]:
        """The fastest that leaves some of the first layers to the host: on one card, and on several."""
        starts = [s for s in starts if space.host_holds(s)]
        found = alone(space.rooms, self.total, starts)[:1]
        for evenly in self._manners():
            layout = spread(space.rooms, self.total, starts, evenly=evenly)
            if layout is not None and layout not in found:
                found.append(layout)
        return sorted((f for f in found if space.host_fits(f.counts)), key=lambda f: f.cost)

    def _manners(self) -> tuple[bool, ...]:
        """Whether to look for an even layout besides the fastest: not if there would be no time to weigh it."""
        return (False, True) if self.ledger.blocks + 2 * self.spec.block_count <= JUDGED_BLOCKS else (False,)

    def _lacking(self, space: Space, devices: Sequence[Device]) -> Iterator[Rejected]:
        """Cards that can't hold everything alone, the one that comes nearest."""
        short = [
            (room.prefix[self.total] - room.room[Role.ALONE], device.id)
            for room, device in zip(space.rooms, devices, strict=True)
        ]
        missing, name = min(short, default=(0, ""))
        if missing > 0:
            yield Rejected(option=f"{name} alone", why=f"it lacks {format_bytes(missing)} for all layers")

    def _host_may_help(self, settings: LlamaCppSettings, judged: Judged) -> bool:
        """Whether *judged* uses a card that is hardly faster than the host, or slower than another card is."""
        pace = self.pace(settings)
        used = {name for name in judged.resolved.layer_devices if name != HOST}
        slowest = max((pace.block_s.get(name, 0.0) for name in used), default=0.0)
        host = min(pace.block_s[HOST], *(pace.beside_s.get(name, pace.block_s[HOST]) for name in used))
        return "n_gpu_layers" not in self.pins and host < _COMPARABLE * slowest

    def fastest_alone(self, settings: LlamaCppSettings, judged: Judged) -> bool:
        """Whether *judged* has all layers on one card, and none is faster: nothing else can be better."""
        owners = set(judged.resolved.layer_devices)
        if len(owners) > 1 or HOST in owners:
            return False
        pace = self.pace(settings)
        mine = pace.block_s.get(judged.resolved.layer_devices[0], 0.0)
        others = [d.id for d in self.devices(settings)]
        return all(min(pace.block_s[name], pace.beside_s[name]) >= mine for name in (*others, HOST))

    def _host_alone_is_faster(self, space: Space) -> bool:
        layouts = self._partials(space, self._starts())
        return bool(layouts) and space.host_cost[self.total] < layouts[0].cost

    def _host_layout(self, settings: LlamaCppSettings) -> Iterator[Judged]:
        yield self.weigh(self._on_host(settings))

    def _corrected(
        self,
        settings: LlamaCppSettings,
        devices: tuple[Device, ...],
        space: Space,
        guess: Callable[[Space], Sequence[Layout]],
    ) -> list[Judged]:
        """Guess, judge, learn from the bill how much room there really is, and guess again. The fastest first."""
        seen: dict[Counts, Judged] = {}
        fastest: list[tuple[int, Counts]] = []
        for _ in range(_CORRECTIONS):
            learnt = space
            new = False
            for layout in guess(space):
                if layout.counts in seen or (fastest and not self.may_judge()):
                    continue
                judged = seen[layout.counts] = self.weigh(place(settings, devices, layout.counts))
                learnt, new = _learn(learnt, devices, layout.counts, judged), True
                if not judged.shortfall:
                    fastest.append((layout.cost, layout.counts))
            space = learnt
            if not new:
                break
        order = [counts for _, counts in sorted(fastest)]
        return [*(seen[c] for c in order), *(j for c, j in seen.items() if j.shortfall)]

    def _may_move_experts(self, settings: LlamaCppSettings) -> bool:
        given = settings.cpu_moe or settings.n_cpu_moe or "n_gpu_layers" in self.pins
        return bool(self.spec.expert_count) and not given

    def _fewest_expert_blocks(self, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> int | None:
        """The fewest blocks whose experts have to stay in RAM so that all else fits on the cards."""

        def fits(blocks: int) -> bool:
            return self._feasible(self._survey(replace(settings, n_cpu_moe=blocks), devices, partial=False))

        low, high, best = 1, self.spec.block_count, None
        while low <= high:
            middle = (low + high) // 2
            if fits(middle):
                best, high = middle, middle - 1
            else:
                low = middle + 1
        return best

    def _experts_in_ram(self, settings: LlamaCppSettings, devices: tuple[Device, ...], blocks: int) -> list[Judged]:
        seen: list[Judged] = []
        for more in range(_CORRECTIONS):
            tried = replace(settings, n_cpu_moe=min(blocks + more, self.spec.block_count))
            space = self._survey(tried, devices, partial=False)
            seen += self._corrected(tried, devices, space, lambda s: self._wholes(s)[:1])
            fits = [j for j in seen if not j.shortfall]
            if fits:
                # start-up is part of the product, and most models are no mixtures
                from terazi.placement.experts import leave_out
                from terazi.placement.overflow import fill_up

                better = leave_out(self, settings, devices, fits[0])
                # a bill over many cards takes long, and each wastes less than a matrix already
                if not better or len(devices) <= _FEW_CARDS:
                    better += fill_up(self, tried, devices, fits[0])
                    better += leave_out(self, settings, devices, fits[0], largest=True)
                return [*better, *seen]
        return seen

    def _engine_layout(self, settings: LlamaCppSettings) -> Iterator[Judged]:
        """The largest ``-ngl`` that fits where the engine's own rule, or a pinned ``-ts``, shares layers out."""
        if "n_gpu_layers" in self.pins:
            yield self.weigh(settings)
            return
        whole = self.weigh(replace(settings, n_gpu_layers=self.total))
        yield whole
        low, high = 0, self.total - 1
        while whole.shortfall and low <= high:
            layers = (low + high) // 2
            judged = self.weigh(replace(settings, n_gpu_layers=layers))
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


def _learn(space: Space, devices: Sequence[Device], counts: Counts, judged: Judged) -> Space:
    """*space* with the room that the bill of *judged* shows beside the layers of each device in use."""
    at = len(space.host_prefix) - 1 - sum(counts)
    used = [i for i, n in enumerate(counts) if n]
    rooms = list(space.rooms)
    for i in used:
        room, end = rooms[i], at + counts[i]
        role = role_of(i, used)
        layers = room.prefix[end] - room.prefix[at]
        left = space.budgets[i] - (judged.bill.needed_bytes(devices[i].id) - layers)
        if counts[i] == 1:
            rooms[i] = room._replace(room_for_one=_put(room.room_for_one, role, left))
        else:
            rooms[i] = room._replace(room=_put(room.room, role, left))
        at = end
    return space._replace(rooms=tuple(rooms))


def _put(room: tuple[int, int, int, int], role: Role, left: int) -> tuple[int, int, int, int]:
    a, b, c, d = (left if i == role else r for i, r in enumerate(room))
    return a, b, c, d

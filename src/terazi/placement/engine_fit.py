"""What llama.cpp's ``--fit`` makes of settings that leave the context or the layers open.

In: ``ModelSpec``, devices, settings. Out: the settings that the engine goes on with. Source:
``common/fit.cpp:common_params_fit_impl``, b11434. It looks at cards only, never at the RAM. The engine measures
with its own estimator; here the bill stands in for it, with what that is known to count too much.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from terazi.hardware.machine import Device
from terazi.memory.bill import BillLine, Term
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.layers import select_devices
from terazi.memory.llama_cpp.resolve import CELLS, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec

#: Tensors of a layer that overflow, by how much of it stays (``get_overflow_pattern``).
_MOE: Final = r"ffn_(up|down|gate_up|gate)_(ch|)exps"
_UP: Final = r"ffn_(gate|gate_up|down).*"
_GATE: Final = r"ffn_down.*"
_ATTENTION: Final = r"ffn_(gate|up|gate_up|down).*"
_CPU: Final = "CPU"
#: ``--fit-ctx`` of the tools.
LEAST_CONTEXT: Final = 4096


class _Load(NamedTuple):
    """What one card gets: layers, how many of them without experts, and what the first of these leaves out."""

    layers: int = 0
    partial: int = 0
    first: str = _MOE
    overflow: str = _CPU

    @property
    def full(self) -> int:
        return self.layers - self.partial

    def plus(self, layers: int, partial: int) -> "_Load":
        return self._replace(layers=self.layers + layers, partial=self.partial + partial)


_Loads: TypeAlias = tuple[_Load, ...]
Measure: TypeAlias = Callable[[LlamaCppSettings], Sequence[int]]


def fit_layers(
    spec: ModelSpec,
    devices: tuple[Device, ...],
    settings: LlamaCppSettings,
    isa: frozenset[str],
    *,
    target_bytes: tuple[int, ...],
    least_context: int = LEAST_CONTEXT,
) -> LlamaCppSettings:
    """*settings* as ``--fit`` leaves them: the context shortened if it isn't given, then the layers placed.

    Unchanged if all fits; layers stay where *settings* put them themselves. Without a card nothing is done.

    Args:
        spec: the model.
        devices: of the machine.
        settings: what the engine is started with.
        isa: of the host's processor.
        target_bytes: what must stay free (``--fit-target``), one figure a card; the last one counts for the rest.
        least_context: tokens of a sequence below which the context isn't shortened (``--fit-ctx``); a ``-c 0`` that
            was typed asks for the whole context, however large.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    chosen = select_devices(settings, devices)
    if not chosen or not settings.fit:
        return settings

    def lines(candidate: LlamaCppSettings) -> list[list[BillLine]]:
        bill = weigh(spec, candidate, devices, isa)
        # the engine asks each card what is free, after its driver took its part
        own = [line for line in bill.lines if line.formula != "driver-context"]
        return [[line for line in own if line.device == d.id] for d in chosen]

    def measure(candidate: LlamaCppSettings) -> list[int]:
        held = [sum(line.bytes for line in card) for card in lines(candidate)]
        resolved = resolve(spec, candidate, devices)
        # A reset inside ggml_backend_sched_reserve_size loses the devices of the norms: the estimator counts four
        # more f32 rows a token on every card after the first, where a real load has none.
        excess = 16 * spec.embedding_length * resolved.n_tokens if resolved.pipeline else 0
        return [held[0], *(used + excess for used in held[1:])]

    margins = [target_bytes[min(i, len(target_bytes) - 1)] for i in range(len(chosen))]
    targets = [d.memory_free_bytes - margin for d, margin in zip(chosen, margins, strict=True)]
    streams = resolve(spec, settings, devices).n_stream
    longest = spec.context_length * streams
    now = settings if settings.n_ctx else replace(settings, n_ctx=longest)
    used = measure(now)
    if all(taken <= target for taken, target in zip(used, targets, strict=True)):
        return settings
    if not settings.n_ctx and sum(used) > sum(targets):
        shortest = least_context * streams
        weights = sum(line.bytes for card in lines(now) for line in card if line.term is Term.WEIGHTS)
        room = sum(targets) - _waste(spec, weights, len(chosen))
        n_ctx = _shorten(now, longest, shortest, streams=streams, used=sum(used), room=room, measure=measure)
        now = replace(now, n_ctx=n_ctx)
        if len(chosen) == 1 and sum(measure(now)) <= room:
            return replace(now, fit=False)
    given = settings.n_gpu_layers is not None or settings.tensor_split or settings.override_tensor
    if given or settings.cpu_moe or settings.n_cpu_moe:
        return now if now.n_ctx == settings.n_ctx else replace(now, fit=False)
    return _Fitter(spec, chosen, now, measure, targets).fit()


def _waste(spec: ModelSpec, weights: int, cards: int) -> int:
    """What several cards are expected to leave unused: half a layer each, and one more."""
    if cards == 1:
        return 0
    return (cards + 1) * (weights // spec.block_count) // (6 if spec.expert_count else 2)


def _shorten(
    settings: LlamaCppSettings,
    longest: int,
    shortest: int,
    *,
    streams: int,
    used: int,
    room: int,
    measure: Measure,
) -> int:
    """Step 2: the context between *shortest* and *longest* that should take *room* bytes, by interpolation."""
    if longest <= shortest:
        return longest
    least = sum(measure(replace(settings, n_ctx=shortest)))
    if room <= least or used <= least:
        return shortest
    n_ctx = shortest + (longest - shortest) * (room - least) // (used - least)
    return max(n_ctx - n_ctx % (CELLS * streams), shortest)


class _Fitter:
    """The state of one search: cards in order, their targets, and how much a layout takes of each."""

    def __init__(
        self,
        spec: ModelSpec,
        devices: tuple[Device, ...],
        settings: LlamaCppSettings,
        measure: Measure,
        targets: list[int],
    ) -> None:
        self._ids = [d.id for d in devices]
        self._last = len(devices) - 1
        self._units = spec.block_count + 1  # the output layer is one
        self._experts = spec.expert_count > 0
        self._settings = settings
        self._measure = measure
        self._targets = targets

    def fit(self) -> LlamaCppSettings:
        loads = self._fill()
        everything = replace(self._settings, override_tensor=((rf"blk\.\d+\.{_MOE}", _CPU),))
        if self._experts and sum(self._targets) > sum(self._measure(everything)):
            loads = self._promote(loads)
        return self._say(loads)

    def _fill(self) -> _Loads:
        """Step 3: back to front, as many layers as each card takes; of a mixture of experts without the experts."""
        loads: _Loads = (_Load(),) * len(self._ids)
        for card in range(self._last, -1, -1):
            unassigned = self._units - sum(load.layers for load in loads[card + 1 :])
            if not unassigned:
                continue
            high = _with(loads, card, self._bare(_Load(), unassigned, card))
            if self._used(high, card) <= self._targets[card]:
                loads = high
                continue

            def at(steps: int, loads: _Loads = loads, card: int = card) -> _Loads:
                return _with(loads, card, self._bare(loads[card], steps, card))

            loads = self._false_position(at, unassigned, card)
        return loads

    def _bare(self, load: _Load, layers: int, card: int) -> _Load:
        """*load* and *layers* more, without experts; the output layer, on the last card, has none to leave out."""
        output = card == self._last and load.layers == 0
        return load.plus(layers, (layers - output if self._experts else 0))

    def _promote(self, loads: _Loads) -> _Loads:
        """Step 4: front to back, layers get their experts until a card is full; then a part of one more."""
        start = next((i for i, load in enumerate(loads) if load.layers), self._last)
        for card in range(len(self._ids)):
            if card > start:
                break
            available = sum(load.partial for load in loads[start:])

            def at(steps: int, loads: _Loads = loads, card: int = card, start: int = start) -> _Loads:
                return _convert(loads, card, start, steps)

            if available and self._used(at(available), card) <= self._targets[card]:
                loads = at(available)
            elif available:
                loads = self._false_position(at, available, card)
            start = next((i for i in range(start, self._last + 1) if loads[i].partial), self._last)
            loads = self._part_of_one_more(loads, card, start)
            start = next((i for i in range(start, self._last + 1) if loads[i].partial), self._last)
        return loads

    def _part_of_one_more(self, loads: _Loads, card: int, start: int) -> _Loads:
        if loads[start].layers <= (0 if card < self._last else 1) or not loads[start].partial:
            return loads
        overflow = self._ids[card + 1] if card < self._last else _CPU
        moved = _with(loads, start, loads[start].plus(-1, -1))
        moved = _with(moved, card, moved[card].plus(1, 1)._replace(overflow=overflow))

        def trial(first: str) -> _Loads | None:
            test = _with(moved, card, moved[card]._replace(first=first))
            used = self._measure(self._say(test))
            below = used[card] < self._targets[card]
            return test if below and (card == self._last or used[card + 1] < self._targets[card + 1]) else None

        up = trial(_UP)
        if up is not None:
            return trial(_GATE) or up
        return trial(_ATTENTION) or loads

    def _false_position(self, at: Callable[[int], _Loads], most: int, card: int) -> _Loads:
        """The largest layout of ``at(0) … at(most - 1)`` that fits, found as the engine finds it."""
        low, high = 0, most
        used_low, used_high = self._used(at(0), card), self._used(at(most), card)
        while high - low > 1:
            slope = used_high - used_low
            step = (high - low) * (self._targets[card] - used_low) // slope if slope > 0 else 1
            step = min(max(step, 1), high - low - 1)
            used = self._used(at(low + step), card)
            if used <= self._targets[card]:
                low, used_low = low + step, used
            else:
                high, used_high = low + step, used
        return at(low)

    def _used(self, loads: _Loads, card: int) -> int:
        return self._measure(self._say(loads))[card]

    def _say(self, loads: _Loads) -> LlamaCppSettings:
        """*loads* as flags (``set_ngl_tensor_split_tbo``)."""
        overrides: list[tuple[str, str]] = []
        total = sum(load.layers for load in loads)
        layer = self._units - total
        for load in loads:
            layer += load.full
            for i in range(load.partial):
                what, where = (load.first, load.overflow) if i == 0 else (_MOE, _CPU)
                overrides.append((rf"blk\.{layer + i}\.{what}", where))
            layer += load.partial
        split = tuple(float(load.layers) for load in loads) if len(loads) > 1 and total else ()
        return replace(
            self._settings, n_gpu_layers=total, tensor_split=split, override_tensor=tuple(overrides), fit=False
        )


def _with(loads: _Loads, card: int, load: _Load) -> _Loads:
    return (*loads[:card], load, *loads[card + 1 :])


def _convert(loads: _Loads, card: int, start: int, steps: int) -> _Loads:
    """Give *card* the next *steps* layers whole, taken from the front of those that have no experts yet."""
    for i in range(start, len(loads)):
        moved = min(steps, loads[i].partial)
        loads = _with(loads, i, loads[i].plus(-moved, -moved))
        loads = _with(loads, card, loads[card].plus(moved, 0))
        steps -= moved
        if loads[i].partial:
            break
    return loads

"""Shares layers out over unequal devices: an exact search over counts per device.

In: bytes per layer, room per device and role. Out: counts per device. It knows nothing of engines beyond this:
layers are atoms, each device holds a contiguous range, in the devices' order, and the ranges end at the output.

A device's fixed cost (compute buffers, copies of shared tables) depends on its role: alone, first, in the middle or
last. The search goes backwards over (device, first layer), so one pass answers for every number of layers that may
have to stay in RAM: ``best[start]`` covers the layers from *start* to the end.
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Role(IntEnum):
    """A device's place among those in use."""

    ALONE = 0
    FIRST = 1
    MIDDLE = 2
    LAST = 3


class Room(NamedTuple):
    """One device as the search sees it.

    Args:
        prefix: ``prefix[i]`` is the sum of the bytes of layers ``0..i-1`` here; one entry more than layers.
        room: bytes left for layers, by role.
        seconds_per_byte: what a byte here costs a token; any constant will do if all devices are equal.
    """

    prefix: Sequence[int]
    room: tuple[int, int, int, int]
    seconds_per_byte: float

    def reach(self, start: int, role: Role) -> int:
        """One past the last layer that fits here when it begins with *start*."""
        budget = self.room[role]
        if budget < 0:
            return start
        return bisect_right(self.prefix, self.prefix[start] + budget) - 1

    def cost(self, start: int, end: int, balance: float) -> float:
        """Seconds that the layers from *start* up to (not with) *end* cost a token here, and a little imbalance.

        *balance* times the square of the seconds: it evens out equal cards, whose sum is the same however they
        share, and never outweighs a faster card.
        """
        seconds = (self.prefix[end] - self.prefix[start]) * self.seconds_per_byte
        return seconds + balance * seconds * seconds


#: A layout: counts per device, and its cost (devices in use, seconds per token).
Layout = tuple[tuple[int, ...], tuple[int, float]]
_Cost = tuple[int, float]
_NONE: _Cost = (1 << 30, 0.0)
#: Weight of the imbalance against the seconds themselves.
_BALANCE = 0.05


def alone(devices: Sequence[Room], start: int, layers: int) -> list[int]:
    """The devices that hold layers *start* to *layers* by themselves, fastest first."""
    fitting = [i for i, d in enumerate(devices) if d.reach(start, Role.ALONE) >= layers]
    return sorted(fitting, key=lambda i: devices[i].seconds_per_byte)


def spread(devices: Sequence[Room], layers: int, starts: Sequence[int]) -> Layout | None:
    """The layout over at least two devices that begins with the first feasible layer of *starts*.

    Fewest devices first, then least seconds per token. None if no start is feasible.
    """
    count = len(devices)
    # rest[d][i]: cheapest way to hold layers i.. on devices d.., at least one device being in use before them
    rest: list[list[_Cost]] = [[_NONE] * (layers + 1) for _ in range(count + 1)]
    take: list[list[int]] = [[0] * (layers + 1) for _ in range(count + 1)]
    lowest = min(starts, default=layers)
    total = sum(d.prefix[layers] * d.seconds_per_byte for d in devices) / max(1, count)
    balance = _BALANCE / total if total else 0.0
    for d in range(count - 1, 0, -1):
        device, later = devices[d], rest[d + 1]
        row, chosen = rest[d], take[d]
        for i in range(layers - 1, lowest, -1):
            best, end_best = later[i], i
            if device.reach(i, Role.LAST) >= layers:
                cost = (1, device.cost(i, layers, balance))
                if cost < best:
                    best, end_best = cost, layers
            for end in range(i + 1, min(device.reach(i, Role.MIDDLE), layers - 1) + 1):
                after = later[end]
                if after[0] >= best[0]:
                    continue
                cost = (after[0] + 1, after[1] + device.cost(i, end, balance))
                if cost < best:
                    best, end_best = cost, end
            row[i], chosen[i] = best, end_best
    for start in starts:
        found: tuple[_Cost, int, int] | None = None
        for d in range(count - 1):
            device = devices[d]
            for end in range(start + 1, min(device.reach(start, Role.FIRST), layers - 1) + 1):
                after = rest[d + 1][end]
                if after[0] >= _NONE[0]:
                    continue
                cost = (after[0] + 1, after[1] + device.cost(start, end, balance))
                if found is None or cost < found[0]:
                    found = (cost, d, end)
        if found is not None:
            return _counts(found, start, take, count, layers), found[0]
    return None


def _counts(
    found: tuple[_Cost, int, int], start: int, take: list[list[int]], count: int, layers: int
) -> tuple[int, ...]:
    _, first, end = found
    counts = [0] * count
    counts[first] = end - start
    d, i = first + 1, end
    while i < layers:
        stop = take[d][i]
        counts[d] = stop - i
        d, i = d + 1, stop
    return tuple(counts)

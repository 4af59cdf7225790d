"""Shares layers out over unequal devices: an exact search over contiguous ranges, the least time winning.

In: bytes and nanoseconds per layer, room per device and role. Out: counts per device. It knows nothing of engines
beyond this: layers are atoms, each device holds a contiguous range, in the devices' order, the ranges end at the
output, and what comes before the first range stays on the host.

A device's fixed cost (compute buffers, copies of shared tables) depends on its role (alone, first, in the middle or
last) and on whether it has one layer or more: within a range of one, nothing is handed on.

The search goes backwards over (device, first layer), so one pass answers for every number of layers that may
stay on the host: ``rest[d][start]`` covers the layers from *start* to the end with the devices from *d* on. Times
are whole nanoseconds, so that equal cards tie exactly, and the more even share wins the tie.
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
        room: bytes left for several layers, by role.
        room_for_one: the same for a single layer.
        cost: ``cost[i]`` is the sum of what layers ``0..i-1`` take here, in nanoseconds of the workload.
        entry: nanoseconds to hand over to this device from another one.
        host: ``host[i]`` is what layers ``0..i-1`` take on the host if this is the first device in use.
    """

    prefix: Sequence[int]
    room: tuple[int, int, int, int]
    room_for_one: tuple[int, int, int, int]
    cost: Sequence[int]
    entry: int
    host: Sequence[int]

    def reach(self, start: int, role: Role) -> int:
        """One past the last layer that fits here when it begins with *start*."""
        before = self.prefix[start]
        end = bisect_right(self.prefix, before + self.room[role]) - 1 if self.room[role] >= 0 else start
        if end > start + 1:
            return end
        return start + 1 if self.prefix[start + 1] - before <= self.room_for_one[role] else start


class Layout(NamedTuple):
    """Counts per device, and the nanoseconds that they and the host take."""

    counts: tuple[int, ...]
    cost: int


#: A cost is ``nanoseconds << _SHIFT`` plus a measure of unevenness, which only decides between equal times.
_SHIFT = 52
_COARSE = 10
_NEVER = 1 << 200


def alone(devices: Sequence[Room], layers: int, starts: Sequence[int]) -> list[Layout]:
    """For each device that can hold the end by itself: its best start, fastest first."""
    found = []
    for i, device in enumerate(devices):
        fitting = [s for s in starts if device.reach(s, Role.ALONE) >= layers]
        if fitting:
            cost, start = min((device.host[s] + device.cost[layers] - device.cost[s], s) for s in fitting)
            counts = tuple(layers - start if k == i else 0 for k in range(len(devices)))
            found.append(Layout(counts, cost))
    return sorted(found, key=lambda layout: layout.cost)


def holds(devices: Sequence[Room], layers: int, start: int) -> bool:
    """Whether some layout holds the layers from *start*.

    To have reached further is never worse, so each device in turn takes all it can; only which one is the first
    has to be tried.
    """
    for first, device in enumerate(devices):
        if device.reach(start, Role.ALONE) >= layers:
            return True
        at = min(device.reach(start, Role.FIRST), layers - 1)
        if at <= start:
            continue
        for other in devices[first + 1 :]:
            if other.reach(at, Role.LAST) >= layers:
                return True
            at = max(at, min(other.reach(at, Role.MIDDLE), layers - 1))
    return False


def spread(devices: Sequence[Room], layers: int, starts: Sequence[int], *, evenly: bool = False) -> Layout | None:
    """The layout over at least two devices that takes the least time; None if there is none.

    Args:
        devices: in the engine's order.
        layers: to place, the output being one.
        starts: how many of the first layers may stay on the host.
        evenly: take the fourth power of each device's time, so that none has much more than the others: what a
            pipeline of several micro-batches is fastest with, where the slowest stage sets the pace.
    """
    if not starts or len(devices) < 2:
        return None
    scale = _scale(devices, layers) if evenly else 0
    rest, take = _tables(devices, layers, min(starts), scale=scale)
    best = _NEVER
    found: tuple[int, int, int] | None = None
    for start in starts:
        for d in range(len(devices) - 1):
            device, later = devices[d], rest[d + 1]
            cost, before = device.cost, device.cost[start]
            base = device.host[start] << _SHIFT
            for end in range(start + 1, min(device.reach(start, Role.FIRST), layers - 1) + 1):
                if later[end] >= _NEVER:
                    continue
                total = base + later[end] + _weighed(cost[end] - before, scale) + d
                if total < best:
                    best, found = total, (start, d, end)
    if found is None:
        return None
    counts = _counts(found, take, len(devices), layers)
    return Layout(counts, cost_of(devices, counts, layers))


def cost_of(devices: Sequence[Room], counts: Sequence[int], layers: int) -> int:
    """Nanoseconds of one layout, which uses some device."""
    start = at = layers - sum(counts)
    total = 0
    for device, count in zip(devices, counts, strict=True):
        if count:
            total += device.host[start] if at == start else device.entry
            total += device.cost[at + count] - device.cost[at]
            at += count
    return total


def _scale(devices: Sequence[Room], layers: int) -> int:
    return max(1, sum(d.cost[layers] for d in devices) // len(devices))


def _weighed(cost: int, scale: int) -> int:
    if scale:
        return (cost**4 // scale**3) << _SHIFT
    part = cost >> _COARSE
    return (cost << _SHIFT) + part * part


def _tables(
    devices: Sequence[Room], layers: int, lowest: int, *, scale: int
) -> tuple[list[list[int]], list[list[int]]]:
    """``rest[d][i]``: least cost of layers i.. on devices d.., one being in use before them; and where it ends."""
    count = len(devices)
    rest = [[_NEVER] * (layers + 1) for _ in range(count + 1)]
    take = [[0] * (layers + 1) for _ in range(count + 1)]
    for d in range(count - 1, 0, -1):
        device, later = devices[d], rest[d + 1]
        row, chosen, cost = rest[d], take[d], device.cost
        entry = device.entry << _SHIFT
        for i in range(layers - 1, lowest, -1):
            # the least that counts for a device passed over: of equal ones the first are taken
            best, end_best = later[i] - entry + 1, i
            before = cost[i]
            if device.reach(i, Role.LAST) >= layers:
                total = _weighed(cost[layers] - before, scale)
                if total < best:
                    best, end_best = total, layers
            for end in range(i + 1, min(device.reach(i, Role.MIDDLE), layers - 1) + 1):
                after = later[end]
                if after >= best:
                    continue
                total = after + _weighed(cost[end] - before, scale)
                if total < best:
                    best, end_best = total, end
            row[i], chosen[i] = min(best + entry, _NEVER), end_best
    return rest, take


def _counts(found: tuple[int, int, int], take: list[list[int]], count: int, layers: int) -> tuple[int, ...]:
    start, first, end = found
    counts = [0] * count
    counts[first] = end - start
    d, i = first + 1, end
    while i < layers:
        stop = take[d][i]
        counts[d] = stop - i
        d, i = d + 1, stop
    return tuple(counts)

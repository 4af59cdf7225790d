"""Waits until what engines held is measured free: before another load is started into their place."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from terazi.supervisor.identity import running
from terazi.supervisor.vitals import DeviceMemory

#: Bytes that are free on each device now.
FreeNow = Callable[[], Mapping[str, int]]

_FIRST_LOOK_S, _MOST_BETWEEN_S = 0.02, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What the wait has found.

    Args:
        free: nothing is held any more, as far as it can be measured.
        waited_s: until then, or in vain.
        alive: processes that still run.
        held: bytes by device that the driver still counts for the processes.
        missing: bytes by device that should be free by now and aren't.
    """

    free: bool
    waited_s: float
    alive: tuple[int, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)

    def sentence(self) -> str:
        """The outcome for a person."""
        if self.free:
            return f"measured free after {self.waited_s:.1f} s"
        what = [f"process {pid} still runs" for pid in self.alive]
        what += [f"the driver still counts {n} bytes on {device} for it" for device, n in self.held.items()]
        what += [f"{n} bytes on {device} have not come back" for device, n in self.missing.items()]
        return f"not free after {self.waited_s:.1f} s: " + "; ".join(what)


async def freed(
    pids: Collection[int],
    *,
    timeout_s: float,
    device_memory: DeviceMemory = lambda _: None,
    free_now: FreeNow | None = None,
    expected: Mapping[str, int] | None = None,
) -> Freed:
    """Return once no process of *pids* runs and no device holds their memory, or after *timeout_s*.

    A process that is gone may leave its device memory for some tens of milliseconds, until the driver has torn its
    context down; one that sleeps in the driver is never gone.

    Args:
        pids: of the engines that were ended, and of what they had started, as far as known.
        device_memory: asks the driver about a process. It may block: it is called in a thread.
        free_now, expected: for drivers that don't know this system's process numbers (in a container): bytes
            that must be free on each device, and who measures them. It may block too.
    """
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), _FIRST_LOOK_S
    while True:
        alive = tuple(pid for pid in pids if running(pid))
        held: dict[str, int] = {}
        missing: dict[str, int] = {}
        if not alive:
            held, missing = await asyncio.to_thread(_look, pids, device_memory, free_now, expected or {})
        waited = loop.time() - began
        done = not (alive or held or missing)
        if done or waited >= timeout_s:
            return Freed(free=done, waited_s=waited, alive=alive, held=held, missing=missing)
        await asyncio.sleep(min(pause, timeout_s - waited))
        pause = min(_MOST_BETWEEN_S, pause * 2)


def _look(
    pids: Collection[int], device_memory: DeviceMemory, free_now: FreeNow | None, expected: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    held: dict[str, int] = {}
    for pid in pids:
        for device, n in device_memory(pid) or ():
            if n > 0:
                held[device] = held.get(device, 0) + n
    if free_now is None or not expected:
        return held, {}
    free = free_now()
    return held, {device: n - free[device] for device, n in expected.items() if free.get(device, n) < n}

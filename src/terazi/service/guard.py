"""Executes ``policy.guard``: looks at this machine once a second, and passes on what is to be done about it."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from terazi.gateway.figures import Family, Figure
from terazi.hardware.probe import Pressure, read_pressure
from terazi.hardware.probe.pressure import page_bytes
from terazi.policy.guard import State, step
from terazi.policy.guard_messages import (
    Announce,
    Card,
    Command,
    Limits,
    PauseAdmission,
    ResumeAdmission,
    Sample,
    ShedIdle,
    Shrink,
    Stage,
    Terms,
)
from terazi.service.config_guard import GuardTable

_logger = logging.getLogger(__name__)

#: Asking the driver starts a process.
CARDS_EVERY_S = 10.0
#: A card that is slowed for so long pauses admission: what waits makes it no cooler.
THROTTLED_S = 60.0


class Relief(Protocol):
    """Who can do something about it."""

    def pause(self, reason: str) -> None:
        """Let no new request in."""
        ...

    def resume(self) -> None:
        """Let them in again."""
        ...

    def shed(self, need: Mapping[str, int], reason: str) -> None:
        """Unload idle models until *need* bytes are back on each device."""
        ...

    def shrink(self, need: Mapping[str, int], reason: str) -> None:
        """Drain the model that holds most there, and start it with *need* bytes less."""
        ...

    def calm(self) -> None:
        """There is no pressure: said with each look."""
        ...


class Guard:
    """One for the service.

    Args:
        table: the settings.
        relief: who acts.
        state_dir: whose disk is watched.
        root: below which ``proc`` and ``sys`` are; for tests.
        cards: asks for the accelerators; it may block.
        moving: whether a model is being loaded or unloaded: then what is free on a card says nothing.
    """

    def __init__(
        self,
        table: GuardTable,
        relief: Relief,
        *,
        state_dir: Path,
        root: str = "/",
        cards: Callable[[], Mapping[str, Card]],
        cards_every_s: float = CARDS_EVERY_S,
        moving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._enabled = table.enabled
        self._every_s = table.every_s
        self._relief = relief
        self._state_dir = state_dir
        self._root = root
        self._ask_cards = cards
        self._cards_every_s = cards_every_s
        self._moving = moving
        self._state = State(terms=terms(table))
        self._cards: Mapping[str, Card] = {}
        self._cards_at = 0.0
        self._spare: dict[str, int] = {}
        self._swapped: tuple[float, int] | None = None
        self._again = asyncio.Event()

    @property
    def stage(self) -> Stage:
        """How far it has come."""
        return self._state.stage

    def figures(self) -> Iterator[Figure]:
        """Its part of the metrics: each stage, so that a graph shows when it was left again."""
        for stage in Stage:
            yield Figure(Family.GUARD, (stage.name.lower(),), float(stage is self.stage))

    def settled(self) -> None:
        """Something was loaded or unloaded: what is free now is free on purpose."""
        self._spare.clear()
        self._cards_at = 0.0

    def reconfigure(self, table: GuardTable) -> None:
        """Look like this from now on; what has been taken for pressure is judged anew with the next look.

        A guard that is turned off lets requests in again, whatever it was at.
        """
        self._enabled, self._every_s = table.enabled, table.every_s
        self._state = replace(self._state, terms=terms(table))
        if not table.enabled and self.stage is not Stage.OPEN:
            self._state = State(terms=terms(table))
            self._execute(Announce(stage=Stage.OPEN, reason="it was turned off"))
            self._relief.resume()
        self._again.set()

    async def run(self) -> None:
        """Look until cancelled. A look that fails costs that look; one that is turned off sees no pressure."""
        while True:
            self._again.clear()
            if self._enabled:
                try:
                    await self.look()
                except OSError as problem:
                    _logger.debug("the guard's look failed: %s", problem)
            else:
                self._relief.calm()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._again.wait()

    async def look(self) -> None:
        """One look, and what follows from it."""
        now = time.monotonic()
        if now - self._cards_at >= self._cards_every_s or not self._cards_at:
            self._cards_at = now
            self._cards = await asyncio.to_thread(self._ask_cards)
            if self._moving():
                self._spare.clear()
            for device, card in self._cards.items():
                if card.free_bytes is not None:
                    self._spare.setdefault(device, card.free_bytes)
        self._state, commands = step(self._state, self._sample(now))
        for command in commands:
            self._execute(command)
        if self._state.stage is Stage.OPEN:
            self._relief.calm()

    def _execute(self, command: Command) -> None:
        match command:
            case Announce(stage=stage, reason=reason):
                level = logging.INFO if stage is Stage.OPEN else logging.WARNING
                _logger.log(level, "guard: %s (%s)", stage.name.lower(), reason, extra={"stage": int(stage)})
            case PauseAdmission(reason=reason):
                self._relief.pause(reason)
            case ResumeAdmission():
                self._relief.resume()
            case ShedIdle(need=need, reason=reason):
                self._relief.shed(need, reason)
            case Shrink(need=need, reason=reason):
                self._relief.shrink(need, reason)

    def _sample(self, now: float) -> Sample:
        pressure = read_pressure(self._root)
        return Sample(
            at=now,
            ram_total_bytes=pressure.total_bytes,
            ram_available_bytes=pressure.available_bytes,
            pressure=pressure.stalled_percent,
            swap_in_per_s=self._swap_rate(now, pressure),
            oom_kills=pressure.oom_kills,
            cards={
                device: Card(
                    total_bytes=card.total_bytes,
                    free_bytes=card.free_bytes,
                    temperature_c=card.temperature_c,
                    throttled=card.throttled,
                    spare_bytes=self._spare.get(device),
                )
                for device, card in self._cards.items()
            },
            disk_free_bytes=_disk_free(self._state_dir),
        )

    def _swap_rate(self, now: float, pressure: Pressure) -> float | None:
        if pressure.swapped_in_pages is None:
            return None
        before, self._swapped = self._swapped, (now, pressure.swapped_in_pages)
        if before is None or now <= before[0]:
            return None
        return (pressure.swapped_in_pages - before[1]) * page_bytes() / (now - before[0])


def terms(table: GuardTable) -> Terms:
    """The policy's settings, as the configuration has them."""
    pause, shed, shrink = table.pause, table.shed, table.shrink
    return Terms(
        stages={
            Stage.PAUSED: Limits(
                ram_free=pause.ram_free,
                vram_free=pause.vram_free,
                pressure=pause.pressure,
                swap_in=pause.swap_in,
                temperature_c=pause.temperature_c,
                disk_free=pause.disk_free,
            ),
            Stage.SHEDDING: Limits(
                ram_free=shed.ram_free, vram_free=shed.vram_free, pressure=shed.pressure, swap_in=shed.swap_in
            ),
            Stage.SHRINKING: Limits(
                ram_free=shrink.ram_free,
                vram_free=shrink.vram_free,
                pressure=shrink.pressure,
                swap_in=shrink.swap_in,
            ),
        },
        settle_s=table.settle_s,
        step_s=3 * table.every_s,
        throttled_s=THROTTLED_S,
    )


def _disk_free(folder: Path) -> int | None:
    with suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    return None

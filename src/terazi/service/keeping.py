"""Feeds ``policy.residency``: its events one at a time, its alarms, and the tasks that its commands begin."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine

from terazi.policy.residency import Keeper
from terazi.policy.residency_messages import Command, Event, Ticked, WakeAt
from terazi.policy.residency_state import Limits
from terazi.service.config import MemoryTable

_log = logging.getLogger(__name__)


class Keeping:
    """The keeper, fed. Use it on one event loop.

    Args:
        do: executes a command; what it tells meanwhile is fed after that.
        stepped: is called after events have been fed.
    """

    def __init__(self, limits: Limits, do: Callable[[Command], None], stepped: Callable[[], None]) -> None:
        self.keeper = Keeper(limits)
        self._do = do
        self._stepped = stepped
        self._timer: asyncio.TimerHandle | None = None
        self._events: deque[Event] = deque()
        self._stepping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, event: Event) -> None:
        """Tell the keeper, and do what it says."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                now = asyncio.get_running_loop().time()
                for command in self.keeper.step(self._events.popleft(), now):
                    if isinstance(command, WakeAt):
                        self.hush()
                        self._timer = asyncio.get_running_loop().call_at(command.at, self.tell, Ticked())
                    else:
                        self._do(command)
        finally:
            self._stepping = False
            self._stepped()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Do this beside all else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("the fleet failed at something", exc_info=problem)

    def hush(self) -> None:
        """Forget the alarm."""
        if self._timer is not None:
            self._timer.cancel()

    async def end(self) -> None:
        """Cancel what was begun."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def limits_of(table: MemoryTable) -> Limits:
    """The keeper's patience, as the configuration has it."""
    return Limits(
        min_stay_s=table.min_stay_s,
        batch_s=table.batch_s,
        free_wait_s=table.free_wait_s,
        cool_s=table.cool_s,
        cool_most_s=table.cool_most_s,
    )

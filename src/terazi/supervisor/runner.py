"""Runs one engine: executes the commands of ``policy.lifecycle`` and tells it what happened."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.observe import LoadReport
from terazi.policy.lifecycle import Limits, State, step
from terazi.policy.lifecycle_messages import (
    Announce,
    AwaitDrain,
    CancelTimer,
    CheckHealth,
    Command,
    Event,
    LaunchRequested,
    Phase,
    ProbeGeneration,
    SendKill,
    SendTerm,
    SetTimer,
    Spawn,
    StopRequested,
    Ticked,
)
from terazi.policy.progress import Patience
from terazi.supervisor.aftermath import Aftermath
from terazi.supervisor.death import Death
from terazi.supervisor.died import EngineDiedError, not_running
from terazi.supervisor.engine_start import EngineStart, House
from terazi.supervisor.log import BoundedLog
from terazi.supervisor.process import free_port
from terazi.supervisor.vitals import DeviceMemory

_logger = logging.getLogger(__name__)


class EngineRunner:
    """One engine's supervisor. Make it and use it on one event loop, in a thread that lives as long as the program.

    Args:
        launch: what to run; a function is asked anew before each start with a port that is free, so that a port
            that was taken in between costs one more start and nothing else.
        run_dir: where the record for the orphan sweep is kept.
        log_path: the engine's bounded log.
        on_change: is told each real change of phase.
        in_flight: how many requests the gateway has in the engine; a stop waits for none.
        requests: their ids, those included that broke off a moment ago; for what is kept of a crash.
        bytes_seen: of answers so far, if somebody counts them: then an engine whose answers flow is asked nothing.
        patience: when it is taken to be stuck.
        device_memory: what the driver last counted for a process; must not block.
        relaunch: whether an engine that dies is started again.
        limits: patience; ``stall_s`` and ``stop_grace_s`` come from the launch.
    """

    def __init__(
        self,
        launch: LaunchSpec | Callable[[int], LaunchSpec],
        *,
        run_dir: str,
        log_path: str,
        on_change: Callable[[State], None] | None = None,
        in_flight: Callable[[], int] = lambda: 0,
        requests: Callable[[], Sequence[str]] = lambda: (),
        bytes_seen: Callable[[], int] = lambda: 0,
        patience: Patience | None = None,
        device_memory: DeviceMemory | None = None,
        relaunch: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self._make = launch
        self._spec = launch if isinstance(launch, LaunchSpec) else launch(free_port())
        base = limits or Limits()
        self._state = State(
            limits=replace(
                base,
                stall_s=self._spec.stall_s,
                stop_grace_s=self._spec.stop_grace_s,
                relaunch=relaunch and base.relaunch,
            )
        )
        self._log_path = log_path
        self._log: BoundedLog | None = None
        self._on_change = on_change
        self._patience = patience or Patience()
        self._after = Aftermath(Path(run_dir) / "crashes", device_memory)
        self._house = House(
            run_dir=run_dir,
            after=self._after,
            state=lambda: self._state,
            tell=self._tell,
            patience=lambda: self._patience,
            in_flight=in_flight,
            requests=requests,
            bytes_seen=bytes_seen,
        )
        self._last = EngineStart(self._spec, 0, self._house, None)  # none yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    # --- what others see ----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The lifecycle's state."""
        return self._state

    @property
    def spec(self) -> LaunchSpec:
        """What runs now: address and key may change with a restart."""
        return self._spec

    @property
    def pid(self) -> int | None:
        """The engine's process, if there is one."""
        return self._state.pid

    @property
    def report(self) -> LoadReport | None:
        """What the engine's log says that it loaded; None before it has."""
        return self._last.report

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines of the log."""
        return self._log.tail if self._log is not None else ()

    @property
    def log(self) -> BoundedLog | None:
        """The log, once it was started."""
        return self._log

    @property
    def started_at(self) -> float | None:
        """When the present process was started (the event loop's monotonic clock); None if none runs."""
        return self._last.began if self._state.pid is not None else None

    @property
    def deaths(self) -> tuple[Death, ...]:
        """How its processes ended unasked, the latest last; a few of them."""
        return self._after.deaths

    async def why_lost(self, within_s: float = 1.5) -> str | None:
        """What to tell the client of a request that just broke off: how the process ended. None if nobody knows.

        The answer's connection breaks some moments before the process is known to be gone, hence the wait.
        """
        return await self._after.why_lost(within_s)

    @property
    def ended_from_outside(self) -> bool:
        """Whether nothing that its last process was doing can have been the cause of its end."""
        return bool(self.deaths) and self.deaths[-1].from_outside

    @property
    def pids(self) -> tuple[int, ...]:
        """The process and what it has started, as last seen; after its end too, for ``freed``."""
        return self._after.pids or (() if self._state.pid is None else (self._state.pid,))

    @property
    def restarts(self) -> int:
        """Starts beyond the first."""
        return max(0, self._state.generation - 1)

    def be_patient(self, patience: Patience, *, stall_s: float, stop_grace_s: float) -> None:
        """Be so patient from now on; a wait that has begun is as long as it was."""
        self._patience = patience
        self._state = replace(
            self._state, limits=replace(self._state.limits, stall_s=stall_s, stop_grace_s=stop_grace_s)
        )

    def start(self) -> None:
        """Ask for the engine; returns at once."""
        if self._log is None:
            self._log = BoundedLog(self._log_path)
        self._tell(LaunchRequested())

    async def wait_ready(self) -> None:
        """Return when a token has been generated.

        Raises:
            EngineError: if it is given up, or stopped; the message says why, the hint what to do.
        """
        while self._state.phase is not Phase.READY:
            if self._state.ended:
                raise self.error()
            await self._changed.wait()

    async def stop(self, drain_s: float = 30) -> None:
        """Let requests finish for *drain_s*, then end the engine; returns when nothing is left of it.

        May be called again, by another task, with less patience.
        """
        self._tell(StopRequested(drain_s=drain_s))
        await self.wait_stopped()

    async def wait_stopped(self) -> None:
        """Return when the engine is stopped, or failed for good, and all that served it is gone."""
        while not self._state.ended:
            await self._changed.wait()
        await self._clean_up()
        if self._log is not None:
            self._log.close()

    def error(self) -> EngineDiedError:
        """Why it isn't running, for a person."""
        last = self._last
        return not_running(
            self._spec.model_name,
            self._state,
            ended=last.ended,
            killed=last.killed,
            failure=last.failure,
            log_path=self._log_path,
            log_tail=self.log_tail,
        )

    # --- events in, commands out --------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(event, Ticked) and self._state.deadline is not None:
            now = max(now, self._state.deadline)  # timers may go off a clock tick early
        self._state, commands = step(self._state, event, now)
        for command in commands:
            self._execute(command)
        if self._state.ended:
            self._wake()

    def _execute(self, command: Command) -> None:
        match command:
            case Spawn(generation=generation):
                self._begin(self._start(generation))
            case CheckHealth(after_s=after_s):
                self._last.check_health(after_s)
            case ProbeGeneration():
                self._last.probe()
            case AwaitDrain():
                self._last.await_drain()
            case SendTerm():
                self._last.signal(signal.SIGTERM)
            case SendKill():
                self._last.signal(signal.SIGKILL)
            case SetTimer(at=at):
                self._set_timer(at)
            case CancelTimer():
                self._set_timer(None)
            case Announce(phase=phase, reason=reason):
                self._announce(phase, reason)

    def _announce(self, phase: Phase, reason: str) -> None:
        level = logging.WARNING if phase in {Phase.FAILED, Phase.BACKING_OFF} else logging.INFO
        _logger.log(
            level,
            "engine %s: %s (%s)",
            self._spec.model_name,
            phase.value,
            reason,
            extra={"plan_id": self._spec.plan_id, "pid": self._state.pid, "start": self._state.generation},
        )
        self._wake()
        if phase is Phase.READY:
            self._last.watch()
        if self._on_change is not None:
            try:
                self._on_change(replace(self._state, phase=phase, reason=reason))  # a step may pass through two
            except Exception:  # a listener's mistake must not keep the commands behind it from being carried out
                _logger.exception("engine %s: a listener failed", self._spec.model_name)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if at is None else loop.call_at(at, self._tell, Ticked())

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, generation: int) -> None:
        if not isinstance(self._make, LaunchSpec) and generation > 1:
            self._spec = self._make(free_port())
        self._last = EngineStart(self._spec, generation, self._house, self._log)
        await self._last.live()

    async def _clean_up(self) -> None:
        self._set_timer(None)
        if not self._last.runs:
            await asyncio.gather(*self._tasks, return_exceptions=True)

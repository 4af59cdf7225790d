"""Runs one engine: executes the commands of ``policy.lifecycle`` and tells it what happened."""

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.observe import LoadReport, LogReader
from terazi.engines.placed import misplaced
from terazi.policy.lifecycle import Limits, State, step
from terazi.policy.lifecycle_messages import (
    Announce,
    AwaitDrain,
    CancelTimer,
    CheckHealth,
    Command,
    Event,
    HealthAnswered,
    LaunchRequested,
    LoadRefused,
    Phase,
    ProbeAnswered,
    ProbeFailed,
    ProbeGeneration,
    ProcessSpawned,
    ProgressSeen,
    RequestsDrained,
    SendKill,
    SendTerm,
    SetTimer,
    Spawn,
    SpawnFailed,
    StopRequested,
    StuckFound,
    Ticked,
)
from terazi.policy.progress import Liveness, Patience
from terazi.supervisor.aftermath import Aftermath, death_of
from terazi.supervisor.death import Death
from terazi.supervisor.died import EngineDiedError
from terazi.supervisor.health import EngineClient, ProbeError
from terazi.supervisor.log import BoundedLog
from terazi.supervisor.process import EngineProcess, activity, free_port
from terazi.supervisor.sweep import write_record
from terazi.supervisor.vitals import DeviceMemory, is_stopped
from terazi.supervisor.watch import watch, watched_process

if TYPE_CHECKING:
    from terazi.engines.llama_cpp.failures import LoadFailure

_logger = logging.getLogger(__name__)

#: While loading, memory and bytes read are looked at this often; less than this many bytes more is noise.
LOOK_EVERY_S = 0.5
SIGN_OF_LIFE_BYTES = 1024 * 1024
DRAIN_LOOK_S = 0.05


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
            limits=Limits(
                stall_s=self._spec.stall_s,
                stop_grace_s=self._spec.stop_grace_s,
                kill_wait_s=base.kill_wait_s,
                health_every_s=base.health_every_s,
                stable_s=base.stable_s,
                max_load_failures=base.max_load_failures,
                quick_restarts=base.quick_restarts,
                quick_every_s=base.quick_every_s,
                relaunch=relaunch and base.relaunch,
            )
        )
        self._run_dir = run_dir
        self._log_path = log_path
        self._log: BoundedLog | None = None
        self._on_change = on_change
        self._in_flight = in_flight
        self._requests = requests
        self._bytes_seen = bytes_seen
        self._patience = patience or Patience()
        self._after = Aftermath(Path(run_dir) / "crashes", device_memory)
        self._process: EngineProcess | None = None
        self._reader = LogReader()
        self._client: EngineClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._exit: tuple[int | None, int | None] = (None, None)
        self._killed = False
        self._failure: LoadFailure | None = None
        self._progress_told = 0.0
        self._started_at: float | None = None

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
        report = self._reader.report
        return report if report.loaded or report.buffers else None

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
        return self._started_at if self._state.pid is not None else None

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
        name, failure = self._spec.model_name, self._failure
        if self._state.phase is Phase.STOPPED:
            message, hint = f"The engine for {name} was stopped before it was ready.", "Start it again."
        else:
            message = f"The engine for {name} failed: {self._state.reason}."
            hint = failure.remedy if failure is not None else self._hint()
        return EngineDiedError(
            message,
            hint=hint,
            failure=failure,
            code=self._exit[0],
            exit_signal=self._exit[1],
            last_lines=self.log_tail[-20:],
        )

    def _hint(self) -> str:
        if self._exit[1] == signal.SIGKILL and not self._killed:
            return f"Something killed it: look for 'Out of memory' in the kernel log. Its own log: {self._log_path}"
        return f"Read the end of its log: {self._log_path}"

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
                self._begin(self._spawn(generation))
            case CheckHealth(generation=generation, after_s=after_s):
                self._begin(self._check_health(generation, after_s))
            case ProbeGeneration(generation=generation):
                self._begin(self._probe(generation))
            case AwaitDrain(generation=generation):
                self._begin(self._await_drain(generation))
            case SendTerm():
                self._signal(signal.SIGTERM)
            case SendKill():
                self._killed = True
                self._signal(signal.SIGKILL)
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
        if phase is Phase.READY and self._process is not None:
            self._begin(self._watch(self._state.generation, self._process))
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

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the process --------------------------------------------------------------------------------

    async def _spawn(self, generation: int) -> None:
        """Start the process, then live with it until it is gone."""
        if not isinstance(self._make, LaunchSpec) and generation > 1:
            self._spec = self._make(free_port())
        self._reader, self._failure, self._exit, self._killed = LogReader(), None, (None, None), False
        if self._log is not None and generation > 1:
            self._log.write(f"[terazi: start {generation}]\n".encode())
        self._after.begin()
        run_id = secrets.token_hex(16)
        loop = asyncio.get_running_loop()
        try:
            process = await EngineProcess.spawn(self._spec, run_id=run_id, on_output=self._heard)
        except OSError as problem:
            self._tell(SpawnFailed(generation=generation, reason=f"cannot start a process: {problem.strerror}"))
            return
        self._process, self._started_at = process, loop.time()
        self._client = EngineClient(self._spec.base_url, self._spec.api_key)
        record = write_record(self._run_dir, run_id, process.pid, self._spec.model_name, group=process.group or "")
        self._tell(ProcessSpawned(generation=generation, pid=process.pid))
        self._begin(self._look(generation, process.pid))
        self._begin(self._after.sample(process))
        self._exit = await process.gone
        self._process = None
        lost = tuple(self._requests())
        if record is not None:
            record.unlink(missing_ok=True)
        await self._end_generation()
        self._reader.close()
        self._failure = self._reader.failure
        death, exited = death_of(
            process,
            self._spec,
            self._state,
            ended=self._exit,
            asked=self._killed or self._state.terminated,
            failure=self._failure,
            report=self.report,
            log_tail=self.log_tail,
            requests=lost,
        )
        if not self._state.stop_wanted or self._state.stuck:
            await self._after.keep(death, "stuck" if self._state.stuck else self._state.phase.value)
        self._tell(exited)

    def _heard(self, data: bytes) -> None:
        if self._log is not None:
            self._log.write(data)
        if self._reader.feed(data.decode("utf-8", "replace")) and self._state.phase is Phase.LOADING:
            self._progressed()

    def _progressed(self) -> None:
        """Tell of progress, at most a few times a second."""
        now = asyncio.get_running_loop().time()
        if now - self._progress_told > 0.1:
            self._progress_told = now
            self._tell(ProgressSeen(generation=self._state.generation))

    async def _look(self, generation: int, pid: int) -> None:
        """While it loads: memory that fills and bytes that are read count as progress, words or not."""
        before = activity(pid)
        while self._current(generation) and self._state.phase is Phase.LOADING:
            await asyncio.sleep(LOOK_EVERY_S)
            now = activity(pid)
            if now is not None and before is not None:
                if max(abs(n - b) for n, b in zip(now, before, strict=True)) < SIGN_OF_LIFE_BYTES:
                    continue
                if self._current(generation):
                    self._tell(ProgressSeen(generation=generation))
            before = now

    async def _watch(self, generation: int, process: EngineProcess) -> None:
        """From the first token on: find out when it is stuck."""
        spec = self._spec
        watched = watched_process(
            spec, process.pid, process.group, in_flight=self._in_flight, bytes_seen=self._bytes_seen
        )
        if self._client is None:
            return
        async with aclosing(watch(self._client, watched, lambda: self._patience)) as verdicts:
            async for verdict in verdicts:
                if verdict.liveness is Liveness.STUCK:
                    self._after.stuck(tuple(self._requests()), frozen=is_stopped(process.pid))
                    self._tell(StuckFound(generation=generation, reason=verdict.reason))
                    return
                if verdict.liveness is Liveness.SUSPECT:
                    _logger.info("engine %s: is it stuck? %s", spec.model_name, verdict.reason)

    async def _check_health(self, generation: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self._client is not None and self._current(generation):
            ok = await self._client.healthy(self._spec.health_path)
            self._tell(HealthAnswered(generation=generation, ok=ok))

    async def _probe(self, generation: int) -> None:
        if self._client is None:
            return
        try:
            await self._client.generate(self._spec.probe_path, self._spec.probe_body)
        except ProbeError as problem:
            self._tell(ProbeFailed(generation=generation, reason=str(problem)))
        else:
            elsewhere = misplaced(self._spec, self.report)
            if elsewhere is not None:
                self._tell(LoadRefused(generation=generation, reason=elsewhere))
            else:
                self._tell(ProbeAnswered(generation=generation))

    async def _await_drain(self, generation: int) -> None:
        while self._in_flight() > 0:  # noqa: ASYNC110 - the gateway's count is a number, not an event
            await asyncio.sleep(DRAIN_LOOK_S)
        self._tell(RequestsDrained(generation=generation))

    def _current(self, generation: int) -> bool:
        return self._state.generation == generation and self._state.pid is not None

    async def _end_generation(self) -> None:
        """Cancel what asks or waits for the process that is gone."""
        me = asyncio.current_task()
        others = [task for task in self._tasks if task is not me]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _clean_up(self) -> None:
        self._set_timer(None)
        if self._process is None:
            await asyncio.gather(*self._tasks, return_exceptions=True)

"""One start of an engine: its process from the first moment to the last, and what is asked of it meanwhile."""

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.observe import LoadReport, LogReader
from terazi.engines.placed import misplaced
from terazi.policy.lifecycle import State
from terazi.policy.lifecycle_messages import (
    Event,
    HealthAnswered,
    LoadRefused,
    Phase,
    ProbeAnswered,
    ProbeFailed,
    ProcessSpawned,
    ProgressSeen,
    RequestsDrained,
    SpawnFailed,
    StuckFound,
)
from terazi.policy.progress import Liveness, Patience
from terazi.supervisor.aftermath import Aftermath, death_of
from terazi.supervisor.health import EngineClient, ProbeError
from terazi.supervisor.log import BoundedLog
from terazi.supervisor.process import EngineProcess, activity
from terazi.supervisor.sweep import write_record
from terazi.supervisor.vitals import is_stopped
from terazi.supervisor.watch import watch, watched_process

if TYPE_CHECKING:
    from terazi.engines.llama_cpp.failures import LoadFailure

_logger = logging.getLogger(__name__)

#: While loading, memory and bytes read are looked at this often; less than this many bytes more is noise.
LOOK_EVERY_S = 0.5
SIGN_OF_LIFE_BYTES = 1024 * 1024
DRAIN_LOOK_S = 0.05
#: The log's words are told as progress this often at most.
_TELL_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What all starts of one engine have in common.

    Args:
        run_dir: where the record for the orphan sweep is kept.
        after: keeps what is known of ends.
        state: the lifecycle's, as it is now.
        tell: tells the lifecycle.
        patience: when it is taken to be stuck, as it is now.
        in_flight, requests, bytes_seen: as ``EngineRunner`` has them.
    """

    run_dir: str
    after: Aftermath
    state: Callable[[], State]
    tell: Callable[[Event], None]
    patience: Callable[[], Patience]
    in_flight: Callable[[], int]
    requests: Callable[[], Sequence[str]]
    bytes_seen: Callable[[], int]


class EngineStart:
    """One start. ``live`` is its whole life; the other methods begin something beside it, which ends with it.

    Args:
        spec: what is started.
        generation: which start it is, from 1.
        log: where what it prints is kept.
    """

    def __init__(self, spec: LaunchSpec, generation: int, house: House, log: BoundedLog | None) -> None:
        self._spec = spec
        self._generation = generation
        self._house = house
        self._log = log
        self._reader = LogReader()
        self._process: EngineProcess | None = None
        self._client: EngineClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress_told = 0.0
        #: When the process was started (the event loop's monotonic clock).
        self.began: float | None = None
        #: Exit code and signal, once it has ended.
        self.ended: tuple[int | None, int | None] = (None, None)
        #: By this program, with SIGKILL.
        self.killed = False
        #: What its log says about the cause of its end, once it has ended.
        self.failure: LoadFailure | None = None

    @property
    def report(self) -> LoadReport | None:
        """What its log says that it loaded; None before it has."""
        report = self._reader.report
        return report if report.loaded or report.buffers else None

    @property
    def runs(self) -> bool:
        """The process is there."""
        return self._process is not None

    def signal(self, number: signal.Signals) -> None:
        """Send it to the process, if that is there."""
        self.killed = self.killed or number == signal.SIGKILL
        if self._process is not None:
            self._process.signal(number)

    # --- its life

    async def live(self) -> None:
        """Start the process, then live with it until it is gone."""
        house, spec, generation = self._house, self._spec, self._generation
        if self._log is not None and generation > 1:
            self._log.write(f"[terazi: start {generation}]\n".encode())
        house.after.begin()
        run_id = secrets.token_hex(16)
        try:
            process = await EngineProcess.spawn(spec, run_id=run_id, on_output=self._heard)
        except OSError as problem:
            house.tell(SpawnFailed(generation=generation, reason=f"cannot start a process: {problem.strerror}"))
            return
        self._process, self.began = process, asyncio.get_running_loop().time()
        self._client = EngineClient(spec.base_url, spec.api_key)
        record = write_record(house.run_dir, run_id, process.pid, spec.model_name, group=process.group or "")
        house.tell(ProcessSpawned(generation=generation, pid=process.pid))
        self._begin(self._look(process.pid))
        self._begin(house.after.sample(process))
        self.ended = await process.gone
        self._process = None
        lost = tuple(house.requests())
        if record is not None:
            record.unlink(missing_ok=True)
        await self._end_tasks()
        self._reader.close()
        self.failure = self._reader.failure
        state = house.state()
        death, exited = death_of(
            process,
            spec,
            state,
            ended=self.ended,
            asked=self.killed or state.terminated,
            failure=self.failure,
            report=self.report,
            log_tail=self._log.tail if self._log is not None else (),
            requests=lost,
        )
        if not state.stop_wanted or state.stuck:
            await house.after.keep(death, "stuck" if state.stuck else state.phase.value)
        house.tell(exited)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_tasks(self) -> None:
        """Cancel what asks or waits for the process that is gone."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _current(self) -> bool:
        state = self._house.state()
        return state.generation == self._generation and state.pid is not None

    # --- while it loads

    def _heard(self, data: bytes) -> None:
        if self._log is not None:
            self._log.write(data)
        if self._reader.feed(data.decode("utf-8", "replace")) and self._house.state().phase is Phase.LOADING:
            self._progressed()

    def _progressed(self) -> None:
        """Tell of progress, at most a few times a second."""
        now = asyncio.get_running_loop().time()
        if now - self._progress_told > _TELL_EVERY_S:
            self._progress_told = now
            self._house.tell(ProgressSeen(generation=self._generation))

    async def _look(self, pid: int) -> None:
        """While it loads: memory that fills and bytes that are read count as progress, words or not."""
        before = activity(pid)
        while self._current() and self._house.state().phase is Phase.LOADING:
            await asyncio.sleep(LOOK_EVERY_S)
            now = activity(pid)
            if now is not None and before is not None:
                if max(abs(n - b) for n, b in zip(now, before, strict=True)) < SIGN_OF_LIFE_BYTES:
                    continue
                if self._current():
                    self._house.tell(ProgressSeen(generation=self._generation))
            before = now

    def check_health(self, after_s: float) -> None:
        """Ask it so much later whether it is healthy."""
        self._begin(self._check_health(after_s))

    async def _check_health(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self._client is not None and self._current():
            ok = await self._client.healthy(self._spec.health_path)
            self._house.tell(HealthAnswered(generation=self._generation, ok=ok))

    def probe(self) -> None:
        """Have it generate a token, and see where it has put its weights."""
        self._begin(self._probe())

    async def _probe(self) -> None:
        if self._client is None:
            return
        tell, generation = self._house.tell, self._generation
        try:
            await self._client.generate(self._spec.probe_path, self._spec.probe_body)
        except ProbeError as problem:
            tell(ProbeFailed(generation=generation, reason=str(problem)))
        else:
            elsewhere = misplaced(self._spec, self.report)
            if elsewhere is not None:
                tell(LoadRefused(generation=generation, reason=elsewhere))
            else:
                tell(ProbeAnswered(generation=generation))

    # --- while it serves

    def watch(self) -> None:
        """From the first token on: find out when it is stuck."""
        if self._process is not None:
            self._begin(self._watch(self._process))

    async def _watch(self, process: EngineProcess) -> None:
        house, spec = self._house, self._spec
        watched = watched_process(
            spec, process.pid, process.group, in_flight=house.in_flight, bytes_seen=house.bytes_seen
        )
        if self._client is None:
            return
        async with aclosing(watch(self._client, watched, house.patience)) as verdicts:
            async for verdict in verdicts:
                if verdict.liveness is Liveness.STUCK:
                    house.after.stuck(tuple(house.requests()), frozen=is_stopped(process.pid))
                    house.tell(StuckFound(generation=self._generation, reason=verdict.reason))
                    return
                if verdict.liveness is Liveness.SUSPECT:
                    _logger.info("engine %s: is it stuck? %s", spec.model_name, verdict.reason)

    def await_drain(self) -> None:
        """Tell when no request is in it any more."""
        self._begin(self._await_drain())

    async def _await_drain(self) -> None:
        while self._house.in_flight() > 0:  # noqa: ASYNC110 - the gateway's count is a number, not an event
            await asyncio.sleep(DRAIN_LOOK_S)
        self._house.tell(RequestsDrained(generation=self._generation))

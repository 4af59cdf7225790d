"""What is kept of the ends of an engine: its memory while it lives, and all that is known when it dies."""

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.failures import LoadFailure
from terazi.engines.llama_cpp.observe import LoadReport
from terazi.policy.lifecycle import State
from terazi.policy.lifecycle_messages import Phase, ProcessExited, Retry
from terazi.supervisor.crashes import write_crash
from terazi.supervisor.death import By, Death, by_device, explain, who
from terazi.supervisor.process import EngineProcess
from terazi.supervisor.vitals import Curve, DeviceMemory, oom_kills

_logger = logging.getLogger(__name__)

#: Memory and the kernel's count of its kills are looked at this often.
VITALS_EVERY_S = 1.0
#: A request that breaks off so long after an engine's end is lost for another reason.
_JUST_NOW_S = 5.0
_LINES = 50


class Aftermath:
    """One for each runner.

    Args:
        folder: where crash files go.
        device_memory: what the driver last counted for a process; must not block.
    """

    def __init__(self, folder: Path, device_memory: DeviceMemory | None) -> None:
        self._folder = folder
        self._curve = Curve(device_memory=device_memory)
        self._deaths: deque[Death] = deque(maxlen=8)
        self._began_s = 0.0
        self._died = asyncio.Event()
        self._held: tuple[str, ...] | None = None
        self._frozen = False
        #: The process and what it had started, when it was last looked at.
        self.pids: tuple[int, ...] = ()

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Those that nobody asked for, the latest last; a few of them."""
        return tuple(self._deaths)

    def begin(self) -> None:
        """Another process is started."""
        self._curve.clear()
        self._began_s, self._held, self._frozen, self.pids = time.time(), None, False, ()

    def stuck(self, requests: tuple[str, ...], *, frozen: bool) -> None:
        """It is killed for being stuck, with *requests* in it; *frozen*: the system had stopped it."""
        self._held, self._frozen = requests, frozen

    async def sample(self, process: EngineProcess) -> None:
        """Memory, once a second; and whom the kernel had killed by then, to tell what is new at the end."""
        before = deque([process.oom_before], maxlen=3)
        while True:
            self.pids = self._curve.look(process.pid) or self.pids
            before.append(oom_kills(process.group))
            process.oom_before = before[0]
            await asyncio.sleep(VITALS_EVERY_S)

    async def keep(self, death: Death, phase: str) -> None:
        """One line and one file for an end that nobody asked for. A disk that is full costs the file."""
        death = replace(death, memory=self._curve.samples, began_wall_s=self._began_s, phase=phase)
        if self._held is not None:
            death = replace(death, requests=self._held, frozen=self._frozen)
        self._deaths.append(death)
        self._died.set()
        self._died = asyncio.Event()
        path = await asyncio.to_thread(write_crash, self._folder, death)
        _logger.warning(
            "%s (%s, %d requests in flight)%s",
            death.sentence(),
            death.phase,
            len(death.requests),
            f"; all that is known: {path}" if path is not None else "",
            extra={"plan_id": death.plan_id, "pid": death.pid, "start": death.start},
        )

    async def why_lost(self, within_s: float) -> str | None:
        """How the process ended that was here a moment ago; None if it isn't known within *within_s*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not (self._deaths and time.time() - self._deaths[-1].ended_wall_s < _JUST_NOW_S):
                    await self._died.wait()
                return self._deaths[-1].sentence()
        return None


def death_of(
    process: EngineProcess,
    spec: LaunchSpec,
    state: State,
    *,
    ended: tuple[int | None, int | None],
    asked: bool,
    failure: LoadFailure | None,
    report: LoadReport | None,
    log_tail: tuple[str, ...],
    requests: tuple[str, ...],
) -> tuple[Death, ProcessExited]:
    """What is known of an end, and what the lifecycle is told of it.

    Args:
        ended: exit code and signal.
        asked: this program had sent it a signal.
        failure: what its log says about the cause.
        report: what its log says that it had loaded.
    """
    code, number = ended
    oom = process.oom_after.since(process.oom_before)
    by = who(number, asked=asked, oom=oom)
    cause, retry = (failure.cause, failure.retry) if failure is not None else (None, Retry.BACK_OFF)
    if failure is None:
        told = next((line for line in reversed(log_tail) if line.startswith("terazi: cannot")), None)
        if told is not None:  # the shim could not become the engine
            cause, retry = told.removeprefix("terazi: "), Retry.NEVER
    if by is By.KERNEL:
        cause = f"memory ran out {oom}, and the kernel killed it"
    planned, allocated = by_device(spec, report)
    for_a_reason = state.stuck or state.phase is Phase.FAILED  # ended by us, and we had said why
    death = Death(
        model=spec.model_name,
        plan_id=spec.plan_id,
        argv=spec.argv,
        pid=process.pid,
        start=state.generation,
        began_wall_s=0.0,
        ended_wall_s=time.time(),
        phase=state.phase.value,
        by=by,
        reason=f"was ended by Terazi: {state.reason}"
        if for_a_reason
        else explain(by, code, number, oom=oom, told=cause),
        code=code,
        signal=number,
        failure=failure,
        requests=requests,
        last_lines=log_tail[-_LINES:],
        planned=tuple(planned.items()),
        allocated=None if allocated is None else tuple(allocated.items()),
    )
    exited = ProcessExited(
        generation=state.generation,
        code=code,
        signal=number,
        reason=cause,
        retry=retry,
        outside=by is By.OTHERS,
    )
    return death, exited

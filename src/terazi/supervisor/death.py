"""How an engine's process ended: what is known, in words and as a document."""

import signal
from dataclasses import asdict, dataclass
from enum import StrEnum

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.failures import LoadFailure
from terazi.engines.llama_cpp.observe import LoadReport
from terazi.supervisor.vitals import MemorySample

#: Signals that a process gets from its own mistakes; others are sent.
_OWN = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP"})


class By(StrEnum):
    """Who ended it."""

    ITSELF = "itself"
    KERNEL = "the kernel, for want of memory"
    TERAZI = "Terazi"
    OTHERS = "somebody else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One end of one process.

    Args:
        model, plan_id, argv: what ran.
        pid, start: its number, and which start of the engine it was.
        began_wall_s, ended_wall_s: Unix times.
        phase: of its life when it ended.
        by: who ended it.
        reason: one clause, for a person.
        code, signal: how it ended; one of them is set if it could be read.
        failure: what its log says about the cause, if it was a known one.
        frozen: the system had stopped it (SIGSTOP) when it was found stuck.
        requests: ids of the requests that it had.
        last_lines: the end of its log.
        memory: its last minutes, a sample a second.
        planned, allocated: bytes by device: of the bill, as far as the log speaks of it, and as the log had them.
    """

    model: str
    plan_id: str
    argv: tuple[str, ...]
    pid: int
    start: int
    began_wall_s: float
    ended_wall_s: float
    phase: str
    by: By
    reason: str
    code: int | None
    signal: int | None
    failure: LoadFailure | None = None
    frozen: bool = False
    requests: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    planned: tuple[tuple[str, int], ...] = ()
    allocated: tuple[tuple[str, int], ...] | None = None

    @property
    def from_outside(self) -> bool:
        """Whether nothing that it was doing can have been the cause."""
        return self.by is By.OTHERS or self.frozen

    def sentence(self) -> str:
        """What happened, for the log and for the client of a lost request."""
        return f"the engine of {self.model} {self.reason}"

    def document(self) -> dict[str, object]:
        """Schema ``terazi.crash/1``."""
        failure = self.failure
        return {
            "schema": "terazi.crash/1",
            "model": self.model,
            "plan_id": self.plan_id,
            "argv": list(self.argv),
            "pid": self.pid,
            "start": self.start,
            "began_wall_s": self.began_wall_s,
            "ended_wall_s": self.ended_wall_s,
            "uptime_s": self.ended_wall_s - self.began_wall_s,
            "phase": self.phase,
            "by": self.by.value,
            "reason": self.reason,
            "code": self.code,
            "frozen": self.frozen,
            "signal": None if self.signal is None else signal_name(self.signal),
            "failure": None
            if failure is None
            else {"cause": failure.cause, "remedy": failure.remedy, "line": failure.line},
            "requests": list(self.requests),
            "last_lines": list(self.last_lines),
            "memory": [
                {
                    **asdict(sample),
                    "device_bytes": None if sample.device_bytes is None else dict(sample.device_bytes),
                }
                for sample in self.memory
            ],
            "planned_bytes": dict(self.planned),
            "allocated_bytes": None if self.allocated is None else dict(self.allocated),
        }


def who(number: int | None, *, asked: bool, oom: str | None) -> By:
    """Who ended a process that got signal *number* (None: it exited).

    Args:
        asked: this program had sent it a signal.
        oom: where the kernel has killed somebody for want of memory just then; None if nowhere.
    """
    if asked:
        return By.TERAZI
    if number is None or signal_name(number) in _OWN:
        return By.ITSELF
    return By.KERNEL if number == signal.SIGKILL and oom is not None else By.OTHERS


def explain(by: By, code: int | None, number: int | None, *, oom: str | None, told: str | None) -> str:
    """One clause: what happened. *told* is what its last words say."""
    if by is By.KERNEL:
        return f"was killed by the kernel, since memory ran out {oom}"
    how = f"was ended by {signal_name(number)}" if number is not None else f"ended with exit code {code}"
    if by is By.OTHERS:
        how += ", which something outside Terazi has sent"
    return f"{how}: {told}" if told else how


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def by_device(spec: LaunchSpec, report: LoadReport | None) -> tuple[dict[str, int], dict[str, int] | None]:
    """Bytes by device: what the log should say, and what it said; None if it names no buffers."""
    planned: dict[str, int] = {}
    for entry in spec.expectations:
        planned[entry.device] = planned.get(entry.device, 0) + entry.bytes
    if report is None or not report.buffers:
        return planned, None
    allocated: dict[str, int] = {}
    for buffer in report.buffers:
        allocated[buffer.device] = allocated.get(buffer.device, 0) + buffer.bytes
    return planned, allocated

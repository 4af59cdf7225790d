"""What the life of an engine is told (events, past tense) and what it tells others to do (commands, imperative).

Every event of a process carries the ``generation`` of the launch that it belongs to, so that a late answer about an
earlier process can't be taken for one about the present one. Times are monotonic seconds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    """Where an engine is in its life."""

    PLANNED = "planned"
    STARTING = "starting"  # a spawn is under way
    LOADING = "loading"  # the process runs and hasn't generated a token yet
    READY = "ready"
    DRAINING = "draining"  # told to stop: requests finish, then the process ends
    STOPPED = "stopped"
    FAILED = "failed"  # for good if no process is left; else a process that is being ended
    BACKING_OFF = "backing_off"


class Retry(StrEnum):
    """What a failure says about trying again."""

    AT_ONCE = "at-once"  # e.g. the port was taken: another one will do
    BACK_OFF = "back-off"
    NEVER = "never"  # e.g. the file isn't a model: it won't become one


# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequested:
    """Somebody wants the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpawned:
    """The process exists."""

    generation: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFailed:
    """There is no process."""

    generation: int
    reason: str
    retry: Retry = Retry.BACK_OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSeen:
    """The engine wrote to its log, read from its file, or filled memory since the last look."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAnswered:
    """The health endpoint was asked: ``ok`` if it said 200."""

    generation: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswered:
    """The engine really generated a token."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFailed:
    """The request for a token came back without one."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRefused:
    """It has loaded something else than was planned, and shall not serve: to load again would load the same."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """The process is gone and reaped. One of ``code`` and ``signal`` is set, if it could be read.

    ``reason`` and ``retry`` are what the engine's last words say, if they are known words. ``outside`` is True if a
    signal ended it that it did not cause itself and that the lifecycle did not ask for; the kernel's killer of
    processes when memory runs out counts as the engine's own fault, since it would be killed again.
    """

    generation: int
    code: int | None
    signal: int | None
    reason: str | None = None
    retry: Retry = Retry.BACK_OFF
    outside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckFound:
    """It lives and works on nothing: ``policy.progress`` says why. Of no meaning while it loads."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody wants it gone; requests in flight get ``drain_s`` to finish."""

    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsDrained:
    """No request is in flight any more."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """The timer that ``SetTimer`` asked for went off (or anybody wants deadlines looked at)."""


Event: TypeAlias = (
    LaunchRequested
    | ProcessSpawned
    | SpawnFailed
    | ProgressSeen
    | HealthAnswered
    | ProbeAnswered
    | ProbeFailed
    | LoadRefused
    | ProcessExited
    | StuckFound
    | StopRequested
    | RequestsDrained
    | Ticked
)

# --- commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start the process; answer ``ProcessSpawned`` or ``SpawnFailed``, and later ``ProcessExited``."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHealth:
    """Ask the health endpoint after ``after_s``; answer ``HealthAnswered``."""

    generation: int
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeGeneration:
    """Ask for one token; answer ``ProbeAnswered`` or ``ProbeFailed``."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitDrain:
    """Say ``RequestsDrained`` once nothing is in flight (at once if nothing is)."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTerm:
    """SIGTERM to the process group."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendKill:
    """SIGKILL to the process group."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Say ``Ticked`` at ``at``; replaces an earlier timer."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """No deadline is pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """A real change of phase, with its reason; the one place to log from."""

    phase: Phase
    reason: str


Command: TypeAlias = (
    Spawn | CheckHealth | ProbeGeneration | AwaitDrain | SendTerm | SendKill | SetTimer | CancelTimer | Announce
)

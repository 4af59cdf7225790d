"""The life of one engine as a pure state machine: ``step(state, event, now) -> (state, commands)``.

    planned ─▶ starting ─▶ loading ─▶ ready ─▶ draining ─▶ stopped
                  ▲  └────────┴─────────┴─▶ failed ─▶ backing_off ─┐
                  └────────────────────────────────────────────────┘

Promises, each a property test:

- Never two processes: no ``Spawn`` while one may be alive (``state.pid`` set, or a spawn unanswered).
- Loading is given up for lack of progress (``stall_s``), never for its total time.
- ``SendKill`` only after ``SendTerm`` and its grace, or to an engine that was found stuck: one that is stopped or
  hangs in a driver wouldn't hear the first.
- A stop always wins: from every phase it ends in ``stopped`` once the process, if any, has exited.
- A ready engine that dies is started again after a back-off; one that keeps failing while it loads is given up.
- One that was killed from outside, or was stuck, is started again at once, but not more often than the allowance
  (``quick_restarts``, one more each ``quick_every_s``) admits. So no sequence of events starts more than
  ``quick_restarts`` + t / ``quick_every_s`` processes in t seconds without a back-off between them.
"""

from dataclasses import dataclass, replace

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
    ProcessExited,
    ProcessSpawned,
    ProgressSeen,
    RequestsDrained,
    Retry,
    SendKill,
    SendTerm,
    SetTimer,
    Spawn,
    SpawnFailed,
    StopRequested,
    StuckFound,
    Ticked,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient to be, in seconds.

    Args:
        stall_s: loading is given up after this long without any progress.
        stop_grace_s: from SIGTERM to SIGKILL.
        kill_wait_s: from SIGKILL until a process that won't die is reported as stuck in the kernel.
        health_every_s: between two questions to the health endpoint while loading.
        stable_s: an engine that was ready for this long has left its earlier failures behind.
        max_load_failures: so many in a row, without being ready in between, are failure for good.
        quick_restarts: starts without a pause after ends from outside, saved up at most.
        quick_every_s: after so long there is one more of them.
        relaunch: False makes the first failure final.
    """

    stall_s: float = 60.0
    stop_grace_s: float = 10.0
    kill_wait_s: float = 10.0
    health_every_s: float = 0.1
    stable_s: float = 60.0
    max_load_failures: int = 3
    quick_restarts: int = 12
    quick_every_s: float = 30.0
    relaunch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that is known about one engine.

    Args:
        generation: how often a spawn was asked for; events of another generation are stale.
        spawning: a ``Spawn`` has not been answered.
        pid: a process that may be alive.
        since: when the phase began.
        deadline: when something must happen; None is never.
        healthy: the health endpoint has said 200 once.
        probing: ``ProbeGeneration`` has not been answered.
        probe_failure: what the last probe came back with.
        terminated, killed: SIGTERM, SIGKILL were sent to the present process.
        stuck: the present process was found stuck, and is killed for it.
        refused: it has loaded something else than was planned, and is ended for it.
        stop_wanted: it will not be started again.
        was_ready: at least once since it was asked for.
        failures: in a row, for the back-off; reset after ``stable_s`` of being ready.
        load_failures: in a row without being ready.
        reason: why it is in this phase, as one clause.
        retry: what the last failure said about trying again.
        quick_spent_until: when the allowance of quick restarts will be whole again.
    """

    limits: Limits = Limits()
    phase: Phase = Phase.PLANNED
    generation: int = 0
    spawning: bool = False
    pid: int | None = None
    since: float = 0.0
    deadline: float | None = None
    healthy: bool = False
    probing: bool = False
    probe_failure: str = ""
    terminated: bool = False
    killed: bool = False
    stuck: bool = False
    refused: bool = False
    stop_wanted: bool = False
    was_ready: bool = False
    failures: int = 0
    load_failures: int = 0
    reason: str = ""
    retry: Retry = Retry.BACK_OFF
    quick_spent_until: float = 0.0

    @property
    def alive(self) -> bool:
        """A process may exist."""
        return self.spawning or self.pid is not None

    @property
    def ended(self) -> bool:
        """Nothing will happen any more unless somebody asks."""
        return self.phase is Phase.STOPPED or (self.phase is Phase.FAILED and self.deadline is None)

    @property
    def again_at(self) -> float | None:
        """When it will be started again; None if that isn't what it waits for."""
        return self.deadline if self.phase is Phase.BACKING_OFF else None


Commands = tuple[Command, ...]


def back_off_s(failures: int) -> float:
    """Pause before the next start: 1 s after the first failure, then 10 s doubled each time, 300 s at most."""
    if failures <= 1:
        return 1.0
    return float(min(10 * 2 ** min(failures - 2, 10), 300))


def step(state: State, event: Event, now: float) -> tuple[State, Commands]:
    """Take one event at monotonic time *now* (seconds); the new state and what to do, in order."""
    generation = getattr(event, "generation", state.generation)
    if generation != state.generation:
        return state, ()
    new, commands = _dispatch(state, event, now)
    if new.phase is not state.phase:
        new = replace(new, since=now)
    if new.deadline != state.deadline:
        commands += (CancelTimer() if new.deadline is None else SetTimer(at=new.deadline),)
    return new, commands


def _dispatch(state: State, event: Event, now: float) -> tuple[State, Commands]:
    match event:
        case LaunchRequested():
            return _launch_requested(state)
        case ProcessSpawned(pid=pid):
            return _spawned(state, pid, now)
        case SpawnFailed(reason=reason, retry=retry):
            return _gone(replace(state, retry=retry), reason, now) if state.spawning else (state, ())
        case ProcessExited():
            return _exited(state, event, now)
        case StuckFound(reason=reason):
            return _stuck(state, reason, now)
        case StopRequested(drain_s=drain_s):
            return _stop_requested(state, drain_s, now)
        case RequestsDrained():
            draining = state.phase is Phase.DRAINING and state.pid is not None and not state.terminated
            return _terminate(state, now) if draining else (state, ())
        case Ticked():
            due = state.deadline is not None and now >= state.deadline
            return _expired(state, now) if due else (state, ())
        case _:
            return _loading(state, event, now) if state.phase is Phase.LOADING else (state, ())


# --- start --------------------------------------------------------------------------------------------


def _launch_requested(state: State) -> tuple[State, Commands]:
    idle = state.phase in {Phase.PLANNED, Phase.STOPPED, Phase.FAILED, Phase.BACKING_OFF}
    if not idle or state.alive:
        return state, ()
    fresh = replace(state, stop_wanted=False, was_ready=False, failures=0, load_failures=0)
    return _spawn(fresh, "asked for")


def _spawn(state: State, reason: str) -> tuple[State, Commands]:
    generation = state.generation + 1
    new = replace(
        state,
        phase=Phase.STARTING,
        generation=generation,
        spawning=True,
        deadline=None,
        healthy=False,
        probing=False,
        probe_failure="",
        terminated=False,
        killed=False,
        stuck=False,
        refused=False,
        retry=Retry.BACK_OFF,
        reason=reason,
    )
    return new, (Announce(phase=Phase.STARTING, reason=reason), Spawn(generation=generation))


def _spawned(state: State, pid: int, now: float) -> tuple[State, Commands]:
    if not state.spawning:
        return state, ()
    born = replace(state, spawning=False, pid=pid)
    if state.phase is not Phase.STARTING:  # it was told to stop before it was there
        return _terminate(born, now)
    reason = f"process {pid} runs"
    new = replace(born, phase=Phase.LOADING, deadline=now + state.limits.stall_s, reason=reason)
    ask = CheckHealth(generation=state.generation, after_s=state.limits.health_every_s)
    return new, (Announce(phase=Phase.LOADING, reason=reason), ask)


def _loading(state: State, event: Event, now: float) -> tuple[State, Commands]:
    patience = now + state.limits.stall_s
    match event:
        case ProgressSeen():
            return replace(state, deadline=patience), ()
        case HealthAnswered(ok=ok) if not state.probing:
            if ok:  # to become healthy is progress; to be asked again is not
                deadline = state.deadline if state.healthy else patience
                asked = replace(state, healthy=True, probing=True, deadline=deadline)
                return asked, (ProbeGeneration(generation=state.generation),)
            return state, (CheckHealth(generation=state.generation, after_s=state.limits.health_every_s),)
        case ProbeFailed(reason=reason) if state.probing:
            again = CheckHealth(generation=state.generation, after_s=10 * state.limits.health_every_s)
            return replace(state, probing=False, probe_failure=reason), (again,)
        case LoadRefused(reason=reason):
            failed = replace(state, phase=Phase.FAILED, refused=True, reason=reason)
            new, commands = _terminate(failed, now)
            return new, (Announce(phase=Phase.FAILED, reason=reason), *commands)
        case ProbeAnswered() if state.probing:
            reason = "it generated a token"
            new = replace(
                state,
                phase=Phase.READY,
                probing=False,
                was_ready=True,
                load_failures=0,
                deadline=now + state.limits.stable_s,
                reason=reason,
            )
            return new, (Announce(phase=Phase.READY, reason=reason),)
        case _:
            return state, ()


# --- stop ---------------------------------------------------------------------------------------------


def _stop_requested(state: State, drain_s: float, now: float) -> tuple[State, Commands]:
    if state.phase is Phase.STOPPED:
        return state, ()
    if not state.alive:
        return _settle(replace(state, stop_wanted=True), Phase.STOPPED, "told to stop")
    asked = replace(state, stop_wanted=True, phase=Phase.DRAINING)
    news: Commands = () if state.phase is Phase.DRAINING else (_draining_news(state),)
    if state.pid is None or state.terminated:  # on its way in, or out: its exit or its grace decides
        stuck = state.killed and state.deadline is None
        return (replace(asked, deadline=now + state.limits.kill_wait_s) if stuck else asked), news
    if state.phase is Phase.READY and drain_s > 0:
        new = replace(asked, deadline=now + drain_s, reason="told to stop")
        return new, (*news, AwaitDrain(generation=state.generation))
    if state.phase is Phase.DRAINING and drain_s > 0:  # asked again: the shorter patience counts
        sooner = now + drain_s if state.deadline is None else min(state.deadline, now + drain_s)
        return replace(asked, deadline=sooner), news
    new, commands = _terminate(replace(asked, reason="told to stop"), now)
    return new, news + commands


def _draining_news(state: State) -> Announce:
    return Announce(phase=Phase.DRAINING, reason=f"told to stop while {state.phase.value}")


def _terminate(state: State, now: float) -> tuple[State, Commands]:
    if state.pid is None:
        return state, ()
    return replace(state, terminated=True, deadline=now + state.limits.stop_grace_s), (SendTerm(pid=state.pid),)


def _settle(state: State, phase: Phase, reason: str) -> tuple[State, Commands]:
    return replace(state, phase=phase, deadline=None, reason=reason), (Announce(phase=phase, reason=reason),)


# --- failure ------------------------------------------------------------------------------------------


def _expired(state: State, now: float) -> tuple[State, Commands]:
    """The deadline has passed: what it meant depends on the phase and on what was tried already."""
    if state.pid is not None and state.terminated:
        if not state.killed:
            new = replace(state, killed=True, deadline=now + state.limits.kill_wait_s)
            return new, (SendKill(pid=state.pid),)
        return _settle(state, Phase.FAILED, f"process {state.pid} does not die: it is stuck in the kernel")
    match state.phase:
        case Phase.LOADING:
            why = f"no progress for {state.limits.stall_s:g} s while loading"
            why += "; it says that it is healthy but generates nothing" if state.healthy else ""
            why += f" ({state.probe_failure})" if state.probe_failure else ""
            failed = replace(state, phase=Phase.FAILED, reason=why)
            new, commands = _terminate(failed, now)
            return new, (Announce(phase=Phase.FAILED, reason=why), *commands)
        case Phase.DRAINING:
            return _terminate(state, now)
        case Phase.BACKING_OFF:
            return _spawn(state, f"start {state.failures + 1} after: {state.reason}")
        case Phase.READY:
            return replace(state, failures=0, deadline=None), ()
        case _:
            return replace(state, deadline=None), ()


def _stuck(state: State, reason: str, now: float) -> tuple[State, Commands]:
    """Kill what works on nothing: it may be stopped, or hang in a driver, so SIGTERM would only cost time."""
    if state.phase not in {Phase.READY, Phase.DRAINING} or state.pid is None or state.killed:
        return state, ()
    dead = replace(state, stuck=True, terminated=True, killed=True, deadline=now + state.limits.kill_wait_s)
    if state.phase is Phase.DRAINING:  # it ends anyway: now is as good a moment as any
        return dead, (SendKill(pid=state.pid),)
    why = f"it is stuck: {reason}"
    return replace(dead, phase=Phase.FAILED, reason=why), (
        Announce(phase=Phase.FAILED, reason=why),
        SendKill(pid=state.pid),
    )


def _exited(state: State, event: ProcessExited, now: float) -> tuple[State, Commands]:
    if not state.alive:
        return state, ()
    if state.phase is Phase.FAILED and state.terminated:  # ended by us: the reason is the one that we had
        retry = Retry.NEVER if state.refused else event.retry
        return _gone(replace(state, retry=retry), state.reason, now, outside=state.stuck)
    how = f"signal {event.signal}" if event.signal is not None else f"exit code {event.code}"
    told = f": {event.reason}" if event.reason else ""
    reason = f"it ended with {how} while {state.phase.value}{told}"
    return _gone(replace(state, retry=event.retry), reason, now, outside=event.outside)


def _gone(state: State, reason: str, now: float, *, outside: bool = False) -> tuple[State, Commands]:
    """There is no process any more: stop, give up, or try again, at once or later."""
    # a failed phase that still had a process stalled while loading, or was found stuck after it
    loading = state.phase is not Phase.READY and not state.stuck
    gone = replace(
        state, spawning=False, pid=None, probing=False, terminated=False, killed=False, stuck=False, deadline=None
    )
    if state.stop_wanted:
        return _settle(gone, Phase.STOPPED, "stopped")
    spent_until = max(now, state.quick_spent_until) + state.limits.quick_every_s
    quick = outside and spent_until <= now + state.limits.quick_restarts * state.limits.quick_every_s
    load_failures = state.load_failures + 1 if loading and not quick else state.load_failures
    failed = replace(gone, load_failures=load_failures, phase=Phase.FAILED, reason=reason)
    news: Commands = () if state.phase is Phase.FAILED else (Announce(phase=Phase.FAILED, reason=reason),)
    never = state.retry is Retry.NEVER and not state.was_ready
    if never or not state.limits.relaunch or load_failures >= state.limits.max_load_failures:
        if load_failures > 1:
            failed = replace(failed, reason=f"{reason} (attempt {load_failures})")
        # one that was ended for its failure had been announced while its process was there: now it is for good
        news = news or (Announce(phase=Phase.FAILED, reason=failed.reason),)
        return replace(failed, failures=state.failures + 1), news
    if quick:
        failed, pause = replace(failed, quick_spent_until=spent_until), 0.0
    else:
        failed = replace(failed, failures=state.failures + 1)
        pause = 0.0 if state.retry is Retry.AT_ONCE else back_off_s(failed.failures)
    again = f"next start in {pause:g} s; {reason}"
    new = replace(failed, phase=Phase.BACKING_OFF, deadline=now + pause)
    return new, (*news, Announce(phase=Phase.BACKING_OFF, reason=again))

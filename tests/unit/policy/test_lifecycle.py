"""The lifecycle, one path at a time."""

import pytest

from terazi.policy.lifecycle import Limits, State, back_off_s, step
from terazi.policy.lifecycle_messages import (
    Announce,
    AwaitDrain,
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
    Spawn,
    StopRequested,
    StuckFound,
    Ticked,
)

LIMITS = Limits(stall_s=60, stop_grace_s=10, stable_s=60, max_load_failures=3)


class Play:
    """Feeds events at given times and keeps what was commanded."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.state = State(limits=limits)
        self.commands: tuple[Command, ...] = ()

    def at(self, now: float, *events: Event) -> "Play":
        """All *events* at *now*."""
        self.commands = ()
        for event in events:
            self.state, commands = step(self.state, event, now)
            self.commands += commands
        return self

    def said(self, kind: type[Command]) -> list[Command]:
        """The commands of one kind that the last call gave."""
        return [c for c in self.commands if isinstance(c, kind)]

    def ready(self, now: float = 1.0) -> "Play":
        """A ready engine with pid 7 (generation 1)."""
        self.at(now, LaunchRequested(), ProcessSpawned(generation=1, pid=7), HealthAnswered(generation=1, ok=True))
        assert self.said(ProbeGeneration), "health alone is not ready"
        assert self.state.phase is Phase.LOADING
        return self.at(now, ProbeAnswered(generation=1))


def test_ready_needs_a_generated_token() -> None:
    assert Play().ready().state.phase is Phase.READY


def test_long_loading_with_progress_is_not_given_up() -> None:
    play = Play().at(0, LaunchRequested(), ProcessSpawned(generation=1, pid=7))
    for minute in range(1, 100):
        play.at(minute * 59, ProgressSeen(generation=1), Ticked())
        assert play.state.phase is Phase.LOADING


def test_stalled_loading_is_ended_and_tried_again() -> None:
    play = Play().at(0, LaunchRequested(), ProcessSpawned(generation=1, pid=7)).at(61, Ticked())
    assert play.state.phase.value == "failed"
    assert "no progress for 60 s" in play.state.reason
    assert play.said(SendTerm) == [SendTerm(pid=7)]
    assert play.at(72, Ticked()).said(SendKill) == [SendKill(pid=7)]
    play.at(73, ProcessExited(generation=1, code=None, signal=9))
    assert play.state.phase.value == "backing_off"
    assert "no progress" in play.state.reason
    assert play.at(74, Ticked()).said(Spawn) == [Spawn(generation=2)]


def test_healthy_engine_that_never_generates_is_given_up() -> None:
    play = Play().at(0, LaunchRequested(), ProcessSpawned(generation=1, pid=7))
    play.at(1, HealthAnswered(generation=1, ok=True)).at(30, ProbeFailed(generation=1, reason="HTTP 500"))
    assert play.said(CheckHealth)
    play.at(31, HealthAnswered(generation=1, ok=True)).at(62, Ticked())
    assert play.state.phase is Phase.FAILED
    assert "generates nothing (HTTP 500)" in play.state.reason


def test_death_while_ready_is_answered_with_a_start_after_a_pause() -> None:
    play = Play().ready().at(2, ProcessExited(generation=1, code=None, signal=6, reason="CUDA error"))
    assert play.state.phase is Phase.BACKING_OFF
    assert play.state.reason == "it ended with signal 6 while ready: CUDA error"
    assert [a.phase for a in play.commands if isinstance(a, Announce)] == [Phase.FAILED, Phase.BACKING_OFF]
    assert not play.at(2.5, Ticked()).said(Spawn)
    assert play.at(3.0, Ticked()).said(Spawn)


def test_crash_loop_after_ready_waits_longer_each_time_and_forgets_after_a_minute() -> None:
    play, now, pauses = Play(), 0.0, []
    play.at(now, LaunchRequested())
    for generation in range(1, 9):
        play.at(
            now,
            ProcessSpawned(generation=generation, pid=generation),
            HealthAnswered(generation=generation, ok=True),
        )
        play.at(
            now, ProbeAnswered(generation=generation), ProcessExited(generation=generation, code=1, signal=None)
        )
        assert play.state.deadline is not None
        pauses.append(play.state.deadline - now)
        now = play.state.deadline
        play.at(now, Ticked())
    assert pauses == [1, 10, 20, 40, 80, 160, 300, 300]
    play.at(
        now, ProcessSpawned(generation=9, pid=9), HealthAnswered(generation=9, ok=True), ProbeAnswered(generation=9)
    )
    play.at(now + 60, Ticked()).at(now + 61, ProcessExited(generation=9, code=1, signal=None))
    assert play.state.deadline == now + 62


def test_three_failures_while_loading_are_failure_for_good_with_the_reason() -> None:
    play, now = Play().at(0, LaunchRequested()), 0.0
    for generation in (1, 2, 3):
        play.at(now, ProcessSpawned(generation=generation, pid=9))
        play.at(now, ProcessExited(generation=generation, code=1, signal=None, reason="out of memory"))
        now = play.state.deadline or now
        play.at(now, Ticked())
    assert play.state.phase is Phase.FAILED
    assert play.state.ended
    assert "out of memory" in play.state.reason
    assert play.at(now + 1000, Ticked()).commands == ()
    assert play.at(now + 1001, LaunchRequested()).said(Spawn), "asked for again, it tries again"


def test_hopeless_failure_is_not_repeated_before_it_was_ever_ready() -> None:
    play = Play().at(0, LaunchRequested(), ProcessSpawned(generation=1, pid=9))
    play.at(1, ProcessExited(generation=1, code=1, signal=None, reason="not a GGUF", retry=Retry.NEVER))
    assert play.state.ended


def test_taken_port_is_answered_at_once() -> None:
    play = Play().at(0, LaunchRequested(), ProcessSpawned(generation=1, pid=9))
    play.at(1, ProcessExited(generation=1, code=1, signal=None, reason="port taken", retry=Retry.AT_ONCE))
    assert play.at(1, Ticked()).said(Spawn)


def test_no_relaunch_makes_the_first_death_final() -> None:
    play = Play(Limits(relaunch=False)).ready().at(2, ProcessExited(generation=1, code=0, signal=None))
    assert play.state.ended
    assert play.state.phase is Phase.FAILED


def test_stop_waits_for_requests_then_terminates() -> None:
    play = Play().ready().at(5, StopRequested(drain_s=30))
    assert play.said(AwaitDrain)
    assert not play.said(SendTerm)
    assert play.at(6, RequestsDrained(generation=1)).said(SendTerm)
    assert play.at(7, ProcessExited(generation=1, code=0, signal=None)).state.phase is Phase.STOPPED


def test_stop_does_not_wait_longer_than_it_was_told() -> None:
    play = Play().ready().at(5, StopRequested(drain_s=30)).at(35, Ticked())
    assert play.said(SendTerm)
    assert play.at(45, Ticked()).said(SendKill)


def test_second_stop_without_patience_terminates_at_once() -> None:
    play = Play().ready().at(5, StopRequested(drain_s=30)).at(6, StopRequested(drain_s=0))
    assert play.said(SendTerm)


@pytest.mark.parametrize("phase", ["planned", "starting", "loading", "backing_off"])
def test_stop_in_other_phases(phase: str) -> None:
    play = Play()
    if phase != "planned":
        play.at(0, LaunchRequested())
    if phase in {"loading", "backing_off"}:
        play.at(0, ProcessSpawned(generation=1, pid=7))
    if phase == "backing_off":
        play.at(1, ProcessExited(generation=1, code=1, signal=None))
    assert play.state.phase.value == phase
    play.at(2, StopRequested(drain_s=30))
    if phase == "starting":
        assert play.state.phase is Phase.DRAINING
        assert play.at(3, ProcessSpawned(generation=1, pid=7)).said(SendTerm)
    if phase in {"starting", "loading"}:
        assert play.said(SendTerm), "nothing to drain"
        play.at(4, ProcessExited(generation=1, code=0, signal=None))
    assert play.state.phase is Phase.STOPPED
    assert not play.at(500, Ticked()).said(Spawn)


def test_unkillable_process_is_reported_and_never_doubled() -> None:
    play = Play().ready().at(5, StopRequested(drain_s=0)).at(15, Ticked()).at(25, Ticked())
    assert play.state.phase is Phase.FAILED
    assert "stuck in the kernel" in play.state.reason
    assert not play.at(26, LaunchRequested()).said(Spawn)
    assert play.at(99, ProcessExited(generation=1, code=None, signal=9)).state.phase is Phase.STOPPED


def test_late_answer_of_an_earlier_process_counts_for_nothing() -> None:
    play = Play().ready().at(2, ProcessExited(generation=1, code=1, signal=None)).at(3, Ticked())
    play.at(
        4, ProcessSpawned(generation=2, pid=8), HealthAnswered(generation=1, ok=True), ProbeAnswered(generation=1)
    )
    assert play.state.phase is Phase.LOADING


def test_back_off_grows_to_its_cap() -> None:
    assert [back_off_s(n) for n in (1, 2, 3, 7, 100)] == [1, 10, 20, 300, 300]


def killed(generation: int) -> ProcessExited:
    """SIGKILL by somebody else."""
    return ProcessExited(generation=generation, code=None, signal=9, outside=True)


def test_ten_kills_every_few_seconds_cost_a_load_each_and_no_pause() -> None:
    play, now = Play().at(0, LaunchRequested()), 0.0
    for generation in range(1, 11):
        play.at(
            now,
            ProcessSpawned(generation=generation, pid=generation),
            HealthAnswered(generation=generation, ok=True),
            ProbeAnswered(generation=generation),
        )
        now += 4
        play.at(now, killed(generation), Ticked())
        assert play.said(Spawn) == [Spawn(generation=generation + 1)]
    assert play.state.failures == 0


def test_kills_in_the_middle_of_loading_are_not_the_engines_failure() -> None:
    play = Play().at(0, LaunchRequested())
    for generation in range(1, 7):
        play.at(generation, ProcessSpawned(generation=generation, pid=9), killed(generation), Ticked())
        assert play.said(Spawn)
    assert play.state.load_failures == 0


def test_endless_kills_are_answered_more_and_more_slowly() -> None:
    play, now, spawned = Play().at(0, LaunchRequested()), 0.0, []
    generation = 1
    while now < 600:
        spawned.append(now)
        play.at(
            now,
            ProcessSpawned(generation=generation, pid=generation),
            HealthAnswered(generation=generation, ok=True),
            ProbeAnswered(generation=generation),
            killed(generation),
        )
        assert play.state.again_at is not None
        now = max(now + 0.001, play.state.again_at)
        play.at(now, Ticked())
        generation += 1
    assert sum(moment < 1 for moment in spawned) <= LIMITS.quick_restarts + 2
    assert len(spawned) < 12 + 600 / 30 + 10


def test_a_stuck_engine_is_killed_without_a_warning_and_started_again_at_once() -> None:
    play = Play().ready().at(50, StuckFound(generation=1, reason="no token for 20 s"))
    assert (play.said(SendKill), play.said(SendTerm)) == ([SendKill(pid=7)], [])
    assert play.state.phase is Phase.FAILED
    assert not play.state.ended
    play.at(50.1, ProcessExited(generation=1, code=None, signal=9))
    assert play.state.reason == "it is stuck: no token for 20 s"
    assert play.at(50.1, Ticked()).said(Spawn) == [Spawn(generation=2)]


def test_what_is_stuck_and_can_not_be_killed_is_told_and_not_doubled() -> None:
    play = Play().ready().at(50, StuckFound(generation=1, reason="r")).at(60, Ticked())
    assert "stuck in the kernel" in play.state.reason
    assert play.state.ended
    assert not play.at(61, LaunchRequested()).said(Spawn)


def test_stuck_while_draining_ends_in_stopped() -> None:
    play = Play().ready().at(5, StopRequested(drain_s=300)).at(9, StuckFound(generation=1, reason="r"))
    assert play.said(SendKill)
    assert play.at(9.1, ProcessExited(generation=1, code=None, signal=9)).state.phase is Phase.STOPPED


def test_a_stuck_verdict_on_an_earlier_process_counts_for_nothing() -> None:
    play = Play().ready().at(2, killed(1), Ticked()).at(3, StuckFound(generation=1, reason="r"))
    assert play.commands == ()


def test_what_loaded_elsewhere_than_planned_never_serves_and_is_not_loaded_again() -> None:
    play = Play().at(
        0, LaunchRequested(), ProcessSpawned(generation=1, pid=7), HealthAnswered(generation=1, ok=True)
    )
    play.at(1, LoadRefused(generation=1, reason="it is in RAM"))
    assert play.said(SendTerm) == [SendTerm(pid=7)]
    assert not play.at(1, ProbeAnswered(generation=1)).said(Spawn)
    play.at(2, ProcessExited(generation=1, code=0, signal=None))
    assert play.state.phase is Phase.FAILED
    assert play.state.ended
    assert play.state.reason == "it is in RAM"
    assert play.said(Announce)[-1] == Announce(phase=Phase.FAILED, reason="it is in RAM"), "that it is over is news"


def test_what_lost_its_accelerator_later_is_tried_again_for_a_while() -> None:
    play = Play().ready().at(2, ProcessExited(generation=1, code=None, signal=6)).at(3, Ticked())
    for generation in (2, 3, 4):
        now = play.state.since
        play.at(
            now, ProcessSpawned(generation=generation, pid=8), LoadRefused(generation=generation, reason="in RAM")
        )
        play.at(now + 1, ProcessExited(generation=generation, code=0, signal=None))
        if generation < 4:
            assert play.state.again_at is not None
            play.at(play.state.again_at, Ticked())
    assert play.state.ended
    assert "in RAM" in play.state.reason

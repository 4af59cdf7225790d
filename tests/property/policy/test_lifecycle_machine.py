"""The lifecycle in a world that may do anything: processes die at will, answers come late, stops come twice."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from terazi.policy.lifecycle import Limits, State, step
from terazi.policy.lifecycle_messages import (
    Announce,
    AwaitDrain,
    CancelTimer,
    CheckHealth,
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

LIMITS = Limits(stall_s=5, stop_grace_s=2, kill_wait_s=2, stable_s=20, quick_restarts=3, quick_every_s=30)


def spawn_is_asked(world: "World") -> bool:
    """A spawn is unanswered."""
    return world.spawn_asked is not None


def process_lives(world: "World") -> bool:
    """There is a process."""
    return world.process is not None


def health_is_asked(world: "World") -> bool:
    """A health answer is owed."""
    return bool(world.asked_health)


def probe_is_asked(world: "World") -> bool:
    """A probe answer is owed."""
    return bool(world.asked_probe)


def drain_is_awaited(world: "World") -> bool:
    """Somebody waits for requests to finish."""
    return bool(world.awaiting_drain)


class World(RuleBasedStateMachine):
    """Executes commands as a supervisor would, with chance in the place of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.state = State(limits=LIMITS, since=self.now)
        self.spawn_asked: int | None = None
        self.process: tuple[int, int] | None = None  # pid, generation
        self.next_pid = 1000
        self.timer: float | None = None
        self.termed: dict[int, float] = {}
        self.stuck: set[int] = set()
        self.quick: list[float] = []  # moments of restarts without a pause
        self.asked_health: set[int] = set()
        self.asked_probe: set[int] = set()
        self.awaiting_drain: set[int] = set()

    def feed(self, event: Event) -> None:
        """One step, and its commands against the world's own book-keeping."""
        before = self.state.phase
        self.state, commands = step(self.state, event, self.now)
        announced: list[Phase] = []
        for command in commands:
            match command:
                case Spawn(generation=generation):
                    assert self.process is None, "a second process"
                    assert self.spawn_asked is None, "a second spawn"
                    self.spawn_asked = generation
                case SendTerm(pid=pid):
                    assert self.process is not None
                    assert self.process[0] == pid
                    self.termed.setdefault(pid, self.now)
                case SendKill(pid=pid):
                    if pid in self.stuck:
                        continue
                    assert pid in self.termed, "killed without a warning"
                    assert self.now >= self.termed[pid] + LIMITS.stop_grace_s, "killed before its grace was over"
                case SetTimer(at=at):
                    assert at >= self.now, "a timer in the past"
                    self.timer = at
                case CancelTimer():
                    self.timer = None
                case CheckHealth(generation=generation):
                    self.asked_health.add(generation)
                case ProbeGeneration(generation=generation):
                    self.asked_probe.add(generation)
                case AwaitDrain(generation=generation):
                    self.awaiting_drain.add(generation)
                case Announce(phase=phase, reason=reason):
                    assert reason
                    announced.append(phase)
        if self.state.phase is not before:
            assert announced, f"{before} to {self.state.phase} without a word"
            assert announced[-1] is self.state.phase
            assert self.state.since == self.now

    # --- what may happen ----------------------------------------------------------------------------

    @rule()
    def launch(self) -> None:
        """Somebody asks for it."""
        self.feed(LaunchRequested())

    @rule(drain_s=st.sampled_from([0.0, 1.0, 30.0]))
    def stop(self, drain_s: float) -> None:
        """Somebody has enough of it."""
        self.feed(StopRequested(drain_s=drain_s))

    @precondition(spawn_is_asked)
    @rule(works=st.booleans(), retry=st.sampled_from(Retry))
    def spawn_ends(self, works: bool, retry: Retry) -> None:
        """The spawn that was asked for is answered."""
        generation = self.spawn_asked
        assert generation is not None
        self.spawn_asked = None
        if works:
            self.next_pid += 1
            self.process = (self.next_pid, generation)
            self.feed(ProcessSpawned(generation=generation, pid=self.next_pid))
        else:
            self.feed(SpawnFailed(generation=generation, reason="no such file", retry=retry))

    @precondition(process_lives)
    @rule(code=st.sampled_from([0, 1, None]), retry=st.sampled_from(Retry), outside=st.booleans())
    def exit(self, code: int | None, retry: Retry, outside: bool) -> None:
        """The process ends, for whatever reason."""
        assert self.process is not None
        pid, generation = self.process
        self.process = None
        signal = 9 if code is None else None
        outside = outside and code is None
        self.feed(ProcessExited(generation=generation, code=code, signal=signal, retry=retry, outside=outside))
        if self.state.phase is Phase.BACKING_OFF and self.timer == self.now and retry is not Retry.AT_ONCE:
            assert outside or pid in self.stuck, "no pause after its own failure"
            self.quick.append(self.now)

    @precondition(process_lives)
    @rule()
    def stuck_found(self) -> None:
        """The watchdog has had enough of it."""
        assert self.process is not None
        pid, generation = self.process
        if self.state.phase in {Phase.READY, Phase.DRAINING}:
            self.stuck.add(pid)
        self.feed(StuckFound(generation=generation, reason="nothing moves"))
        if self.state.phase in {Phase.READY, Phase.DRAINING}:
            assert self.state.killed

    @precondition(health_is_asked)
    @rule(ok=st.booleans(), data=st.data())
    def health(self, ok: bool, data: st.DataObject) -> None:
        """An answer, perhaps about a process that is long gone."""
        generation = data.draw(st.sampled_from(sorted(self.asked_health)))
        self.asked_health.discard(generation)
        self.feed(HealthAnswered(generation=generation, ok=ok))

    @precondition(probe_is_asked)
    @rule(ok=st.booleans(), data=st.data())
    def probe(self, ok: bool, data: st.DataObject) -> None:
        """A token, or none."""
        generation = data.draw(st.sampled_from(sorted(self.asked_probe)))
        self.asked_probe.discard(generation)
        failed = ProbeFailed(generation=generation, reason="HTTP 500")
        self.feed(ProbeAnswered(generation=generation) if ok else failed)

    @precondition(process_lives)
    @rule()
    def refused(self) -> None:
        """What it has loaded isn't what was planned."""
        assert self.process is not None
        self.feed(LoadRefused(generation=self.process[1], reason="it is in RAM"))

    @precondition(process_lives)
    @rule()
    def progress(self) -> None:
        """The engine says something."""
        assert self.process is not None
        self.feed(ProgressSeen(generation=self.process[1]))

    @precondition(drain_is_awaited)
    @rule()
    def drained(self) -> None:
        """Nothing in flight."""
        self.feed(RequestsDrained(generation=self.awaiting_drain.pop()))

    @rule(s=st.sampled_from([0.1, 1.0, 3.0, 12.0, 400.0]))
    def time_passes(self, s: float) -> None:
        """The timer goes off on its way, as often as it is set anew."""
        end = self.now + s
        while self.timer is not None and self.timer <= end:
            self.now, self.timer = max(self.now, self.timer), None
            self.feed(Ticked())
            if self.timer is not None and self.timer <= self.now and self.state.phase is Phase.BACKING_OFF:
                break  # at once, but not within the same instant for ever
        self.now = max(self.now, end)

    # --- what always holds --------------------------------------------------------------------------

    @invariant()
    def the_book_is_true(self) -> None:
        """The state knows of the process exactly when there is one."""
        assert self.state.spawning == (self.spawn_asked is not None)
        assert (self.state.pid is not None) == (self.process is not None)
        if self.process is not None:
            assert self.state.pid == self.process[0]
        assert self.timer == self.state.deadline

    @invariant()
    def no_respawn_storm(self) -> None:
        """Restarts without a pause stay within their allowance, over every stretch of time."""
        for first, began in enumerate(self.quick):
            for last in range(first, len(self.quick)):
                allowed = LIMITS.quick_restarts + (self.quick[last] - began) / LIMITS.quick_every_s
                assert last - first + 1 <= allowed + 1e-6

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        """Each phase that isn't at rest has a timer, or an answer that somebody owes."""
        if self.state.phase in {Phase.LOADING, Phase.BACKING_OFF}:
            assert self.timer is not None
        if self.state.phase is Phase.STARTING:
            assert self.spawn_asked is not None
        if self.state.phase is Phase.DRAINING:
            assert self.timer is not None or self.spawn_asked is not None

    @invariant()
    def a_loading_engine_is_watched(self) -> None:
        """Somebody always owes a health or a probe answer, or it would never become ready."""
        if self.state.phase is Phase.LOADING:
            generation = self.state.generation
            assert generation in self.asked_health or generation in self.asked_probe

    @invariant()
    def a_stop_wins(self) -> None:
        """Only a new request for a launch takes a stop back."""
        if self.state.stop_wanted:
            assert self.state.phase in {Phase.DRAINING, Phase.STOPPED, Phase.FAILED}

    def teardown(self) -> None:
        """From wherever the walk ended, a stop ends in stopped, also with a process that must be killed."""
        self.feed(StopRequested(drain_s=1))
        for _ in range(20):
            if self.state.phase is Phase.STOPPED:
                break
            if self.spawn_asked is not None:
                self.spawn_ends(works=True, retry=Retry.BACK_OFF)
            elif self.state.killed:
                self.exit(code=None, retry=Retry.BACK_OFF, outside=False)
            else:
                self.time_passes(1.0)
        assert self.state.phase is Phase.STOPPED
        assert self.process is None


TestWorld = World.TestCase

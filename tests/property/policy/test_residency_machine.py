"""Whatever happens, the keeper never promises bytes that aren't there, never unloads what is busy, loading or
pinned, and strands nobody. The world asserts the first two at every command.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from keeper_world import World
from terazi.policy.residency import Keeper
from terazi.policy.residency_messages import (
    Command,
    Event,
    LoadAsked,
    MemoryPressed,
    UnitFailed,
    UnitForgotten,
    UnitUsed,
    Unload,
    UnloadAsked,
    WakeAt,
)
from terazi.policy.residency_state import Limits, Residence

MODELS = ["a", "b", "c", "d"]
#: Longer than any wait for a turn may be here: three models ahead, each with its stay, its batch, its load and its
#: lag; and the longest pause of one that had failed. A queue that is longer than a turn waits for several of them.
BOUND_S = 900.0
#: Swaps take less time than what is served between them, since who was loaded stays for twice its load.
SWAPS = 2.0


class Residency(RuleBasedStateMachine):
    """Requests, failures, pressure and people, in any order."""

    keeper = Keeper

    @initialize(
        needs=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 100)), min_size=4, max_size=4),
        load_s=st.lists(st.floats(0.1, 20), min_size=4, max_size=4),
        lag_s=st.sampled_from([0.0, 0.6, 3.0]),
        pinned=st.booleans(),
        idle_s=st.sampled_from([None, 5.0, 60.0]),
    )
    def begin(
        self,
        needs: list[tuple[int, int]],
        load_s: list[float],
        lag_s: float,
        pinned: bool,
        idle_s: float | None,
    ) -> None:
        self.world = World({"CUDA0": 60, "RAM": 200}, Limits(), lag_s=lag_s, slots=2, keeper=self.keeper)
        self.failed = False
        self.pinned = pinned
        for n, model in enumerate(MODELS):
            pin = pinned and model == "a"
            card, ram = needs[n]
            self.world.know(
                model,
                model,
                {"CUDA0": card // 4 if pinned else card, "RAM": ram // 2 if pinned else ram},
                load_s[n],
                pinned=pin,
                idle_s=None if pin else idle_s,
                priority=n % 2,
            )

    @rule(model=st.sampled_from(MODELS), seconds=st.floats(0.1, 30), count=st.integers(1, 4))
    def ask(self, model: str, seconds: float, count: int) -> None:
        for _ in range(count):
            self.world.ask(model, seconds)

    @rule(seconds=st.floats(0.01, 40))
    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    @rule(model=st.sampled_from(MODELS))
    def give_up(self, model: str) -> None:
        self.world.give_up(model)

    @rule(model=st.sampled_from(MODELS), no_memory=st.booleans())
    def fail_next(self, model: str, no_memory: bool) -> None:
        self.failed = True
        engine = self.world.engines[model]
        if not engine.failing:
            engine.failing.append(UnitFailed(unit=model, reason="a test", no_memory=no_memory))

    @rule(bytes_=st.integers(1, 200))
    def press(self, bytes_: int) -> None:
        self.world.tell(MemoryPressed(need={"RAM": bytes_}))

    @rule(model=st.sampled_from(MODELS), evict=st.booleans())
    def load(self, model: str, evict: bool) -> None:
        self.world.tell(LoadAsked(unit=model, evict=evict))

    @precondition(lambda self: not self.pinned)
    @rule(model=st.sampled_from(MODELS))
    def unload(self, model: str) -> None:
        if self.world.engines[model].state != "loading":  # only then may a person's word end a load
            self.world.tell(UnloadAsked(unit=model, reason="asked"))

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        world.run(world.now + BOUND_S + SWAPS * sum(r.seconds for queue in world.queues.values() for r in queue))
        waiting = {model: queue for model, queue in world.queues.items() if queue}
        assert not waiting, f"stranded: {waiting}"
        if not self.failed:
            assert not world.turned_away
        if self.pinned and not self.failed:
            assert world.keeper.residence("a") is Residence.READY
            assert not any(isinstance(c, Unload) and c.unit == "a" for _, c in world.log)
        for model in MODELS:
            world.tell(UnitForgotten(unit=model))
        world.run(world.now + 60)
        assert all(world.keeper.residence(model) is None for model in MODELS)


def test_no_byte_is_promised_twice_and_nobody_is_stranded() -> None:
    run_state_machine_as_test(Residency, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))


class Thorough(Keeper):
    """Looks over everybody each time."""

    def step(self, event: Event, now: float) -> list[Command]:
        """As ``Keeper`` has it."""
        self._calm = False
        return super().step(event, now)


class Twins(Keeper):
    """A keeper, and one that is thorough beside it: told the same, they must say the same."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.thorough = Thorough(limits)
        self.seen = Seen()

    def step(self, event: Event, now: float) -> list[Command]:
        """As ``Keeper`` has it."""
        calm = self._calm and isinstance(event, UnitUsed)
        said, full = super().step(event, now), self.thorough.step(event, now)
        assert _but_wakes(said) == _but_wakes(full)
        assert self._state.units == self.thorough._state.units
        assert self._state.wants == self.thorough._state.wants
        # it may be woken too early, which costs a look, but never too late
        if self.thorough._woken_at is not None and self.thorough._woken_at > now:
            assert self._woken_at is not None
            assert self._woken_at <= self.thorough._woken_at or not calm
        self.seen.calm += calm
        self.seen.wakes += calm and bool(said)
        return said


@dataclass
class Seen:
    """How often it was spared the look, and how often it had to set its alarm all the same."""

    calm: int = 0
    wakes: int = 0


@dataclass
class Total(Seen):
    """Over all worlds."""

    worlds: int = field(default=0)


def _but_wakes(commands: list[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, WakeAt)]


def test_calm_and_thorough_keepers_say_the_same() -> None:
    total = Total()

    class Calm(Residency):
        """The same worlds with both of them."""

        keeper = Twins

        def teardown(self) -> None:
            super().teardown()
            if (world := getattr(self, "world", None)) is not None:
                total.worlds += 1
                total.calm += world.keeper.seen.calm
                total.wakes += world.keeper.seen.wakes

    run_state_machine_as_test(Calm, settings=settings(max_examples=40, stateful_step_count=25, deadline=None))
    assert total.calm > total.worlds
    assert total.wakes > 0

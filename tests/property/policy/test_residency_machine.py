"""Whatever happens, the keeper never promises bytes that aren't there, never unloads what is busy, loading or
pinned, and strands nobody. The world asserts the first two at every command.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from keeper_world import World
from terazi.policy.residency_messages import (
    LoadAsked,
    MemoryPressed,
    UnitFailed,
    UnitForgotten,
    Unload,
    UnloadAsked,
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
        self.world = World({"CUDA0": 60, "RAM": 200}, Limits(), lag_s=lag_s, slots=2)
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

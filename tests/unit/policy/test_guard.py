"""The guard on machines that run short."""

from dataclasses import replace

from terazi.policy.guard import State, step
from terazi.policy.guard_messages import (
    Announce,
    Card,
    Command,
    PauseAdmission,
    ResumeAdmission,
    Sample,
    ShedIdle,
    Stage,
    Terms,
)

GIB = 1 << 30
TERMS = Terms(settle_s=10, step_s=3, throttled_s=20)
CALM = Sample(
    at=0,
    ram_total_bytes=32 * GIB,
    ram_available_bytes=20 * GIB,
    pressure=0.0,
    swap_in_per_s=0.0,
    oom_kills=0,
    disk_free_bytes=50 * GIB,
)


class Machine:
    """A sample each second, changed as a test says."""

    def __init__(self) -> None:
        self.state = State(terms=TERMS)
        self.now = 0.0
        self.said: list[Command] = []
        self.run(2)

    def run(self, seconds: int, **change: object) -> list[Command]:
        """The commands of so many looks."""
        said: list[Command] = []
        for _ in range(seconds):
            self.now += 1
            sample = replace(CALM, at=self.now, **change)  # type: ignore[arg-type]  # a test's own words
            self.state, commands = step(self.state, sample)
            said += commands
        self.said += said
        return said

    def kinds(self) -> list[str]:
        """What was said, in order."""
        return [type(command).__name__ for command in self.said if not isinstance(command, Announce)]


def test_a_calm_machine_is_left_alone() -> None:
    machine = Machine()
    machine.run(1000)
    assert machine.said == []


def test_stages_come_in_order_and_go_in_order() -> None:
    machine = Machine()
    machine.run(12, ram_available_bytes=GIB // 4)
    assert machine.kinds()[:3] == ["PauseAdmission", "ShedIdle", "Shrink"]
    assert machine.state.stage is Stage.SHRINKING
    machine.run(40)
    assert [c.stage for c in machine.said if isinstance(c, Announce)] == [1, 2, 3, 2, 1, 0]
    assert machine.kinds()[-1] == "ResumeAdmission"


def test_each_stage_is_given_time_to_work() -> None:
    machine = Machine()
    assert [type(c) for c in machine.run(3, ram_available_bytes=GIB // 4)] == [Announce, PauseAdmission]
    (_, shed) = machine.run(1, ram_available_bytes=GIB // 4)
    assert isinstance(shed, ShedIdle)
    # until a quarter more than 6 % of RAM would be available
    assert shed.need["Host"] == int(0.075 * 32 * GIB - GIB // 4) + 1
    assert "0.8% of RAM is available" in shed.reason


def test_a_mild_shortage_only_pauses_and_is_forgotten_when_it_is_clearly_over() -> None:
    machine = Machine()
    machine.run(60, ram_available_bytes=int(0.05 * 32 * GIB))
    machine.run(60, ram_available_bytes=int(0.065 * 32 * GIB))  # over the limit, but not clearly
    assert machine.kinds() == ["PauseAdmission"]
    machine.run(9)
    assert machine.state.stage is Stage.PAUSED
    machine.run(2)
    assert machine.kinds() == ["PauseAdmission", "ResumeAdmission"]


def test_swapping_and_stalls_count_although_memory_seems_available() -> None:
    for change in ({"swap_in_per_s": 200.0 * (1 << 20)}, {"pressure": 50.0}):
        machine = Machine()
        machine.run(20, **change)
        assert machine.kinds()[:2] == ["PauseAdmission", "ShedIdle"]
        shed = next(c for c in machine.said if isinstance(c, ShedIdle))
        assert dict(shed.need) == {"Host": 1}


def test_what_becomes_idle_later_is_unloaded_too_and_shrinking_waits() -> None:
    machine = Machine()
    machine.run(300, ram_available_bytes=GIB // 4)
    sheds = machine.kinds().count("ShedIdle")
    assert 20 <= sheds <= 31
    assert machine.kinds().count("Shrink") == 3  # at once, then each two minutes


def test_a_card_filled_on_purpose_is_not_short_until_others_take_what_was_spared() -> None:
    full = Card(total_bytes=24 * GIB, free_bytes=GIB // 16, spare_bytes=GIB // 16)
    machine = Machine()
    machine.run(30, cards={"CUDA0": full})
    assert machine.said == []
    machine.run(30, cards={"CUDA0": replace(full, free_bytes=GIB // 64)})
    assert machine.kinds()[:2] == ["PauseAdmission", "ShedIdle"]
    shed = next(c for c in machine.said if isinstance(c, ShedIdle))
    assert set(shed.need) == {"CUDA0"}


def test_heat_and_a_full_disk_only_pause() -> None:
    hot = Card(total_bytes=24 * GIB, free_bytes=GIB, temperature_c=101.0)
    machine = Machine()
    machine.run(100, cards={"CUDA0": hot}, disk_free_bytes=1)
    assert machine.kinds() == ["PauseAdmission"]
    pause = machine.said[1]
    assert isinstance(pause, PauseAdmission)
    assert "101 °C" in pause.reason
    assert "disk" in pause.reason
    machine.run(30, cards={"CUDA0": replace(hot, temperature_c=93.0)})  # cooler, not cool
    assert machine.state.stage is Stage.PAUSED
    machine.run(30, cards={"CUDA0": replace(hot, temperature_c=85.0)})
    assert isinstance(machine.said[-1], ResumeAdmission)


def test_a_card_that_is_slowed_for_long_pauses() -> None:
    slow = Card(total_bytes=24 * GIB, throttled=True)
    machine = Machine()
    machine.run(15, cards={"CUDA0": slow})
    machine.run(1, cards={"CUDA0": replace(slow, throttled=False)})
    machine.run(15, cards={"CUDA0": slow})
    assert machine.said == []
    machine.run(10, cards={"CUDA0": slow})
    assert machine.kinds() == ["PauseAdmission"]


def test_a_kill_for_want_of_memory_pauses_at_once() -> None:
    machine = Machine()
    machine.run(1, oom_kills=1)
    assert machine.kinds() == ["PauseAdmission"]


def test_kills_alone_shed_what_is_idle_and_shrink_nobody() -> None:
    machine = Machine()
    for kills in range(1, 30):
        machine.run(4, oom_kills=kills)
    assert machine.state.stage is Stage.SHEDDING
    assert machine.kinds() == ["PauseAdmission", "ShedIdle"]


def test_a_card_that_is_slowed_again_meanwhile_stays_paused() -> None:
    slow = Card(total_bytes=24 * GIB, throttled=True)
    machine = Machine()
    machine.run(30, cards={"CUDA0": slow})
    for _ in range(10):  # never for long enough to pause for, and never clearly over
        machine.run(4, cards={"CUDA0": replace(slow, throttled=False)})
        machine.run(4, cards={"CUDA0": slow})
    assert machine.kinds() == ["PauseAdmission"]


def test_what_is_not_measured_says_nothing() -> None:
    state = State(terms=TERMS)
    for second in range(100):
        state, commands = step(state, Sample(at=float(second)))
        assert commands == ()


def test_without_limits_nothing_is_done() -> None:
    state = State(terms=replace(TERMS, stages={}))
    state, commands = step(state, replace(CALM, at=1, ram_available_bytes=0, pressure=100.0))
    assert commands == ()

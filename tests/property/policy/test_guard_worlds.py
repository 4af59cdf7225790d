"""The guard under any pressure: stages in order, no flapping, and always open again once it is over."""

from hypothesis import given, settings
from hypothesis import strategies as st

from terazi.policy.guard import State, step
from terazi.policy.guard_messages import (
    Announce,
    Card,
    PauseAdmission,
    ResumeAdmission,
    Sample,
    ShedIdle,
    Shrink,
    Stage,
    Terms,
)

GIB = 1 << 30
TERMS = Terms(settle_s=10, step_s=3, throttled_s=15)
shares = st.floats(0, 1)


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    """Looks at irregular moments, each figure as it likes, some of them missing."""
    now, found, kills = 0.0, [], 0
    for _ in range(draw(st.integers(1, 80))):
        now += draw(st.floats(0.1, 5))
        kills += draw(st.sampled_from([0, 0, 0, 0, 1]))
        card = Card(
            total_bytes=24 * GIB,
            free_bytes=draw(st.none() | st.integers(0, GIB)),
            temperature_c=draw(st.none() | st.floats(20, 110)),
            throttled=draw(st.booleans()),
            spare_bytes=draw(st.none() | st.integers(0, GIB)),
        )
        found.append(
            Sample(
                at=now,
                ram_total_bytes=draw(st.none() | st.just(32 * GIB)),
                ram_available_bytes=draw(st.none() | shares.map(lambda share: int(share * share * 8 * GIB))),
                pressure=draw(st.none() | st.floats(0, 100)),
                swap_in_per_s=draw(st.none() | st.floats(0, 1e9)),
                oom_kills=draw(st.none() | st.just(kills)),
                cards=draw(st.sampled_from([{}, {"CUDA0": card}])),
                disk_free_bytes=draw(st.none() | st.integers(0, 4 * GIB)),
            )
        )
    return found


@settings(max_examples=40, deadline=None)
@given(looks=samples())
def test_whatever_happens(looks: list[Sample]) -> None:
    state, stage, paused = State(terms=TERMS), Stage.OPEN, False
    ups: list[float] = []
    changed_at = 0.0
    for sample in looks:
        state, commands = step(state, sample)
        for command in commands:
            match command:
                case Announce(stage=new, reason=reason):
                    assert reason
                    assert abs(new - stage) == 1, "a stage was skipped"
                    if new > stage:
                        ups.append(sample.at)
                    else:
                        assert sample.at - changed_at >= TERMS.settle_s, "left before it had settled"
                    stage, changed_at = new, sample.at
                case PauseAdmission(reason=reason):
                    assert reason
                    assert not paused
                    paused = True
                case ResumeAdmission():
                    assert paused
                    paused = False
                case ShedIdle(need=need) | Shrink(need=need):
                    assert paused
                    assert need
                    assert all(n > 0 for n in need.values())
        assert paused == (state.stage >= Stage.PAUSED)
        assert stage is state.stage
    span = looks[-1].at - looks[0].at
    assert sum(1 for _ in ups) <= 3 * (span / TERMS.settle_s + 1), "it flaps"
    # the pressure goes away: within a settling time for each stage it is open again, and stays so
    now = looks[-1].at
    calm = Sample(
        at=now,
        ram_total_bytes=32 * GIB,
        ram_available_bytes=20 * GIB,
        pressure=0.0,
        swap_in_per_s=0.0,
        disk_free_bytes=100 * GIB,
        cards={"CUDA0": Card(total_bytes=24 * GIB, free_bytes=2 * GIB, temperature_c=40.0)},
    )
    for second in range(1, 3 * 11 + 3):
        state, commands = step(state, Sample(**{**_fields(calm), "at": now + second}))  # type: ignore[arg-type]
    assert state.stage is Stage.OPEN
    assert commands == ()


def _fields(sample: Sample) -> dict[str, object]:
    return {name: getattr(sample, name) for name in Sample.__dataclass_fields__}


@given(noise=st.lists(st.floats(0.05, 0.0749), min_size=30, max_size=200))
def test_a_figure_that_trembles_around_a_limit_makes_one_change(noise: list[float]) -> None:
    state, changes = State(terms=TERMS), 0
    for second, share in enumerate(noise):
        state, commands = step(
            state,
            Sample(at=float(second), ram_total_bytes=100 * GIB, ram_available_bytes=int(share * 100 * GIB)),
        )
        changes += sum(isinstance(command, Announce) for command in commands)
    assert changes <= 1

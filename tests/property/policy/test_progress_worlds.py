"""The watchdog in made-up worlds: what works is never called stuck, what has stopped always is, and in time."""

from hypothesis import given
from hypothesis import strategies as st

from terazi.policy.progress import Ask, Liveness, Patience, Sample, State, step

PATIENCE = Patience(look_s=3, silent_s=15, idle_look_s=30, active_s=120, busy_s=600)
Step = tuple[float, bool, bool, bool]  # seconds late, answers, moves, works


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 2), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=120
    ),
    expected_s=st.none() | st.floats(0.01, 100),
    visible=st.booleans(),
    in_flight=st.integers(0, 9),
)
def test_an_engine_that_moves_or_works_is_never_stuck(
    steps: list[Step], expected_s: float | None, visible: bool, in_flight: int
) -> None:
    """Each world works or moves always, and moves at least every 100 s: as long as activity is believed."""
    state, now, cpu, moved, last_move = State(patience=PATIENCE), 0.0, 0.0, 0.0, 0.0
    ask, again = Ask.NOTHING, PATIENCE.look_s
    for late, answers, moves, works in steps:
        now += again + late
        if moves or not works or now - last_move > 100:
            moved, last_move = moved + 1, now
        cpu += (again + late) * (1.0 if works else 0.0)
        asked = ask is not Ask.NOTHING
        idle_answers = answers or in_flight == 0  # an idle engine that answers nothing at all is another test's
        sample = Sample(
            at=now,
            in_flight=in_flight,
            bytes_seen=int(moved),
            answered=idle_answers if asked else None,
            cpu_s=cpu if visible else None,
            expected_s=expected_s,
            token=True if ask is Ask.GENERATE else None,
        )
        state, verdict = step(state, sample)
        ask, again = verdict.ask, verdict.again_s
        assert verdict.liveness is not Liveness.STUCK, verdict
        assert again > 0


@given(
    before=st.lists(st.tuples(st.floats(0, 2), st.booleans(), st.booleans(), st.booleans()), max_size=40),
    expected_s=st.none() | st.floats(0.01, 3),
    stopped=st.booleans(),
    after=st.lists(st.floats(0, 1), min_size=12, max_size=12),
)
def test_what_gives_no_sign_with_requests_in_flight_is_found_in_time(
    before: list[Step], expected_s: float | None, stopped: bool, after: list[float]
) -> None:
    state, now, cpu, moved = State(patience=PATIENCE), 0.0, 0.0, 0
    ask, again = Ask.NOTHING, PATIENCE.look_s
    for late, answers, moves, works in before:
        now += again + late
        moved += moves or not works
        cpu += (again + late) * works
        state, verdict = step(
            state,
            Sample(
                at=now,
                in_flight=1,
                bytes_seen=moved,
                cpu_s=cpu,
                answered=answers if ask is not Ask.NOTHING else None,
                expected_s=expected_s,
            ),
        )
        ask, again = verdict.ask, verdict.again_s
    froze = now
    for late in after:
        now += again + late
        state, verdict = step(
            state,
            Sample(
                at=now,
                in_flight=1,
                bytes_seen=moved,
                cpu_s=cpu,
                answered=False if ask is not Ask.NOTHING else None,
                expected_s=expected_s,
                stopped=stopped,
            ),
        )
        ask, again = verdict.ask, verdict.again_s
        if verdict.liveness is Liveness.STUCK:
            assert now - froze >= PATIENCE.silent_s - 2 * PATIENCE.look_s - 2 or not before
            assert now - froze <= PATIENCE.silent_s + 2 * (PATIENCE.look_s + 1)
            return
    raise AssertionError(f"not found: {verdict}")


@given(misses=st.lists(st.booleans(), max_size=60))
def test_no_idle_engine_is_stuck_that_gives_its_token(misses: list[bool]) -> None:
    state, now, ask, again = State(patience=PATIENCE), 0.0, Ask.NOTHING, 3.0
    for miss in misses:
        now += again
        state, verdict = step(
            state,
            Sample(
                at=now,
                in_flight=0,
                answered=not miss if ask is not Ask.NOTHING else None,
                token=True if ask is Ask.GENERATE else None,
            ),
        )
        ask, again = verdict.ask, verdict.again_s
        assert verdict.liveness is not Liveness.STUCK

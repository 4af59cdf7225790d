"""The progress watchdog against engines as they were seen on the wire."""

from dataclasses import dataclass, field, replace

import pytest

from terazi.policy.progress import Ask, Liveness, Patience, Sample, State, Verdict, expected_step_s, step

PATIENCE = Patience()


@dataclass
class Watch:
    """Feeds samples as the service does: a question is only answered where the last verdict asked one."""

    state: State
    now: float = 1000.0
    verdict: Verdict = field(
        default_factory=lambda: Verdict(liveness=Liveness.IDLE, reason="", ask=Ask.NOTHING, again_s=3.0)
    )
    cpu: float = 5.0
    asked: int = 0

    def look(self, *, answers: bool = True, cpu: float | None = 0.0, **seen: object) -> Verdict:
        """One sample ``again_s`` later; *cpu* is the share used since."""
        self.now += self.verdict.again_s
        if cpu is not None:
            self.cpu += cpu * self.verdict.again_s
        asks = self.verdict.ask is not Ask.NOTHING
        self.asked += asks
        sample = Sample(
            at=self.now,
            in_flight=0,
            answered=answers if asks else None,
            cpu_s=None if cpu is None else self.cpu,
            token=answers if self.verdict.ask is Ask.GENERATE else None,
        )
        self.state, self.verdict = step(self.state, replace(sample, **seen))  # type: ignore[arg-type]  # test's own words
        return self.verdict

    def until_stuck(self, within_s: float, **seen: object) -> float:
        """Seconds until the verdict; fails if it doesn't come."""
        began = self.now
        while self.now - began <= within_s:
            if self.look(**seen).liveness is Liveness.STUCK:  # type: ignore[arg-type]  # as above
                return self.now - began
        raise AssertionError(f"not stuck within {within_s} s: {self.verdict}")


@pytest.fixture
def watch() -> Watch:
    return Watch(State(patience=PATIENCE))


def test_a_prefill_of_half_a_minute_on_one_thread_is_busy(watch: Watch) -> None:
    """As measured: 31 s of one prompt; questions are answered at once, no counter moves within a batch."""
    watch.look(in_flight=1)
    while watch.now < 1031:
        verdict = watch.look(in_flight=1, counters=(0.0,), working=1, cpu=1.0, expected_s=10.0)
        assert verdict.liveness is Liveness.BUSY, verdict
    assert watch.look(in_flight=1, counters=(61.0,), cpu=1.0).liveness is Liveness.BUSY


@pytest.mark.parametrize("answers", [True, False])
def test_a_busy_engine_that_misses_questions_is_not_dead(watch: Watch, answers: bool) -> None:
    watch.look(in_flight=1)
    while watch.now < 1090:
        assert watch.look(in_flight=4, cpu=0.9, answers=answers, expected_s=5.0).liveness is not Liveness.STUCK


def test_sigstop_with_streams_is_found_in_time(watch: Watch) -> None:
    for n in range(10):
        watch.look(in_flight=3, bytes_seen=n, cpu=1.0)
    took = watch.until_stuck(20, in_flight=3, bytes_seen=9, answers=False, stopped=True, expected_s=30.0)
    assert 12 <= took <= 18
    assert "3 requests in flight" in watch.verdict.reason
    assert "stopped its process" in watch.verdict.reason


def test_sigstop_in_the_middle_of_a_prefill_is_found_in_time(watch: Watch) -> None:
    watch.look(in_flight=1)
    for _ in range(8):
        watch.look(in_flight=1, cpu=1.0, expected_s=10.0)
    assert watch.until_stuck(20, in_flight=1, answers=False, stopped=True, expected_s=10.0) <= 18


def test_a_deadlock_that_answers_nothing_is_found_in_time(watch: Watch) -> None:
    watch.look(in_flight=1)
    assert watch.until_stuck(20, in_flight=1, answers=False) <= 18
    assert "no processor" in watch.verdict.reason


def test_a_hang_that_still_answers_questions_is_found_by_what_was_to_be_expected(watch: Watch) -> None:
    watch.look(in_flight=1, bytes_seen=1)
    assert watch.until_stuck(20, in_flight=1, bytes_seen=1, counters=(7.0,), expected_s=0.5) <= 18


def test_work_on_an_accelerator_that_is_not_seen_gets_the_time_that_is_expected(watch: Watch) -> None:
    watch.look(in_flight=1)
    while watch.now < 1075:
        assert watch.look(in_flight=1, expected_s=20.0, counters=(1.0,)).liveness is not Liveness.STUCK
    assert watch.until_stuck(20, in_flight=1, expected_s=20.0, counters=(1.0,))


def test_a_loop_that_waits_for_a_lost_card_is_not_believed_for_ever(watch: Watch) -> None:
    watch.look(in_flight=1)
    assert 110 < watch.until_stuck(130, in_flight=1, cpu=1.0, expected_s=0.2, counters=(3.0,)) <= 125


def test_streams_that_flow_cost_no_question(watch: Watch) -> None:
    for n in range(200):
        watch.look(in_flight=2, bytes_seen=n, cpu=0.5)
    assert watch.asked == 0


def test_an_idle_engine_is_asked_seldom_and_cheaply(watch: Watch) -> None:
    while watch.now < 4600:
        assert watch.look(counters=(5.0,)).liveness is Liveness.IDLE
        assert watch.verdict.ask is Ask.LOOK
    assert watch.asked <= 3600 / PATIENCE.idle_look_s + 1


def test_an_idle_engine_that_was_stopped_is_found_and_only_after_doubt_by_a_token(watch: Watch) -> None:
    watch.look()
    asks = []
    while watch.look(answers=False, stopped=True).liveness is not Liveness.STUCK:
        asks.append(watch.verdict.ask)
        assert watch.now < 1100
    assert asks == [Ask.LOOK, Ask.LOOK, Ask.GENERATE]
    assert "one token" in watch.verdict.reason


def test_an_idle_engine_that_is_slow_to_answer_but_generates_is_well(watch: Watch) -> None:
    watch.look()
    for _ in range(20):
        sample_asks_token = watch.verdict.ask is Ask.GENERATE
        answered = {"answered": False, "token": True} if sample_asks_token else {"answered": False}
        assert watch.look(**answered).liveness is not Liveness.STUCK


def test_an_attached_engine_shows_less_and_gets_more_time(watch: Watch) -> None:
    watch.look(in_flight=1, cpu=None)
    while watch.now < 1300:
        assert watch.look(in_flight=1, cpu=None).liveness is not Liveness.STUCK
    assert 25 < watch.until_stuck(60, in_flight=1, cpu=None, answers=False) < 50


def test_an_attached_engine_is_well_again_once_it_gives_a_token(watch: Watch) -> None:
    watch.look(in_flight=1, cpu=None)
    watch.until_stuck(60, in_flight=1, cpu=None, answers=False)
    assert watch.look(cpu=None, answers=False).liveness is Liveness.STUCK
    assert watch.verdict.ask is Ask.GENERATE
    assert watch.look(cpu=None).liveness is Liveness.IDLE
    assert watch.look(in_flight=1, cpu=None).liveness is Liveness.BUSY


def test_time_in_which_nobody_looked_does_not_count(watch: Watch) -> None:
    """This program itself was stopped for an hour; the first look finds unread bytes only later."""
    for n in range(5):
        watch.look(in_flight=1, bytes_seen=n, cpu=1.0)
    watch.now += 3600
    assert watch.look(in_flight=1, bytes_seen=4, answers=False).liveness is not Liveness.STUCK
    assert watch.look(in_flight=1, bytes_seen=9).liveness is Liveness.BUSY


def test_a_request_that_comes_after_a_long_rest_has_all_the_time(watch: Watch) -> None:
    watch.look()
    watch.now += 29
    assert watch.look(in_flight=1).liveness is Liveness.BUSY
    assert watch.until_stuck(20, in_flight=1, answers=False) > 10


def test_requests_that_come_do_not_hide_that_none_is_finished(watch: Watch) -> None:
    for n in range(1, 20):
        if watch.look(in_flight=n, answers=False).liveness is Liveness.STUCK:
            break
    else:
        pytest.fail("new requests were taken for progress")


def test_a_request_that_ends_is_a_sign_of_life(watch: Watch) -> None:
    """Whole answers bring no bytes until they are there."""
    for n in range(30, 0, -1):
        assert watch.look(in_flight=n, answers=False).liveness is not Liveness.STUCK


def test_a_stopped_process_is_not_saved_by_what_runs_beside_it(watch: Watch) -> None:
    watch.look(in_flight=1)
    assert watch.until_stuck(30, in_flight=1, answers=False, stopped=True, cpu=1.0) <= 18


def test_work_that_is_not_seen_and_of_which_nothing_is_known_gets_four_times_the_silence(watch: Watch) -> None:
    watch.look(in_flight=1)
    assert 57 <= watch.until_stuck(90, in_flight=1, counters=(1.0,)) <= 66


def test_activity_is_believed_for_four_times_what_a_slow_batch_may_take(watch: Watch) -> None:
    watch.look(in_flight=1)
    assert 315 <= watch.until_stuck(400, in_flight=1, cpu=1.0, expected_s=20.0, counters=(3.0,)) <= 326


def test_an_idle_engine_that_answers_again_is_not_judged_by_one_token_that_failed(watch: Watch) -> None:
    """Others' requests may have all its slots."""
    watch.look()
    while watch.verdict.ask is not Ask.GENERATE:
        watch.look(answers=False)
    assert watch.look(answered=True, token=False).liveness is not Liveness.STUCK


def test_an_attached_engine_that_is_deaf_in_a_long_batch_gets_the_time_of_the_batch(watch: Watch) -> None:
    watch.look(in_flight=1, cpu=None)
    assert watch.until_stuck(120, in_flight=1, cpu=None, answers=False, expected_s=20.0) >= 80


def test_what_is_expected_of_a_batch() -> None:
    assert expected_step_s(2048, 204.8) == pytest.approx(10)
    assert expected_step_s(2048, None) is None

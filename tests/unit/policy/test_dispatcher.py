"""The dispatcher's answers to single events; what always holds is in the property tests."""

from typing import Any

import pytest

from terazi.policy.admission import Limits
from terazi.policy.dispatch_messages import (
    AttemptLost,
    Command,
    Dispatch,
    DrainBegan,
    ModelClosed,
    ReplicaChanged,
    ReplicaGone,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Ticked,
    TurnAway,
    WakeAt,
    WantModel,
    Why,
)
from terazi.policy.dispatcher import Dispatcher


class Desk:
    """A dispatcher with a clock."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.dispatcher = Dispatcher(limits)
        self.now = 0.0

    def arrive(
        self, id_: str, caller: str = "ann", model: str = "m", tokens: int = 100, **terms: object
    ) -> list[Command]:
        event = RequestArrived(id=id_, model=model, caller=caller, tokens=tokens, **terms)  # type: ignore[arg-type]
        return self.dispatcher.step(event, self.now)

    def finish(self, id_: str, tokens: int | None = 100) -> list[Command]:
        return self.dispatcher.step(RequestFinished(id=id_, tokens=tokens), self.now)

    def lose(self, id_: str) -> list[Command]:
        return self.dispatcher.step(AttemptLost(id=id_), self.now)

    def open(self, replica: str = "m#1", *, open_: bool = True, slots: int = 1, **terms: object) -> list[Command]:
        model = replica.partition("#")[0]
        event = ReplicaChanged(replica=replica, model=model, open=open_, slots=slots, **terms)  # type: ignore[arg-type]
        return self.dispatcher.step(event, self.now)

    def wait_of(self, id_: str) -> float | None:
        return self.dispatcher.expected_wait_s(id_, self.now)


def away(commands: list[Command]) -> TurnAway:
    (found,) = [c for c in commands if isinstance(c, TurnAway)]
    return found


def seated(commands: list[Command]) -> list[str]:
    return [c.id for c in commands if isinstance(c, Dispatch)]


def test_a_busy_model_holds_nobody_up_who_wants_another() -> None:
    """A long answer of the large model, and requests behind it; the small one is loaded and idle. (ollama#14578)"""
    desk = Desk()
    desk.open("large#1")
    desk.open("small#1")
    desk.arrive("l1", model="large")
    for i in range(50):
        desk.arrive(f"more{i}", model="large")
    assert seated(desk.arrive("s1", model="small")) == ["s1"]


def test_a_cold_model_is_wanted_once_for_each_change_and_no_more_when_all_have_left() -> None:
    desk = Desk()
    first = desk.arrive("r1")
    assert first == [WantModel(model="m", waiting=1, since=0.0)]
    desk.now = 3.0
    assert desk.arrive("r2", priority=2) == [WantModel(model="m", waiting=2, since=0.0, priority=2)]
    assert desk.dispatcher.step(Ticked(), 4.0) == []
    assert [type(c) for c in desk.arrive("r0", max_queued=0)] == [TurnAway], "nothing new about those who wait"
    desk.dispatcher.step(RequestCancelled(id="r2"), 5.0)
    assert desk.dispatcher.step(RequestCancelled(id="r1"), 5.0) == [WantModel(model="m", waiting=0, since=5.0)]


def test_a_lost_attempt_comes_first_and_does_not_pay_again() -> None:
    desk = Desk()
    desk.open()
    desk.arrive("a1", "ann", tokens=1000)
    desk.arrive("b1", "ben")
    desk.arrive("a2", "ann")
    desk.open(open_=False)
    assert seated(desk.lose("a1")) == []
    assert [desk.dispatcher.position(i) for i in ("a1", "b1", "a2")] == [1, 2, 3]
    assert seated(desk.open()) == ["a1"]
    assert seated(desk.finish("a1", 1000)) == ["b1"]
    assert seated(desk.finish("b1")) == ["a2"]


def test_the_older_of_two_lost_ones_comes_first() -> None:
    desk = Desk()
    desk.open(slots=2)
    desk.arrive("old")
    desk.now = 1.0
    desk.arrive("young")
    desk.open(open_=False)
    desk.lose("young")
    desk.lose("old")
    assert seated(desk.open()) == ["old"]


def test_an_engine_that_is_gone_and_one_of_the_same_name_are_two() -> None:
    desk = Desk()
    desk.open()
    desk.arrive("r1")
    desk.dispatcher.step(ReplicaGone(replica="m#1"), 0.0)
    assert seated(desk.arrive("r2")) == []
    assert seated(desk.open()) == ["r2"]
    assert seated(desk.lose("r1")) == [], "the new one has one slot, and it is taken"
    assert seated(desk.finish("r2")) == ["r1"]


def test_too_large_is_said_at_once_with_the_numbers() -> None:
    desk = Desk()
    desk.open("m#1", slots=2, tokens=4096)
    desk.open("m#2", open_=False, slots=2, tokens=8192)
    assert away(desk.arrive("r1", tokens=5000)).why is Why.TOO_LARGE
    assert "5000" in away(desk.arrive("r2", tokens=5000)).message
    assert "4096" in away(desk.arrive("r3", tokens=5000)).message
    assert desk.arrive("r4", tokens=4000) == [WantModel(model="m", waiting=1, since=0.0)], "only the closed one can"
    desk.open("m#3", open_=False)
    assert not [c for c in desk.arrive("r5", tokens=9000) if isinstance(c, TurnAway)], (
        "nobody knows how large it is"
    )


def test_those_who_wait_are_told_when_the_engine_turns_out_too_small() -> None:
    desk = Desk()
    desk.arrive("r1", tokens=5000)
    assert away(desk.open(tokens_each=2048)).why is Why.TOO_LARGE


def test_a_deadline_is_kept_while_waiting_and_after_a_lost_attempt() -> None:
    desk = Desk()
    desk.open()
    desk.arrive("r1", deadline=2.0)
    (wake,) = desk.arrive("r2", deadline=5.0)
    assert wake == WakeAt(at=5.0)
    assert [c for c in desk.arrive("r3", deadline=4.0) if isinstance(c, WakeAt)] == [WakeAt(at=4.0)]
    desk.now = 4.0
    commands = desk.dispatcher.step(Ticked(), 4.0)
    assert (away(commands).id, away(commands).why) == ("r3", Why.DEADLINE)
    assert commands[-1] == WakeAt(at=5.0)
    assert away(desk.lose("r1")).why is Why.DEADLINE
    assert away(desk.arrive("r4", deadline=3.0)).why is Why.DEADLINE


def test_a_deadline_that_was_waited_for_twice_passes_once() -> None:
    desk = Desk()
    desk.arrive("other", model="n", deadline=4.0)
    desk.arrive("r1", deadline=5.0)
    assert seated(desk.open()) == ["r1"]
    desk.open(open_=False)
    desk.lose("r1")
    desk.now = 5.0
    gone = [c.id for c in desk.dispatcher.step(Ticked(), 5.0) if isinstance(c, TurnAway)]
    assert gone == ["other", "r1"]


def test_nobody_waits_longer_than_anybody_may() -> None:
    desk = Desk(Limits(max_wait_s=60.0))
    assert WakeAt(at=60.0) in desk.arrive("r1")
    desk.now = 30.0
    assert seated(desk.open()) == ["r1"]
    desk.open(open_=False)
    desk.lose("r1")
    desk.now = 60.0
    assert not [c for c in desk.dispatcher.step(Ticked(), 60.0) if isinstance(c, TurnAway)], "it waits anew"
    desk.now = 90.0
    gone = away(desk.dispatcher.step(Ticked(), 90.0))
    assert (gone.id, gone.why) == ("r1", Why.NO_ENGINE)
    assert "60" in gone.message


def test_alarms_of_those_who_are_served_do_not_pile_up() -> None:
    desk = Desk(Limits(max_wait_s=1e6))
    desk.open()
    desk.arrive("r0")
    for i in range(1, 5000):
        desk.arrive(f"r{i}")
        desk.finish(f"r{i - 1}")
    assert len(desk.dispatcher._alarms._untils) <= 1025


def test_the_bounds_of_queues_and_when_to_come_again() -> None:
    desk = Desk(Limits(max_queued=4, max_queued_each=3))
    desk.open(slots=2)
    for i in range(2):
        desk.arrive(f"x{i}")
    assert away(desk.arrive("none", max_queued=0)).retry_after_s is None, "nothing was measured yet"
    desk.now = 10.0
    for i in range(2):
        desk.finish(f"x{i}")
        desk.arrive(f"y{i}")
    for i in range(3):
        assert desk.arrive(f"a{i}") == []
    refused = away(desk.arrive("a3"))
    assert (refused.why, refused.retry_after_s) == (Why.KEY_QUEUE_FULL, 5.0)
    assert desk.arrive("b0", "ben") == []
    refused = away(desk.arrive("b1", "ben"))
    assert (refused.why, refused.retry_after_s) == (Why.QUEUE_FULL, 5.0)
    assert desk.arrive("c0", "cem") == [], "who has nothing waiting isn't locked out by those who have"


def test_a_rate_makes_wait_and_then_turns_away_with_the_exact_time() -> None:
    desk = Desk(Limits(rate_wait_s=10.0))
    desk.open(slots=8)
    terms: dict[str, Any] = {"tokens_per_minute": 600}
    assert seated(desk.arrive("r1", tokens=600, **terms)) == ["r1"]
    assert desk.arrive("r2", tokens=80, **terms) == [WakeAt(at=8.0)]
    refused = away(desk.arrive("r3", tokens=80, **terms))
    assert (refused.why, refused.retry_after_s) == (Why.RATE, 16.0)
    assert seated(desk.arrive("b1", "ben")) == ["b1"], "others don't wait for it"
    assert desk.wait_of("r2") is None or desk.wait_of("r2") == pytest.approx(8.0)
    desk.now = 8.0
    assert seated(desk.dispatcher.step(Ticked(), 8.0)) == ["r2"]
    # the client that was told to come after 16 s, and does
    desk.now = 16.0
    assert seated(desk.arrive("r3", tokens=80, **terms)) == ["r3"]


def test_what_was_not_used_is_given_back() -> None:
    desk = Desk()
    desk.open(slots=8)
    desk.arrive("r1", tokens=600, tokens_per_minute=600)
    desk.finish("r1", 100)
    assert seated(desk.arrive("r2", tokens=500, tokens_per_minute=600)) == ["r2"]


def test_a_second_attempt_costs_no_tokens_again() -> None:
    desk = Desk()
    desk.open(slots=8)
    desk.arrive("r1", tokens=300, tokens_per_minute=600)
    desk.lose("r1")
    assert seated(desk.arrive("r2", tokens=300, tokens_per_minute=600)) == ["r2"]


def test_who_never_uses_what_it_asks_for_needs_less_of_its_rate() -> None:
    """Without a bound of its own, a request asks for the whole context. Two such may still run at once."""
    desk = Desk()
    desk.open(slots=8)
    terms: dict[str, Any] = {"tokens": 8000, "tokens_per_minute": 6000}
    for i in range(20):
        desk.now += 60.0
        desk.arrive(f"r{i}", **terms)
        desk.finish(f"r{i}", 100)
    desk.now += 60.0
    assert seated(desk.arrive("one", **terms)) == ["one"]
    assert seated(desk.arrive("two", **terms)) == ["two"]


def test_a_request_larger_than_a_minutes_worth_runs_when_the_bucket_is_full() -> None:
    desk = Desk()
    desk.open(slots=8)
    assert seated(desk.arrive("r1", tokens=5000, tokens_per_minute=600)) == ["r1"]
    refused = away(desk.arrive("r2", tokens=10, tokens_per_minute=600))
    assert refused.retry_after_s == pytest.approx((5000 - 600 + 10) / 10), "and leaves a debt"


def test_a_concurrency_that_is_spent_on_one_model_is_free_again_for_another() -> None:
    desk = Desk()
    desk.open("m#1")
    desk.open("n#1")
    desk.arrive("r1", model="m", max_concurrent=1)
    assert seated(desk.arrive("r2", model="n", max_concurrent=1)) == []
    assert seated(desk.finish("r1")) == ["r2"]


def test_expected_waits_are_unknown_until_measured_and_then_right() -> None:
    desk = Desk()
    desk.open(slots=2)
    for i in range(6):
        desk.arrive(f"r{i}")
    assert desk.wait_of("r0") == 0.0
    assert desk.wait_of("r2") is None
    desk.now = 4.0
    desk.finish("r0")
    desk.finish("r1")
    assert desk.wait_of("r4") == pytest.approx(2.0), "one of two slots is free every 2 s"
    assert desk.wait_of("r5") == pytest.approx(4.0)


def test_the_wait_for_a_cold_model_is_known_from_the_last_time() -> None:
    desk = Desk()
    desk.arrive("r1")
    assert desk.wait_of("r1") is None
    desk.now = 30.0
    assert seated(desk.open()) == ["r1"]
    desk.now = 40.0
    desk.finish("r1")
    desk.open(open_=False)
    desk.arrive("r2")
    assert desk.wait_of("r2") == pytest.approx(30.0)
    desk.arrive("r3")
    assert desk.wait_of("r3") == pytest.approx(40.0)
    desk.now = 60.0
    assert desk.wait_of("r2") == pytest.approx(10.0)
    desk.now = 75.0
    assert desk.wait_of("r2") is None, "it takes longer than ever before"


def test_draining_and_closing_keep_nobody() -> None:
    desk = Desk()
    desk.open()
    desk.arrive("r1")
    desk.arrive("r2")
    assert away(desk.dispatcher.step(ModelClosed(model="m", reason="it failed to load"), 0.0)).id == "r2"
    assert away(desk.lose("r1")).message == "it failed to load"
    desk.open()
    desk.arrive("r3")
    desk.arrive("r4")
    assert away(desk.dispatcher.step(DrainBegan(), 0.0)).why is Why.DRAINING
    assert away(desk.arrive("r5")).why is Why.DRAINING
    assert away(desk.lose("r3")).why is Why.DRAINING


def test_an_id_arrives_once() -> None:
    desk = Desk()
    desk.arrive("r1")
    with pytest.raises(ValueError, match="r1"):
        desk.arrive("r1")

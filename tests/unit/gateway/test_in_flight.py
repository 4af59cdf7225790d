"""What is counted of the requests in an engine."""

import time

import pytest

from terazi.gateway.in_flight import JUST_LEFT_S, InFlight


def test_a_request_is_counted_and_named_while_it_is_there_and_a_moment_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    flight = InFlight()
    for request in "ab":
        flight.entered(request)
    flight.saw(5)
    assert (flight.count, flight.recent()) == (2, ("a", "b"))
    for request in "ab":
        flight.left(request)
    assert (flight.count, flight.bytes_seen) == (0, 5)
    assert set(flight.recent()) == {"a", "b"}
    now[0] += JUST_LEFT_S + 0.01
    assert flight.recent() == ()


def test_one_that_is_there_twice_stays_until_both_have_left() -> None:
    flight = InFlight()
    flight.entered("a")
    flight.entered("a")
    flight.left("a")
    assert (flight.count, flight.recent()) == (1, ("a",))


def test_who_tells_late_is_asked() -> None:
    flight = InFlight()
    waiting = [7, 11]

    def say() -> None:
        if waiting:
            flight.saw(waiting.pop())

    flight.tells_late(say)
    assert [flight.bytes_seen for _ in range(3)] == [11, 18, 18]
    flight.tells_no_more(say)
    waiting.append(100)
    assert flight.bytes_seen == 18

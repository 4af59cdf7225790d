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
    with flight.tracking("a") as tap, flight.tracking(), flight.tracking("b"):
        tap.saw(5)
        assert (flight.count, flight.recent()) == (3, ("a", "b"))
    assert (flight.count, flight.bytes_seen) == (0, 5)
    assert set(flight.recent()) == {"a", "b"}
    now[0] += JUST_LEFT_S + 0.01
    assert flight.recent() == ()


def test_one_that_breaks_off_is_counted_out_and_one_that_is_there_twice_stays() -> None:
    flight = InFlight()
    with flight.tracking("a"):
        with pytest.raises(ConnectionError), flight.tracking("a"):
            raise ConnectionError
        assert (flight.count, flight.recent()) == (1, ("a",))

"""Seats: what a call meets on its way into an engine and out of it."""

import asyncio

import pytest

from seats_bench import Models, NamedModel, Wants, call, opened
from terazi.gateway.seats import Seats
from terazi.gateway.wire.errors import WireError
from terazi.policy.dispatch_messages import AdmissionPaused, AdmissionResumed, ModelClosed, ModelOpened


def seats_of(*models: NamedModel, keeper: Wants | None = None) -> Seats:
    return Seats(Models(*models), keeper=keeper)


async def test_a_free_engine_is_had_at_once_and_without_headers() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1")
    ticket = seats.enter(call())
    assert ticket.backend is not None
    assert (await ticket.seat()).replica == "m#1"
    assert ticket.position == 0
    assert ticket.headers() == {}
    ticket.leave(10)


async def test_those_who_wait_come_in_order_and_are_told_where_they_stand() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1")
    first = seats.enter(call())
    second, third = seats.enter(call()), seats.enter(call())
    assert (second.position, third.position) == (1, 2)
    assert third.headers()["x-terazi-queue-position"] == "2"
    waiting = asyncio.ensure_future(third.seat())
    first.leave(1)
    assert second.backend is not None
    assert third.position == 1
    second.leave(1)
    assert (await waiting).replica == "m#1"
    headers = third.headers()
    assert headers["x-terazi-queue-position"] == "2", "where it stood when it came"
    assert float(headers["x-terazi-waited"]) >= 0
    third.leave()
    third.leave()


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1")
    first, second, third = (seats.enter(call()) for _ in range(3))
    waiting = asyncio.ensure_future(second.seat())
    await asyncio.sleep(0)
    waiting.cancel()
    second.leave()
    assert third.position == 1
    first.leave()
    assert third.backend is not None
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_lost_attempt_waits_at_the_head() -> None:
    keeper = Wants()
    seats = seats_of(NamedModel("m"), keeper=keeper)
    opened(seats, "m#1")
    first, second = seats.enter(call()), seats.enter(call())
    opened(seats, "m#1", open_=False)
    first.lost()
    assert (first.position, second.position) == (1, 2)
    assert keeper.heard[-1].waiting == 2
    waiting = asyncio.ensure_future(first.seat())
    await asyncio.sleep(0)
    opened(seats, "m#1")
    assert (await waiting).replica == "m#1"


async def test_a_model_that_cannot_be_had_turns_away_those_who_wait_and_those_who_come() -> None:
    seats = seats_of(NamedModel("m"))
    ticket = seats.enter(call())
    waiting = asyncio.ensure_future(ticket.seat())
    await asyncio.sleep(0)
    seats.tell(ModelClosed(model="m", reason="the engine exited with 1"))
    with pytest.raises(WireError) as caught:
        await waiting
    assert caught.value.fault.status == 503
    assert "exited with 1" in caught.value.fault.message
    ticket.leave()
    with pytest.raises(WireError):
        seats.enter(call())
    seats.tell(ModelOpened(model="m"))
    assert seats.enter(call()).position == 1


async def test_pressure_turns_new_calls_away_until_it_is_gone() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1", slots=4)
    seats.tell(AdmissionPaused(reason="memory is short"))
    with pytest.raises(WireError) as caught:
        seats.enter(call())
    assert (caught.value.fault.status, caught.value.fault.code) == (503, "under_pressure")
    assert caught.value.fault.retry_after_s is not None
    seats.tell(AdmissionResumed())
    assert seats.enter(call()).backend is not None


async def test_draining_tells_those_who_wait_and_leaves_those_in_engines() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1")
    served, waits = seats.enter(call()), seats.enter(call())
    seats.drain()
    with pytest.raises(WireError) as caught:
        await waits.seat()
    assert caught.value.fault.code == "shutting_down"
    with pytest.raises(WireError):
        seats.enter(call())
    assert served.backend is not None
    served.leave(3)

"""Seats: what a call meets on its way into an engine and out of it."""

import asyncio
import random
from dataclasses import replace

import pytest

from seats_bench import Models, NamedModel, Wants, call, card, opened
from terazi.gateway.call import Caller
from terazi.gateway.figures import Family
from terazi.gateway.seats import Seats
from terazi.gateway.wire.errors import WireError
from terazi.policy.dispatch_messages import (
    AdmissionPaused,
    AdmissionResumed,
    ModelClosed,
    ModelOpened,
    ReplicaGone,
    WantModel,
)


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


async def test_who_leaves_at_its_deadline_takes_nothing_along() -> None:
    """Its broker keeps the same deadline, and which of the two clocks is looked at first is chance."""
    now = 100.0
    seats = Seats(Models(NamedModel("m")), clock=lambda: now)
    opened(seats, "m#1")
    first = seats.enter(call(arrived=now))
    late = seats.enter(call(arrived=now, deadline_s=1))
    last = seats.enter(call(arrived=now))
    now += 1
    late.leave()
    first.leave(1)
    assert (first.backend, late.backend) == (None, None)
    assert last.backend is not None
    last.leave(1)
    seats.close()
    [line] = seats.survey().lines
    assert (line.waiting, line.running) == (0, 0)


async def test_a_deadline_is_kept_by_the_clock() -> None:
    seats = seats_of(NamedModel("m"))
    now = asyncio.get_running_loop().time()
    ticket = seats.enter(call(arrived=now, deadline_s=0.05))
    with pytest.raises(WireError) as caught:
        await ticket.seat()
    assert (caught.value.fault.status, caught.value.fault.final) == (504, True)
    assert 0.04 < asyncio.get_running_loop().time() - now < 1.0
    seats.close()


async def test_a_rate_that_is_spent_is_waited_for_or_told_with_the_time() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1", slots=9)
    slow = Caller(name="ann", tokens_per_minute=6000)
    seats.enter(call(caller=slow), tokens=6000)
    began = asyncio.get_running_loop().time()
    second = seats.enter(call(caller=slow), tokens=10)
    assert second.words() == "waiting, position 1"
    await second.seat()
    assert 0.05 < asyncio.get_running_loop().time() - began < 1.0, "10 tokens at 100 per second"
    with pytest.raises(WireError) as caught:
        seats.enter(call(caller=slow), tokens=3000)
    assert caught.value.fault.status == 429
    assert caught.value.fault.retry_after_s in {30, 31}
    seats.close()


async def test_a_prompt_that_no_context_holds_is_refused_before_anything_is_loaded() -> None:
    keeper = Wants()
    seats = seats_of(NamedModel("m", context=512), keeper=keeper)
    with pytest.raises(WireError) as caught:
        seats.enter(call(content="x" * 80_000))
    fault = caught.value.fault
    assert (fault.status, fault.code, fault.final) == (400, "context_length_exceeded", True)
    assert "512" in fault.message
    assert not keeper.heard
    assert seats.enter(call(content="x" * 20_000)).position == 1, "may be few tokens; the engine counts"


async def test_a_model_that_came_back_with_a_longer_context_takes_longer_prompts() -> None:
    model = NamedModel("m", context=512)
    seats = seats_of(model)
    with pytest.raises(WireError):
        seats.enter(call(content="x" * 80_000))
    model.card = card("m", context=131_072)
    opened(seats, "m#1")
    assert seats.enter(call(content="x" * 80_000)).backend is not None


async def test_a_key_for_other_models_gets_no_place() -> None:
    seats = seats_of(NamedModel("m"), NamedModel("n"))
    opened(seats, "m#1")
    with pytest.raises(WireError) as caught:
        seats.enter(call(caller=Caller(name="ann", models=frozenset({"n"}))))
    assert (caught.value.fault.status, caught.value.fault.code) == (403, "model_not_allowed")
    assert seats.survey().lines[0].waiting == 0


async def test_a_call_of_higher_priority_goes_first() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1")
    first, second = seats.enter(call()), seats.enter(call(who="bob"))
    urgent = seats.enter(replace(call(who="bob"), priority=1))
    assert (urgent.position, second.position) == (1, 2)
    first.leave(1)
    assert urgent.backend is not None


async def test_a_replica_that_is_gone_is_not_found_by_its_name() -> None:
    model = NamedModel("m")
    seats = seats_of(model)
    opened(seats, "m#1")
    model.engines = ()
    seats.tell(ReplicaGone(replica="m#1"))
    with pytest.raises(LookupError):
        opened(seats, "m#1")
    assert seats.enter(call()).backend is None


async def test_a_keeper_may_answer_at_once() -> None:
    """The model turns out to be loaded, or to be lost, while its want is being told."""

    class Prompt(Wants):
        def want(self, wanted: WantModel) -> None:
            super().want(wanted)
            if wanted.waiting and wanted.model == "m":
                opened(seats, "m#1")
            elif wanted.waiting:
                seats.tell(ModelClosed(model=wanted.model, reason="its file is gone"))

    seats = seats_of(NamedModel("m"), NamedModel("n"), keeper=Prompt())
    ticket = seats.enter(call())
    assert (await ticket.seat()).replica == "m#1"
    with pytest.raises(WireError, match="its file is gone"):
        await seats.enter(call("n")).seat()


async def test_sessions_stay_with_their_replica_and_others_spread() -> None:
    seats = seats_of(NamedModel("m", replicas=3))
    for replica in ("m#1", "m#2", "m#3"):
        opened(seats, replica, slots=8)
    homes: dict[int, set[str]] = {}
    for turn in range(4):
        tickets = []
        for session in range(9):
            text = f"session {session} " * 40 + "and so on " * 60 * turn
            ticket = seats.enter(call(content=text))
            homes.setdefault(session, set()).add((await ticket.seat()).replica)
            tickets.append(ticket)
        for ticket in tickets:
            ticket.leave(100)
    assert all(len(replicas) == 1 for replicas in homes.values())
    assert len(set.union(*homes.values())) == 3


async def test_figures_are_those_of_the_queues() -> None:
    seats = seats_of(NamedModel("m"))
    opened(seats, "m#1", slots=2)
    for who in ("ann", "ann", "ann", "ben"):
        seats.enter(call(who=who), tokens=100)
    shown = {(figure.family, figure.labels): figure.value for figure in seats.figures()}
    assert shown[Family.RUNNING, ("m",)] == 2
    assert shown[Family.WAITING, ("m",)] == 2
    assert shown[Family.KV_PROMISED, ("m", "m#1")] == 200
    assert (shown[Family.KEY_WAITING, ("ann",)], shown[Family.KEY_WAITING, ("ben",)]) == (1, 1)


async def test_thousands_pass_and_nothing_stays_behind() -> None:
    """Calls that are answered, that fail, whose clients leave and whose engines die."""
    dice = random.Random(7)  # noqa: S311 - the same each time
    seats = seats_of(NamedModel("m", replicas=2))
    opened(seats, "m#1", slots=4)
    opened(seats, "m#2", slots=4)

    async def one(number: int) -> None:
        try:
            ticket = seats.enter(call(who=f"caller {number % 7}"))
        except WireError:
            return
        try:
            async with asyncio.timeout(dice.choice([0.001, 0.05, 5.0])):
                await ticket.seat()
                while dice.random() < 0.2:
                    ticket.lost()
                    await ticket.seat()
                await asyncio.sleep(dice.random() / 500)
        except (TimeoutError, WireError):
            pass
        finally:
            ticket.leave(dice.choice([None, 50]))

    await asyncio.gather(*(one(number) for number in range(2000)))
    survey = seats.survey()
    assert survey.callers == ()
    assert [(line.waiting, line.running) for line in survey.lines] == [(0, 0)]
    assert not seats._tickets
    assert seats.enter(call()).backend is not None

"""What clients meet in a queue, on the wire: places, limits, leaving, draining."""

import asyncio
import json
import time

import aiohttp

from queueing import TOKEN_S, Place, shared_engine
from serving import CARD, client_of, until
from terazi.gateway.call import Caller
from terazi.policy.admission import Limits
from terazi.policy.dispatch_messages import ModelClosed


def body(tokens: int, *, stream: bool = False) -> dict[str, object]:
    return {
        "model": CARD.id,
        "messages": [{"role": "user", "content": "weigh"}],
        "max_tokens": tokens,
        "stream": stream,
    }


async def fill(place: Place, session: aiohttp.ClientSession, *, tokens: int = 500) -> aiohttp.ClientResponse:
    """Somebody's long stream takes a slot."""
    running = place.running
    answer = await session.post("/v1/chat/completions", json=body(tokens, stream=True))
    assert answer.status == 200
    await until(lambda: place.running == running + 1)
    return answer


async def test_a_client_that_leaves_the_queue_or_the_engine_frees_its_place_within_a_second() -> None:
    async with shared_engine(1) as place, client_of(place.gateway) as session:
        long = await fill(place, session)
        waiting = []
        for stream in (True, False, True, False):
            waiting.append(asyncio.create_task(session.post("/v1/chat/completions", json=body(1, stream=stream))))
            await until(lambda: place.waiting == len(waiting))
        for task in waiting[:3]:
            task.cancel()
        assert await until(lambda: place.waiting == 1) < 1.0
        long.close()
        began = time.monotonic()
        async with await waiting[3] as answer:
            assert answer.status == 200
            assert answer.headers["x-terazi-queue-position"] == "4"
        assert time.monotonic() - began < 1.0
        assert await until(lambda: place.running == 0) < 1.0


async def test_who_is_turned_away_is_told_when_to_come_again() -> None:
    limits = Limits(max_queued=3, max_queued_each=2)
    callers = (Caller(name="ann"), Caller(name="ben"), Caller(name="slow", tokens_per_minute=30))
    async with shared_engine(1, *callers, limits=limits) as place:

        async def ask(session: aiohttp.ClientSession, name: str, tokens: int) -> tuple[int, int, str]:
            headers = {"Authorization": f"Bearer key-of-{name}"}
            async with session.post("/v1/chat/completions", json=body(tokens), headers=headers) as answer:
                said = await answer.json()
                code = said["error"]["code"] if "error" in said else ""
                return answer.status, int(answer.headers.get("retry-after", "0")), code

        async with aiohttp.ClientSession(base_url=place.gateway.address) as session:
            assert (await ask(session, "ann", 40))[0] == 200  # so that a service time is known: 0.4 s
            running = asyncio.create_task(ask(session, "ann", 60))
            await until(lambda: place.running == 1)
            waiting = [asyncio.create_task(ask(session, "ann", 1)) for _ in range(2)]
            await until(lambda: place.waiting == 2)
            assert await ask(session, "ann", 1) == (429, 1, "key_queue_full")
            waiting.append(asyncio.create_task(ask(session, "ben", 1)))
            await until(lambda: place.waiting == 3)
            assert await ask(session, "ben", 1) == (503, 1, "queue_full")
            assert {status for status, *_ in await asyncio.gather(running, *waiting)} == {200}

            assert (await ask(session, "slow", 10))[0] == 200
            status, retry_s, code = await ask(session, "slow", 400)
            assert (status, code) == (429, "rate_limit_exceeded")
            assert 10 < retry_s <= 61


async def test_a_key_may_be_kept_to_some_models() -> None:
    kept = Caller(name="kept", models=frozenset({"another"}))
    free = Caller(name="free", models=frozenset(CARD.aliases))
    async with shared_engine(1, kept, free) as place:
        for name, status in (("kept", 403), ("free", 200)):
            async with (
                client_of(place.gateway, Authorization=f"Bearer key-of-{name}") as session,
                session.post("/v1/chat/completions", json=body(1)) as answer,
            ):
                assert answer.status == status


async def test_an_engine_that_comes_later_serves_those_who_waited_in_their_order() -> None:
    async with shared_engine(1) as place, client_of(place.gateway) as session:
        place.open(1, open_=False)
        order: list[int] = []

        async def ask(number: int) -> None:
            async with session.post("/v1/chat/completions", json=body(2)) as answer:
                assert answer.status == 200
                assert answer.headers["x-terazi-queue-position"] == str(number)
                assert float(answer.headers["x-terazi-waited"]) >= 0.1
                order.append(number)

        asked = []
        for number in (1, 2, 3):
            asked.append(asyncio.create_task(ask(number)))
            await until(lambda number=number: place.waiting == number)
        await asyncio.sleep(0.1)
        place.open(1)
        await asyncio.gather(*asked)
        assert order == [1, 2, 3]


async def test_a_stream_that_waits_for_a_cold_model_is_told_how_it_stands() -> None:
    """So no client gives up for want of a byte. (cline#12839)"""
    async with shared_engine(1, heartbeat_s=0.05) as place, client_of(place.gateway) as session:
        place.open(1, open_=False)
        async with session.post("/v1/chat/completions", json=body(3, stream=True)) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            assert answer.headers["x-terazi-queue-position"] == "1"
            for _ in range(2):
                assert await answer.content.readuntil(b"\n\n") == b": waiting, position 1\n\n"
            place.open(1)
            rest = await answer.read()
        events = [event for event in rest.split(b"\n\n") if event and not event.startswith(b":")]
        assert events[-1] == b"data: [DONE]"
        assert len(events) >= 4


async def test_a_model_that_never_comes_ends_a_waiting_stream_with_an_error_event() -> None:
    async with shared_engine(1, heartbeat_s=0.05) as place, client_of(place.gateway) as session:
        place.open(1, open_=False)
        async with session.post("/v1/chat/completions", json=body(3, stream=True)) as answer:
            await answer.content.readuntil(b"\n\n")
            place.seats.tell(ModelClosed(model=CARD.id, reason="the engine exited with 1"))
            event = json.loads((await answer.read()).rpartition(b"data: ")[2])
        assert "exited with 1" in event["error"]["message"]
        async with session.post("/v1/chat/completions", json=body(3)) as answer:
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1


async def test_draining_tells_those_who_wait_and_finishes_what_runs() -> None:
    async with shared_engine(1) as place, client_of(place.gateway) as session:

        async def ask() -> tuple[int, float]:
            async with session.post("/v1/chat/completions", json=body(50)) as answer:
                await answer.read()
                return answer.status, time.monotonic()

        asked = [asyncio.create_task(ask()) for _ in range(4)]
        await until(lambda: place.waiting == 3)
        began = time.monotonic()
        assert await place.gateway.drain(50 * TOKEN_S * 10) == 0
        answers = [await task for task in asked]
        assert sorted(status for status, _ in answers) == [200, 503, 503, 503]
        assert all(at - began < 0.2 for status, at in answers if status == 503)

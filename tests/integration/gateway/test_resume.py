"""Engines that die under answers. The fake's next word depends on all before it: a right continuation is exact."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from serving import CARD, CHAT, StubBackend, StubDirectory, fake_engine, ledger, running
from terazi.gateway.account import Outcome
from terazi.gateway.answer import Answer
from terazi.gateway.broker import Broker
from terazi.gateway.call import Call, Sink
from terazi.gateway.links import Links
from terazi.gateway.passing import PassingSeats
from terazi.gateway.traffic import Traffic
from terazi.gateway.wire.errors import Api, WireError
from terazi.gateway.wire.sse import EventReader
from terazi.gateway.wire.transcript import Transcript
from terazi.policy.resume import Setbacks

STREAM = {**CHAT, "stream": True, "max_tokens": 40}


async def answered(broker: Broker, call: Call, sink: Sink) -> None:
    """Answer it, and wait until all is over; to cancel this is to be a client that leaves."""
    over = asyncio.Event()
    run = broker.begin(call, sink, over.set)
    try:
        await over.wait()
    except asyncio.CancelledError:
        run.cancel()
        raise


class Book:
    """An account that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.outcomes: list[Outcome] = []

    def closed(self, call: Call, outcome: Outcome) -> None:
        """As ``Account`` has it."""
        self.calls.append(call)
        self.outcomes.append(outcome)


class Phoenix(StubBackend):
    """An engine that is started again as soon as it has died; each of its lives has its own flags."""

    def __init__(self, *lives: tuple[str, ...], engine: str = CARD.engine, after: str = "failed") -> None:
        self.lives = [fake_engine(*flags) for flags in lives]
        super().__init__(self.lives[0].port, state="loading")
        self.card = dataclasses.replace(CARD, engine=engine)
        self.after = after
        self.deaths = 0
        self.ended_from_outside = False

    async def why_lost(self) -> str | None:
        """As ``Witness`` says."""
        return "the engine of the test was ended"

    async def live(self) -> None:
        """Run one life after the other; the last one stays."""
        for life in self.lives:
            async with running(life):
                self.base_url = f"http://127.0.0.1:{life.port}"
                self.set_state("ready")
                assert life.process is not None
                await life.process.wait()
                self.deaths += 1
                self.set_state(self.after if life is self.lives[-1] else "backing_off")


@asynccontextmanager
async def broker_over(backend: StubBackend, **options: Any) -> AsyncIterator[tuple[Broker, Book]]:
    """A broker with real links and an account."""
    links, book = Links(grace_s=0.3), Book()
    seats = PassingSeats(StubDirectory([backend]), ready_wait_s=20)
    living = asyncio.create_task(backend.live()) if isinstance(backend, Phoenix) else None
    try:
        await asyncio.wait_for(backend.ready(), 10)
        yield Broker(seats, links, Traffic(), account=book, **options), book
    finally:
        if living is not None:
            assert isinstance(backend, Phoenix)
            settled = {"ready", backend.after}  # a process that is just starting is not to be cancelled
            while backend.state not in settled and not living.done():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
            living.cancel()
            await asyncio.wait((living,))
        links.close()


def call_of(fields: dict[str, Any], path: str = "/v1/chat/completions", **more: Any) -> Call:
    """A call with this body."""
    return Call(
        id="req-1",
        api=Api.OPENAI,
        path=path,
        body=json.dumps(fields).encode(),
        fields=fields,
        model=CARD.id,
        stream=fields.get("stream") is True,
        arrived=asyncio.get_running_loop().time(),
        **more,
    )


async def ask(broker: Broker, call: Call) -> tuple[Answer, bytes]:
    """The whole answer."""
    answer = Answer()
    await answered(broker, call, answer)
    await answer.head()
    return answer, await answer.body()


def read(data: bytes, path: str = "/v1/chat/completions") -> Transcript:
    """What a client makes of it."""
    script = Transcript(path)
    script.feed(data)
    return script


def events(data: bytes) -> list[dict[str, Any]]:
    """The JSON events."""
    return [json.loads(raw) for raw in EventReader().feed(data) if raw != b"[DONE]"]


async def uncut(fields: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[str, list[dict[str, Any]]]:
    """The answer of an engine that lives: its text and its events."""
    async with broker_over(Phoenix(("--fake-tokens", "40"))) as (broker, _):
        _, body = await ask(broker, call_of(fields, path))
        return read(body, path).content, events(body)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {**STREAM, "stream_options": {"include_usage": True}}),
        ("/v1/completions", {"prompt": "weigh this", "stream": True, "max_tokens": 40, "temperature": 0}),
        ("/completion", {"prompt": "weigh this", "stream": True, "n_predict": 40, "temperature": 0}),
    ],
)
async def test_a_stream_survives_two_deaths_without_a_word_more_or_less(path: str, fields: dict[str, Any]) -> None:
    whole, plain = await uncut(fields, path)
    lives = (("--fake-exit-at", "after-tokens:11"), ("--fake-exit-at", "after-tokens:9"), ("--fake-tokens", "40"))
    flags = ("--fake-tokens", "40")
    async with broker_over(Phoenix(*[(*flags, *life) for life in lives])) as (broker, book):
        _, body = await ask(broker, call_of(fields, path))
    script, said = read(body, path), events(body)
    assert script.content == whole
    assert script.ended
    assert body.count(b": resumed after ") == 2
    assert said[-1]["terazi"]["resumed"] == 2
    assert len(said) == len(plain)
    assert len({event.get("id") for event in said}) == 1
    if path == "/v1/chat/completions":
        assert sum("role" in c["delta"] for event in said for c in event["choices"]) == 1
        # what the first two wrote was prompt to the third
        assert said[-1]["usage"]["completion_tokens"] == 40
    (outcome,) = book.outcomes
    assert outcome.resumed == ("continue", "continue")
    assert [attempt.lost is None for attempt in outcome.attempts] == [False, False, True]
    assert outcome.status == 200


async def test_nothing_sent_means_run_again_and_the_head_says_so() -> None:
    async with broker_over(Phoenix(("--fake-exit-at", "first-request"), ())) as (broker, book):
        for fields in (STREAM, CHAT):
            answer, body = await ask(broker, call_of(fields))
            assert b"error" not in body
        assert book.outcomes[0].resumed == ("run-again",)
    assert (await answer.head()).status == 200


async def test_a_whole_answer_is_asked_for_again() -> None:
    flags = ("--fake-tokens", "40", "--fake-token-delay-s", "0.005")
    async with broker_over(Phoenix((*flags, "--fake-exit-at", "after-tokens:20"), flags)) as (broker, _):
        answer, body = await ask(broker, call_of({**CHAT, "max_tokens": 40}))
    assert json.loads(body)["usage"]["completion_tokens"] == 40
    assert (await answer.head()).headers["x-terazi-resumed"] == "run-again"


async def test_all_text_sent_and_only_the_end_missing_needs_no_engine() -> None:
    """It dies at the moment at which it would say that the limit is reached."""
    fields = {**STREAM, "max_tokens": 12}
    flags = ("--fake-tokens", "40", "--fake-token-delay-s", "0.02")
    first = fake_engine(*flags)
    backend = Phoenix(flags, flags)
    backend.lives[0] = first
    async with broker_over(backend) as (broker, book):
        answer, text = Answer(), ""
        task = asyncio.create_task(answered(broker, call_of(fields), answer))
        body = b""
        async for chunk in answer:
            body += chunk
            if read(body).pieces == 12 and backend.deaths == 0 and first.process is not None:
                first.process.kill()
        await task
        text = read(body).content
    assert text.split() == (await uncut(fields))[0].split()
    assert read(body).finish_reason == "length"
    assert read(body).ended
    assert book.outcomes[0].status == 200


async def test_a_seeded_answer_is_replayed_and_its_beginning_kept_back(tmp_path: Path) -> None:
    fields = {**STREAM, "temperature": 0.8, "seed": 7}
    whole, _ = await uncut(fields)
    flags, book_file = ("--fake-tokens", "40"), tmp_path / "ledger"
    lives = ((*flags, "--fake-exit-at", "after-tokens:15"), (*flags, "--fake-ledger", str(book_file)))
    async with broker_over(Phoenix(*lives)) as (broker, book):
        _, body = await ask(broker, call_of(fields))
    assert read(body).content == whole
    assert book.outcomes[0].resumed == ("replay",)
    assert [entry["event"] for entry in ledger(book_file)].count("accepted") == 1


async def test_a_replay_that_differs_becomes_a_continuation() -> None:
    """The second engine has other words for the same prompt, as another build or card may have."""
    fields = {**STREAM, "temperature": 0.8, "seed": 7}
    flags = ("--fake-tokens", "40")
    lives = ((*flags, "--fake-exit-at", "after-tokens:15"), (*flags, "--fake-salt", "other"))
    async with broker_over(Phoenix(*lives)) as (broker, book):
        _, body = await ask(broker, call_of(fields))
    script = read(body)
    assert script.ended
    assert script.pieces == 40
    assert book.outcomes[0].resumed == ("replay", "continue")
    assert len(book.outcomes[0].attempts) == 3


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2}, "several answers"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "images"),
    ],
)
async def test_what_cannot_be_continued_ends_with_an_error_that_says_so(more: dict[str, Any], why: str) -> None:
    lives = (("--fake-tokens", "40", "--fake-exit-at", "after-tokens:5"), ())
    async with broker_over(Phoenix(*lives)) as (broker, book):
        answer = Answer()
        await answered(broker, call_of({**STREAM, **more}), answer)
        with pytest.raises(WireError, match=why) as caught:
            await answer.body()
    assert caught.value.fault.code == "engine_cut"
    assert book.outcomes[0].status == 502


async def test_a_client_may_ask_for_the_error() -> None:
    lives = (("--fake-tokens", "40", "--fake-exit-at", "after-tokens:5"), ())
    async with broker_over(Phoenix(*lives)) as (broker, _):
        answer = Answer()
        await answered(broker, call_of(STREAM, resume=False), answer)
        with pytest.raises(WireError, match="asked not to be resumed"):
            await answer.body()


async def test_an_engine_that_is_not_known_to_continue_chats_gives_an_honest_error() -> None:
    lives = (("--fake-tokens", "40", "--fake-exit-at", "after-tokens:5"), ())
    async with broker_over(Phoenix(*lives, engine="something else")) as (broker, _):
        answer = Answer()
        await answered(broker, call_of(STREAM), answer)
        with pytest.raises(WireError, match="can't continue a chat"):
            await answer.body()


async def test_a_vllm_continues_chats_too() -> None:
    lives = (("--fake-tokens", "40", "--fake-exit-at", "after-tokens:5"), ("--fake-tokens", "40"))
    async with broker_over(Phoenix(*lives, engine="vLLM, attached: http://there")) as (broker, book):
        _, body = await ask(broker, call_of(STREAM))
    assert read(body).content == (await uncut(STREAM))[0]
    assert book.outcomes[0].resumed == ("continue",)


async def test_what_a_vllm_cannot_continue_is_held_back_and_its_second_run_is_not_seen() -> None:
    fields = {**STREAM, "response_format": {"type": "json_object"}}
    lives = (("--fake-tokens", "40", "--fake-exit-at", "after-tokens:5"), ("--fake-tokens", "40"))
    async with broker_over(Phoenix(*lives, engine="vLLM 0.11")) as (broker, book):
        answer, body = await ask(broker, call_of(fields))
    assert read(body).content == (await uncut(STREAM))[0]
    assert b"resumed" not in body
    assert (await answer.head()).headers["x-terazi-resumed"] == "run-again"
    assert book.outcomes[0].resumed == ("run-again",)


async def test_a_request_that_kills_two_engines_is_quarantined_and_a_third_never_sees_it(tmp_path: Path) -> None:
    killing = ("--fake-exit-at", "first-request")
    third = ("--fake-ledger", str(tmp_path / "third"))
    async with broker_over(Phoenix(killing, killing, third)) as (broker, book):
        for _ in range(2):
            answer = Answer()
            await answered(broker, call_of(CHAT), answer)
            with pytest.raises(WireError) as caught:
                await answer.head()
            assert caught.value.fault.code == "request_quarantined"
            assert (caught.value.fault.status, caught.value.fault.final) == (500, True)
        _, body = await ask(broker, call_of({**CHAT, "max_tokens": 3}))
        assert json.loads(body)["usage"]["completion_tokens"] == 3
    assert [entry["event"] for entry in ledger(tmp_path / "third")].count("accepted") == 1
    assert [len(outcome.attempts) for outcome in book.outcomes] == [2, 0, 1]


async def test_an_engine_that_breaks_off_after_every_token_is_given_up() -> None:
    """Each brings one token, so that none is a strike; the client keeps what came, and is told."""
    flags = ("--fake-tokens", "40", "--fake-exit-at", "after-tokens:1")
    whole, _ = await uncut(STREAM)
    async with broker_over(Phoenix(*[flags] * (Setbacks.MEAGRE_LIMIT + 1))) as (broker, book):
        answer, body = Answer(), b""
        await answered(broker, call_of(STREAM), answer)
        with pytest.raises(WireError, match="next to nothing") as caught:  # noqa: PT012 - what came before it counts
            async for chunk in answer:
                body += chunk
    assert caught.value.fault.code == "engine_cut"
    assert read(body).content.split() == whole.split()[: Setbacks.MEAGRE_LIMIT]
    (outcome,) = book.outcomes
    assert len(outcome.attempts) == Setbacks.MEAGRE_LIMIT
    assert outcome.resumed == (*["continue"] * (Setbacks.MEAGRE_LIMIT - 1), "give-up")


async def test_deaths_from_outside_are_nobodys_fault() -> None:
    killing = ("--fake-exit-at", "first-request")
    backend = Phoenix(killing, killing, killing, ())
    backend.ended_from_outside = True
    async with broker_over(backend) as (broker, book):
        _, body = await ask(broker, call_of(STREAM))
    assert read(body).ended
    assert len(book.outcomes[0].attempts) == 4


async def test_a_stream_that_waits_for_its_engine_is_kept_alive() -> None:
    flags = ("--fake-tokens", "20")
    lives = ((*flags, "--fake-exit-at", "after-tokens:5"), (*flags, "--fake-load-s", "1"))
    async with broker_over(Phoenix(*lives), heartbeat_s=0.2) as (broker, _):
        _, body = await ask(broker, call_of({**STREAM, "max_tokens": 20}))
    assert body.count(b"waiting for an engine") >= 2
    assert read(body).pieces == 20


async def test_a_deadline_ends_an_answer_under_way() -> None:
    async with broker_over(Phoenix(("--fake-no-tokens",))) as (broker, book):
        answer = Answer()
        await answered(broker, call_of(STREAM, deadline_s=0.3), answer)
        with pytest.raises(WireError) as caught:
            await answer.head()
    assert caught.value.fault.status == 504
    assert book.outcomes[0].code == "deadline_exceeded"


async def test_an_engine_out_of_reach_is_given_up_in_time() -> None:
    async with broker_over(StubBackend(1), unreached_s=0.5) as (broker, _):
        answer = Answer()
        await answered(broker, call_of(CHAT), answer)
        with pytest.raises(WireError, match="can't be reached"):
            await answer.head()


async def test_a_client_that_leaves_while_its_engine_is_away_is_let_go() -> None:
    backend = Phoenix(("--fake-tokens", "40", "--fake-exit-at", "after-tokens:5"), after="backing_off")
    async with broker_over(backend) as (broker, book):
        answer = Answer()
        task = asyncio.create_task(answered(broker, call_of(STREAM), answer))
        while backend.deaths == 0:  # noqa: ASYNC110 - another process dies
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,), timeout=1)
        assert task.cancelled()
    assert (book.outcomes[0].status, backend.in_flight) == (499, 0)

"""Ends that meet in one turn of the loop, and ends that fail: all is over once, and nothing is left."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from serving import CARD, CHAT, StubBackend, StubDirectory, client_of, fake_engine, gateway_over, running, until
from terazi.gateway.app import DESK, create_app
from terazi.gateway.backend import READY
from terazi.gateway.call import Call, Head, Tap
from terazi.gateway.desk import Desk
from terazi.gateway.seats import Seats
from terazi.gateway.wire.errors import Api, Fault
from terazi.policy.dispatch_messages import ReplicaChanged

pytestmark = pytest.mark.timeout(30)


class Ear:
    """A sink that keeps what it was told."""

    def __init__(self, *, fails_at: str = "") -> None:
        self.said: list[str] = []
        self._fails_at = fails_at

    def _hear(self, word: str) -> None:
        self.said.append(word)
        if word == self._fails_at:
            raise ValueError(f"it fails at {word}")

    def begin(self, head: Head, flow: Tap) -> None:
        """As ``Sink`` has it."""
        self._hear("begin")

    def write(self, data: bytes) -> None:
        """As ``Sink`` has it."""
        self._hear("write")

    def bypass(self) -> Callable[[bytes], None] | None:
        """As ``Sink`` has it."""
        return None

    def bypassed(self, size: int) -> None:
        """As ``Sink`` has it."""

    def end(self) -> None:
        """As ``Sink`` has it."""
        self._hear("end")

    def fail(self, fault: Fault) -> None:
        """As ``Sink`` has it."""
        self._hear(fault.code or "")


@asynccontextmanager
async def desk_over(backend: StubBackend) -> AsyncIterator[Desk]:
    """The gateway's objects without its server, with queues: a request gets its engine at once, and no task."""
    directory = StubDirectory([backend])
    seats = Seats(directory)
    seats.tell(ReplicaChanged(replica=backend.replica, model=CARD.id, open=backend.state == READY, slots=4))
    app = create_app(directory, seats=seats)
    app.freeze()
    await app.startup()
    try:
        yield app[DESK]
    finally:
        await app.cleanup()


def call_of(*, stream: bool = True, deadline_s: float | None = None) -> Call:
    """A call, from now."""
    fields = {**CHAT, "stream": stream}
    body, arrived = json.dumps(fields).encode(), asyncio.get_running_loop().time()
    return Call(
        id="req-1",
        api=Api.OPENAI,
        path="/v1/chat/completions",
        body=body,
        fields=fields,
        model=CARD.id,
        stream=stream,
        deadline_s=deadline_s,
        arrived=arrived,
    )


@pytest.mark.parametrize("cut", [False, True], ids=["the client leaves", "the service ends"])
async def test_what_is_cancelled_in_the_turn_in_which_it_came(cut: bool) -> None:
    backend = StubBackend(1, state="loading")
    async with desk_over(backend) as desk:
        sink, over = Ear(), asyncio.Event()
        run = desk.broker.begin(call_of(), sink, over.set)
        desk.traffic.cut() if cut else run.cancel()
        async with asyncio.timeout(2):
            await over.wait()
        assert sink.said == (["shutting_down"] if cut else [])
        assert desk.traffic.count == 0


@pytest.mark.parametrize("cut", [False, True], ids=["the client leaves", "the service ends"])
async def test_what_is_cancelled_in_the_turn_in_which_its_engine_broke(cut: bool) -> None:
    flags = ("--fake-token-delay-s", "0.01", "--fake-tokens", "1000")
    async with running(fake_engine(*flags)) as engine:
        backend = StubBackend(engine.port)
        async with desk_over(backend) as desk:
            sink, over = Ear(), asyncio.Event()
            run = desk.broker.begin(call_of(), sink, over.set)
            await until(lambda: "write" in sink.said)
            run.relay.lost("it broke off", begun=True)
            desk.traffic.cut() if cut else run.cancel()
            async with asyncio.timeout(2):
                await over.wait()
            assert ("shutting_down" in sink.said) is cut
            assert (desk.traffic.count, backend.in_flight) == (0, 0)


async def test_an_answer_may_end_in_the_turn_in_which_its_client_leaves() -> None:
    flags = ("--fake-token-delay-s", "0.01", "--fake-tokens", "1000")
    async with running(fake_engine(*flags)) as engine:
        backend = StubBackend(engine.port)
        async with desk_over(backend) as desk:
            sink, over = Ear(), asyncio.Event()
            run = desk.broker.begin(call_of(deadline_s=20), sink, over.set)
            await until(lambda: "write" in sink.said)
            run.cancel()
            run.relay.data(b"data: [DONE]\n\n")
            run.relay.done()
            async with asyncio.timeout(2):
                await over.wait()
            assert sink.said[-1] == "end"
            assert (desk.traffic.count, backend.in_flight) == (0, 0)


@pytest.mark.parametrize("at", ["begin", "write", "end"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_sink_that_fails_holds_nothing(at: str, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the loop's own word about it
    async with running(fake_engine("--fake-tokens", "4")) as engine:
        backend = StubBackend(engine.port)
        async with desk_over(backend) as desk:
            over = asyncio.Event()
            desk.broker.begin(call_of(stream=stream), Ear(fails_at=at), over.set)
            async with asyncio.timeout(10):
                await over.wait()
            assert (desk.traffic.count, backend.in_flight) == (0, 0)
            assert "fail" in caplog.text or at != "end"


async def test_who_is_turned_away_at_once_is_not_gone_as_well() -> None:
    async with gateway_over(StubBackend(1)) as gateway, client_of(gateway) as client:
        desk: Desk = gateway._app[DESK]
        gateway.cut()
        async with client.post("/v1/chat/completions", json=CHAT) as reply:
            assert reply.status == 503
        await client.close()
        await until(lambda: not gateway._front or not gateway._front._connections)
        samples = [sample for metric in desk.metrics.requests.collect() for sample in metric.samples]
        told = {sample.labels["status"]: sample.value for sample in samples if sample.name.endswith("_total")}
        assert (told, desk.metrics.disconnects.value) == ({"503": 1}, 0)

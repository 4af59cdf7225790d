"""Callers share an engine process through the real gateway, as their keys say.

The engine is the fake: it has slots, and takes a fixed time for each token, so that what is measured is the queue.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass, field

import aiohttp

from dispatch_world import jain
from queueing import TOKEN_S, shared_engine
from serving import CARD, client_of
from terazi.gateway.call import Caller
from terazi.gateway.server import Gateway


@dataclass
class Client:
    """Keeps *open* requests open until it is cancelled; notes what it got and how long that took."""

    name: str
    open: int
    output: int
    pause_s: float = 0.0
    tokens: int = 0
    took: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    async def run(self, gateway: Gateway, counted_from: float) -> None:
        """Ask for ever; what comes before *counted_from* isn't counted."""
        headers = {"Authorization": f"Bearer key-of-{self.name}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(base_url=gateway.address, headers=headers, connector=connector) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self.open):
                group.create_task(self._keep_asking(session, counted_from))

    async def _keep_asking(self, session: aiohttp.ClientSession, counted_from: float) -> None:
        body = {
            "model": CARD.id,
            "messages": [{"role": "user", "content": "weigh this"}],
            "max_tokens": self.output,
        }
        while True:
            began = time.monotonic()
            async with session.post("/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                usage = (await answer.json())["usage"]
            ended = time.monotonic()
            if ended >= counted_from:
                self.tokens += usage["total_tokens"]
                self.took.append(ended - began)
                self.waited.append(float(answer.headers.get("x-terazi-waited", "0")))
            await asyncio.sleep(self.pause_s)


async def share(gateway: Gateway, seconds: float, *clients: Client) -> None:
    """All of *clients* at once, until time is up; the first tenth isn't counted."""
    now = time.monotonic()
    asking = [asyncio.create_task(client.run(gateway, now + seconds / 10)) for client in clients]
    done, _ = await asyncio.wait(asking, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    assert not done, [task.exception() for task in done]


async def test_a_single_request_beside_a_hundred_is_answered_within_twice_the_time_of_an_idle_system() -> None:
    """From the first byte sent to the last one received. A slot has to become free first: one service time."""
    async with shared_engine(4, Caller(name="hog"), Caller(name="one")) as place:
        alone = Client("one", 1, output=20)
        await share(place.gateway, 1.0, alone)
        idle = statistics.median(alone.took)
        assert 20 * TOKEN_S <= idle < 2 * 20 * TOKEN_S

        hog, one = Client("hog", 100, output=20), Client("one", 1, output=20, pause_s=0.05)
        await share(place.gateway, 3.5, hog, one)
        assert len(one.took) >= 5
        assert statistics.median(one.took) <= 2 * idle
        assert max(one.waited) <= 1.5 * idle, "no place in the queue behind anybody else"
        assert max(hog.took) > 10 * idle, "the hog did fill its queue"


async def test_ten_at_once_against_one_at_a_time_share_evenly() -> None:
    """litellm#18128: one user's ten requests shall not take ten elevenths of the engine."""
    async with shared_engine(1, Caller(name="ten"), Caller(name="one")) as place:
        ten, one = Client("ten", 10, output=8), Client("one", 1, output=8)
        await share(place.gateway, 3.0, ten, one)
        assert one.tokens >= 0.85 * ten.tokens


async def test_equal_weights_share_tokens_equally() -> None:
    """Four callers with 4 to 32 requests open, of 8 to 40 tokens each."""
    shapes = {"a": (4, 40), "b": (8, 20), "c": (16, 10), "d": (32, 8)}
    async with shared_engine(4, *(Caller(name=name) for name in shapes)) as place:
        clients = [Client(name, open_, output=output) for name, (open_, output) in shapes.items()]
        await share(place.gateway, 4.0, *clients)
        assert jain([float(client.tokens) for client in clients]) >= 0.95


async def test_weights_are_honoured_within_a_tenth() -> None:
    """Weights 1, 2 and 4: each caller's tokens by its weight are within 10 % of the mean."""
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    async with shared_engine(8, *(Caller(name=n, weight=w) for n, w in weights.items())) as place:
        clients = [Client(name, 16, output=10) for name in weights]
        await share(place.gateway, 5.0, *clients)
        per_weight = [client.tokens / weights[client.name] for client in clients]
        mean = sum(per_weight) / 3
        assert all(abs(got - mean) <= 0.1 * mean for got in per_weight), per_weight


async def test_an_open_service_shares_by_the_names_that_users_give() -> None:
    async with shared_engine(1) as place, client_of(place.gateway) as session:
        body = {"model": CARD.id, "messages": [{"role": "user", "content": "weigh"}], "max_tokens": 10}

        async def ask(user: str) -> tuple[str, float]:
            async with session.post("/v1/chat/completions", json=body, headers={"X-Terazi-User": user}) as answer:
                assert answer.status == 200
                await answer.read()
                return user, time.monotonic()

        mums = [asyncio.create_task(ask("mum")) for _ in range(8)]
        await asyncio.sleep(0.05)
        kid, at = await ask("kid")
        others = sorted(ended for _, ended in await asyncio.gather(*mums))
        assert kid == "kid"
        assert at < others[2], "one was running, and one may have been in between"

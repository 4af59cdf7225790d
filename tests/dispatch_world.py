"""A small world for the dispatcher: engines that take a second for so many tokens, and clients that never tire.

It is a simulation in discrete events under a clock of its own, with the dispatcher as it is shipped.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from terazi.policy.admission import Limits
from terazi.policy.dispatch_messages import (
    Dispatch,
    Event,
    ReplicaChanged,
    RequestArrived,
    RequestFinished,
    Ticked,
    TurnAway,
    WakeAt,
)
from terazi.policy.dispatcher import Dispatcher


@dataclass
class Client:
    """Keeps *open* requests open at any time: whenever one is answered, the next is sent after *pause_s*.

    ``asks`` are the tokens that a request may hold, ``uses`` those that it really uses, drawn for each.
    """

    name: str
    open: int
    weight: float = 1.0
    priority: int = 0
    asks: Callable[[random.Random], int] = lambda _: 100
    uses: Callable[[random.Random, int], int] = lambda _, asked: asked
    pause_s: float = 0.0
    begins_s: float = 0.0
    rests_s: tuple[float, float] = (0.0, 0.0)
    max_concurrent: int | None = None
    tokens_per_minute: int | None = None


@dataclass
class Told:
    """What became of the requests of one client."""

    waits: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    tokens: int = 0
    away: Counter[str] = field(default_factory=Counter)


class World:
    """Run it, then look at ``told``."""

    def __init__(self, *clients: Client, tokens_per_s: float = 100.0, limits: Limits | None = None) -> None:
        self.dispatcher = Dispatcher(limits)
        self.clients = {client.name: client for client in clients}
        self.told = {client.name: Told() for client in clients}
        self.tokens_per_s = tokens_per_s
        self.now = 0.0
        self.dice = random.Random(1)  # noqa: S311 - a simulation, the same each time
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self._requests: dict[str, tuple[str, float, int, int]] = {}
        self.count_from_s = 0.0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """*what* happens then."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def replica(self, name: str, *, slots: int, tokens: int | None = None, shared: bool = False) -> None:
        """An engine opens."""
        self.feed(
            ReplicaChanged(
                replica=name,
                model=name[0],
                open=True,
                slots=slots,
                tokens=tokens,
                tokens_each=tokens,
                shared=shared,
            )
        )

    def run(self, until_s: float, *, count_from_s: float = 0.0) -> None:
        """Until then; what is finished before *count_from_s* isn't counted."""
        self.count_from_s = count_from_s
        for client in self.clients.values():
            for _ in range(client.open):
                self.at(client.begins_s, lambda name=client.name: self._ask(name))  # type: ignore[misc]
        while self._events and self._events[0][0] <= until_s:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def feed(self, event: Event) -> None:
        """One step, and its commands."""
        for command in self.dispatcher.step(event, self.now):
            match command:
                case Dispatch(id=id_):
                    name, since, _, uses = self._requests[id_]
                    if since >= self.count_from_s:
                        self.told[name].waits.append(self.now - since)
                    self.at(self.now + uses / self.tokens_per_s, lambda id_=id_: self._finish(id_))  # type: ignore[misc]
                case TurnAway(id=id_, why=why):
                    name, *_ = self._requests.pop(id_)
                    self.told[name].away[why] += 1
                    self.at(self.now + 1.0, lambda name=name: self._ask(name))  # type: ignore[misc]
                case WakeAt(at=at):
                    self.at(at, lambda: self.feed(Ticked()))
                case _:
                    pass

    def _ask(self, name: str) -> None:
        client = self.clients[name]
        if client.rests_s[0] <= self.now < client.rests_s[1]:
            self.at(client.rests_s[1], lambda: self._ask(name))
            return
        asks = client.asks(self.dice)
        id_ = f"{name}-{next(self._ids)}"
        self._requests[id_] = (name, self.now, asks, client.uses(self.dice, asks))
        self.feed(
            RequestArrived(
                id=id_,
                model="m",
                caller=name,
                weight=client.weight,
                priority=client.priority,
                max_concurrent=client.max_concurrent,
                tokens_per_minute=client.tokens_per_minute,
                tokens=asks,
            )
        )

    def _finish(self, id_: str) -> None:
        name, since, _, uses = self._requests.pop(id_)
        if self.now >= self.count_from_s:
            self.told[name].tokens += uses
            self.told[name].took.append(self.now - since)
        self.feed(RequestFinished(id=id_, tokens=uses))
        self.at(self.now + self.clients[name].pause_s, lambda: self._ask(name))


def jain(shares: list[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe, 1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))

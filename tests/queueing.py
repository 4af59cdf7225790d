"""For tests of queues through the real gateway: one engine process that has slots, and a key for each caller."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from serving import CARD, StubBackend, StubDirectory, fake_engine, gateway_over, running
from terazi.gateway.call import Caller
from terazi.gateway.seats import Seats
from terazi.gateway.server import Gateway
from terazi.policy.admission import Limits
from terazi.policy.dispatch_messages import ReplicaChanged

#: What the engine takes for each token.
TOKEN_S = 0.01


@dataclass
class Place:
    """The gateway, its queues, and its engine's backend."""

    gateway: Gateway
    seats: Seats
    backend: StubBackend

    def open(self, slots: int, *, open_: bool = True) -> None:
        """The engine takes requests, or doesn't."""
        self.seats.tell(ReplicaChanged(replica=self.backend.replica, model=CARD.id, open=open_, slots=slots))

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(line.waiting for line in self.seats.survey().lines)

    @property
    def running(self) -> int:
        """Requests in the engine, as the gateway has it."""
        return sum(line.running for line in self.seats.survey().lines)


@asynccontextmanager
async def shared_engine(
    slots: int, *callers: Caller, limits: Limits | None = None, heartbeat_s: float = 5.0
) -> AsyncIterator[Place]:
    """One engine with *slots* behind the gateway, and a key for each of *callers*: ``key-of-NAME``."""
    engine = fake_engine("-np", str(slots), "--fake-tokens", "1000", "--fake-token-delay-s", str(TOKEN_S))
    async with running(engine):
        backend = StubBackend(engine.port)
        seats = Seats(StubDirectory([backend]), limits=limits)
        keys = {f"key-of-{caller.name}": caller for caller in callers}
        async with gateway_over(backend, seats=seats, keys=keys, heartbeat_s=heartbeat_s) as gateway:
            place = Place(gateway, seats, backend)
            place.open(slots)
            yield place
        seats.close()

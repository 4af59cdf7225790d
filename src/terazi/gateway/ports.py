"""What the broker needs of its neighbours: a place in an engine (``Seats``) and the way there (``Links``).

Everything but ``seat`` is called on the event loop and returns at once.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from terazi.gateway.backend import Backend
from terazi.gateway.call import Call
from terazi.gateway.exchange import Exchange, Receiver


@runtime_checkable
class Witness(Protocol):
    """A backend whose supervisor knows how its engine ended."""

    async def why_lost(self) -> str | None:
        """How its engine ended just now, for the client of a request that it had; None if nobody knows."""
        ...

    @property
    def ended_from_outside(self) -> bool:
        """Whether its last end was a signal that neither it nor the kernel raised because of what it did."""
        ...


class Links(Protocol):
    """Connections to engines."""

    def send(
        self,
        backend: Backend,
        path: str,
        body: bytes,
        content_type: str,
        receiver: Receiver,
        *,
        stream: bool = False,
        traceparent: str | None = None,
    ) -> Exchange:
        """Send *body* now; *receiver* hears the answer, never before this returns. *stream*: it asks for one.

        *traceparent*: the trace that the engine's work is a part of; the only header of a request's own.
        """
        ...


class Ticket(Protocol):
    """A request's place in the queue, and then in an engine."""

    @property
    def backend(self) -> Backend | None:
        """The engine that has it now; None while it waits."""
        ...

    @property
    def position(self) -> int | None:
        """Its place in the queue, from 1; 0 once it has an engine; None if nobody can say."""
        ...

    @property
    def expected_wait_s(self) -> float | None:
        """How long it will wait; None if nobody can say."""
        ...

    async def seat(self) -> Backend:
        """Wait for an engine.

        Raises:
            WireError: it gets none.
        """
        ...

    def lost(self) -> None:
        """The engine broke: the next ``seat`` waits at the head of the queue."""
        ...

    def leave(self, tokens: int | None) -> None:
        """It is over; *tokens* were used. In whatever state it is; calling it again is fine."""
        ...

    def headers(self) -> Mapping[str, str]:
        """What the client is told about its wait, in lower case."""
        ...

    def words(self) -> str:
        """The same in a few words, for a heartbeat."""
        ...


class Seats(Protocol):
    """The queues of all models."""

    def enter(self, call: Call) -> Ticket:
        """Take a place in the queue of ``call.model``.

        Raises:
            WireError: it is turned away at once.
        """
        ...

    def drain(self) -> None:
        """The service ends: turn away all who wait, and who come."""
        ...

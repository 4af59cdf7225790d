"""The plainest seats: no queue. For a gateway that is given no better ones."""

import asyncio
from collections.abc import Mapping

from terazi.errors import EngineError
from terazi.gateway.backend import READY, Backend, Directory
from terazi.gateway.call import Call
from terazi.gateway.ports import Ticket
from terazi.gateway.wire.errors import WireError, engine_down, unknown_model


class PassingSeats:
    """Everybody has a seat in the first engine as soon as it is ready."""

    def __init__(self, directory: Directory, *, ready_wait_s: float = 60.0) -> None:
        self._directory = directory
        self._ready_wait_s = ready_wait_s

    def enter(self, call: Call) -> Ticket:
        """As ``Seats`` has it."""
        found = self._directory.find(call.model)
        if found is None:
            raise WireError(unknown_model(call.model, [m.card.id for m in self._directory.served()]))
        return _Ticket(found.engines[0], self._ready_wait_s)

    def drain(self) -> None:
        """Nobody waits here."""


class _Ticket:
    position: int | None = None
    expected_wait_s: float | None = None

    def __init__(self, backend: Backend, ready_wait_s: float) -> None:
        self.backend: Backend | None = backend if backend.state == READY else None
        self._backend = backend
        self._ready_wait_s = ready_wait_s

    async def seat(self) -> Backend:
        backend = self._backend
        if backend.state != READY:
            try:
                async with asyncio.timeout(self._ready_wait_s):
                    await backend.ready()
            except TimeoutError as problem:
                reason = f"'{backend.card.id}' is not ready yet ({backend.state})"
                raise WireError(engine_down(reason, retry_after_s=5)) from problem
            except EngineError as problem:
                reason = f"'{backend.card.id}' can't answer: {problem.message}"
                raise WireError(engine_down(reason, retry_after_s=10)) from problem
        return backend

    def lost(self) -> None:
        """Nobody to tell."""

    def leave(self, tokens: int | None) -> None:
        """Nobody to tell."""

    def headers(self) -> Mapping[str, str]:
        return {}

    def words(self) -> str:
        return "waiting for an engine"

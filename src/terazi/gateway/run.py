"""What the broker knows of one call while it answers it, over all engines that it takes."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final

from terazi.gateway.account import Attempt
from terazi.gateway.backend import Backend
from terazi.gateway.call import Call
from terazi.gateway.in_flight import InFlight, Stay
from terazi.gateway.journal import Entry
from terazi.gateway.ports import Ticket, Witness
from terazi.policy.resume import Setbacks, Shape, Strikes, shape_of

#: Tells the client, before anything was sent, that an engine has died under its request.
RESUMED_HEADER: Final = "x-terazi-resumed"


class Run:
    """One call under way.

    Attributes:
        ticket: its place, once it has one.
        backend: the engine that has it, or had it last.
        lost: an engine broke off with it, so that the next attempt depends on what was sent.
        replayed: a replay came out differently.
        broke_off: an engine broke off with it, or could not be reached.
        suspect: the engine that broke off last, and whether the request had got on in it; judged when there is
            another engine, by when more is known of the end of this one.
        attempts, steps: for the account.
        death: how its engine ended, if that is known.
        unreached_since: since when no engine could be reached.
        pause_s: before the next attempt.
    """

    FIRST_PAUSE_S: Final = 0.05

    __slots__ = (
        "_began", "_fields", "_setbacks", "_shape", "_stay", "_strikes", "attempts", "backend", "broke_off", "call",
        "death", "entry", "lost", "pause_s", "replayed", "steps", "suspect", "ticket", "unreached_since",
    )  # fmt: skip

    def __init__(self, call: Call, entry: Entry) -> None:
        self.call = call
        self.entry = entry
        self.ticket: Ticket | None = None
        self.backend: Backend | None = None
        self.lost = self.replayed = self.broke_off = False
        self.suspect: tuple[Backend, bool] | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.steps: tuple[str, ...] = ()
        self.death: str | None = None
        self.unreached_since: float | None = None
        self.pause_s = self.FIRST_PAUSE_S
        self._strikes: Strikes | None = None
        self._setbacks: Setbacks | None = None
        self._fields: Mapping[str, Any] | None = None
        self._shape: Shape | None = None
        self._stay: Stay | None = None
        self._began = 0.0

    def enter(self, backend: Backend) -> InFlight:
        """*backend* has it from now on, and counts it."""
        self.backend = backend
        stay = self._stay = backend.tracking(self.call.id)
        self._began = asyncio.get_running_loop().time()
        return stay.flight

    @property
    def engine(self) -> Backend:
        """The engine that has it, or had it last.

        Raises:
            RuntimeError: there was none yet.
        """
        if self.backend is None:
            raise RuntimeError("a request that no engine had yet is asked for its engine")
        return self.backend

    def leave(self, lost: str | None) -> None:
        """No engine has it; *lost* says why the attempt broke off, if it did."""
        stay, self._stay = self._stay, None
        if stay is None:
            return
        stay.end()
        now = asyncio.get_running_loop().time()
        attempt = Attempt(replica=self.engine.replica, began=self._began, ended=now, lost=lost)
        self.attempts += (attempt,)

    @property
    def strikes(self) -> Strikes:
        """Deaths under it; made when they are asked for, which is never for most."""
        if self._strikes is None:
            self._strikes = Strikes()
        return self._strikes

    @property
    def setbacks(self) -> Setbacks:
        """The same of engines that broke off."""
        if self._setbacks is None:
            self._setbacks = Setbacks()
        return self._setbacks

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body's; whoever made the call may not have needed to read it."""
        if self._fields is None:
            self._fields = self.call.fields
            if not self._fields and self.call.content_type.startswith("application/json"):
                with contextlib.suppress(ValueError, RecursionError):
                    read = json.loads(self.call.body)
                    self._fields = read if isinstance(read, dict) else {}
        return self._fields

    @property
    def shape(self) -> Shape:
        """What its fields say about resuming it; read only when that matters."""
        if self._shape is None:
            self._shape = shape_of(self.call.path, self.fields, stream=self.call.stream)
        return self._shape

    def words(self) -> str:
        """What a heartbeat says."""
        if self.ticket is None:
            return "waiting"
        told = self.ticket.words()
        return f"the engine broke off; {told}" if self.broke_off and self.ticket.position != 0 else told

    def headers(self) -> dict[str, str]:
        """What the client is told at the head of its answer."""
        headers = {} if self.ticket is None else dict(self.ticket.headers())
        headers["x-request-id"] = self.call.id
        if self.lost:
            headers[RESUMED_HEADER] = "run-again"
        return headers


async def why_lost(backend: Backend) -> str | None:
    """How the engine ended, as a sentence without its full stop; None if nobody knows."""
    return await backend.why_lost() if isinstance(backend, Witness) else None


def blameless(backend: Backend) -> bool:
    """Whether it is known that the engine's last end was nobody's doing who was in it."""
    return isinstance(backend, Witness) and backend.ended_from_outside

"""What the broker knows of one call while it answers it, over all engines that it takes."""

import contextlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from terazi.gateway.account import Attempt  # noqa: TC001 - as all others are imported
from terazi.gateway.backend import Backend
from terazi.gateway.call import Call
from terazi.gateway.journal import Entry
from terazi.gateway.ports import Ticket, Witness
from terazi.policy.resume import Setbacks, Shape, Strikes, shape_of

#: Tells the client, before anything was sent, that an engine has died under its request.
RESUMED_HEADER: Final = "x-terazi-resumed"


class Run:
    """One call under way.

    Attributes:
        ticket: its place, once it has one.
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

    def __init__(self, call: Call, entry: Entry) -> None:
        self.call = call
        self.entry = entry
        self.ticket: Ticket | None = None
        self.lost = self.replayed = self.broke_off = False
        self.suspect: tuple[Backend, bool] | None = None
        self.strikes = Strikes()
        self.setbacks = Setbacks()
        self.attempts: list[Attempt] = []
        self.steps: list[str] = []
        self.death: str | None = None
        self.unreached_since: float | None = None
        self.pause_s = self.FIRST_PAUSE_S

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The body's; whoever made the call may not have needed to read it."""
        if not self.call.fields and self.call.content_type.startswith("application/json"):
            with contextlib.suppress(ValueError, RecursionError):
                read = json.loads(self.call.body)
                return read if isinstance(read, dict) else {}
        return self.call.fields

    @cached_property
    def shape(self) -> Shape:
        """What its fields say about resuming it; read only when that matters."""
        return shape_of(self.call.path, self.fields, stream=self.call.stream)

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

"""One call under way: what the broker knows of it over all engines that it takes, and its end, which comes once."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from terazi.gateway.account import CLIENT_GONE, Attempt
from terazi.gateway.backend import Backend
from terazi.gateway.call import Call, Sink
from terazi.gateway.journal import Entry
from terazi.gateway.ports import Ticket, Witness
from terazi.gateway.relay import Ending, Relay, Result
from terazi.gateway.wire.errors import Fault, WireError, deadline_passed, server_error, shutting_down
from terazi.policy.resume import Setbacks, Shape, Strikes, shape_of

_log = logging.getLogger(__name__)

#: Tells the client, before anything was sent, that an engine has died under its request.
RESUMED_HEADER: Final = "x-terazi-resumed"


class Answerer(Protocol):
    """The broker, for one call."""

    @property
    def cutting(self) -> bool:
        """Whether the service ends what is still under way."""
        ...

    def go_on(self, run: "Run", lost: Result) -> None:
        """Its first engine broke: *lost* says how. Something has to ``follow``."""
        ...

    def close(self, run: "Run") -> None:
        """It is over; called once."""
        ...


class Run:
    """One call under way.

    Args:
        broker: who answers it.
        call, entry: what was accepted, and the journal's page for it.
        sink: where its answer goes.
        over: called when all of it is over.

    Attributes:
        relay: what its answer goes through.
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
        "_broker", "_closed", "_fields", "_inside", "_over", "_sent_at", "_setbacks", "_shape", "_strikes", "_task",
        "attempts", "backend", "broke_off", "call", "death", "entry", "lost", "pause_s", "relay", "replayed",
        "steps", "suspect", "ticket", "unreached_since",
    )  # fmt: skip

    def __init__(
        self, broker: Answerer, call: Call, entry: Entry, sink: Sink, over: Callable[[], None] | None
    ) -> None:
        self.call = call
        self.entry = entry
        self.relay = Relay(call, sink, entry, headers=self.headers, words=self.words)
        self._broker = broker
        self._over = over
        self._task: asyncio.Task[None] | None = None
        self._closed = False
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
        self._inside = False
        self._sent_at: float | None = None

    # --- one engine after the other

    def enter(self, backend: Backend) -> None:
        """*backend* has it from now on, and counts it."""
        self.backend = backend
        flight = self.relay.flight = backend.flight
        flight.entered(self.call.id)
        self._inside = True

    def sent(self, now: float) -> None:
        """The engine gets it now, or what continues it."""
        self._sent_at = now

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
        if not self._inside:
            return
        self._inside = False
        self.engine.flight.left(self.call.id)
        began, self._sent_at = self._sent_at, None
        if began is not None:
            now = asyncio.get_running_loop().time()
            attempt = Attempt(replica=self.engine.replica, began=began, ended=now, lost=lost)
            self.attempts = (*self.attempts, attempt) if self.attempts else (attempt,)

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
        headers = {"x-request-id": self.call.id}
        if self.ticket is not None and (told := self.ticket.headers()):
            headers |= told
        if self.lost:
            headers[RESUMED_HEADER] = "run-again"
        return headers

    # --- its end

    def came_out(self, result: Result) -> None:
        """Its first attempt has: if that was all, it is over now."""
        try:
            if result.ending is Ending.DONE:
                self.leave(None)
                self.close()
            else:
                self.leave(result.reason)
                self._broker.go_on(self, result)
        except Exception:
            _log.exception("answering request %s failed", self.call.id)
            self.fail(server_error())

    def follow(self, work: Coroutine[None, None, None]) -> None:
        """The rest of it is *work*, which takes its time."""
        task = self._task = asyncio.get_running_loop().create_task(self._follow(work))
        task.add_done_callback(lambda _: self._unless_begun(work))

    async def _follow(self, work: Coroutine[None, None, None]) -> None:
        call = self.call
        try:
            if call.deadline_s is None:
                await work
            else:
                async with asyncio.timeout_at(call.arrived + call.deadline_s):
                    await work
        except WireError as error:
            self.relay.fail(error.fault)
        except TimeoutError:
            self.relay.fail(deadline_passed(call.deadline_s))
        except asyncio.CancelledError:
            self._left()
        except Exception:
            _log.exception("answering request %s failed", call.id)
            self.relay.fail(server_error())
        finally:
            work.close()  # it was never begun if the deadline had passed
            self.close()

    def _unless_begun(self, work: Coroutine[None, None, None]) -> None:
        """A task that is cancelled in the turn in which it was made comes to none of its lines, nor to its end."""
        if not self._closed:
            work.close()
            self._left()
            self.close()

    def cancel(self) -> None:
        """The client has left, or the service ends: the engine is freed at once."""
        if self._closed:
            return
        if self._task is not None:
            self._task.cancel()
            self.relay.detach()  # not in the task's turn: what goes past the relay would still be sent in this one
        else:
            self._left()
            self.close()

    def _left(self) -> None:
        relay = self.relay
        if relay.over:  # whoever read it had enough
            return
        if self._broker.cutting:
            relay.fail(shutting_down())
        else:
            relay.status = CLIENT_GONE

    def fail(self, fault: Fault) -> None:
        """It ends with *fault*."""
        self.relay.fail(fault)
        self.close()

    def close(self) -> None:
        """It is over. Once is enough."""
        if self._closed:
            return
        self._closed = True
        try:
            self.relay.let_go()
            if self._inside:
                self.leave(None)
            self._broker.close(self)
        finally:
            over, self._over = self._over, None
            if over is not None:
                over()


async def why_lost(backend: Backend) -> str | None:
    """How the engine ended, as a sentence without its full stop; None if nobody knows."""
    return await backend.why_lost() if isinstance(backend, Witness) else None


def blameless(backend: Backend) -> bool:
    """Whether it is known that the engine's last end was nobody's doing who was in it."""
    return isinstance(backend, Witness) and backend.ended_from_outside

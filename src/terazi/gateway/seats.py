"""Seats in engines: executes ``policy.dispatcher`` for calls that arrive, wait, are answered and leave.

    ticket = seats.enter(call)            # turned away at once, or a place in the queue
    backend = await ticket.seat()         # a replica that takes it now
    …                                     # ticket.lost(), and ticket.seat() again, if that replica goes away
    ticket.leave(tokens)                  # always, whatever happened

Everything runs on the event loop; only ``seat`` waits. Whoever owns the engines tells this object about them.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from terazi.gateway.backend import Backend, Directory
from terazi.gateway.call import Call
from terazi.gateway.figures import Family, Figure
from terazi.gateway.wire.errors import Fault, WireError
from terazi.gateway.wire.estimate import estimate_tokens, fewest_tokens, leading_blocks
from terazi.policy.dispatch_messages import (
    AdmissionPaused,
    AdmissionResumed,
    AttemptLost,
    Command,
    Dispatch,
    DrainBegan,
    Event,
    ModelClosed,
    ModelOpened,
    ReplicaChanged,
    ReplicaGone,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Ticked,
    TurnAway,
    WakeAt,
    WantModel,
    Why,
)
from terazi.policy.dispatcher import Dispatcher, Limits
from terazi.policy.survey import Survey

#: What the owners of engines, and the guard, tell.
News: TypeAlias = ReplicaChanged | ReplicaGone | ModelClosed | ModelOpened | AdmissionPaused | AdmissionResumed

POSITION_HEADER: Final = "x-terazi-queue-position"
EXPECTED_WAIT_HEADER: Final = "x-terazi-expected-wait"
WAITED_HEADER: Final = "x-terazi-waited"
#: Said when nothing has been measured yet, or can be.
_RETRY_S: Final[Mapping[Why, int]] = {Why.PRESSURE: 5, Why.DRAINING: 5, Why.NO_ENGINE: 10}
_RETRY_ELSE_S: Final = 2

_FAULTS: Final[Mapping[Why, tuple[int, str, str]]] = {
    Why.QUEUE_FULL: (503, "service_unavailable", "queue_full"),
    Why.KEY_QUEUE_FULL: (429, "rate_limit_error", "key_queue_full"),
    Why.RATE: (429, "rate_limit_error", "rate_limit_exceeded"),
    Why.TOO_LARGE: (400, "invalid_request_error", "context_length_exceeded"),
    Why.DEADLINE: (504, "timeout_error", "deadline_exceeded"),
    Why.NO_ENGINE: (503, "service_unavailable", "engine_unavailable"),
    Why.PRESSURE: (503, "service_unavailable", "under_pressure"),
    Why.DRAINING: (503, "service_unavailable", "shutting_down"),
}
#: Coming again later doesn't help.
_FINAL: Final = frozenset({Why.TOO_LARGE, Why.DEADLINE})


class Keeper(Protocol):
    """Who brings models into memory."""

    def want(self, wanted: WantModel) -> None:
        """Requests wait for a model that has no open replica; ``waiting`` 0: they are gone."""
        ...


class Ticket:
    """One call's place: in a queue, then in an engine, until it leaves."""

    __slots__ = ("_backend", "_fault", "_future", "_left", "_seats", "_waited_since", "call", "position_on_arrival",
                 "waited_s")  # fmt: skip

    def __init__(self, seats: "Seats", call: Call) -> None:
        self.call = call
        #: Its place in the queue when it came; 0 if it didn't wait.
        self.position_on_arrival = 0
        #: Seconds that it has waited for engines, all attempts together.
        self.waited_s = 0.0
        self._seats = seats
        self._backend: Backend | None = None
        self._fault: Fault | None = None
        self._future: asyncio.Future[Backend] | None = None
        self._waited_since: float | None = None
        self._left = False

    @property
    def backend(self) -> Backend | None:
        """The replica that has it now; None while it waits."""
        return self._backend

    @property
    def fault(self) -> Fault | None:
        """Why it has been turned away, if it has."""
        return self._fault

    @property
    def position(self) -> int:
        """Its place among those that wait for its model, from 1; 0 when it doesn't wait."""
        return self._seats.position(self)

    @property
    def expected_wait_s(self) -> float | None:
        """Seconds until an engine takes it, from what has been measured; None if nothing has."""
        return self._seats.expected_wait_s(self)

    async def seat(self) -> Backend:
        """Wait for a replica. Cancelling this gives up the place in the queue only by ``leave``.

        Raises:
            WireError: it is turned away after all: the deadline, a model that can't be loaded, the end of the
                service. The ticket has left then.
        """
        if self._backend is not None:
            return self._backend
        if self._fault is not None:
            raise WireError(self._fault)
        if self._left:
            raise RuntimeError("a ticket that has left is seated again")
        self._future = asyncio.get_running_loop().create_future()
        try:
            return await self._future
        finally:
            self._future = None

    def lost(self) -> None:
        """The replica that had it is gone, or stuck: it goes to the head of its queue, and ``seat`` waits again."""
        if self._backend is not None and not self._left:
            self._backend = None
            self._seats.tell_of(self, AttemptLost(id=self.call.id))

    def leave(self, tokens: int | None = None) -> None:
        """It is answered, given up, or its client has gone. Once is enough, more often does no harm.

        Args:
            tokens: prompt and output together that the engine really worked on; None if it didn't say.
        """
        if self._left:
            return
        self._left = True
        seated = self._backend is not None
        self._backend = None
        if self._fault is None:
            id_ = self.call.id
            self._seats.tell_of(
                self, RequestFinished(id=id_, tokens=tokens) if seated else RequestCancelled(id=id_)
            )

    def words(self) -> str:
        """What a heartbeat says while it waits: ``waiting, position 3, about 12 s``."""
        position = self.position
        if not position:
            return "working"
        wait = self.expected_wait_s
        return f"waiting, position {position}" + (f", about {math.ceil(wait)} s" if wait is not None else "")

    def headers(self) -> dict[str, str]:
        """What the client is told about its wait; nothing if there was none. Names in lower case."""
        if not self.position_on_arrival:
            return {}
        if self._backend is not None:
            return {POSITION_HEADER: str(self.position_on_arrival), WAITED_HEADER: f"{self.waited_s:.3f}"}
        wait = self.expected_wait_s
        headers = {POSITION_HEADER: str(self.position)}
        return headers if wait is None else headers | {EXPECTED_WAIT_HEADER: f"{wait:.1f}"}

    # --- called by Seats

    def queued(self, now: float) -> None:
        """It waits from now on."""
        self._waited_since = now

    def seated(self, backend: Backend, now: float) -> None:
        """*backend* takes it."""
        self._backend = backend
        if self._waited_since is not None:
            self.waited_s += now - self._waited_since
            self._waited_since = None
        if self._future is not None and not self._future.done():
            self._future.set_result(backend)

    def turned_away(self, fault: Fault) -> None:
        """It gets no engine."""
        self._fault = fault
        if self._future is not None and not self._future.done():
            self._future.set_exception(WireError(fault))


class Seats:
    """The dispatcher, executed.

    Args:
        directory: where backends are found by the names of replicas.
        keeper: told which models requests wait for; may be set later.
        limits: of the service itself.
        clock: monotonic seconds; the event loop's own if None.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        keeper: Keeper | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.keeper = keeper
        self._directory = directory
        self._dispatcher = Dispatcher(limits)
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}
        self._backends: dict[str, Backend] = {}
        self._contexts: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stepping = False
        self._pending: deque[Event] = deque()

    # --- for whoever answers calls

    def enter(self, call: Call, *, tokens: int | None = None, prefix: tuple[int, ...] | None = None) -> Ticket:
        """Queue *call*. If an engine has room, the ticket is seated when this returns.

        Args:
            tokens: KV tokens that it will hold at most; None estimates them from its body.
            prefix: hashes of the prompt's leading blocks; None computes them, if there are replicas to choose from.

        Raises:
            WireError: it is turned away at once; nothing has to be left then.
        """
        caller, now = call.caller, self._now()
        if caller.models is not None and not self._may_use(caller.models, call.model):
            message = f"the key of {caller.name} may not use '{call.model}'"
            raise WireError(Fault(status=403, message=message, kind="permission_error", code="model_not_allowed"))
        if tokens is None:
            tokens = self._tokens(call)
        if prefix is None:
            prefix = leading_blocks(call.fields) if self._dispatcher.has_choice(call.model) else ()
        ticket = self._tickets[call.id] = Ticket(self, call)
        arrived = RequestArrived(
            id=call.id,
            model=call.model,
            caller=caller.name,
            weight=caller.weight,
            priority=caller.priority + call.priority,
            max_concurrent=caller.max_concurrent,
            tokens_per_minute=caller.tokens_per_minute,
            max_queued=caller.max_queued,
            tokens=tokens,
            prefix=prefix,
            deadline=None if call.deadline_s is None else call.arrived + call.deadline_s,
        )
        self._step(arrived, now)
        if ticket.backend is None:
            if ticket.fault is not None:
                raise WireError(ticket.fault)
            ticket.queued(now)
            ticket.position_on_arrival = self._dispatcher.position(call.id)
        return ticket

    # --- for whoever owns the engines

    def tell(self, news: News) -> None:
        """A replica opened or closed, a model can't be had, admission is paused …"""
        if isinstance(news, ReplicaChanged):
            self._find(news.model, news.replica)
            self._contexts.pop(news.model, None)
        self._step(news, self._now())
        if isinstance(news, ReplicaGone):
            self._backends.pop(news.replica, None)

    def drain(self) -> None:
        """The service ends: new and waiting calls are turned away."""
        self._step(DrainBegan(), self._now())

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- for whoever shows it

    def survey(self) -> Survey:
        """All queues, replicas and callers, as they are now."""
        return self._dispatcher.survey(self._now())

    def figures(self) -> Iterator[Figure]:
        """The same for a scrape of the metrics."""
        survey = self.survey()
        for line in survey.lines:
            yield Figure(Family.RUNNING, (line.model,), line.running)
            yield Figure(Family.WAITING, (line.model,), line.waiting)
            yield Figure(Family.OLDEST, (line.model,), line.oldest_s or 0.0)
            for replica in line.replicas:
                yield Figure(Family.KV_PROMISED, (line.model, replica.replica), replica.held_tokens)
                if replica.tokens is not None:
                    yield Figure(Family.KV_CAPACITY, (line.model, replica.replica), replica.tokens)
        for caller in survey.callers:
            yield Figure(Family.KEY_WAITING, (caller.caller,), caller.waiting)

    # --- for tickets

    def position(self, ticket: Ticket) -> int:
        """As the ticket has it."""
        return self._dispatcher.position(ticket.call.id)

    def expected_wait_s(self, ticket: Ticket) -> float | None:
        """As the ticket has it."""
        return self._dispatcher.expected_wait_s(ticket.call.id, self._now())

    def tell_of(self, ticket: Ticket, event: AttemptLost | RequestFinished | RequestCancelled) -> None:
        """Something has happened to a ticket."""
        now = self._now()
        if isinstance(event, AttemptLost):
            ticket.queued(now)
        else:
            self._tickets.pop(ticket.call.id, None)
        self._step(event, now)

    # --- executing

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()

    def _step(self, event: Event, now: float) -> None:
        if self._stepping:  # a keeper that answers at once
            self._pending.append(event)
            return
        self._stepping = True
        try:
            self._execute(self._dispatcher.step(event, now), now)
            while self._pending:
                self._execute(self._dispatcher.step(self._pending.popleft(), now), now)
        finally:
            self._stepping = False

    def _execute(self, commands: list[Command], now: float) -> None:
        for command in commands:
            match command:
                case Dispatch(id=id_, replica=replica):
                    self._tickets[id_].seated(self._backends[replica], now)
                case TurnAway(id=id_):
                    self._tickets.pop(id_).turned_away(_fault(command))
                case WantModel():
                    if self.keeper is not None:
                        self.keeper.want(command)
                case WakeAt(at=at):
                    self._wake(at)

    def _may_use(self, names: frozenset[str], model: str) -> bool:
        if model in names:
            return True
        found = (self._directory.find(name) for name in names)
        return any(served is not None and served.card.id == model for served in found)

    def _tokens(self, call: Call) -> int:
        """What it will hold, by its body.

        Raises:
            WireError: its prompt alone can't fit into any engine's context.
        """
        context = self._dispatcher.largest(call.model)
        if context is None:
            context = self._contexts.get(call.model)
            if context is None:
                served = self._directory.find(call.model)
                known = served.card.context_length if served is not None else None
                context = self._contexts[call.model] = known or 0
        if context <= 0:
            return estimate_tokens(call.path, call.body, call.fields, None)
        if len(call.body) > context and (least := fewest_tokens(call.body, call.fields)) > context:
            message = f"the prompt has more than {least} tokens, and one request may have {context} here"
            raise WireError(_fault(TurnAway(id=call.id, why=Why.TOO_LARGE, message=message)))
        return estimate_tokens(call.path, call.body, call.fields, context)

    def _wake(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, at - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(Ticked(), self._now())

    def _find(self, model: str, replica: str) -> None:
        served = self._directory.find(model)
        for backend in served.engines if served is not None else ():
            self._backends[backend.replica] = backend
        if replica not in self._backends:
            raise LookupError(f"there is no replica {replica} of {model} in the directory")


def _fault(away: TurnAway) -> Fault:
    status, kind, code = _FAULTS[away.why]
    retry = None
    if away.why not in _FINAL:
        known = away.retry_after_s
        retry = _RETRY_S.get(away.why, _RETRY_ELSE_S) if known is None else max(1, math.ceil(known))
    return Fault(
        status=status, message=away.message, kind=kind, code=code, retry_after_s=retry, final=away.why in _FINAL
    )

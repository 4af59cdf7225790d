"""Seats in engines: executes ``policy.dispatcher`` for calls that arrive, wait, are answered and leave.

    ticket = seats.enter(call)            # turned away at once, or a place in the queue
    backend = await ticket.seat()         # a replica that takes it now
    …                                     # ticket.lost(), and ticket.seat() again, if that replica goes away
    ticket.leave(tokens)                  # always, whatever happened

Everything runs on the event loop; only ``seat`` waits. Whoever owns the engines tells this object about them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from terazi.gateway.access import may_use, model_denied
from terazi.gateway.backend import Backend, Directory
from terazi.gateway.call import Call
from terazi.gateway.figures import Family, Figure
from terazi.gateway.ticket import Ticket, fault_of
from terazi.gateway.wire.errors import WireError
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
from terazi.policy.survey import Room, Survey

#: What the owners of engines, and the guard, tell.
News: TypeAlias = ReplicaChanged | ReplicaGone | ModelClosed | ModelOpened | AdmissionPaused | AdmissionResumed


class Keeper(Protocol):
    """Who brings models into memory."""

    def want(self, wanted: WantModel) -> None:
        """Requests wait for a model that has no open replica; ``waiting`` 0: they are gone."""
        ...


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
        self._now: Callable[[], float] = clock if clock is not None else self._first_now
        self._tickets: dict[str, Ticket] = {}  # that wait
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
        if caller.models is not None and not may_use(caller, call.model, self._directory):
            raise model_denied(caller, call.model)
        if tokens is None or prefix is None:
            room = self._dispatcher.room(call.model)
            if tokens is None:
                tokens = self._tokens(call, room)
            if prefix is None:
                prefix = leading_blocks(call.fields) if room.choice else ()
        ticket = Ticket(self, call)
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
        if self._stepping:
            self._tickets[call.id] = ticket
            self._pending.append(arrived)
        else:
            commands = self._dispatcher.step(arrived, now)
            if len(commands) == 1:
                (command,) = commands
                if type(command) is Dispatch and command.id == call.id:  # straight through
                    ticket.backend = self._backends[command.replica]
                    return ticket
            self._tickets[call.id] = ticket
            self._execute(commands, now)
            if ticket.backend is not None:
                return ticket
            if ticket.fault is not None:
                raise WireError(ticket.fault)
        ticket.queued(now)
        ticket.position_on_arrival = self._dispatcher.foresee(call.id)
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

    def rebound(self, *, max_queued: int, max_queued_each: int, max_wait_s: float | None) -> None:
        """As the dispatcher has it."""
        self._dispatcher.rebound(max_queued=max_queued, max_queued_each=max_queued_each, max_wait_s=max_wait_s)

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
        if type(event) is AttemptLost:
            ticket.queued(now)
            self._tickets[event.id] = ticket
        elif type(event) is RequestCancelled:
            self._tickets.pop(event.id, None)
        self._step(event, now)

    # --- executing

    def _first_now(self) -> float:
        """The event loop's clock, which is used from now on."""
        self._now = asyncio.get_running_loop().time
        return self._now()

    def _step(self, event: Event, now: float) -> None:
        if self._stepping:  # a keeper that answers at once
            self._pending.append(event)
            return
        commands = self._dispatcher.step(event, now)
        if commands:
            self._execute(commands, now)

    def _execute(self, commands: list[Command], now: float) -> None:
        """Do what they say, and take in what happens because of that.

        A ticket may have left in the very step that calls it up or turns it away, as when its deadline has passed.
        """
        self._stepping = True
        try:
            while True:
                for command in commands:
                    match command:
                        case Dispatch(id=id_, replica=replica):
                            if (ticket := self._tickets.pop(id_, None)) is not None:
                                ticket.seated(self._backends[replica], now)
                        case TurnAway(id=id_):
                            if (ticket := self._tickets.pop(id_, None)) is not None:
                                ticket.turned_away(fault_of(command))
                        case WantModel():
                            if self.keeper is not None:
                                self.keeper.want(command)
                        case WakeAt(at=at):
                            self._wake(at)
                if not self._pending:
                    return
                commands = self._dispatcher.step(self._pending.popleft(), now)
        finally:
            self._stepping = False

    def _tokens(self, call: Call, room: Room) -> int:
        """What it will hold, by its body.

        Raises:
            WireError: its prompt alone can't fit into any engine's context.
        """
        context = room.largest
        if context is None:
            context = self._contexts.get(call.model)
            if context is None:
                served = self._directory.find(call.model)
                known = served.card.context_length if served is not None else None
                context = self._contexts[call.model] = known or 0
        if context <= 0:
            return estimate_tokens(call.path, call.body, call.fields, None)
        if len(call.body) > context and (least := fewest_tokens(call.fields)) > context:
            message = f"the prompt has more than {least} tokens, and one request may have {context} here"
            raise WireError(fault_of(TurnAway(id=call.id, why=Why.TOO_LARGE, message=message)))
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

"""Which waiting request goes to which open replica, and when: ``Dispatcher.step(event, now) -> commands``.

Promises, each a property test:

- It never sends a request to a closed replica, nor more to one than its slots and KV tokens hold.
- A caller never has more in engines than its ``max_concurrent``, and uses no more tokens per minute than it may.
- Whoever waits is served, or turned away and told why; with a free engine that it fits, nobody waits but by its own
  limits.
- Callers share each model by their weights, in tokens (``fairness``); priorities come first, and none is stranded.
- A request that is too large for the room left is passed by smaller ones for ``pass_s`` at most.
- Each model has its own queue: one that is cold or busy holds nobody up who wants another.

It keeps its state in itself, since it would be copied for each of thousands of requests; it is deterministic all
the same, and does nothing but answer.
"""

from dataclasses import replace
from typing import Final

from terazi.policy.admission import Account, Limits, may_wait
from terazi.policy.alarms import Alarms
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
    Why,
)
from terazi.policy.fairness import Request
from terazi.policy.line import Line
from terazi.policy.routing import Replica
from terazi.policy.survey import Room, Survey

__all__ = ["Dispatcher", "Limits"]

_SHUTTING_DOWN: Final = "the service is shutting down"
_LATE: Final = "the request's deadline passed before an engine was free"
#: Of a model that nothing has been heard of.
_UNKNOWN: Final = Room()
#: Accounts that are kept although nothing of theirs waits or runs.
_ACCOUNTS_KEPT: Final = 1024


class Dispatcher:
    """All requests of the service."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._lines: dict[str, Line] = {}
        self._replicas: dict[str, Replica] = {}
        self._requests: dict[str, Request] = {}
        self._accounts: dict[str, Account] = {}
        self._serial = 0
        self._waiting = 0
        self._alarms = Alarms(self._waits_until)
        self._paused: str | None = None
        self._draining = False

    # --- questions

    def position(self, id_: str) -> int:
        """Its place among those that wait for its model, from 1; 0 if it doesn't wait."""
        request = self._requests.get(id_)
        if request is None or request.seat is not None:
            return 0
        return self._lines[request.model].queue.before(request) + 1

    def foresee(self, id_: str) -> int:
        """``position``, held against what comes: so expected waits learn how many pass those who wait.

        To be asked of a request that has just come. It costs what the queue is long, and decides nothing.
        """
        request = self._requests.get(id_)
        if request is None or request.seat is not None:
            return 0
        return self._lines[request.model].queue.foresee(request)

    def expected_wait_s(self, id_: str, now: float) -> float | None:
        """Seconds until it is placed, as measured; 0 if it doesn't wait; None if nothing is known."""
        request = self._requests.get(id_)
        if request is None or request.seat is not None:
            return 0.0
        line, account = self._lines[request.model], self._accounts[request.caller]
        return line.expected_wait_s(request, account, now)

    def room(self, model: str) -> Room:
        """What a request for *model* may find."""
        line = self._lines.get(model)
        return line.room if line is not None else _UNKNOWN

    def survey(self, now: float) -> Survey:
        """All lines, and the callers that have something waiting or running."""
        return Survey(
            lines=tuple(line.view(now) for line in self._lines.values()),
            callers=tuple(a.view(now) for a in self._accounts.values() if a.queued or a.running),
        )

    def rebound(self, *, max_queued: int, max_queued_each: int, max_wait_s: float | None) -> None:
        """These, of ``Limits``, count for whoever comes from now on; nobody who waits is turned away for them."""
        self._limits = replace(
            self._limits, max_queued=max_queued, max_queued_each=max_queued_each, max_wait_s=max_wait_s
        )

    # --- events

    def step(self, event: Event, now: float) -> list[Command]:
        """Take *event* in; what is to be done about it."""
        commands: list[Command] = []
        if not self._alarms.idle:
            for id_ in self._alarms.expired(now):
                self._expire(self._requests[id_], now, commands)
        match event:
            case RequestArrived():
                self._arrive(event, now, commands)
            case RequestFinished(id=id_, tokens=tokens):
                self._end(id_, tokens, now, commands)
            case RequestCancelled(id=id_):
                self._end(id_, None, now, commands)
            case AttemptLost(id=id_):
                self._lose(id_, now, commands)
            case ReplicaChanged():
                self._change(event, now, commands)
            case ReplicaGone(replica=name):
                self._drop(name, now, commands)
            case Ticked():
                self._alarms.rang()
                for line in self._lines.values():
                    self._place(line, now, commands)
            case _:
                self._hear(event, now, commands)
        if not self._alarms.idle:
            commands += self._alarms.next(now)
        return commands

    def _hear(
        self,
        event: ModelClosed | ModelOpened | AdmissionPaused | AdmissionResumed | DrainBegan,
        now: float,
        commands: list[Command],
    ) -> None:
        """Doors that open and close."""
        match event:
            case ModelClosed(model=model, reason=reason, again_at=again_at):
                line = self._line(model)
                line.closed, line.again_at = reason, again_at
                opens_in_s = line.opens_in_s(now)
                self._turn_all_away(line, Why.NO_ENGINE, reason, now, commands, retry_after_s=opens_in_s)
            case ModelOpened(model=model):
                self._line(model).closed = None
            case AdmissionPaused(reason=reason):
                self._paused = reason
            case AdmissionResumed():
                self._paused = None
            case DrainBegan():
                self._draining = True
                for line in self._lines.values():
                    self._turn_all_away(line, Why.DRAINING, _SHUTTING_DOWN, now, commands)

    def _arrive(self, event: RequestArrived, now: float, commands: list[Command]) -> None:
        if event.id in self._requests:
            raise ValueError(f"request {event.id} has arrived before")
        line = self._lines.get(event.model)
        if line is None:
            line = self._line(event.model)
        if (refused := self._refuse(event, line, now)) is not None:
            commands.append(refused)
            return
        account = self._accounts.get(event.caller)
        if account is None:
            account = self._open_account(event.caller, now)
        account.update(event, now)
        request = Request(
            id=event.id,
            model=event.model,
            caller=event.caller,
            priority=event.priority,
            tokens=event.tokens,
            prefix=event.prefix,
            deadline=event.deadline,
            arrived=now,
        )
        self._requests[event.id] = request
        replica = line.straight_to(request, account, now)
        if replica is not None:
            self._seat(request, account, line, replica, now)
            commands.append(Dispatch(id=event.id, replica=replica.name))
            return
        line.queue.add(request, account.weight, now)
        self._queued(request, account)
        self._place(line, now, commands)
        if request.seat is not None:
            return
        why = may_wait(account, request, self._waiting, self._limits, now)
        if why is not None:
            reason, message, retry = why
            if retry is None:
                retry = line.place_free_s(request, account, now, own=reason is Why.KEY_QUEUE_FULL)
            self._turn_away(request, reason, message, commands, retry)
        else:
            self._set_alarm(request, now)
        commands += line.wanted(now)

    def _refuse(self, event: RequestArrived, line: Line, now: float) -> TurnAway | None:
        """What nobody needs to wait to be told."""
        if self._draining:
            return TurnAway(id=event.id, why=Why.DRAINING, message=_SHUTTING_DOWN)
        if line.closed is not None:
            opens_in_s = line.opens_in_s(now)
            return TurnAway(id=event.id, why=Why.NO_ENGINE, message=line.closed, retry_after_s=opens_in_s)
        if self._paused is not None:
            return TurnAway(id=event.id, why=Why.PRESSURE, message=self._paused)
        largest = line.room.largest
        if largest is not None and event.tokens > largest:
            return TurnAway(id=event.id, why=Why.TOO_LARGE, message=_too_large(event.tokens, largest))
        if event.deadline is not None and event.deadline <= now:
            return TurnAway(id=event.id, why=Why.DEADLINE, message=_LATE)
        return None

    def _end(self, id_: str, tokens: int | None, now: float, commands: list[Command]) -> None:
        request = self._requests.pop(id_, None)
        if request is None:
            return
        line, account = self._lines[request.model], self._accounts[request.caller]
        if request.seat is None:
            self._unqueued(request, account)
            line.queue.remove(request)
            line.left_queue(request)
        else:
            request.seat.release(request)
            account.running -= 1
            more = line.queue.band_of(request).settle(request, tokens)
            if account.tokens_per_minute:
                account.pay(more, now)
            line.pace.served(now - request.seated_at)
        if account.queued or not line.idle():
            self._settle_down(line, account, now, commands)

    def _lose(self, id_: str, now: float, commands: list[Command]) -> None:
        request = self._requests.get(id_)
        if request is None or request.seat is None:
            return
        line, account = self._lines[request.model], self._accounts[request.caller]
        request.seat.release(request)
        account.running -= 1
        line.queue.bring_back(request, now)
        self._queued(request, account)
        largest = line.room.largest
        if self._draining:
            self._turn_away(request, Why.DRAINING, _SHUTTING_DOWN, commands)
        elif line.closed is not None:
            self._turn_away(request, Why.NO_ENGINE, line.closed, commands, line.opens_in_s(now))
        elif largest is not None and request.tokens > largest:
            self._turn_away(request, Why.TOO_LARGE, _too_large(request.tokens, largest), commands)
        elif request.deadline is not None and request.deadline <= now:
            self._turn_away(request, Why.DEADLINE, _LATE, commands)
        else:
            self._set_alarm(request, now)
        self._settle_down(line, account, now, commands)

    def _change(self, news: ReplicaChanged, now: float, commands: list[Command]) -> None:
        line = self._line(news.model)
        replica = self._replicas.get(news.replica)
        if replica is None:
            self._serial += 1
            replica = Replica(name=news.replica, model=news.model, order=self._serial)
            self._replicas[news.replica] = line.replicas[news.replica] = replica
        replica.change(news)
        if news.open:
            line.closed = None
            line.pace.opened(now)
        self._refit(line, now, commands)

    def _drop(self, name: str, now: float, commands: list[Command]) -> None:
        replica = self._replicas.pop(name, None)
        if replica is None:
            return
        replica.open = False  # requests in it still point to it, until they are told to be lost
        line = self._lines[replica.model]
        del line.replicas[name]
        self._refit(line, now, commands)

    def _refit(self, line: Line, now: float, commands: list[Command]) -> None:
        """The replicas are others now: who can't fit any more is told, who fits is placed."""
        line.refit()
        largest = line.room.largest
        if largest is not None:
            for request in [r for r in line.queue.waiting.values() if r.tokens > largest]:
                self._turn_away(request, Why.TOO_LARGE, _too_large(request.tokens, largest), commands)
        self._place(line, now, commands)
        commands += line.wanted(now)

    # --- what they have in common

    def _settle_down(self, line: Line, account: Account, now: float, commands: list[Command]) -> None:
        """One of *account* has left an engine or the queue of *line*: who is next?"""
        self._place(line, now, commands)
        for model in [m for m in account.waiting if m != line.model] if account.limited else ():
            self._place(self._lines[model], now, commands)
        commands += line.wanted(now)

    def _set_alarm(self, request: Request, now: float) -> None:
        """It waits until its deadline, and no longer than anybody may."""
        until = request.deadline
        if self._limits.max_wait_s is not None:
            longest = now + self._limits.max_wait_s
            until = longest if until is None else min(until, longest)
        request.until = until
        if until is not None:
            self._alarms.set_until(request.id, until)

    def _expire(self, request: Request, now: float, commands: list[Command]) -> None:
        """It has waited long enough."""
        if request.deadline is not None and request.deadline <= now:
            self._turn_away(request, Why.DEADLINE, _LATE, commands)
        else:
            message = f"no engine was free for it within {self._limits.max_wait_s:g} s"
            self._turn_away(request, Why.NO_ENGINE, message, commands)
        commands += self._lines[request.model].wanted(now)

    def _waits_until(self, id_: str, at: float) -> bool:
        request = self._requests.get(id_)
        return request is not None and request.seat is None and request.until == at

    def _place(self, line: Line, now: float, commands: list[Command]) -> None:
        """Send off whoever fits."""
        while (turn := line.turn(self._accounts, now)) is not None:
            request, replica = turn
            account = self._accounts[request.caller]
            self._unqueued(request, account)
            first = not request.paid
            line.queue.serve(request, now)
            line.left_queue(request)
            if first:
                account.pay(request.charge, now)
            self._seat(request, account, line, replica, now)
            commands.append(Dispatch(id=request.id, replica=replica.name))
        self._alarms.set_rate(line.model, line.rate_wake)

    def _seat(self, request: Request, account: Account, line: Line, replica: Replica, now: float) -> None:
        """*replica* has it from now on."""
        account.running += 1
        replica.take(request, now)
        if request.prefix and line.room.choice:
            replica.remember(request.prefix)

    def _turn_away(
        self, request: Request, why: Why, message: str, commands: list[Command], retry_after_s: float | None = None
    ) -> None:
        """One that waits gets no engine."""
        line, account = self._lines[request.model], self._accounts[request.caller]
        del self._requests[request.id]
        self._unqueued(request, account)
        line.queue.remove(request)
        line.left_queue(request)
        commands.append(TurnAway(id=request.id, why=why, message=message, retry_after_s=retry_after_s))

    def _turn_all_away(
        self,
        line: Line,
        why: Why,
        message: str,
        now: float,
        commands: list[Command],
        *,
        retry_after_s: float | None = None,
    ) -> None:
        for request in list(line.queue.waiting.values()):
            self._turn_away(request, why, message, commands, retry_after_s)
        commands += line.wanted(now)

    def _queued(self, request: Request, account: Account) -> None:
        account.queue(request)
        self._waiting += 1

    def _unqueued(self, request: Request, account: Account) -> None:
        account.unqueue(request)
        self._waiting -= 1

    def _line(self, model: str) -> Line:
        return self._lines.get(model) or self._lines.setdefault(model, Line(model, self._limits))

    def _open_account(self, caller: str, now: float) -> Account:
        if len(self._accounts) >= 2 * _ACCOUNTS_KEPT:
            idle = [name for name, account in self._accounts.items() if account.forgettable(now)]
            for name in idle[:_ACCOUNTS_KEPT]:
                del self._accounts[name]
        account = self._accounts[caller] = Account(name=caller)
        return account


def _too_large(tokens: int, largest: int) -> str:
    return f"this request needs about {tokens} tokens of context, and one request may have {largest} here"

"""Answers calls: a place in an engine, the request sent, the answer passed on, and what follows if that breaks.

    begin(call, sink):   seats.enter ─▶ seat ─▶ links.send ─▶ relay ─▶ sink
                              ▲                          │
                              └── policy.resume ◀── lost ┘

It executes what ``policy.resume`` decides. An engine's death costs its clients time and nothing else, as far as
that can be done correctly; where it can't, the client is told so.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from terazi.gateway.account import CLIENT_GONE, Account, Outcome
from terazi.gateway.backend import Backend
from terazi.gateway.call import Call, Sink
from terazi.gateway.journal import Entry, Journal
from terazi.gateway.ports import Links, Seats, Ticket
from terazi.gateway.relay import HEARTBEAT_S, Ending, Relay, Result
from terazi.gateway.run import Run, blameless, why_lost
from terazi.gateway.traffic import Traffic
from terazi.gateway.wire.carry_on import continuation, count_request, limit_of, read_tokens
from terazi.gateway.wire.errors import Fault, WireError, engine_cut, engine_down, poisonous, server_error
from terazi.gateway.wire.stitch import Stitcher, ending, seam
from terazi.gateway.wire.transcript import Transcript
from terazi.policy.resume import (
    LLAMA_CPP,
    Continue,
    Finish,
    GiveUp,
    Hold,
    Quarantine,
    Replay,
    binds,
    hold_of,
    next_step,
    powers_of,
)

_log = logging.getLogger(__name__)

#: How long engines may be out of reach, or say that they are loading, although they are said to be ready.
UNREACHED_S: Final = 5.0
#: So many times as patient once the client has a part of its answer.
_BEGUN_PATIENCE: Final = 12
_LONGEST_PAUSE_S: Final = 1.0
_TOKENIZE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Sending:
    """What goes to the next engine, and what makes its answer fit behind what was sent."""

    body: bytes
    stitcher: Stitcher | None = None
    seam: bytes = b""


class NoAccount:
    """Nobody keeps account."""

    def closed(self, call: Call, outcome: Outcome) -> None:
        """As ``Account`` has it."""


class Broker:
    """The one place that knows an answer's whole life.

    Args:
        seats: who gives out places in engines.
        links: the way to them.
        traffic: what is in flight; a drain waits for it and then cuts it.
        journal: what was accepted and sent; one that keeps nothing on disk if None.
        account: is told of each call's end.
        heartbeat_s: a stream that was silent for so long, or for twice as long at most, says how it stands.
        unreached_s: how long an engine that is said to be ready may be out of reach before its calls are given up;
            those that wait for an engine which isn't said to be ready wait as long as their queue lets them.
        trace: what an engine is told of the trace that a call's nth attempt (from 0) is a part of.
    """

    def __init__(
        self,
        seats: Seats,
        links: Links,
        traffic: Traffic,
        *,
        journal: Journal | None = None,
        account: Account | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        unreached_s: float = UNREACHED_S,
        trace: Callable[[Call, int], str] | None = None,
    ) -> None:
        self._seats = seats
        self._links = links
        self._traffic = traffic
        self._journal = journal if journal is not None else Journal()
        self._account: Account = account if account is not None else NoAccount()
        self._heartbeat_s = heartbeat_s
        self._unreached_s = unreached_s
        self._trace = trace
        self._quarantine = Quarantine()
        self._probation: dict[str, asyncio.Lock] = {}
        self._listening: set[Relay] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call: Call, sink: Sink, over: Callable[[], None] | None = None) -> Run:
        """Answer *call* into *sink*, from now on; *over* is called once when all is over and its books are closed.

        If an engine is free and nothing goes wrong, all is done from here and from what the engine's connection
        brings. Only a request that waits, or whose engine breaks, gets a task.
        """
        run = Run(self, call, Entry(self._journal, call), sink, over)
        try:
            self._traffic.enter(run)
            if self._quarantine:
                self._refuse_poison(call)
            ticket = run.ticket = self._seats.enter(call)
            backend = ticket.backend
            if backend is None or call.deadline_s is not None:
                run.follow(self._serve(run, ticket))
            else:
                run.enter(backend)
                self._send(run, call.body, run.came_out)
            self._journal.accept(call)  # while the engine works
            if call.stream:
                self._listen(run.relay)
        except WireError as error:
            run.fail(error.fault)
        except Exception:
            _log.exception("answering request %s failed", call.id)
            run.fail(server_error())
        return run

    @property
    def cutting(self) -> bool:
        """Whether the service ends what is still under way."""
        return self._traffic.cutting

    # --- attempt after attempt --------------------------------------------------------------------------

    async def _serve(self, run: Run, ticket: Ticket, lost: Result | None = None) -> None:
        """All attempts from the next on; *lost*: how the one before it came out."""
        while True:
            if lost is not None:
                await self._recover(run, ticket, lost)
            backend = await ticket.seat()
            lost = await self._attempt(run, backend)
            if lost is None:
                return

    def _judge(self, run: Run) -> None:
        """Count the death of the engine that had it last; there is another one by now.

        Raises:
            WireError: no other shall have it.
        """
        if run.suspect is None:
            return
        (died, got_on), run.suspect = run.suspect, None
        from_outside = blameless(died)
        run.strikes.died(got_on=got_on, from_outside=from_outside)
        run.setbacks.broke(pieces=run.entry.script().pieces, from_outside=from_outside)
        if run.strikes.out:
            self._quarantine.put(_digest(run.call), asyncio.get_running_loop().time())
            _log.warning("request %s is quarantined: engines died under it", run.call.id)
            raise WireError(poisonous())
        if (enough := run.setbacks.enough) is not None:
            run.steps += (GiveUp.word,)
            raise WireError(_cut(enough, run))

    async def _prepare(self, run: Run, backend: Backend) -> _Sending | None:
        """What to send to *backend*; None if the answer is at its end without it."""
        call, relay = run.call, run.relay
        if not run.lost:
            return _Sending(call.body)
        script, powers = run.entry.script(), powers_of(backend.card.engine)
        told = script.told(lost_track=run.entry.lost_track)
        step = next_step(run.shape, told, powers, resume=call.resume, replayed=run.replayed)
        run.steps += (step.word,)
        match step:
            case GiveUp(why=why):
                raise WireError(_cut(why, run))
            case Finish():
                self._finish(relay, script)
                return None
            case Replay():
                return _Sending(call.body, Stitcher(script, resumed=relay.seams + 1, replay=True), seam(script))
            case Continue():
                tokens = await self._tokens(backend, call.model, script)
                spent = script.pieces if tokens is None else len(tokens)
                limit = limit_of(run.fields)
                if limit is not None and spent >= limit:
                    self._finish(relay, script, reason="length")
                    return None
                body = continuation(run.fields, run.shape, powers, script, tokens=tokens, spent=spent)
                return _Sending(body, Stitcher(script, spent=spent, resumed=relay.seams + 1), seam(script))
            case _:  # run again: only the opening may have been sent
                return _Sending(call.body, Stitcher(script, resumed=relay.seams) if script.begun else None)

    async def _attempt(self, run: Run, backend: Backend) -> Result | None:
        """Send it to *backend*; how it came out, unless the client has its answer."""
        self._judge(run)
        release = None
        if run.strikes.count:
            # it waits as one that isn't in the engine: it would look like a request under which nothing moves
            alone = self._probation.setdefault(run.call.model, asyncio.Lock())
            await alone.acquire()
            release = _Release(alone)
        try:
            run.enter(backend)
            sending = await self._prepare(run, backend)
            if sending is None:
                return None
            future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

            def told(result: Result) -> None:
                if not future.done():  # cancelled in this very turn
                    future.set_result(result)

            self._send(run, sending.body, told, sending, release)
            result = await future
        finally:
            run.relay.detach()
            if release is not None:
                release()
        run.leave(None if result.ending is Ending.DONE else result.reason)
        return None if result.ending is Ending.DONE else result

    def _send(
        self,
        run: Run,
        body: bytes,
        told: Callable[[Result], None],
        sending: _Sending | None = None,
        on_first: Callable[[], None] | None = None,
    ) -> None:
        """Begin an attempt in the engine that has it; *told* hears how it comes out."""
        call, relay, backend, hold = run.call, run.relay, run.engine, Hold.NOTHING
        if call.stream and binds(call.fields or run.fields):
            hold = hold_of(run.shape, powers_of(backend.card.engine), resume=call.resume)
        if sending is None:
            relay.arm(told, hold=hold)
        else:
            relay.arm(told, hold=hold, stitcher=sending.stitcher, seam=sending.seam, on_first=on_first)
        run.sent(asyncio.get_running_loop().time())
        relay.attach(
            self._links.send(
                backend,
                call.path,
                body,
                call.content_type,
                relay,
                stream=call.stream,
                traceparent=None if self._trace is None else self._trace(call, len(run.attempts)),
            )
        )

    async def _recover(self, run: Run, ticket: Ticket, result: Result) -> None:
        """An attempt came to nothing: what that means for the next.

        Raises:
            WireError: there is no next.
        """
        now, relay, backend = asyncio.get_running_loop().time(), run.relay, run.engine
        if result.ending is Ending.DIVERGED:
            run.replayed = True
            return  # the engine is well, and keeps its place for the continuation
        _log.warning("request %s at %s: %s", run.call.id, backend.replica, result.reason)
        if result.ending is Ending.REFUSED:
            raise WireError(_cut(f"another would not continue it: {result.reason}", run))
        if result.ending is Ending.BROKE:
            run.lost, run.suspect, run.unreached_since = True, (backend, relay.got_on), None
            run.pause_s = run.FIRST_PAUSE_S
            await self._settle_early(run, backend)
        else:
            run.unreached_since = run.unreached_since or run.attempts[-1].began
            patience_s = self._unreached_s * (_BEGUN_PATIENCE if relay.begun else 1)
            if now - run.unreached_since >= patience_s:
                raise WireError(engine_cut(result.reason) if relay.begun else engine_down(result.reason))
        run.broke_off = True
        if result.ending is not Ending.STARTING:
            ticket.lost()
        # A killed engine's port still accepts for a moment, and its supervisor needs one to see that it is gone.
        await asyncio.sleep(run.pause_s)
        run.pause_s = min(run.pause_s * 2, _LONGEST_PAUSE_S)

    async def _settle_early(self, run: Run, backend: Backend) -> None:
        """Don't let a client wait for another engine if none could help it."""
        told = run.entry.script().told(lost_track=run.entry.lost_track)
        step = next_step(run.shape, told, LLAMA_CPP, resume=run.call.resume, replayed=run.replayed)
        if isinstance(step, GiveUp):
            run.steps += (step.word,)
            run.death = await why_lost(backend)
            raise WireError(_cut(step.why, run))

    def _finish(self, relay: Relay, script: Transcript, *, reason: str = "stop") -> None:
        """The client has all of the text: only its end is missing."""
        relay.finish(ending(script, reason=reason, resumed=relay.seams))

    async def _tokens(self, backend: Backend, model: str, script: Transcript) -> list[int] | None:
        """The tokens of what was sent, by the engine's count; None if it doesn't say."""
        if script.ids is not None:
            return script.ids
        ear = _Ear()
        question = count_request(script.reasoning + script.content, model)
        exchange = self._links.send(backend, "/tokenize", question, "application/json", ear)
        try:
            async with asyncio.timeout(_TOKENIZE_S):
                return read_tokens(await ear.heard)
        except TimeoutError:
            return None
        finally:
            exchange.abort()

    # --- around it --------------------------------------------------------------------------------------

    def _refuse_poison(self, call: Call) -> None:
        if self._quarantine.holds(_digest(call), asyncio.get_running_loop().time()):
            raise WireError(poisonous())

    def go_on(self, run: Run, lost: Result) -> None:
        """An engine broke: what follows takes time."""
        if run.ticket is None:
            raise RuntimeError("an attempt without a place came out")
        run.follow(self._serve(run, run.ticket, lost))

    def _listen(self, relay: Relay) -> None:
        """Let its client hear something when it is silent for long."""
        self._listening.add(relay)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        """One timer for all: a stream's own would be set and cancelled for each that is never silent."""
        self._timer = None
        for relay in tuple(self._listening):
            try:
                relay.beat()
            except Exception:  # that of one must not be the last of all
                _log.exception("a stream's sign of life failed")
        if self._listening:
            self._timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)

    def close(self, run: Run) -> None:
        """It is over: its place is free, and its books are closed."""
        relay = run.relay
        self._listening.discard(relay)
        self._traffic.leave(run)
        if run.ticket is not None:
            run.ticket.leave(relay.tokens)
        outcome = Outcome(
            status=relay.status or CLIENT_GONE,
            code=relay.code,
            began=relay.first_at,
            ended=asyncio.get_running_loop().time(),
            attempts=run.attempts,
            resumed=run.steps,
            head=relay.first_bytes,
            tail=relay.last_bytes(),
        )
        run.entry.close(relay.code or str(outcome.status))
        self._account.closed(run.call, outcome)


class _Release:
    """Lets go of a lock, once.

    A request under which an engine died gets on alone among such: or the next death would tell nothing.
    """

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock: asyncio.Lock | None = lock

    def __call__(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class _Ear:
    """Hears a small answer to its end; empty if there is none."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._parts: list[bytes] = []

    def head(self, status: int, content_type: str, stream: bool) -> None:  # noqa: FBT001, ARG002 - as Receiver has it
        self._status = status

    def data(self, data: bytes) -> None:
        self._parts.append(data)

    def chunk(self, raw: bytes, start: int) -> None:
        self.data(raw[start:-2])

    def done(self) -> None:
        if not self.heard.done():
            self.heard.set_result(b"".join(self._parts) if self._status == 200 else b"")

    def lost(self, reason: str, begun: bool) -> None:  # noqa: FBT001, ARG002 - as Receiver has it
        if not self.heard.done():
            self.heard.set_result(b"")


def _digest(call: Call) -> bytes:
    return hashlib.blake2b(call.path.encode() + b"\0" + call.body, digest_size=16).digest()


def _cut(why: str, run: Run) -> Fault:
    return engine_cut(f"{run.death or 'the engine stopped'} before the answer was complete, and {why}")

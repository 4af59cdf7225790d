"""One model's line: who waits for it, its replicas, and whose turn it is on which of them."""

from collections.abc import Mapping

from terazi.policy.admission import Account, Limits
from terazi.policy.bands import Queue
from terazi.policy.dispatch_messages import Command, WantModel
from terazi.policy.fairness import Request
from terazi.policy.pace import Pace
from terazi.policy.routing import Replica, choose
from terazi.policy.survey import LineView, Room


class Line:
    """Everything about one model. ``closed`` is why it can't be had, if so, and ``again_at`` until when.

    ``refit`` is to be called whenever ``replicas`` or one of them has changed.
    """

    def __init__(self, model: str, limits: Limits) -> None:
        self.model = model
        self.queue = Queue(limits.aging_s)
        self.replicas: dict[str, Replica] = {}
        #: Whether an engine takes requests for it.
        self.open = False
        self.room = Room()
        self.pace = Pace()
        self.closed: str | None = None
        self.again_at: float | None = None
        #: When a caller's tokens per minute allow one of those who wait to run, if that is what they wait for.
        self.rate_wake: float | None = None
        self._limits = limits
        self._able: list[Replica] = []  # those that are open
        self._blocked: Request | None = None  # has had its turn, but doesn't fit yet
        self._blocked_at = 0.0
        self._reserved: Replica | None = None
        self._told: tuple[int, float, int] | None = None

    # --- whose turn it is

    def idle(self) -> bool:
        """Nobody waits, and nobody is to be told anything about those who did: there is nothing to look after."""
        return not self.queue.waiting and self.rate_wake is None and self._told is None

    def straight_to(self, request: Request, account: Account, now: float) -> Replica | None:
        """The replica that has just been given a new *request*, because nothing has to be decided.

        That is so when the line is idle, its caller has nothing waiting either and is at no limit of its own. The
        queue is left as if *request* had been added and had had its turn; None, and nothing has changed, if it has
        to go that way.
        """
        if account.queued or account.tokens_per_minute or not self.idle():
            return None
        if account.max_concurrent is not None and account.running >= account.max_concurrent:
            return None
        if len(self._able) == 1:
            replica = self._able[0]
            if not replica.fits(request):
                return None
        else:
            found = choose(request, self._able, self._limits.imbalance)
            if found is None:
                return None
            replica = found
        self.queue.pass_through(request, account.weight, now)
        return replica

    def turn(self, accounts: Mapping[str, Account], now: float) -> tuple[Request, Replica] | None:
        """The next request, and where it goes; None if nobody fits anywhere now."""
        self.rate_wake = None
        waiting = self.queue.waiting
        if not waiting:
            return None
        free = [r for r in self._able if r.running < r.slots]
        if not free:
            return None
        if (blocked := self._overdue(accounts, now)) is not None:
            replica = choose(blocked, free, self._limits.imbalance)
            if replica is not None:
                return blocked, replica
            free = [r for r in free if r is not self._reserved]
        resting: set[str] = set()  # callers at their own limits
        for request in self.queue.candidates(now):
            if request.caller in resting:
                continue
            account = accounts[request.caller]
            if not account.may_run(request, now):
                self._rest(request, account, now)
                resting.add(request.caller)
                continue
            replica = choose(request, free, self._limits.imbalance)
            if replica is not None:
                return request, replica
            if self._blocked is None:
                self._blocked, self._blocked_at, self._reserved = request, now, None
        return None

    def left_queue(self, request: Request) -> None:
        """It waits no more, for whatever reason."""
        if request is self._blocked:
            self._blocked = self._reserved = None

    def _overdue(self, accounts: Mapping[str, Account], now: float) -> Request | None:
        """The request that smaller ones may pass no more, if there is one; a replica is kept free for it."""
        blocked = self._blocked
        if blocked is None or now - self._blocked_at < self._limits.pass_s:
            return None
        if not accounts[blocked.caller].may_run(blocked, now):
            return None
        if self._reserved is None or not self._reserved.open or not self._reserved.could_hold(blocked):
            able = [r for r in self._able if r.could_hold(blocked)]
            self._reserved = min(able, key=lambda r: (r.held, r.running, r.order), default=None)
        return blocked

    def _rest(self, request: Request, account: Account, now: float) -> None:
        self.queue.band_of(request).hold_back(request)
        if (wait := 0.0 if request.paid else account.rate_wait_s(request.charge, now)) > 0:
            at = now + wait
            self.rate_wake = at if self.rate_wake is None else min(self.rate_wake, at)

    # --- room

    def refit(self) -> None:
        """The replicas are others now."""
        self._able = [replica for replica in self.replicas.values() if replica.open]
        self.open = bool(self._able)
        bounds = [replica.largest for replica in self.replicas.values()]
        known = [bound for bound in bounds if bound is not None]
        largest = max(known) if known and len(known) == len(bounds) else None
        self.room = Room(largest=largest, choice=len(bounds) > 1)

    def wanted(self, now: float) -> list[Command]:
        """``WantModel``, if there is something new about those who wait for an engine that isn't there."""
        count = self._without_engine()
        if not count:
            self.pace.wanted_at = None
            if self._told is None:
                return []
            self._told = None
            return [WantModel(model=self.model, waiting=0, since=now)]
        if self.pace.wanted_at is None:
            self.pace.wanted_at = now
        since = next(iter(self.queue.waiting.values())).arrived
        state = (count, since, self.queue.priority)
        if state == self._told:
            return []
        self._told = state
        return [WantModel(model=self.model, waiting=count, since=since, priority=state[2])]

    def _without_engine(self) -> int:
        """Requests that no open replica could hold, even empty."""
        waiting = self.queue.waiting
        if not waiting:
            return 0
        able = self._able
        if not able:
            return len(waiting)
        if len(able) == len(self.replicas):
            return 0
        return sum(not any(replica.could_hold(request) for replica in able) for request in waiting.values())

    # --- how long it takes

    def expected_wait_s(self, request: Request, account: Account, now: float) -> float | None:
        """Seconds until an engine takes *request*, from what was measured; None if not enough was."""
        running = sum(replica.running for replica in self.replicas.values())
        ahead, opens_s, band = self.queue.before(request), 0.0, self.queue.band_of(request)
        if not self.open:
            opens = self.pace.opens_in_s(now)
            if opens is None:
                return None
            opens_s, running = opens, max(1, sum(replica.slots for replica in self.replicas.values()))
            ahead -= running  # so many are taken at once
        waits = [opens_s]
        if ahead >= 0:
            between = self.pace.between_s(running)
            if between is None:
                return None
            waits.append(opens_s + (ahead + 1) * between * band.stretch(request.caller))
        own, tokens = band.own_ahead(request)
        if not request.paid:
            waits.append(account.rate_wait_s(request.charge, now, behind=tokens))
        if account.max_concurrent and account.running + own >= account.max_concurrent:
            between = self.pace.between_s(account.max_concurrent)
            if between is None:
                return None
            waits.append((account.running + own + 1 - account.max_concurrent) * between)
        return max(waits)

    def place_free_s(self, request: Request, account: Account, now: float, *, own: bool) -> float | None:
        """Seconds until a place in the queue becomes free: anybody's, or one of the same caller's (*own*)."""
        running = sum(replica.running for replica in self._able)
        between = self.pace.between_s(running)
        if between is None:
            return None
        opens = 0.0 if self.open else self.pace.opens_in_s(now)
        if opens is None:
            return None
        if own:
            between /= self.queue.band_of(request).share(request.caller)
            if account.max_concurrent:
                between = max(between, self.pace.between_s(account.max_concurrent) or 0.0)
        return opens + between

    def opens_in_s(self, now: float) -> float | None:
        """Seconds until it can be had again, if it is known."""
        return None if self.again_at is None else max(0.0, self.again_at - now)

    def view(self, now: float) -> LineView:
        """What it looks like."""
        oldest = next(iter(self.queue.waiting.values()), None)
        return LineView(
            model=self.model,
            waiting=len(self.queue.waiting),
            oldest_s=None if oldest is None else now - oldest.arrived,
            service_s=self.pace.service_s,
            opening_s=self.pace.opening_s,
            closed=self.closed,
            replicas=tuple(replica.view() for replica in self.replicas.values()),
        )

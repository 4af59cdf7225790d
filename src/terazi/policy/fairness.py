"""Whose request is next within one band of priority: start-time fair queueing by caller.

Each caller is a flow with a virtual time. A flow that begins to wait starts at the band's virtual
time ``v`` or where it left off, whichever is later, so being idle saves nothing up. The flow with the smallest
start is served; ``v`` becomes its start, and its next start is ``start + tokens / weight`` (SFQ: Goyal, Vin, Cheng,
"Start-time Fair Queuing", SIGCOMM 1996, equations 4 and 5). What a request costs isn't known when it is sent, so an
estimate is charged then and put right when the answer is complete, as the virtual token counters of Sheng et al.
("Fairness in Serving Large Language Models", OSDI 2024) do it; the estimate follows how much of what a caller asks
for it really uses.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

#: How fast the estimate of a flow's use follows what is measured.
_FOLLOW: Final = 0.2
#: How fast the estimate of how many pass a flow's requests follows.
_LEARN: Final = 0.05
#: Requests of one flow that are looked at when its first one doesn't fit anywhere.
_LOOK_AHEAD: Final = 8
#: Flows that are kept although they neither wait nor run, for what they still owe.
_FLOWS_KEPT: Final = 1024


class Seat(Protocol):
    """Where a request is while it is answered: a replica."""

    def release(self, request: "Request") -> None:
        """It has left."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request, waiting or in an engine.

    Args:
        tokens: KV tokens that it may hold.
        charge: tokens that its flow pays for it: an estimate, until it is complete.
        paid: the flow has paid; a second attempt is free.
        until: it waits no longer; None is for ever, or not known yet.
        place: turns until it is served, itself included, as was foreseen; 0 if nobody asked.
        turns: of its model by then.
        seat: the engine that has it; None while it waits.
        seated_at: since when.
    """

    id: str
    model: str
    caller: str
    priority: int
    tokens: int
    prefix: tuple[int, ...]
    deadline: float | None
    arrived: float
    charge: float = 0.0
    paid: bool = False
    until: float | None = None
    place: int = 0
    turns: int = 0
    seat: Seat | None = None
    seated_at: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Flow:
    """One caller in one band of one model.

    Args:
        start: its virtual time: where its next request starts.
        order: when it began to wait, for ties.
        unsettled: its requests that have paid and aren't over.
        used: the share of what it asks for that it really uses.
        foreseen, came: turns until its requests were served, by their places and in fact; moving means.
        held_back: its own limits have kept it from being served.
    """

    caller: str
    weight: float
    start: float = 0.0
    order: int = 0
    unsettled: int = 0
    used: float = 1.0
    foreseen: float = 1.0
    came: float = 1.0
    held_back: bool = False
    queue: OrderedDict[str, Request] = field(default_factory=OrderedDict)

    def expect(self, request: Request) -> float:
        """Tokens that it will probably use."""
        return max(1.0, request.tokens * self.used)

    def learn(self, request: Request, turns: int) -> None:
        """*request* was served after so many *turns*, itself included."""
        self.foreseen += _LEARN * (request.place - self.foreseen)
        self.came += _LEARN * (turns - self.came)


class Band:
    """The waiting requests of one priority."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.waiting = 0
        #: When it was served last, or began to wait.
        self.served_at = 0.0
        #: Requests that come back from a lost engine, the oldest first.
        self.returned: deque[Request] = deque()
        self._flows: dict[str, Flow] = {}
        self._now = 0.0  # virtual time, in tokens per weight
        self._furthest = 0.0  # the largest start that a flow has had
        self._unsettled = 0
        self._joined = 0

    def flow(self, caller: str, weight: float) -> Flow:
        """That of *caller*, with its present weight."""
        flow = self._flows.get(caller)
        if flow is None:
            flow = self._flows[caller] = Flow(caller=caller, weight=weight, start=self._now)
        flow.weight = weight
        return flow

    def add(self, request: Request, weight: float, now: float) -> None:
        """It waits from now on, behind what its caller has waiting."""
        flow = self.flow(request.caller, weight)
        request.charge = flow.expect(request)
        if not flow.queue:
            self._join(flow)
        flow.queue[request.id] = request
        self._count(now)

    def bring_back(self, request: Request, now: float) -> None:
        """It has paid and lost its engine: it comes before all others of the band, the oldest first."""
        place = next((i for i, r in enumerate(self.returned) if r.arrived > request.arrived), len(self.returned))
        self.returned.insert(place, request)
        self._count(now)

    def remove(self, request: Request) -> None:
        """It waits no more, and is not served either."""
        self.waiting -= 1
        if request.paid:
            self.returned.remove(request)
            self.settle(request, None)
        else:
            del self._flows[request.caller].queue[request.id]
            self._forget()

    def candidates(self) -> Iterator[Request]:
        """Those that wait, in the order in which they should be served.

        The first is found in one pass; all flows are sorted only for who asks on. Nothing may be changed meanwhile.
        """
        yield from self.returned
        first: Flow | None = None
        for flow in self._flows.values():  # min() would make a call and a tuple for each
            if flow.queue and (
                first is None
                or flow.start < first.start
                or (flow.start == first.start and flow.order < first.order)
            ):
                first = flow
        if first is None:
            return
        yield next(iter(first.queue.values()))
        for flow in sorted((flow for flow in self._flows.values() if flow.queue), key=_rank):
            for depth, request in enumerate(flow.queue.values()):
                if depth >= _LOOK_AHEAD:
                    break
                if depth or flow is not first:
                    yield request

    def hold_back(self, request: Request) -> None:
        """Its caller is at its own limits, and so counts as idle: it saves nothing up meanwhile."""
        if not request.paid:
            self._flows[request.caller].held_back = True

    def serve(self, request: Request, now: float, turns: int) -> None:
        """*request* goes to an engine, and its flow pays. *turns*: of the model so far, this one included."""
        self.waiting -= 1
        self.served_at = now
        if request.paid:
            self.returned.remove(request)
            return
        flow = self._flows[request.caller]
        flow.unsettled += 1
        self._unsettled += 1
        del flow.queue[request.id]
        if flow.held_back:
            self._join(flow)
        elif request.place:
            flow.learn(request, turns - request.turns)
        request.paid = True
        request.charge = flow.expect(request)
        self._now = max(self._now, flow.start)
        self._charge(flow, request.charge)

    def pass_through(self, request: Request, weight: float, now: float) -> None:
        """It comes while nobody waits, and is served at once: what ``add`` and ``serve`` would leave behind."""
        flow = self._flows.get(request.caller)
        if flow is None:
            flow = self.flow(request.caller, weight)
        flow.weight = weight
        flow.held_back = False
        flow.unsettled += 1
        self._unsettled += 1
        self._joined += 1
        flow.order = self._joined
        self.served_at = now
        request.paid = True
        request.charge = charge = max(1.0, request.tokens * flow.used)
        start = flow.start
        if start > self._now:
            self._now = start
        else:
            start = self._now
        flow.start = start = start + charge / weight
        if start > self._furthest:  # noqa: PLR1730 - a call less for each request
            self._furthest = start

    def settle(self, request: Request, tokens: int | None) -> float:
        """One that has paid is over. What it cost more than was charged.

        Args:
            tokens: really used; None if that isn't known, and the charge stands.
        """
        flow = self._flows[request.caller]
        flow.unsettled -= 1
        self._unsettled -= 1
        more = 0.0
        if tokens is not None:
            more = tokens - request.charge
            flow.start = start = flow.start + more / flow.weight
            if start > self._furthest:  # noqa: PLR1730 - a call less for each request
                self._furthest = start
            if request.tokens > 0:
                used = tokens / request.tokens if tokens < 4 * request.tokens else 4.0
                flow.used += _FOLLOW * (used - flow.used)
        self._forget()
        return more

    def before(self, request: Request) -> int:
        """How many of this band will be served before *request*, as things are."""
        if request.paid:
            return self.returned.index(request)
        mine = self._flows[request.caller]
        tag, ahead = mine.start, len(self.returned)
        for other in mine.queue.values():
            if other is request:
                break
            tag += other.charge / mine.weight
            ahead += 1
        for flow in self._flows.values():
            if flow is not mine and flow.queue:
                theirs, weight, first_of_equals = flow.start, flow.weight, flow.order < mine.order
                for other in flow.queue.values():
                    if theirs > tag or (theirs == tag and not first_of_equals):
                        break
                    theirs += other.charge / weight
                    ahead += 1
        return ahead

    def stretch(self, caller: str) -> float:
        """How many turns it takes for each that the places of *caller*'s requests foresee.

        More than one if others come later and go first, as those with less waiting do. How many will come can only
        be learned from those who came.
        """
        flow = self._flows.get(caller)
        return 1.0 if flow is None else flow.came / flow.foreseen

    def own_ahead(self, request: Request) -> tuple[int, float]:
        """Requests of the same caller that wait before *request*, and the tokens that they will probably use."""
        count, tokens = 0, 0.0
        if not request.paid:
            for other in self._flows[request.caller].queue.values():
                if other is request:
                    break
                count += 1
                tokens += other.charge
        return count, tokens

    def share(self, caller: str) -> float:
        """What part of the band's service *caller* has coming: its weight beside those of all who wait."""
        flow = self._flows.get(caller)
        total = sum(f.weight for f in self._flows.values() if f.queue)
        return flow.weight / total if flow is not None and flow.queue else 1.0

    def _join(self, flow: Flow) -> None:
        self._joined += 1
        flow.order = self._joined
        flow.start = max(flow.start, self._now)
        flow.held_back = False

    def _count(self, now: float) -> None:
        if not self.waiting:
            self.served_at = now
        self.waiting += 1

    def _charge(self, flow: Flow, tokens: float) -> None:
        flow.start += tokens / flow.weight
        self._furthest = max(self._furthest, flow.start)

    def _forget(self) -> None:
        """When nobody waits or runs, no caller owes another anything (the end of a busy period in the paper)."""
        if not self.waiting and not self._unsettled and self._furthest > self._now:
            self._now = self._furthest
        if len(self._flows) > 2 * _FLOWS_KEPT:
            idle = [c for c, f in self._flows.items() if not f.queue and not f.unsettled and f.start <= self._now]
            for caller in idle[:_FLOWS_KEPT]:
                del self._flows[caller]


def _rank(flow: Flow) -> tuple[float, int]:
    return flow.start, flow.order

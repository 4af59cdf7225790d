"""The dispatcher in a world that may do anything, held against the world's own book-keeping."""

from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from terazi.policy.admission import Limits
from terazi.policy.dispatch_messages import (
    AdmissionPaused,
    AdmissionResumed,
    AttemptLost,
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
from terazi.policy.dispatcher import Dispatcher

LIMITS = Limits(max_queued=12, max_queued_each=8, rate_wait_s=20.0, aging_s=30.0, pass_s=5.0, max_wait_s=90.0)
#: What those are told who have waited long enough.
LATE = {Why.DEADLINE, Why.NO_ENGINE}
MODELS = ("m", "n")
REPLICAS = ("m#1", "m#2", "n#1")
#: Name, concurrency, tokens per minute, weight.
KEYS = {"ann": (None, None, 1.0), "ben": (2, None, 2.0), "cem": (None, 600, 1.0), "dil": (1, 300, 0.5)}
PRIORITY = {"ann": 0, "ben": 0, "cem": 1, "dil": -1}

#: Slots, tokens of all of them, of each, and whether they share.
Shape: TypeAlias = tuple[int, int | None, int | None, bool]
ROOMY: Shape = (2, None, None, False)
SHAPES = st.tuples(
    st.integers(1, 3), st.sampled_from([None, 100, 300, 600]), st.sampled_from([None, 50, 200]), st.booleans()
)


@dataclass
class Engine:
    """A replica as the world knows it."""

    model: str
    open: bool
    slots: int
    tokens: int | None
    each: int | None
    shared: bool
    inside: dict[str, RequestArrived] = field(default_factory=dict)

    def could_hold(self, tokens: int) -> bool:
        """Empty."""
        if self.each is not None and tokens > self.each:
            return False
        if self.tokens is None:
            return True
        return tokens <= (self.tokens if self.shared else self.tokens // self.slots)

    def has_room(self, tokens: int) -> bool:
        """Now."""
        if not self.open or len(self.inside) >= self.slots or not self.could_hold(tokens):
            return False
        held = sum(r.tokens for r in self.inside.values())
        return not self.shared or self.tokens is None or held + tokens <= self.tokens


class World(RuleBasedStateMachine):
    """Plays engines, clients and the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher(LIMITS)
        self.now = 1000.0
        self.serial = 0
        self.engines: dict[str, Engine] = {}
        self.waiting: dict[str, RequestArrived] = {}
        self.arrived: dict[str, float] = {}
        self.since: dict[str, float] = {}  # of this attempt
        self.inside: dict[str, str] = {}
        self.paid: set[str] = set()
        self.spent: dict[str, list[tuple[float, int]]] = {name: [] for name in KEYS}
        self.dead: dict[str, Engine] = {}  # requests whose engine is gone, and that haven't heard of it
        self.closed: set[str] = set()
        self.paused = self.draining = False
        self.wake: float | None = None
        self.wanted: dict[str, int] = {}

    # --- executing

    def feed(self, event: Event) -> list[TurnAway]:
        """One step; every command must be one that the world allows."""
        away: list[TurnAway] = []
        for command in self.dispatcher.step(event, self.now):
            match command:
                case Dispatch(id=id_, replica=replica):
                    self.seat(id_, replica)
                case TurnAway(id=id_, retry_after_s=retry):
                    assert id_ in self.waiting, "turned away without waiting"
                    del self.waiting[id_]
                    assert command.message
                    assert retry is None or retry >= 0
                    away.append(command)
                case WakeAt(at=at):
                    assert at > self.now, "a wake-up in the past"
                    self.wake = at
                case WantModel(model=model, waiting=waiting, since=since):
                    assert since <= self.now
                    assert self.wanted.get(model, 0) or waiting, "nobody wants it, said twice"
                    self.wanted[model] = waiting
        return away

    def seat(self, id_: str, replica: str) -> None:
        """A request enters an engine."""
        request = self.waiting.pop(id_)
        engine = self.engines[replica]
        assert engine.model == request.model
        assert engine.has_room(request.tokens), "sent where there is no room"
        concurrency, rate, _ = KEYS[request.caller]
        running = sum(1 for e in [*self.engines.values(), *self.dead.values()] for r in e.inside.values()
                      if r.caller == request.caller)  # fmt: skip
        assert concurrency is None or running < concurrency, "more than its key allows"
        if id_ not in self.paid and rate is not None:
            self.spent[request.caller].append((self.now, request.tokens))
            self.check_rate(request.caller, rate)
        self.paid.add(id_)
        engine.inside[id_] = request
        self.inside[id_] = replica

    def check_rate(self, caller: str, rate: int) -> None:
        """Over any span, no more than one bucket, what flows in meanwhile, and the last request's excess."""
        spent = self.spent[caller]
        end, last = spent[-1]
        total = 0
        for at, tokens in reversed(spent):
            total += tokens
            allowed = rate + (end - at) * rate / 60 + max(0, last - rate)
            # an oversized one in the middle leaves a debt, which later ones have waited for
            assert total <= allowed + sum(max(0, t - rate) for a, t in spent if a >= at) + 1e-3, "over its rate"

    # --- what may happen

    @rule(
        model=st.sampled_from(MODELS),
        caller=st.sampled_from(sorted(KEYS)),
        tokens=st.sampled_from([1, 10, 50, 100, 200, 500]),
        patience=st.sampled_from([None, None, 0.5, 8.0]),
        prefix=st.lists(st.integers(0, 3), max_size=3),
    )
    def arrive(self, model: str, caller: str, tokens: int, patience: float | None, prefix: list[int]) -> None:
        """A client asks."""
        self.serial += 1
        concurrency, rate, weight = KEYS[caller]
        request = RequestArrived(
            id=f"r{self.serial}",
            model=model,
            caller=caller,
            weight=weight,
            priority=PRIORITY[caller],
            max_concurrent=concurrency,
            tokens_per_minute=rate,
            tokens=tokens,
            prefix=tuple(prefix),
            deadline=None if patience is None else self.now + patience,
        )
        self.waiting[request.id] = request
        self.arrived[request.id] = self.since[request.id] = self.now
        before = len(self.waiting) - 1
        mine = sum(r.caller == caller for r in self.waiting.values()) - 1
        knowing = [e for e in self.engines.values() if e.model == model]
        for away in self.feed(request):
            if away.id != request.id:
                assert away.why in LATE
                continue
            match away.why:
                case Why.QUEUE_FULL:
                    assert before >= LIMITS.max_queued
                    assert mine
                case Why.KEY_QUEUE_FULL:
                    assert mine >= LIMITS.max_queued_each
                case Why.RATE:
                    assert rate is not None
                    assert away.retry_after_s is not None
                    assert away.retry_after_s > LIMITS.rate_wait_s
                case Why.TOO_LARGE:
                    assert knowing
                    assert not any(e.could_hold(tokens) for e in knowing)
                    assert str(tokens) in away.message
                case Why.NO_ENGINE:
                    assert model in self.closed, "it has only just come"
                case Why.PRESSURE:
                    assert self.paused
                case Why.DRAINING:
                    assert self.draining
                case Why.DEADLINE:
                    raise AssertionError("late before it could be")

    def some_inside(self, data: st.DataObject) -> str:
        """A request in an engine."""
        return data.draw(st.sampled_from(sorted(self.inside)))

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), used=st.sampled_from([None, 1.0]))
    def finish(self, data: st.DataObject, used: float | None) -> None:
        """An answer is complete."""
        id_ = self.some_inside(data)
        request = self.out(id_)
        self.feed(RequestFinished(id=id_, tokens=None if used is None else request.tokens))

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """An engine drops it."""
        id_ = self.some_inside(data)
        self.waiting[id_] = self.out(id_)
        self.since[id_] = self.now
        for away in self.feed(AttemptLost(id=id_)):
            assert away.why in {Why.DEADLINE, Why.NO_ENGINE, Why.DRAINING, Why.TOO_LARGE}

    @precondition(lambda self: self.inside or self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A client leaves, wherever its request is."""
        id_ = data.draw(st.sampled_from(sorted([*self.inside, *self.waiting])))
        if self.waiting.pop(id_, None) is None:
            self.out(id_)
        self.feed(RequestCancelled(id=id_))
        self.feed(RequestCancelled(id=id_))

    def out(self, id_: str) -> RequestArrived:
        """It leaves its engine, dead or alive."""
        replica = self.inside.pop(id_)
        if id_ in self.dead:
            return self.dead.pop(id_).inside.pop(id_)
        return self.engines[replica].inside.pop(id_)

    @rule(replica=st.sampled_from(REPLICAS), open_=st.booleans(), shape=SHAPES)
    def change(self, replica: str, open_: bool, shape: Shape) -> None:
        """An engine comes, goes, or comes back different."""
        model = replica[0]
        slots, tokens, each, shared = shape
        engine = self.engines.get(replica)
        inside = engine.inside if engine is not None else {}
        self.engines[replica] = Engine(model, open_, slots, tokens, each, shared, inside)
        if open_:
            self.closed.discard(model)
        news = ReplicaChanged(
            replica=replica, model=model, open=open_, slots=slots, tokens=tokens, tokens_each=each, shared=shared
        )
        for away in self.feed(news):
            assert away.why in {Why.TOO_LARGE, *LATE}

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """An engine is gone for good; its requests hear of it later."""
        replica = data.draw(st.sampled_from(sorted(self.engines)))
        engine = self.engines.pop(replica)
        for id_ in engine.inside:
            self.dead[id_] = Engine(engine.model, False, 1, None, None, False, {id_: engine.inside[id_]})
        self.feed(ReplicaGone(replica=replica))

    @rule(model=st.sampled_from(MODELS), opens=st.booleans())
    def door(self, model: str, opens: bool) -> None:
        """A model can't be had, or can again."""
        if opens:
            self.closed.discard(model)
            self.feed(ModelOpened(model=model))
        else:
            self.closed.add(model)
            self.feed(ModelClosed(model=model, reason="it failed"))
            assert not any(r.model == model for r in self.waiting.values())

    @rule(pause=st.booleans())
    def guard(self, pause: bool) -> None:
        """Memory is short, or isn't."""
        self.paused = pause
        self.feed(AdmissionPaused(reason="short of memory") if pause else AdmissionResumed())

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        """The clock goes on; a wake-up is kept."""
        until = self.now + seconds
        while self.wake is not None and self.wake <= until:
            self.now, self.wake = self.wake, None
            self.feed(Ticked())
        self.now = until

    # --- what always holds

    @invariant()
    def late_ones_are_gone(self) -> None:
        """Nobody waits past its deadline, once the clock was looked at."""
        late = [r for r in self.waiting.values() if r.deadline is not None and r.deadline <= self.now]
        assert not late
        assert all(self.now - since < 90.0 for id_, since in self.since.items() if id_ in self.waiting)

    @invariant()
    def nobody_waits_beside_a_free_engine(self) -> None:
        """Except by its own limits, or for a larger one that has waited long enough to be let through."""
        for model in MODELS:
            heads: dict[str, RequestArrived] = {}
            ours = [r for r in self.waiting.values() if r.model == model]
            for request in ours:
                heads.setdefault(request.caller, request)
            for request in heads.values():
                concurrency, rate, _ = KEYS[request.caller]
                if concurrency is not None or rate is not None:
                    continue
                engines = [e for e in self.engines.values() if e.model == model]
                if any(e.has_room(request.tokens) for e in engines):
                    larger = [
                        r for r in ours if r is not request and self.now - self.arrived[r.id] >= LIMITS.pass_s
                    ]
                    assert larger, f"{request.id} waits for nothing"

    @invariant()
    def positions_are_those_of_a_queue(self) -> None:
        """Each place from one to the last, once per model; and a wait that isn't negative."""
        for model in MODELS:
            ours = [r.id for r in self.waiting.values() if r.model == model]
            places = sorted(self.dispatcher.position(id_) for id_ in ours)
            assert places == list(range(1, len(ours) + 1))
            for id_ in ours:
                wait = self.dispatcher.expected_wait_s(id_, self.now)
                assert wait is None or wait >= 0

    @invariant()
    def the_survey_is_what_is(self) -> None:
        """Its counts are those of the world."""
        survey = self.dispatcher.survey(self.now)
        for line in survey.lines:
            assert line.waiting == sum(r.model == line.model for r in self.waiting.values())
            for view in line.replicas:
                inside = self.engines[view.replica].inside.values()
                assert (view.running, view.held_tokens) == (len(inside), sum(r.tokens for r in inside))
        shown = {view.caller: (view.waiting, view.running) for view in survey.callers}
        inside_all = [r for e in [*self.engines.values(), *self.dead.values()] for r in e.inside.values()]
        for name in KEYS:
            waits = sum(r.caller == name for r in self.waiting.values())
            runs = sum(r.caller == name for r in inside_all)
            assert shown.get(name, (0, 0)) == (waits, runs)

    @invariant()
    def wants_are_known(self) -> None:
        """The keeper has been told how many wait for a model without an open engine."""
        for model in MODELS:
            ours = [r for r in self.waiting.values() if r.model == model]
            if not any(e.open for e in self.engines.values() if e.model == model):
                assert self.wanted.get(model, 0) == len(ours)
            elif not ours:
                assert self.wanted.get(model, 0) == 0

    def teardown(self) -> None:
        """Give everybody an engine and time: in the end, nobody waits."""
        for model in MODELS:
            for replica in [r for r, e in self.engines.items() if e.model == model]:
                self.change(replica, False, ROOMY)
            self.change(f"{model}#1", True, ROOMY)
        for _ in range(400):
            if not self.waiting:
                break
            for id_ in list(self.inside):
                request = self.out(id_)
                self.feed(RequestFinished(id=id_, tokens=request.tokens))
            self.pass_time(5.0)
        assert not self.waiting, "somebody was left waiting for ever"
        self.draining = True
        self.feed(DrainBegan())


TestDispatcher = World.TestCase
TestDispatcher.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

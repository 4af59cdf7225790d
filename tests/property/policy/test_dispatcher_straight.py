"""A request that nobody waits before goes straight to its engine; by way of the queue it would have been the same.

The same events go through two dispatchers, of which one never takes the short way: the same commands come out of
both, and they end up in the same state, to the last bit.
"""

import random
from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from terazi.policy.admission import Limits
from terazi.policy.bands import Queue
from terazi.policy.dispatch_messages import (
    AdmissionPaused,
    AdmissionResumed,
    AttemptLost,
    Event,
    ModelClosed,
    ModelOpened,
    ReplicaChanged,
    ReplicaGone,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Ticked,
)
from terazi.policy.dispatcher import Dispatcher
from terazi.policy.fairness import Request
from terazi.policy.line import Line

REPLICAS = ("m#1", "m#2", "n#1")
#: Concurrency, tokens per minute, weight, priority.
KEYS = {
    "ann": (None, None, 1.0, 0),
    "ben": (None, None, 3.3, 0),
    "cem": (2, None, 0.5, 1),
    "dil": (None, 600, 1.0, 0),
}


class Thorough(Dispatcher):
    """It queues everybody."""

    def _line(self, model: str) -> Line:
        if model not in self._lines:
            self._lines[model] = Busy(model, self._limits)
        return self._lines[model]


class Busy(Line):
    """There is always something to look after."""

    def idle(self) -> bool:
        return False


class World:
    """What may happen, from dice."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - a simulation, the same each time
        self.now = 100.0
        self.alive: list[str] = []
        self.leaving = 0
        self.busy = self.dice.choice([30, 60])
        self.slots = self.dice.choice([[1], [1, 2, 8]])
        self.serial = 0

    def next(self) -> Event:
        """One event, some time later."""
        dice = self.dice
        self.now += dice.choice([0.0, 0.0, 0.01, 0.3, 1.7, dice.uniform(0, 8)])
        kind = dice.choices(["arrive", "leave", "lose", "change", "other", "empty"], [self.busy, 36, 3, 6, 6, 8])[0]
        if kind == "change":
            replica = dice.choice(REPLICAS)
            return ReplicaChanged(
                replica=replica,
                model=replica[0],
                open=dice.random() < 0.8,
                slots=dice.choice(self.slots),
                tokens=dice.choice([None, 400, 2000]),
                tokens_each=dice.choice([None, 500]),
                shared=dice.random() < 0.5,
            )
        if kind == "empty":
            self.leaving = dice.randint(0, len(self.alive))
        if self.leaving:  # the youngest, which wait if anybody does
            self.leaving -= 1
            return RequestCancelled(id=self.alive.pop())
        if kind == "arrive" or not self.alive:
            return self._arrive()
        if kind == "lose":
            return AttemptLost(id=dice.choice(self.alive))
        if kind == "leave":
            id_ = self.alive.pop(dice.randrange(len(self.alive)))
            if dice.random() < 0.15:
                return RequestCancelled(id=id_)
            return RequestFinished(id=id_, tokens=dice.choice([None, 1, 10, 100, 5000]))
        model = dice.choice("mn")
        return dice.choice(
            [
                Ticked(),
                Ticked(),
                ReplicaGone(replica=dice.choice(REPLICAS)),
                ModelClosed(model=model, reason="it failed"),
                ModelOpened(model=model),
                AdmissionPaused(reason="short of memory") if dice.random() < 0.2 else AdmissionResumed(),
            ]
        )

    def _arrive(self) -> Event:
        dice = self.dice
        self.serial += 1
        self.alive.append(f"r{self.serial}")
        caller = dice.choice(sorted(KEYS))
        concurrency, rate, weight, priority = KEYS[caller]
        return RequestArrived(
            id=f"r{self.serial}",
            model=dice.choice("mmn"),
            caller=caller,
            weight=weight,
            priority=priority - dice.choice([0, 0, 0, 1]),
            max_concurrent=concurrency,
            tokens_per_minute=rate,
            tokens=dice.choice([0, 1, 10, 100, 333]),
            prefix=tuple(dice.randrange(4) for _ in range(dice.choice([0, 0, 3]))),
            deadline=dice.choice([None, None, None, self.now + dice.uniform(0, 9)]),
        )


def state(thing: object, seen: frozenset[int] = frozenset()) -> object:
    """All that it holds, in order; what it is inside of already is only named."""
    if id(thing) in seen or callable(thing):
        return "known"
    inner = seen | {id(thing)}
    match thing:
        case dict():  # the order of an OrderedDict decides, and so does that of flows and lines
            return [(state(key, inner), state(value, inner)) for key, value in thing.items()]
        case list() | tuple() | deque():
            return [state(item, inner) for item in thing]
        case None | str() | int() | float() | Enum():
            return repr(thing)
    if is_dataclass(thing):
        return [(f.name, state(getattr(thing, f.name), inner)) for f in fields(thing)]
    return [(name, state(value, inner)) for name, value in sorted(vars(thing).items())]


@given(st.integers(0, 2**32), st.sampled_from([2, 12, 500]), st.sampled_from([None, 9.0]))
@example(209, 500, 9.0)  # a band that is due, whose requests have left
@example(133, 12, 9.0)  # a caller that was held back, and has none waiting any more
@example(11, 500, 9.0)  # one that waits for another model
@settings(max_examples=40, deadline=None)
def test_the_straight_way_leaves_behind_what_the_queue_would(seed: int, most: int, longest: float | None) -> None:
    terms = Limits(
        max_queued=most, max_queued_each=8, rate_wait_s=20.0, aging_s=1.0, pass_s=2.0, max_wait_s=longest
    )
    short, long = Dispatcher(terms), Thorough(terms)
    world = World(seed)
    for _ in range(70):
        event = world.next()
        assert short.step(event, world.now) == long.step(event, world.now)
        assert short.survey(world.now) == long.survey(world.now)
        assert state(short) == state(long)
        if isinstance(event, RequestArrived):
            assert short.foresee(event.id) == long.foresee(event.id)
        for id_ in world.alive:
            assert short.position(id_) == long.position(id_)
            assert short.expected_wait_s(id_, world.now) == long.expected_wait_s(id_, world.now)


def test_the_straight_way_is_taken_and_the_thorough_one_never_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Request] = []
    pass_through = Queue.pass_through

    def noted(queue: Queue, request: Request, weight: float, now: float) -> None:
        taken.append(request)
        pass_through(queue, request, weight, now)

    monkeypatch.setattr(Queue, "pass_through", noted)
    for kind, most in ((Dispatcher, True), (Thorough, False)):
        dispatcher = kind()
        for id_ in range(10):
            dispatcher.step(ReplicaChanged(replica="m#1", model="m", open=True, slots=8), 0.0)
            dispatcher.step(RequestArrived(id=f"r{id_}", model="m", caller="ann", tokens=10), 0.0)
        assert len(taken) == (8 if most else 0)
        taken.clear()

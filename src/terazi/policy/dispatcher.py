"""Which waiting request goes to which open replica, and when."""

from collections import deque
from dataclasses import dataclass

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
    TurnAway,
    WantModel,
    Why,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the service itself."""

    max_queued: int = 1024


class Dispatcher:
    """First come, first served, a queue for each model."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._replicas: dict[str, ReplicaChanged] = {}
        self._queues: dict[str, deque[tuple[RequestArrived, float]]] = {}
        self._seated: dict[str, tuple[RequestArrived, str]] = {}
        self._closed: dict[str, str] = {}
        self._paused: str | None = None
        self._draining = False

    def step(self, event: Event, now: float) -> list[Command]:
        """Take *event* in; what is to be done about it."""
        match event:
            case RequestArrived():
                return self._arrive(event, now)
            case RequestFinished(id=id_) | RequestCancelled(id=id_):
                model = self._forget(id_)
                return self._place(model) if model is not None else []
            case AttemptLost(id=id_):
                if (seated := self._seated.pop(id_, None)) is None:
                    return []
                self._queues.setdefault(seated[0].model, deque()).appendleft((seated[0], now))
                return self._place(seated[0].model)
            case ReplicaChanged(replica=replica, model=model):
                self._replicas[replica] = event
                if event.open:
                    self._closed.pop(model, None)
                return self._place(model)
            case ReplicaGone(replica=replica):
                self._replicas.pop(replica, None)
            case ModelClosed(model=model, reason=reason):
                self._closed[model] = reason
                gone = self._queues.pop(model, deque())
                return [TurnAway(id=r.id, why=Why.NO_ENGINE, message=reason) for r, _ in gone]
            case ModelOpened(model=model):
                self._closed.pop(model, None)
            case AdmissionPaused(reason=reason):
                self._paused = reason
            case AdmissionResumed():
                self._paused = None
            case DrainBegan():
                self._draining = True
                waiting = [r for queue in self._queues.values() for r, _ in queue]
                self._queues.clear()
                return [
                    TurnAway(id=r.id, why=Why.DRAINING, message="the service is shutting down") for r in waiting
                ]
        return []

    def position(self, id_: str) -> int:
        """Its place among those that wait for its model, from 1; 0 if it doesn't wait."""
        for queue in self._queues.values():
            for place, (request, _) in enumerate(queue, 1):
                if request.id == id_:
                    return place
        return 0

    def expected_wait_s(self, id_: str, now: float) -> float | None:
        """Seconds until it is placed, as measured; None if nothing is known."""
        return 0.0 if id_ in self._seated and now else None

    def _arrive(self, request: RequestArrived, now: float) -> list[Command]:
        def away(why: Why, message: str) -> list[Command]:
            return [TurnAway(id=request.id, why=why, message=message)]

        if self._draining:
            return away(Why.DRAINING, "the service is shutting down")
        if request.model in self._closed:
            return away(Why.NO_ENGINE, self._closed[request.model])
        if self._paused is not None:
            return away(Why.PRESSURE, self._paused)
        if sum(map(len, self._queues.values())) >= self._limits.max_queued:
            return away(Why.QUEUE_FULL, "too many requests are waiting")
        self._queues.setdefault(request.model, deque()).append((request, now))
        return self._place(request.model)

    def _forget(self, id_: str) -> str | None:
        if (seated := self._seated.pop(id_, None)) is not None:
            return seated[0].model
        for model, queue in self._queues.items():
            for item in queue:
                if item[0].id == id_:
                    queue.remove(item)
                    return model
        return None

    def _place(self, model: str) -> list[Command]:
        commands: list[Command] = []
        queue = self._queues.get(model) or deque()
        replicas = [r for r in self._replicas.values() if r.model == model and r.open]
        while queue:
            loads = {r.replica: sum(s[1] == r.replica for s in self._seated.values()) for r in replicas}
            free = [r.replica for r in replicas if loads[r.replica] < r.slots]
            if not free:
                break
            request, _ = queue.popleft()
            replica = min(free, key=loads.__getitem__)
            self._seated[request.id] = (request, replica)
            commands.append(Dispatch(id=request.id, replica=replica))
        if queue and not replicas:
            since = min(at for _, at in queue)
            commands.append(WantModel(model=model, waiting=len(queue), since=since))
        return commands

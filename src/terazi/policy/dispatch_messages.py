"""What the dispatcher of requests is told (events, past tense), and what it tells others to do (commands).

Times are monotonic seconds. Tokens are those of the KV cache: what a request will hold while it is answered, its
prompt and what it may write, as far as that is known when it comes.

None of them is ever changed. Those that are made for each request aren't frozen all the same: a frozen dataclass
sets each of its fields by a call of its own.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Why(StrEnum):
    """Why a request is turned away, or leaves its queue without an engine."""

    QUEUE_FULL = "queue-full"  # 503: all queues together are at their bound
    KEY_QUEUE_FULL = "key-queue-full"  # 429: this caller has too many waiting
    RATE = "rate"  # 429: this caller's tokens per minute are spent
    TOO_LARGE = "too-large"  # 400: more KV tokens than any replica has for one request
    DEADLINE = "deadline"  # 504
    NO_ENGINE = "no-engine"  # 503: the model failed for good, or was stopped
    PRESSURE = "pressure"  # 503: the guard has paused admission
    DRAINING = "draining"  # 503: the service ends


# --- events -------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RequestArrived:
    """A request wants an engine.

    Args:
        model: the id on the card.
        caller, weight, priority, max_concurrent, tokens_per_minute, max_queued: the key's name and terms.
        tokens: KV tokens that it will hold at most.
        prefix: hashes of the prompt's leading blocks, first block first; for replicas that have them cached.
        deadline: monotonic moment after which it is of no use; None is never.
    """

    id: str
    model: str
    caller: str
    weight: float = 1.0
    priority: int = 0
    max_concurrent: int | None = None
    tokens_per_minute: int | None = None
    max_queued: int | None = None
    tokens: int
    prefix: tuple[int, ...] = ()
    deadline: float | None = None


@dataclass(slots=True, kw_only=True)
class RequestFinished:
    """Its answer is complete, or failed for good. ``tokens`` were really used; None if nobody said."""

    id: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled:
    """The client left, waiting or in an engine."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """The engine that had it is gone or stuck, and it shall be placed again: at the head of its queue."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChanged:
    """An engine of *model* is ready, or isn't any more.

    Args:
        replica: unique over all models.
        open: it takes requests now.
        slots: requests that it works on at once.
        tokens: KV tokens that all its requests may hold together; None if it isn't known.
        tokens_each: KV tokens that one request may hold; None if it isn't known.
        shared: any request may use all *tokens* (a unified or paged cache); else each slot has its part.
    """

    replica: str
    model: str
    open: bool
    slots: int = 1
    tokens: int | None = None
    tokens_each: int | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGone:
    """It won't come back. Requests in it are told by ``AttemptLost``, each by its own broker."""

    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClosed:
    """No engine will come for it now. Its waiting requests are turned away, and those that come.

    ``again_at``: when it is tried again; None is when somebody does something.
    """

    model: str
    reason: str
    again_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOpened:
    """Requests for it may wait again: it is served, loaded or not."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPaused:
    """The guard wants no more work: new requests are turned away; ``reason`` is for people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionResumed:
    """The pressure is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBegan:
    """The service ends: new and waiting requests are turned away, those in engines go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """The time of a ``WakeAt`` has come."""


Event: TypeAlias = (
    RequestArrived
    | RequestFinished
    | RequestCancelled
    | AttemptLost
    | ReplicaChanged
    | ReplicaGone
    | ModelClosed
    | ModelOpened
    | AdmissionPaused
    | AdmissionResumed
    | DrainBegan
    | Ticked
)


# --- commands -----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Dispatch:
    """Send the request to this replica now."""

    id: str
    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAway:
    """The request gets no engine. ``retry_after_s`` is when it would be admitted, as far as can be known."""

    id: str
    why: Why
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantModel:
    """Requests wait for a model that has no open replica. Said once for each new state of its queue."""

    model: str
    waiting: int
    since: float
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Say ``Ticked`` at this moment, instead of at any asked for earlier."""

    at: float


Command: TypeAlias = Dispatch | TurnAway | WantModel | WakeAt

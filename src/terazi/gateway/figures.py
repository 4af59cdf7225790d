"""Figures that others keep, and that are read only when somebody scrapes: their names, and the noun for one.

Whoever has some (queues, the keeper of models, the guard) is a ``Source``: a function without arguments that says
them all. The names behind ``terazi_`` are those of vLLM's metrics where it has the same thing.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias


class Kind(Enum):
    """What Prometheus makes of a figure."""

    GAUGE = "gauge"
    COUNTER = "counter"


class _About(NamedTuple):
    kind: Kind
    help: str
    labels: tuple[str, ...]


class Family(Enum):
    """All figures that are read on a scrape. The value's first part is its name without ``terazi_``."""

    RUNNING = ("num_requests_running", _About(Kind.GAUGE, "Requests in engines now.", ("model",)))
    WAITING = ("num_requests_waiting", _About(Kind.GAUGE, "Requests that wait for an engine.", ("model",)))
    KEY_WAITING = ("key_requests_waiting", _About(Kind.GAUGE, "Requests that wait, by API key.", ("key",)))
    OLDEST = (
        "oldest_waiting_request_seconds",
        _About(Kind.GAUGE, "How long the oldest waiting request has waited.", ("model",)),
    )
    KV_PROMISED = (
        "kv_tokens_promised",
        _About(Kind.GAUGE, "KV tokens promised to the requests in a replica.", ("model", "replica")),
    )
    KV_CAPACITY = (
        "kv_tokens_capacity",
        _About(Kind.GAUGE, "KV tokens that a replica has.", ("model", "replica")),
    )
    LOADS = ("model_loads", _About(Kind.COUNTER, "Loads of a model, by how they ended.", ("model", "result")))
    LOAD_SECONDS = ("model_load_seconds", _About(Kind.GAUGE, "How long the last load took.", ("model",)))
    EVICTIONS = ("model_evictions", _About(Kind.COUNTER, "Models unloaded, by why.", ("model", "reason")))
    SWAPS = ("model_swaps", _About(Kind.COUNTER, "Loads that needed another model's memory.", ()))
    RESTARTS = ("engine_restarts", _About(Kind.COUNTER, "Engines started again after they died.", ("model",)))
    STUCK = ("engine_stuck", _About(Kind.COUNTER, "Engines ended because they made no progress.", ("model",)))
    TASKS = ("asyncio_tasks", _About(Kind.GAUGE, "Tasks of the service's event loop.", ()))
    GUARD = ("guard_stage", _About(Kind.GAUGE, "1 for the stage that the guard is at.", ("stage",)))
    MEMORY = (
        "memory_bytes",
        _About(
            Kind.GAUGE, "Memory of a device: planned for engines, measured of them, and free.", ("device", "kind")
        ),
    )

    @property
    def about(self) -> _About:
        """Its kind, help and labels."""
        return self.value[1]

    @property
    def series(self) -> str:
        """Its name, without the ``_total`` that Prometheus gives counters."""
        return f"terazi_{self.value[0]}"


class Figure(NamedTuple):
    """One value. ``labels`` are values for the family's labels, in their order."""

    family: Family
    labels: tuple[str, ...]
    value: float


Source: TypeAlias = Callable[[], Iterable[Figure]]
